"""What can happen to the machine, and what the broker must do about it.

An event carries its own time: the rules have no clock. An effect is an instruction to the edge;
effects of one step are carried out in order, `Record` before the reply it protects.

Named tuples, not data classes: those take a tenth of a broker's start to make. So two of different kinds are
equal where their values are: ask for the kind, too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.rules.health import HealthFigures
    from grn.rules.model import Device, DeviceState, End, Lease, Owner, Request

__all__ = [
    "Asked",
    "Busy",
    "Cancelled",
    "DiskFailed",
    "DiskHealed",
    "Effect",
    "Event",
    "Found",
    "Granted",
    "Learnt",
    "Left",
    "Lost",
    "MainGone",
    "MpsSeen",
    "OwnerGone",
    "PeakTold",
    "Queued",
    "Reading",
    "Record",
    "Reentered",
    "Refused",
    "Released",
    "Reported",
    "Returned",
    "Said",
    "Sampled",
    "Settle",
    "Started",
    "Trusted",
]

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Asked(NamedTuple):
    """A client wants a lease. Decided at the next `Settle`, with all that arrived beside it."""

    now: float
    request: Request


class Cancelled(NamedTuple):
    """A client no longer wants what it asked for."""

    now: float
    ticket: int


class Started(NamedTuple):
    """A client names the main process of its lease."""

    now: float
    lease: str
    main: Owner


class Released(NamedTuple):
    """A client says that its job has ended, and how."""

    now: float
    lease: str
    end: End
    ticket: int
    main_alive: bool = False
    left_over: tuple[int, ...] = ()
    """Its processes that live, looked for where a device of it does not say what they hold."""
    at: float | None = None
    """The time of day, in seconds since 1970: to be shown, never to be reckoned with."""


class PeakTold(NamedTuple):
    """A process of a lease says what it held at most."""

    now: float
    lease: str
    mib: int


class Left(NamedTuple):
    """A nested job has ended, or its client is gone."""

    now: float
    ticket: int


class OwnerGone(NamedTuple):
    """A lease's owner is proven dead. `main_alive`: its job's main process still lives."""

    now: float
    lease: str
    main_alive: bool
    left_over: tuple[int, ...] = ()
    """All living processes of the lease."""


class MainGone(NamedTuple):
    """The main process of a lease whose owner is gone is proven dead."""

    now: float
    lease: str
    left_over: tuple[int, ...] = ()
    """All living processes of the lease."""


class Returned(NamedTuple):
    """A client is back after its broker's death.

    What it does not claim it never heard of, or has ended meanwhile. `alive`: those of its leases
    whose main process lives. `last`: the number of the newest lease when it came back; it cannot
    have claimed what it was granted since. `left_over`: as with `Released`, by lease.
    """

    now: float
    owner: Owner
    session: str
    claimed: frozenset[str]
    alive: frozenset[str]
    last: int
    left_over: Mapping[str, tuple[int, ...]] = _NOTHING


class Reentered(NamedTuple):
    """A nested job runs on under a new broker."""

    now: float
    ticket: int
    lease: str
    owner: Owner
    mib: int


class Busy(NamedTuple):
    """How busy a device is, in percent of the time; `None`: its driver does not say."""

    percent: int | None
    leases: dict[str, int] | None
    """Lease -> percent in which its processes computed there."""


class Reading(NamedTuple):
    """One look at one device. `None` is "unknown", never 0."""

    uuid: str
    state: DeviceState
    reason: str
    used_mib: int | None
    foreign_mib: int | None
    leases: dict[str, int] | None
    holders: dict[str, tuple[int, ...]]
    strangers: tuple[int, ...] = ()
    """Processes that the driver names and that do not exist here (another pid namespace)."""
    hidden: bool = False
    """Memory is held, and the driver lists nobody who holds it."""
    accounted: Mapping[str, int] = _NOTHING
    """Lease -> MiB: the largest use that the driver recorded of its processes."""
    xids: tuple[int, ...] = ()
    health: HealthFigures | None = None
    busy: Busy | None = None
    """`None`: not looked at this time."""


class Sampled(NamedTuple):
    """All devices were looked at. `left_over`: living processes of leases that drain or ended."""

    now: float
    readings: tuple[Reading, ...]
    left_over: dict[str, tuple[int, ...]]
    late: bool = False
    """The broker itself could not look for longer than `LONGEST_GAP_S` after it should have."""


class Found(NamedTuple):
    """Devices were found that were not there before; those that are known stay as they are.

    `note` is why there are none, or fewer than a mask names, as of now.
    """

    now: float
    devices: tuple[Device, ...]
    note: str = ""


class Trusted(NamedTuple):
    """An operator says that devices which are kept back were looked after."""

    now: float


class Settle(NamedTuple):
    """Decide what can be granted now."""

    now: float
    at: float | None = None
    """The time of day, in seconds since 1970: to be shown, never to be reckoned with."""


class DiskFailed(NamedTuple):
    """The journal could not keep these grants: they must not be given out.

    `lasting`: it can keep none now; else it is the record of these that no journal can hold.
    """

    now: float
    leases: tuple[str, ...]
    reason: str
    lasting: bool = True


class DiskHealed(NamedTuple):
    """The journal can be written again."""

    now: float


class MpsSeen(NamedTuple):
    """A daemon of NVIDIA's Multi-Process Service answers in this folder, or none does any more ("").

    `uid` is whose it is: it serves nobody else, unless it is root's.
    """

    now: float
    folder: str
    uid: int = 0


Event = (
    Asked
    | Cancelled
    | Started
    | Released
    | Left
    | PeakTold
    | OwnerGone
    | MainGone
    | Returned
    | Reentered
    | Sampled
    | Found
    | Trusted
    | Settle
    | DiskFailed
    | DiskHealed
    | MpsSeen
)


class Granted(NamedTuple):
    """Tell the client of `ticket` that it holds `lease`."""

    ticket: int
    lease: Lease
    nested: Request | None = None
    """What was asked inside this lease; `None`: the lease is its own."""


class Refused(NamedTuple):
    """Tell the client of `ticket` that it will not get what it asked for."""

    ticket: int
    code: str
    message: str
    request: Request | None = None
    """What was asked for; `None`: it was a release that is refused."""


class Queued(NamedTuple):
    """Tell the client of `ticket` that it waits, and why."""

    ticket: int
    reason: str
    request: Request | None = None


class Reported(NamedTuple):
    """Answer a release: how the job ended in the books' view."""

    ticket: int
    lease: Lease
    outcome: str
    peak_mib: int | None
    source: str | None
    draining: bool
    remedy: str
    """What a retry needs after it died of device memory, a name of `outcome`; "" if it did not."""
    next_mib: int | None
    notes: tuple[str, ...]
    end: End
    """What its client said of the end."""


class Lost(NamedTuple):
    """Nobody saw how the job of this lease ended: its owner is gone, or never heard of it."""

    lease: Lease
    peak_mib: int | None
    source: str | None
    draining: bool


class Record(NamedTuple):
    """Write this to the journal before anything later in the list is carried out.

    `started`: a client has named the main process of its lease.
    """

    record: dict[str, object]
    started: bool = False


class Learnt(NamedTuple):
    """The profile under this key changed: keep it."""

    type: str
    device_model: str


class Said(NamedTuple):
    """Write one line to the log."""

    level: str
    text: str


Effect = Granted | Refused | Queued | Reported | Lost | Record | Learnt | Said
