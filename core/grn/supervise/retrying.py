"""Whether a job that ran out of device memory runs again, and with what.

    more, and more again  ->  alone on the largest device  ->  told what was tried

After three tries it runs alone, earlier when no device has room for more or when it is the last retry
that is allowed and not the first one. Where others had taken what was booked, it asks for the same.

Must not ask or tell anybody anything.
"""

from __future__ import annotations

from grn.rules.outcome import MORE, SAME
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from grn.supervise.job import Job

    class Tries(Protocol):
        """What a decision needs of a job: how often it has run, and its request."""

        tries: int
        request: dict[str, Any]


__all__ = ["following", "note_attempt", "tried"]

_TRIES_BESIDE_OTHERS = 3
# Packed, it would get the smallest device where the largest one cannot be asked for.
_ALONE = {"memory_mib": "whole", "largest": True, "policy": "spread"}


def following(
    job: Tries, *, retries: int, remedy: str, next_mib: int | None
) -> dict[str, Any] | None:
    """Return what to change in the request for another try; None if there shall be none.

    `next_mib` is what the broker would book next; None if no device has so much.
    """
    left = retries - (job.tries - 1)
    if left <= 0 or remedy not in {MORE, SAME}:
        return None
    if remedy == SAME:
        return {}
    if job.request.get("largest"):
        return None
    is_last = left == 1 and job.tries > 1
    if next_mib is None or is_last or job.tries >= _TRIES_BESIDE_OTHERS:
        return dict(_ALONE)
    return {"memory_mib": next_mib}


def note_attempt(job: Job) -> None:
    """Keep what a try was booked and how it ended."""
    job.attempts.append(
        {
            "booked_mib": job.grant.get("memory_mib"),
            "whole": bool(job.grant.get("whole") or job.grant.get("probe")),
            "devices": [device["index"] for device in job.devices],
            "outcome": job.outcome,
        }
    )


def tried(job: Job) -> str:
    """Tell all tries of a job, with bookings and outcomes, in one line."""
    told = ", ".join(_told(attempt) for attempt in job.attempts)
    return f"tried {len(job.attempts)} times: {told}"


def _told(attempt: dict[str, Any]) -> str:
    numbers = ", ".join(map(str, attempt["devices"]))
    place = f" on device{'s' if len(attempt['devices']) > 1 else ''} {numbers}" if numbers else ""
    booked = attempt["booked_mib"]
    size = "without a booking" if booked is None else format_mib(booked)
    alone = " alone" if attempt["whole"] else ""
    return f"{size}{alone}{place} ({attempt['outcome']})"
