"""One lease as the history knows it, and its forms for programs.

Pure. `None` is "unknown", or "not yet" for a lease that still runs; its keys in JSON are a promise.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from grn.history.curve import parse_curve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from grn.history.curve import Curve

__all__ = ["COLUMNS", "RUNNING", "Record", "from_row"]

RUNNING = "running"
"""The outcome that a lease is shown with while it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A lease: who asked, what it was booked and took, when, and how it ended.

    Moments (`_at`) are seconds since 1970, durations (`_s`) seconds, memory is in MiB; `booked_mib`
    and `peak_mib` are those of each and of its fullest device.
    """

    seq: int
    id: str
    type: str
    label: str
    uid: int | None
    pid: int | None
    engine: str | None
    policy: str | None
    priority: int | None
    gpus: int | None
    devices: tuple[str, ...]
    booked_mib: int | None
    probe: bool | None
    asked_at: float | None
    granted_at: float | None
    ended_at: float | None
    freed_at: float | None
    waited_s: float | None
    ran_s: float | None
    outcome: str | None
    exit_code: int | None
    signal: int | None
    peak_mib: int | None
    source: str | None
    cpu_s: float | None
    rss_mib: int | None
    curve: Curve | None

    @property
    def running(self) -> bool:
        """Whether nothing is known of its end."""
        return self.ended_at is None and self.outcome is None

    def ran_until(self, now: float) -> float | None:
        """Return how long it ran, or has run until `now`; `None` if nobody knows."""
        if self.ran_s is None and self.running and self.granted_at is not None:
            return max(0.0, now - self.granted_at)
        return self.ran_s

    def as_json(self) -> dict[str, Any]:
        """Return it under the names of its columns; lists where it has several values."""
        plain = {name: getattr(self, name) for name in COLUMNS}
        curve = self.curve
        plain["devices"] = list(self.devices)
        plain["curve"] = [*curve.points, curve.maximum] if curve else None
        return {**plain, "running": self.running}


COLUMNS = tuple(field.name for field in fields(Record))
"""The columns of a record, in the order in which `from_row` takes them."""


def from_row(row: Sequence[Any]) -> Record:
    """Make a record of a row's values, in the order of `COLUMNS`."""
    values: dict[str, Any] = dict(zip(COLUMNS, row, strict=True))
    probe = values["probe"]
    typed = {
        "devices": tuple((values["devices"] or "").split()),
        "probe": None if probe is None else bool(probe),
        "curve": parse_curve(values["curve"]),
    }
    return Record(**{**values, **typed})
