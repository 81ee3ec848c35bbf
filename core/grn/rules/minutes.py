"""What devices held and what was lost, summed up by the minute from looks at the books.

Between two looks the first one holds. A minute is told when it is over, so each is told once, unless
the broker ends within it. What nobody can say (`None`) for any part of a minute is unknown for it.

Must not: read a clock; times of day and durations are given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from grn.rules.ledger import Book

__all__ = ["Minutes", "Told", "held_now"]

_MINUTE_S = 60.0

Held = tuple[int, int | None, int | None, int | None]
"""On one device: MiB booked, measured, foreign; percent of the time in which it was busy."""


@dataclass(slots=True)
class Told:
    """Minutes that are over.

    `usage` is (at, uuid, booked, measured, foreign, utilisation), means over the time in which anything was held;
    `lost` is (at, cause, MiB times seconds).
    """

    usage: list[tuple[float, str, float, float | None, float | None, float | None]] = field(
        default_factory=list
    )
    lost: list[tuple[float, str, float]] = field(default_factory=list)


def held_now(books: Iterable[Book]) -> dict[str, Held]:
    """Return what each device holds on which there is a lease."""
    found: dict[str, Held] = {}
    for book in books:
        bookings = book.bookings.values()
        if bookings:
            unseen = any(booking.unseen for booking in bookings)
            found[book.device.uuid] = (
                book.booked_mib,
                None if unseen else book.measured_mib,
                book.foreign_mib if book.usage_known else None,
                book.utilisation,
            )
    return found


class Minutes:
    """Adds up, device by device and cause by cause, and lets minutes go that are over."""

    def __init__(self) -> None:
        self._held: Mapping[str, Held] = {}
        self._lost: Mapping[str, int] = {}
        self._at: float | None = None
        self._usage: dict[tuple[float, str], list[float | None]] = {}
        self._losses: dict[tuple[float, str], float] = {}

    def look(
        self,
        at: float,
        held: Mapping[str, Held],
        lost: Mapping[str, int],
        *,
        after_s: float = float("inf"),
    ) -> Told:
        """Take in how it is now, at this time of day; return the minutes that are over.

        `after_s` is how long ago the look before was: less than the time of day says, where that
        was set or the machine has slept.
        """
        if self._at is not None and (self._held or self._lost):
            self._add(max(self._at, at - after_s), at)
        self._at, self._held, self._lost = at, held, lost
        return self._over(at - at % _MINUTE_S)

    def close(self) -> Told:
        """Return what is left, the minute that is not over as well."""
        return self._over(float("inf"))

    def _add(self, begin: float, end: float) -> None:
        """Count what was held from `begin` to `end`; a clock that was set back counts nothing."""
        while begin < end:
            minute = begin - begin % _MINUTE_S
            until = min(end, minute + _MINUTE_S)
            seconds = until - begin
            for uuid, values in self._held.items():
                sums = self._usage.setdefault((minute, uuid), [0.0, 0.0, 0.0, 0.0, 0.0])
                _weigh(sums, (1, *values), seconds)
            for cause, mib in self._lost.items():
                if mib:
                    key = (minute, cause)
                    self._losses[key] = self._losses.get(key, 0.0) + mib * seconds
            begin = until

    def _over(self, before: float) -> Told:
        told = Told()
        for key in [key for key in self._usage if key[0] < before]:
            seconds, booked, *others = self._usage.pop(key)
            if seconds and booked is not None:
                measured, foreign, busy = (None if x is None else x / seconds for x in others)
                told.usage.append((*key, booked / seconds, measured, foreign, busy))
        for key in [key for key in self._losses if key[0] < before]:
            told.lost.append((*key, self._losses.pop(key)))
        return told


def _weigh(sums: list[float | None], values: tuple[int | None, ...], seconds: float) -> None:
    for n, value in enumerate(values):
        known = sums[n]
        sums[n] = None if known is None or value is None else known + value * seconds
