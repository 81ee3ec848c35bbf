"""Whether so many jobs at once are asked for that they crowd each other out. Pure.

Promises: a warning, never a clamp: jobs that mostly wait for a device or a disk may well outnumber the
cores, and who says so knows it better.
"""

from __future__ import annotations

__all__ = ["crowding"]

_FAR_PAST = 4


def crowding(jobs_at_once: int | None, cores: int) -> str | None:
    """Return a warning if `jobs_at_once` is far past the cores, each job then having one thread."""
    if jobs_at_once is None or jobs_at_once <= _FAR_PAST * cores:
        return None
    return (
        f"jobs_at_once is {jobs_at_once}, more than {_FAR_PAST} times the {cores} usable CPU"
        f" core{'s' if cores > 1 else ''}: jobs that compute at the same time will slow each other"
        f" down; {cores} gives each a core of its own"
    )
