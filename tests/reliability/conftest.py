"""A broker in the test's own process, on a simulated machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.reliability.rig import Rig, installed
from tests.reliability.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def rig() -> Iterator[Rig]:
    """Bring a broker up, with two devices of 16000 MiB."""
    world = World((16000, 16000))
    with installed(world):
        made = Rig(world)
        made.start()
        yield made
