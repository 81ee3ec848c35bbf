"""The nouns of the books: devices, requests, leases, and how a run ended.

Plain data without behaviour that needs a clock or the outside world. Memory is in MiB, times are
seconds on the monotonic clock of whoever drives the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = [
    "LONGEST_GAP_S",
    "Device",
    "DeviceState",
    "End",
    "Lease",
    "LeaseState",
    "Owner",
    "Policy",
    "Request",
]


LONGEST_GAP_S = 2.0
"""Unread for longer than between two looks at the slow pace, and a peak may have passed unseen."""


class Policy(StrEnum):
    """Which of the fitting devices is chosen: the one with most room, or with least."""

    SPREAD = "spread"
    PACK = "pack"


class DeviceState(StrEnum):
    """Whether a device can be leased: read well, not read lately, gone, or not to be trusted."""

    OK = "ok"
    STALE = "stale"
    LOST = "lost"
    UNHEALTHY = "unhealthy"


class LeaseState(StrEnum):
    """`PROBE`: alone and measured. `DRAINING`: ended, but its processes still hold memory."""

    PROBE = "probe"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Device:
    """One thing that a job can be given, known by its full UUID."""

    uuid: str
    index: int
    model: str
    total_mib: int
    reserve_mib: int = 0
    headroom_mib: int = 0
    one_process: bool = False
    shares_ram: bool = False
    """Its memory is the host's RAM: what is booked here is booked there, too."""
    parent: str | None = None
    """Of a MIG slice: the card's UUID."""
    bus_id: str | None = None
    links: tuple[tuple[str, int], ...] = ()
    """(UUID, distance) of other devices, where the driver tells; see `topology`."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """What its driver could be asked, as (query, answer): for people, nothing decides by it."""
    capacity_mib: int = field(init=False)
    """MiB that may be handed out when nobody else uses the device."""

    def __post_init__(self) -> None:
        capacity = max(0, self.total_mib - self.reserve_mib - self.headroom_mib)
        object.__setattr__(self, "capacity_mib", capacity)


class Owner(NamedTuple):
    """The process that holds a lease: a pid is only a name together with its start time."""

    pid: int
    start: int
    uid: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Request:
    """A wish. Nobody changes one, though nothing forbids it: `frozen` costs several us for each.

    `gpus=None` wants no device and no mask; `gpus=0` wants an empty mask.

    `memory_mib` is per device; `None` means "what was learnt". `allowed` narrows the devices to
    those that the client's own mask names. `ticket` is the broker's name for the request, `session`
    the client's name for itself, `cores` how many the client may use if it is bound to some.
    `in_process`: the client uses the device itself, no other process will be named. `ancestors`: pids
    above the client, the nearest first, known of one inside a lease. `largest`: only the largest
    devices will do. `compute`: percent of each device's multiprocessors; `processes`: how many
    processes of the job use a device, each of which has limits of its own. `affinity`: it wants cores
    of its own, out of `core_ids` if the client may use those alone. `within`: the nested job, by its
    ticket, of the same process in which this one is asked for. `engine`: what made the request (`run`,
    `doit` ...), to be shown.
    """

    ticket: int
    type: str
    owner: Owner
    label: str = ""
    gpus: int | None = 1
    memory_mib: int | None = None
    whole: bool = False
    policy: str = Policy.SPREAD
    cpus: int | None = None
    ram_mib: int | None = None
    priority: int = 0
    allowed: frozenset[str] | None = None
    outer: str | None = None
    session: str = ""
    cores: int | None = None
    ancestors: tuple[int, ...] = ()
    arrived_s: float = 0.0
    in_process: bool = False
    largest: bool = False
    compute: int | None = None
    processes: int = 1
    affinity: bool = False
    core_ids: frozenset[int] | None = None
    within: int | None = None
    engine: str = ""
    group: str = ""
    """The name of the group with which it starts; "" if it starts alone."""
    group_size: int = 1

    @property
    def shape(self) -> tuple[object, ...]:
        """What decides whether it fits: requests of one shape fit, or do not, together."""
        return (
            self.type,
            self.gpus,
            self.memory_mib,
            self.whole,
            self.policy,
            self.cpus,
            self.ram_mib,
            self.allowed,
            self.largest,
            self.compute,
            (self.owner.uid, self.group) if self.group else None,
        )


class End(NamedTuple):
    """How the client says that a job ended. All `None`: it ended without a word."""

    exit_code: int | None = None
    signal: int | None = None
    said_oom: bool = False
    said: str = ""
    """What its last words tell: a name of `outcome`, "" if nothing."""
    stopped: bool = False
    cpu_s: float | None = None
    """User and system time of its processes."""
    rss_mib: int | None = None
    """The largest resident memory of one of them."""


@dataclass(slots=True)
class Lease:
    """A granted request. `main` is the job's main process, once the client has named it."""

    id: str
    number: int
    request: Request
    uuids: tuple[str, ...]
    booked_mib: int
    state: LeaseState
    granted_s: float
    threads: int
    main: Owner | None = None
    started_s: float | None = None
    ended_s: float | None = None
    peak_mib: int = 0
    samples: int = 0
    history: list[tuple[float, int]] = field(default_factory=list)
    holders: tuple[int, ...] = ()
    left_over: tuple[int, ...] = ()
    owner_gone: bool = False
    orphaned: bool = False
    """Its owner died before the job's end: whatever runs on of it is the job, and keeps it."""
    device_nearly_full: bool = False
    outgrown: bool = False
    foretold_mib: int = 0
    """The provisional peak of its type, which it made, and takes back if it fails; 0: it made none."""
    unseen: bool = False
    """The driver does not say what processes hold on a device of it, and nothing stands in."""
    by_delta: bool = False
    """What it holds is taken from the rise of its device's total, since it is alone there."""
    unread_since: float | None = None
    busy_looks: int = 0
    busy_percent: int = 0
    """While it was alone on its devices: how often their use was told, and the sum of it."""
    had_gap: bool = False
    """A device of it could not be read for a while as it ran: what it reached then is unknown."""
    unwatched: bool = False
    """Its broker died as it ran, and what that one saw of it last is lost."""
    reported_mib: int = 0
    """The largest peak that the job itself reported, per device."""
    accounted_mib: int = 0
    """The largest use that the driver recorded of its processes."""
    together: bool = False
    """Several of its processes held memory on one device at one moment."""
    strays: tuple[str, ...] = ()
    """UUIDs of devices that its processes use without having been given them."""
    xids: tuple[int, ...] = ()
    """Error events of its devices while it ran."""
    cores: tuple[int, ...] = ()
    """The cores to which it is bound, if it asked for its own."""
    mps: str = ""
    """The folder of the MPS daemon that holds its limits; "" if it is trusted to keep them."""
    granted_at: float | None = None
    ended_at: float | None = None
    """Times of day, in seconds since 1970: to be shown, never to be reckoned with."""
    outcome: str = ""
    """How its job ended; "" while it runs."""
    end: End | None = None

    @property
    def type(self) -> str:
        """The job type under which its peak is learnt."""
        return self.request.type

    @property
    def enforced_by(self) -> str | None:
        """What holds the job to its share of a device; `None` without one."""
        if not self.uuids:
            return None
        return "mps" if self.mps else "cooperative"
