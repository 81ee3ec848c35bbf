"""The NVML backend over a stand-in driver, asked from an event loop as a broker would ask it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from grn.devices import open_backend
from grn.devices.nvml import link as links
from grn.devices.nvml.backend import NvmlBackend
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from grn.devices.base import DeviceReading
    from tests.fakenvml.box import Box

Readings = tuple["DeviceReading", ...]


class Cards:
    """An open backend and the loop that drives it."""

    def __init__(self, backend: NvmlBackend) -> None:
        self.backend = backend
        self._loop = asyncio.new_event_loop()

    def ask(self, *, health: bool = False) -> Readings:
        """Ask once and return the answer."""
        return self._loop.run_until_complete(self._ask(health=health))

    async def _ask(self, *, health: bool) -> Readings:
        answer: asyncio.Future[Readings] = self._loop.create_future()
        self.backend.ask(answer.set_result, health=health)
        assert not answer.done(), "answered from within the call"
        return await asyncio.wait_for(answer, PATIENCE_S)

    def ask_together(self, count: int) -> Sequence[Readings]:
        """Ask several times at once, as several clients may cause it."""

        async def together() -> list[Readings]:
            return await asyncio.gather(*(self._ask(health=False) for _ in range(count)))

        return self._loop.run_until_complete(together())

    def until(
        self,
        holds: Callable[[Readings], object],
        always: Callable[[Readings], object] = lambda _: True,
    ) -> Readings:
        """Ask again and again until something holds; something else must hold each time."""
        end = time.monotonic() + PATIENCE_S
        while True:
            readings = self.ask()
            assert always(readings), readings
            if holds(readings):
                return readings
            assert time.monotonic() < end, f"waited in vain; last: {readings}"
            self._loop.run_until_complete(asyncio.sleep(0.01))

    def states(self) -> list[str]:
        """Ask once; return each device's state."""
        return [reading.state for reading in self.ask()]

    def worker_pids(self) -> list[int]:
        """Return the pids of the workers, in the order of the cards, 0 where there is none."""
        nursery = self.backend.nursery

        def pids() -> list[int | None]:
            nursery.heard()
            workers = [link.worker for link in self.backend.links]
            numbers = [worker.number if worker is not None else -1 for worker in workers]
            # Between its fork and the word of it a pid is 0.
            return [nursery.pids[n] or None if n in nursery.pids else 0 for n in numbers]

        eventually(lambda: None not in pids(), what="the zygote tells the pids of workers")
        return [pid or 0 for pid in pids()]

    def close(self) -> None:
        """Give the cards back."""
        self.backend.close()
        self._loop.close()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for what is started meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def opened(
    box: Box,
    *,
    spec: str = "nvml",
    mask: str | None = None,
    deadline_s: float = PATIENCE_S / 2,
    repeat_s: float | None = None,
) -> Iterator[Cards]:
    """Open the cards of a box, closed at the end.

    The deadline is by default one that no busy machine misses; a test of what happens when it is
    missed has a shorter one, and a reading then stands for twice as long, or `repeat_s`.
    """
    with pytest.MonkeyPatch.context() as patch, environment(box.environ):
        patch.setattr(links, "DEADLINE_S", deadline_s)
        if deadline_s < PATIENCE_S / 2:
            patch.setattr(links, "REPEAT_S", repeat_s or 2 * deadline_s)
        backend = open_backend(spec, mask=mask, state_dir=box.folder)
        assert isinstance(backend, NvmlBackend), backend.note
        cards = Cards(backend)
        try:
            yield cards
        finally:
            cards.close()
