"""What the tests of the doit adapter share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.doit.dodofolder import DodoFolder
from tests.doit.project import Project

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv


@pytest.fixture
def dodos(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[DodoFolder]:
    """Return a folder for a dodo file, and a broker with two simulated devices of 8000 MiB."""
    yield from _made(new_env("sim:2x8000MiB"), tmp_path)


@pytest.fixture
def roomy_dodos(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[DodoFolder]:
    """Return one with room for many tasks at once."""
    yield from _made(new_env("sim:4x80000MiB"), tmp_path)


@pytest.fixture
def project(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[Project]:
    """Return a folder whose dodo file is also looked at with plain doit."""
    made = Project(new_env("sim:2x8000MiB"), tmp_path / "project")
    yield made
    made.close()


def _made(env: BrokerEnv, tmp_path: Path) -> Iterator[DodoFolder]:
    folder = tmp_path / "dodos"
    folder.mkdir()
    dodos = DodoFolder(env, folder)
    yield dodos
    dodos.close()
