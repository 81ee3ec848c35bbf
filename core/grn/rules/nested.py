"""Jobs that a job starts: they share the lease that it runs in, and are booked inside it.

A client inside a live lease gets that lease: waiting for another one could wait for itself. What
nested jobs declare is added up, so that three jobs of 4 GiB in a lease of 4 GiB run one after the
other; one that declares nothing shares what its outer job has, as its threads would. A job that a
nested job starts is booked inside that one, found by its ancestors, for the same reason.

A hold ends when its client says so or goes away; its outer lease is kept until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.rules.model import Lease, Owner, Request

__all__ = ["Hold", "NestedBook"]


@dataclass(frozen=True, slots=True)
class Hold:
    """One nested job: `mib` on each device, taken inside what the process `inside` holds."""

    lease: str
    owner: Owner
    mib: int
    inside: int | None


class NestedBook:
    """What nested jobs take of the leases that they run in. Keys are tickets."""

    def __init__(self) -> None:
        self.holds: dict[int, Hold] = {}
        self.waiting: dict[int, Request] = {}

    def held(self, lease: str) -> bool:
        """Whether a nested job runs in the lease."""
        return any(hold.lease == lease for hold in self.holds.values())

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
        inside = self._inside(request)
        taken = sum(hold.mib for hold in self._beside(outer.id, inside))
        if not mib or taken + mib <= limit:
            return None
        return (
            f"{mib} MiB wanted inside lease {outer.id}, {max(0, limit - taken)} of {limit} MiB free"
            " beside the other jobs in it"
        )

    def take(self, request: Request, outer: Lease) -> None:
        """Book a request that fits."""
        mib = self._mib(request, outer)
        hold = Hold(outer.id, request.owner, mib, self._inside(request))
        self.holds[request.ticket] = hold

    def forget_lease(self, lease: str) -> None:
        """Drop the holds of a lease that has ended."""
        for ticket in [t for t, hold in self.holds.items() if hold.lease == lease]:
            del self.holds[ticket]

    def _beside(self, lease: str, inside: int | None) -> Iterator[Hold]:
        """List what is taken at one level; what lost the job it was inside of counts at the top."""
        here = [hold for hold in self.holds.values() if hold.lease == lease]
        owners = {hold.owner.pid for hold in here}
        return (h for h in here if (h.inside if h.inside in owners else None) == inside)

    def _inside(self, request: Request) -> int | None:
        """Find the nearest ancestor that declared a nested job's size; `None`: the outer job."""
        owners = {h.owner.pid for h in self.holds.values() if h.lease == request.outer and h.mib}
        return next((pid for pid in request.ancestors if pid in owners), None)

    def _limit(self, request: Request, outer: Lease) -> int:
        inside = self._inside(request)
        if inside is None:
            return outer.booked_mib
        return sum(
            hold.mib
            for hold in self.holds.values()
            if hold.lease == outer.id and hold.owner.pid == inside
        )

    def _mib(self, request: Request, outer: Lease) -> int:
        if not request.gpus:
            return 0
        return self._limit(request, outer) if request.whole else request.memory_mib or 0
