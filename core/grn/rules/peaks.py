"""Peaks of runs: the most that a run held on one device, and how that is known.

Sources, from the best to the least: the driver's own accounting, a report from within the job,
samples of what its processes hold, and the rise of a device's total while the job was alone there.
A rank decides between figures that agree; it never hides memory that was seen. Hence the rules:

- Accounting knows the maximum of each process, to the byte and without gaps. Where processes were
  never there together, the largest of them is the peak itself. Where they were, the sum of their
  maxima is only a bound, since they need not coincide: samples count then, and stay within it.
- A report leaves out what the job does not know of (the CUDA context, other processes), and samples
  miss what comes and goes between two looks. Both are lower bounds, so the larger one counts, under
  its own name.
- Memory that was seen is memory used: where samples exceed a figure of a better source, they count.
  They keep their name; a sampled peak is never passed off as an exact one.
- A run whose broker died was watched in part: what it held before, and what its ended processes held,
  is unknown. What it reports itself counts.
- A run that used devices which it was not given has no peak: what was seen on its own is a part of
  its need, or nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from grn.rules.model import Lease

__all__ = [
    "ACCOUNTING",
    "DEVICE_DELTA",
    "IN_PROCESS",
    "SAMPLED",
    "SOURCES",
    "Peak",
    "least_peak_of",
    "peak_of",
]

ACCOUNTING = "accounting"
IN_PROCESS = "in-process"
SAMPLED = "sampled"
DEVICE_DELTA = "device-delta"
SOURCES = (ACCOUNTING, IN_PROCESS, SAMPLED, DEVICE_DELTA)
"""Best first."""


class Peak(NamedTuple):
    """The most that a run held on one device.

    `at` is when the run ended, in seconds since 1970. `censored`: the job met an out-of-memory on
    the way and went on with less, so it would have taken more.
    """

    mib: int
    source: str = SAMPLED
    at: float | None = None
    censored: bool = False


def peak_of(lease: Lease) -> Peak | None:
    """Return the peak of a lease as far as it is known; `None` if it is not."""
    known = least_peak_of(lease)
    if known is None or (lease.unwatched and known.source != IN_PROCESS):
        return None
    sampled = known.source in (SAMPLED, DEVICE_DELTA)
    if sampled and (lease.had_gap or lease.unread_since is not None):
        return None  # it may have been much more while nobody could look
    return known


def least_peak_of(lease: Lease) -> Peak | None:
    """Return the most that a lease is known to have held: its peak, or less; `None` if nothing is."""
    if lease.strays:
        return None
    seen = lease.peak_mib if lease.samples else 0
    recorded, told = lease.accounted_mib, lease.reported_mib
    bound_only = lease.together and (seen or told)
    if recorded and recorded >= seen and not bound_only:
        return Peak(recorded, ACCOUNTING)
    if told and told >= seen:
        return Peak(told, IN_PROCESS)
    return Peak(seen, DEVICE_DELTA if lease.by_delta else SAMPLED) if seen else None
