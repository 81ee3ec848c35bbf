"""Fixtures for the tests of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.devices.simspec import parse_spec
from grn.devices.simulated import SimulatedBackend
from tests.devices.machines import Jobs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.devices.machines import OpenSim


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[OpenSim]:
    """Open simulated machines, closed at the end of the test."""
    opened: list[SimulatedBackend] = []

    def open_sim(text: str, *, mask: str | None = None) -> SimulatedBackend:
        backend = SimulatedBackend(parse_spec(text), masks=(mask,), state_dir=str(tmp_path))
        opened.append(backend)
        return backend

    yield open_sim
    for backend in opened:
        backend.close()


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    """Start stand-in jobs, ended with the test."""
    started = Jobs(tmp_path)
    yield started
    started.kill()
