"""`grn top` on a real terminal, in an environment of the test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.top.terminal import Terminal, grn_top

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv


@pytest.fixture
def env(new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """A broker with two simulated devices."""
    return new_env("sim:2x10000MiB")


@pytest.fixture
def top(env: BrokerEnv) -> Iterator[Callable[..., Terminal]]:
    """Return a function that starts `grn top` with some words on a terminal."""
    opened: list[Terminal] = []

    def start(*words: str, environ: dict[str, str] | None = None, **size: Any) -> Terminal:
        command = grn_top("--every", "0.1s", *words)
        opened.append(Terminal(command, {**env.environ, **(environ or {})}, **size))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()
