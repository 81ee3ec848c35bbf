"""Stand-in jobs as commands, and the diary that they keep of what they held and when."""

from __future__ import annotations

import shlex
import sys
from collections import defaultdict
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Diary", "Hold", "line", "most_at_once", "touch", "words"]


def words(*args: str) -> list[str]:
    """Return the words that run a stand-in job."""
    return [sys.executable, "-m", "grn.testing.job", *args]


def line(*args: str) -> str:
    """Return the same as one line for a shell."""
    return shlex.join(words(*args))


class Hold(NamedTuple):
    """Memory that one process held on one device, on the monotonic clock."""

    pid: int
    device: str
    mib: int
    from_s: float
    to_s: float


class Diary:
    """What jobs with `--log` wrote down. A job's last entry comes before it gives memory back."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.option = f"--log={path}"

    def entries(self) -> list[tuple[float, int, list[str]]]:
        """Return (time, process, words) of each entry so far."""
        try:
            with open(self.path, encoding="utf-8") as file:
                lines = [text.split() for text in file.read().split("\n")[:-1]]
        except FileNotFoundError:
            return []
        return [(float(at), int(pid.partition("=")[2]), rest) for at, pid, *rest in lines]

    def holds(self) -> list[Hold]:
        """Return who held what from when to when; what has no end goes on for ever."""
        done: list[Hold] = []
        at_present: dict[tuple[int, str], Hold] = {}
        for at_s, pid, entry in self.entries():
            if entry[0] not in {"hold", "end"}:
                continue
            if entry[0] == "hold":
                device, mib = (word.partition("=")[2] for word in entry[1:3])
                ended, begun = [(pid, device)], Hold(pid, device, int(mib), at_s, inf)
            else:
                ended, begun = [key for key in at_present if key[0] == pid], None
            done += [at_present.pop(key)._replace(to_s=at_s) for key in ended if key in at_present]
            if begun is not None:
                at_present[pid, begun.device] = begun
        return done + list(at_present.values())

    def wait_for_holds(self, count: int) -> list[Hold]:
        """Wait until so many holds were written down."""
        return eventually(
            lambda: len(holds := self.holds()) >= count and holds, what=f"{count} holds"
        )

    def most_by_device(self) -> dict[str, int]:
        """Return the most processes that held memory of each device at one moment."""
        by_device: dict[str, list[Hold]] = defaultdict(list)
        for hold in self.holds():
            by_device[hold.device].append(hold)
        return {device: most_at_once(holds) for device, holds in by_device.items()}


def most_at_once(holds: Iterable[Hold]) -> int:
    """Return the largest number of holds that existed at one moment."""
    changes = sorted([(hold.from_s, 1) for hold in holds] + [(hold.to_s, -1) for hold in holds])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def touch(path: str) -> None:
    """Create a file, for which jobs wait."""
    with open(path, "w", encoding="ascii"):
        pass
