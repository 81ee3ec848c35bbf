"""The queue as people and programs see it: the list, what the broker says of it, and what to expect.

Promises: looking never starts a broker, and works without one; what is not known is left out, not made
up.
"""

from __future__ import annotations

import time

from grn.client import Client
from grn.errors import UNREACHABLE
from grn.queue.lock import owner_of
from grn.queue.store import Store
from grn.rules import queueing as q

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.queue.entry import Entry
    from grn.queue.places import Places
    from grn.settings import Settings

__all__ = ["job_now", "job_object", "queue_object"]

RECENT = 10


class _Books:
    """What the broker knows of the queue's jobs; nothing if there is none."""

    def __init__(self, settings: Settings, *, wanted: bool) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.waiters: dict[int, str] = {}
        self.durations_s: dict[str, list[float]] = {}
        if not wanted:
            return
        try:
            with Client(settings) as client:
                status = client.status()
                profiles = client.profiles()
        except UNREACHABLE:
            return
        self.leases = {lease["id"]: lease for lease in status["leases"]}
        self.waiters = {waiter["pid"]: waiter["reason"] for waiter in status["waiters"]}
        for profile in profiles:
            self.durations_s.setdefault(profile["type"], []).extend(profile["durations_s"])

    def expected_s(self, job_type: str) -> float | None:
        """How long jobs of this type take: the median of those that were seen."""
        seen = sorted(self.durations_s.get(job_type, ()))
        return seen[len(seen) // 2] if seen else None


def queue_object(
    places: Places, settings: Settings, *, everything: bool = False, most: int = -1
) -> dict[str, Any]:
    """Describe the queue for programs: who works it off, and its jobs.

    Args:
        places: of the queue.
        settings: to find the broker.
        everything: all that has ended, not only the last few.
        most: so many of those that are queued or held; -1: all.
    """
    with Store(places) as store:
        store.hold_still()
        active = store.entries((q.RUNNING, q.WAITING, q.STARTING))
        queued = store.entries((q.QUEUED, q.HELD), limit=most)
        over = store.recent(-1 if everything else RECENT)
        controls = store.controls()
        counts = store.counts()
    running = [entry for entry in active if entry.state == q.RUNNING]
    ahead = [entry for entry in active if entry.state != q.RUNNING]
    books = _Books(settings, wanted=bool(active))
    owner = owner_of(places)
    seen: dict[str, Any] = {
        "schema": 1,
        "owner": owner,
        "mode": controls.get("mode") if owner is not None else None,
        "paused": controls.get("paused") == "1",
        "limit": int(controls.get("limit") or 0) or None,
        "counts": counts,
    }
    why = _why_queued(seen, running, ahead)
    waiting = sorted([*ahead, *queued], key=lambda entry: entry.place)
    jobs = [job_object(entry, books) for entry in running]
    jobs += [
        job_object(entry, books, position=position, why=why)
        for position, entry in enumerate(waiting, 1)
    ]
    jobs += [job_object(entry, books) for entry in reversed(over)]
    return {**seen, "jobs": jobs}


def _why_queued(seen: Mapping[str, Any], running: Sequence[Entry], ahead: Sequence[Entry]) -> str:
    """Say why what is queued has not asked the broker."""
    if seen["owner"] is None:
        return "nobody works the queue off"
    if seen["paused"]:
        return "the queue is paused"
    if seen["limit"] and len(running) + len(ahead) >= seen["limit"]:
        return (
            f"{len(running) + len(ahead)} run or wait at the broker, the limit is {seen['limit']}"
        )
    if ahead:
        return f"behind {len(ahead)} that wait at the broker"
    return ""


def job_now(entry: Entry, settings: Settings) -> dict[str, Any]:
    """Describe one job for programs, with what the broker says of it."""
    return job_object(entry, _Books(settings, wanted=entry.state in q.ACTIVE))


def job_object(
    entry: Entry, books: _Books | None = None, *, position: int | None = None, why: str = ""
) -> dict[str, Any]:
    """Describe one job for programs."""
    result = entry.result
    lease = books.leases.get(result.get("lease") or "") if books is not None else None
    now = time.time()
    ran_s = result.get("ran_s")
    if entry.state == q.RUNNING and entry.started_s is not None:
        ran_s = max(0.0, now - entry.started_s)
    expected_s = books.expected_s(result.get("type", "")) if books and ran_s is not None else None
    return {
        "id": entry.id,
        "name": entry.name,
        "state": q.QUEUED if entry.state == q.STARTING else entry.state,
        "position": position,
        "reason": _reason(entry, books, why),
        "priority": entry.priority,
        "command": entry.spec.command,
        "notebook": entry.spec.notebook,
        "cwd": entry.spec.cwd,
        "options": entry.spec.options,
        "after": entry.spec.after,
        "type": result.get("type"),
        "devices": result.get("devices", []),
        "indexes": result.get("indexes", []),
        "booked_mib": result.get("booked_mib"),
        "peak_mib": lease["peak_mib"] if lease is not None else result.get("peak_mib"),
        "measured_mib": lease["measured_mib"] if lease is not None else None,
        "probe": bool(result.get("probe")),
        "added_s": entry.added_s,
        "started_s": entry.started_s,
        "ended_s": entry.ended_s,
        "ran_s": round(ran_s, 3) if ran_s is not None else None,
        "left_s": _left(entry, ran_s, expected_s),
        "exit_code": entry.exit_code,
        "signal": result.get("signal"),
        "outcome": result.get("outcome") or None,
        "text": result.get("text") or entry.reason or None,
        "notes": result.get("notes", []),
        "last_words": result.get("last_words") or None,
        "tries": result.get("tries", 0),
        "retried_as": entry.retried_as,
        "runner": entry.runner[0] if entry.runner is not None else None,
        "pid": result.get("pid"),
        "log": entry.log or None,
        "log_incomplete": bool(result.get("log_incomplete")),
    }


def _left(entry: Entry, ran_s: float | None, expected_s: float | None) -> float | None:
    """Seconds until it is expected to end, where its type is known."""
    if entry.state != q.RUNNING or ran_s is None or expected_s is None:
        return None
    return round(max(0.0, expected_s - ran_s), 1)


def _reason(entry: Entry, books: _Books | None, why: str) -> str | None:
    """Why a job waits, as of now."""
    if entry.state == q.WAITING:
        pid = entry.runner[0] if entry.runner is not None else 0
        said = books.waiters.get(pid) if books is not None else None
        return said or entry.reason or "it has asked the broker"
    if entry.state == q.HELD:
        return "held until `grn queue release`"
    if entry.state in (q.QUEUED, q.STARTING) and entry.spec.after:
        numbers = ", ".join(map(str, entry.spec.after))
        return f"to run after {numbers}"
    if entry.state == q.QUEUED:
        return entry.reason or why or None
    return entry.reason or None
