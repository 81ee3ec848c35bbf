"""Many seeds, on all cores, each day on its own; a seed that fails says how to see it again."""

from __future__ import annotations

import gc
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING

from tests.reliability.simulation import Day, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["EVENTS", "Result", "replay_command", "sweep", "sweep_aside", "why_it_fails"]

EVENTS = 500
_DAYS_BETWEEN_COLLECTIONS = 50
_NICE = 5


@dataclass
class Result:
    """What came of some seeds. `failed`: seed -> what went wrong."""

    seeds: int = 0
    events: int = 0
    grants: int = 0
    deaths: int = 0
    checks: int = 0
    cpu_s: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)

    def add(self, other: Result) -> None:
        """Sum up."""
        self.seeds += other.seeds
        self.events += other.events
        self.grants += other.grants
        self.deaths += other.deaths
        self.checks += other.checks
        self.cpu_s += other.cpu_s
        self.failed |= other.failed

    def text(self) -> str:
        """Say it in one line."""
        return (
            f"{self.seeds} seeds, {self.events} events, {self.grants} grants, {self.deaths} deaths of"
            f" a broker, {self.checks} checks of the books, {len(self.failed)} seeds failed,"
            f" {self.cpu_s:.0f} s of a core"
        )


def replay_command(seed: int, events: int) -> str:
    """Return the command that shows a seed again."""
    return f"python -m tests.reliability --seed {seed} --events {events}"


def why_it_fails(story: Sequence[int]) -> BaseException | None:
    """Act a story out; return what it raised."""
    try:
        Day(story).run()
    except Exception as error:  # noqa: BLE001 - whatever the broker raises is what is looked for
        return error
    return None


def sweep(seeds: Iterable[int], events: int = EVENTS) -> Result:
    """Act the days of these seeds out, in this process."""
    result = Result()
    began = time.process_time()
    collects = gc.isenabled()
    gc.disable()  # the collector takes a tenth of the time, and a day leaves little behind
    try:
        for seed in seeds:
            day = Day(numbers(seed, events))
            try:
                day.run()
            except Exception as error:  # noqa: BLE001 - as above
                result.failed[seed] = f"{type(error).__name__}: {error}"
            result.seeds += 1
            result.events += events
            result.grants += day.oracle.grants
            result.deaths += day.deaths
            result.checks += day.oracle.checked
            if result.seeds % _DAYS_BETWEEN_COLLECTIONS == 0:
                gc.collect()
    finally:
        if collects:
            gc.enable()
    result.cpu_s = time.process_time() - began
    return result


def sweep_aside(seeds: Iterable[int], events: int = EVENTS) -> Result:
    """Act the days out in a process of its own, which lets whoever else wants the core go first."""
    with ProcessPoolExecutor(1, get_context("fork"), os.nice, (_NICE,)) as pool:
        return pool.submit(sweep, seeds, events).result()


def sweep_on_all_cores(first: int, count: int, events: int, cores: int | None = None) -> Result:
    """Act out many; the whole result, as each part comes in."""
    cores = cores or os.cpu_count() or 1
    size = max(1, min(500, count // (4 * cores)))
    parts = [range(at, min(at + size, first + count)) for at in range(first, first + count, size)]
    result = Result()
    with ProcessPoolExecutor(cores) as pool:
        for part in pool.map(sweep, parts, [events] * len(parts)):
            result.add(part)
    return result
