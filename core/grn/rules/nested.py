"""Jobs that a job starts: they share the lease that it runs in, and are booked inside it.

A client inside a live lease gets that lease: waiting for another one could wait for itself. What
nested jobs declare is added up, so that three jobs of 4 GiB in a lease of 4 GiB run one after the
other; one that declares nothing shares what its outer job has, as its threads would. A job that a
nested job starts is booked inside that one, for the same reason: found by its ancestors, or, where it
is a call within a call of one process, named by its client.

A hold ends when its client says so or goes away; its outer lease is kept until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.rules.model import Lease, Owner, Request

__all__ = ["Hold", "NestedBook"]

_Level = tuple[int | None, int | None]
"""A hold, by its ticket, or else a process that holds something; neither: the outer job."""


class Hold(NamedTuple):
    """One nested job: `mib` on each device, taken inside what the process `inside` holds.

    `within`: the hold, by its ticket, of the same process inside of which it is taken instead.
    """

    lease: str
    owner: Owner
    mib: int
    inside: int | None
    within: int | None = None


class NestedBook:
    """What nested jobs take of the leases that they run in. Keys are tickets."""

    def __init__(self) -> None:
        self.holds: dict[int, Hold] = {}
        self.waiting: dict[int, Request] = {}

    def held(self, lease: str) -> bool:
        """Whether a nested job runs in the lease."""
        return any(hold.lease == lease for hold in self.holds.values())

    def used(self, lease: str) -> bool:
        """Whether nested jobs run in the lease, or wait there for room that it was said to have."""
        return self.held(lease) or any(x.outer == lease for x in self.waiting.values())

    def impossible(self, request: Request, outer: Lease) -> str | None:
        """Say why the request can never be met inside `outer`, with numbers; `None` if it can."""
        gpus = request.gpus or 0
        if gpus and not outer.uuids:
            return f"inside lease {outer.id}, which has no device: ask for one in the outer request"
        limit = self._limit(request, outer)
        mib = self._mib(request, outer) or 0
        if gpus > len(outer.uuids) or mib > limit:
            return (
                f"inside lease {outer.id}, which has {len(outer.uuids)} device(s) with"
                f" {limit} MiB each: {gpus} with {mib} MiB cannot be added; ask for"
                " more in the outer request"
            )
        return None

    def wait_reason(self, request: Request, outer: Lease) -> str | None:
        """Say why the request must wait for other nested jobs; `None` if there is room now."""
        mib = self._mib(request, outer)
        limit = self._limit(request, outer)
        taken = sum(hold.mib for hold in self._beside(outer.id, self._level(request)))
        if not mib or taken + mib <= limit:
            return None
        return (
            f"{mib} MiB wanted inside lease {outer.id}, {max(0, limit - taken)} of {limit} MiB free"
            " beside the other jobs in it"
        )

    def take(self, request: Request, outer: Lease) -> None:
        """Book a request that fits."""
        mib = self._mib(request, outer)
        within, inside = self._level(request)
        self.holds[request.ticket] = Hold(outer.id, request.owner, mib, inside, within)

    def forget_lease(self, lease: str) -> None:
        """Drop the holds of a lease that has ended."""
        for ticket in [t for t, hold in self.holds.items() if hold.lease == lease]:
            del self.holds[ticket]

    def _beside(self, lease: str, level: _Level) -> Iterator[Hold]:
        """List what is taken at one level; what lost the job it was inside of counts at the top."""
        here = [hold for hold in self.holds.values() if hold.lease == lease]
        owners = {hold.owner.pid for hold in here}
        for hold in here:
            within = hold.within if hold.within in self.holds else None
            above = hold.inside if hold.inside in owners and within is None else None
            if (within, above) == level:
                yield hold

    def _level(self, request: Request) -> _Level:
        """Find what the request is taken inside of."""
        within = self._within(request)
        return within, self._inside(request) if within is None else None

    def _within(self, request: Request) -> int | None:
        """Find the call of the same process that this one is made in and that declared a size."""
        hold = None if request.within is None else self.holds.get(request.within)
        if hold is None or hold.lease != request.outer:
            return None
        return request.within if hold.mib else hold.within

    def _inside(self, request: Request) -> int | None:
        """Find the nearest ancestor that declared a nested job's size; `None`: the outer job."""
        owners = {h.owner.pid for h in self.holds.values() if h.lease == request.outer and h.mib}
        return next((pid for pid in request.ancestors if pid in owners), None)

    def _limit(self, request: Request, outer: Lease) -> int:
        within, inside = self._level(request)
        if within is not None:
            return self.holds[within].mib
        if inside is None:
            return outer.booked_mib
        return sum(
            hold.mib
            for hold in self.holds.values()
            if hold.lease == outer.id and hold.owner.pid == inside and hold.within not in self.holds
        )

    def _mib(self, request: Request, outer: Lease) -> int:
        if not request.gpus:
            return 0
        return self._limit(request, outer) if request.whole else request.memory_mib or 0
