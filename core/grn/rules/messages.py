"""Between the wire's maps and the rules' nouns: what a client may say, and what it is answered.

The protocol, after a hello from either side (`magic`, `version`, the client's `session`):

    acquire   type, gpus, memory_mib (a number, "whole" or none), policy, cpus, ram_mib, priority,
              label, mask (the client's own), outer (its lease, if it is inside one), within (the id
              of a nested request of its own in which it makes this one), cores (how many it is bound
              to), in_process (it uses the device itself), largest (only the
              largest devices will do), compute (percent of each device's multiprocessors),
              group and group_size (it starts together with so many),
              processes (of the job that use a device), affinity (it wants cores of its own, of
              core_ids), engine (what made the request: run, doit ...), waited_s, asked_s (on the
              monotonic clock)
              -> waiting (reason), then granted or refused
    cancel    -> refused, unless a grant was on its way
    started   lease, pid of the job's main process; not answered
    release   lease, exit_code, signal, said (what its last words tell), said_oom, stopped, cpu_s
              and rss_mib (of its processes: what they took, and the largest of one)
              -> released (remedy: what a retry would need)
    peak      lease, mib: what one of its processes says that it held at most -> noted
    adopt     leases that a client goes on holding under a new broker, nested (id, lease and
              memory_mib of the nested jobs that it goes on running) -> adopted
    leave     the id of a granted request that was nested: that job is over; not answered
    foresee   wishes, each with the fields of an acquire -> foreseen (at_once: for each, whether it
              would be answered at once, if they were asked now in this order; reserves nothing)
    watch     events (all that happens from now on), since (a number of an event: what came after
              it first), status_every_s (the state of the books as often, when it has changed)
              -> watched, then event (event) and status (status, more), until the client leaves
    explain   subject (a lease, a ticket, a pid, a label or a type), gpus (if it is a type)
              -> explained (explanation)
    record    writes the history now -> recorded, when that was done or has failed
    status, profiles, stop

Requests carry an `id`, answers repeat it. Added fields are ignored by who does not know them.

The only module that knows the names of fields on the wire. A field of the wrong type, a negative
number or an unknown policy is the client's mistake: it gets an error reply, its connection lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.errors import ProtocolError, UsageError
from grn.rules.jobtype import LONGEST_NAME
from grn.rules.ledger import WHOLE_COMPUTE
from grn.rules.mask import mask_style, render_mask
from grn.rules.model import End, Owner, Request
from grn.rules.policy import BUILT_IN, named
from grn.rules.visible import shown_by
from grn.rules.wire import MAGIC, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn.rules.events import Reported
    from grn.rules.mask import Style
    from grn.rules.model import Device, Lease

__all__ = [
    "FEATURES",
    "GrantWriter",
    "check_hello",
    "end_from",
    "error_reply",
    "hello_reply",
    "released_reply",
    "request_from",
]

FEATURES = ("adopt", "status", "profiles", "stop", "watch", "explain")
_LARGEST = 1 << 40
_MOST_CORES = 1 << 16
_LARGEST_GROUP = 1024
_LONGEST_ENGINE = 32
_SAME_CLOCK_S = 60.0
"""A container may have a clock of its own, and a message may lie in a socket for a while."""


def check_hello(message: Mapping[str, Any]) -> int:
    """Check a client's first message; return the version to speak: the lower of both.

    Raises:
        ProtocolError: if it is not a hello of this protocol.
    """
    version = message.get("version")
    if message.get("op") != "hello" or message.get("magic") != MAGIC:
        raise ProtocolError("the first message must be a hello with our magic")
    if type(version) is not int or version < 1:
        raise ProtocolError(f"protocol version {version!r}")
    return min(version, VERSION)


def hello_reply(
    version: int, *, pid: int, release: str, on_demand: bool, devices: str
) -> dict[str, Any]:
    """Answer a hello."""
    return {
        "op": "hello",
        "magic": MAGIC,
        "version": version,
        "features": list(FEATURES),
        "pid": pid,
        "release": release,
        "on_demand": on_demand,
        "devices": devices,
    }


def error_reply(request_id: object, code: str, message: str) -> dict[str, Any]:
    """Say that a message could not be carried out."""
    return {"op": "error", "id": request_id, "code": code, "message": message}


def number(message: Mapping[str, Any], key: str) -> int | None:
    """Read a whole number that may be absent.

    Raises:
        UsageError: if it is something else, negative or absurdly large.
    """
    value = message.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise UsageError(f"{key}: {value!r} is not a number from 0 to {_LARGEST}")
    return value


def text(message: Mapping[str, Any], key: str, default: str = "") -> str:
    """Read a text that may be absent."""
    value = message.get(key, default)
    if value is None:
        return default
    if type(value) is not str or len(value) > LONGEST_NAME:
        raise UsageError(f"{key}: a text of at most {LONGEST_NAME} characters is expected")
    return value


def request_from(
    message: Mapping[str, Any],
    *,
    ticket: int,
    owner: Owner,
    session: str,
    now: float,
    devices: Sequence[Device],
    policy: str,
    knows: Callable[[str], bool] = BUILT_IN.__contains__,
    outer: str | None = None,
    ancestors: tuple[int, ...] = (),
    within: int | None = None,
) -> Request:
    """Turn an `acquire` into a request.

    Raises:
        UsageError: if a field makes no sense.
    """
    memory = message.get("memory_mib")
    whole = memory == "whole"
    priority = message.get("priority", 0)
    if type(priority) is not int or abs(priority) > _LARGEST:
        raise UsageError(f"priority: {priority!r} is not a number from -{_LARGEST} to {_LARGEST}")
    job_type = text(message, "type")
    if not job_type:
        raise UsageError("a request needs a job type")
    wish = message.get("policy")
    return Request(
        ticket=ticket,
        type=job_type,
        owner=owner,
        label=text(message, "label"),
        gpus=number(message, "gpus"),
        memory_mib=None if whole else number(message, "memory_mib"),
        whole=whole,
        policy=policy if wish is None else _policy(wish, knows),
        cpus=number(message, "cpus"),
        ram_mib=number(message, "ram_mib"),
        priority=priority,
        **_group(message),
        allowed=_allowed(message.get("mask"), devices),
        outer=outer,
        session=session,
        cores=number(message, "cores"),
        ancestors=ancestors,
        arrived_s=_arrived(message, now),
        in_process=message.get("in_process") is True,
        largest=message.get("largest") is True,
        compute=_compute(message),
        processes=number(message, "processes") or 1,
        affinity=message.get("affinity") is True,
        core_ids=_core_ids(message.get("core_ids")),
        within=within,
        engine=_engine(message),
    )


def _arrived(message: Mapping[str, Any], now: float) -> float:
    """Return when the request was first asked: its place in the line, also at the next broker.

    How long a client has waited says it up to the time that the message took, which is not the same
    for all that are asked again. Its own clock says it exactly, if it is ours.
    """
    waited = message.get("waited_s", 0.0)
    if not isinstance(waited, int | float) or not 0 <= waited < _LARGEST:
        raise UsageError(f"waited_s: {waited!r} is not a duration")
    asked = message.get("asked_s")
    if isinstance(asked, float) and abs(now - waited - asked) < _SAME_CLOCK_S:
        return asked
    return now - waited


def _engine(message: Mapping[str, Any]) -> str:
    engine = text(message, "engine")
    if len(engine) > _LONGEST_ENGINE:
        raise UsageError(f"engine: a text of at most {_LONGEST_ENGINE} characters is expected")
    return engine


def _compute(message: Mapping[str, Any]) -> int | None:
    percent = number(message, "compute")
    if percent is not None and not 1 <= percent <= WHOLE_COMPUTE:
        raise UsageError(f"compute: {percent} is not a percentage from 1 to {WHOLE_COMPUTE}")
    return percent


def _core_ids(cores: object) -> frozenset[int] | None:
    if cores is None:
        return None
    if not isinstance(cores, list) or len(cores) > _MOST_CORES:
        raise UsageError("core_ids: a list of core numbers is expected")
    if not all(type(core) is int and 0 <= core < _MOST_CORES for core in cores):
        raise UsageError("core_ids: a list of core numbers is expected")
    return frozenset(cores)


def _group(message: Mapping[str, Any]) -> dict[str, Any]:
    """Read with how many others a request starts together, if it does."""
    name = text(message, "group")
    size = number(message, "group_size")
    if not name and size is None:
        return {}
    if not name or not size or size > _LARGEST_GROUP:
        raise UsageError(
            f"group {name!r} of {size}: a name and a size from 1 to {_LARGEST_GROUP} are expected"
        )
    return {"group": name, "group_size": size}


def _policy(wish: object, knows: Callable[[str], bool]) -> str:
    name = named(wish) if type(wish) is str else ""
    if not name or not knows(name):
        raise UsageError(f"policy {wish!r}: this broker knows spread, pack, and no such other one")
    return name


def _allowed(mask: object, devices: Sequence[Device]) -> frozenset[str] | None:
    """Narrow the devices to those that the client itself may see."""
    if mask is not None and type(mask) is not str:
        raise UsageError(f"mask: {mask!r} is not a text")
    return shown_by(mask, devices)


def end_from(message: Mapping[str, Any]) -> End:
    """Read from a `release` how the job ended."""
    return End(
        exit_code=number(message, "exit_code"),
        signal=number(message, "signal"),
        said_oom=message.get("said_oom") is True,
        said=text(message, "said"),
        stopped=message.get("stopped") is True,
        cpu_s=_seconds(message, "cpu_s"),
        rss_mib=number(message, "rss_mib"),
    )


def _seconds(message: Mapping[str, Any], key: str) -> float | None:
    value = message.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value < _LARGEST:
        raise UsageError(f"{key}: {value!r} is not a duration in seconds")
    return float(value)


def released_reply(request_id: object, report: Reported, *, ran_s: float) -> dict[str, Any]:
    """Answer a release."""
    return {
        "op": "released",
        "id": request_id,
        "lease": report.lease.id,
        "outcome": report.outcome,
        "peak_mib": report.peak_mib,
        "source": report.source,
        "ran_s": ran_s,
        "draining": report.draining,
        "remedy": report.remedy,
        "next_mib": report.next_mib,
        "notes": list(report.notes),
    }


class GrantWriter:
    """Writes grants. What depends on the devices alone is prepared once."""

    def __init__(
        self, devices: Sequence[Device], *, style: Style, extra: Mapping[str, str]
    ) -> None:
        self._style: Style = style
        self._extra = dict(extra)
        self._devices = {device.uuid: device for device in devices}
        self._said: dict[str, dict[str, Any]] = {
            device.uuid: {
                "uuid": device.uuid,
                "index": device.index,
                "model": device.model,
                "total_mib": device.total_mib,
            }
            for device in devices
        }

    @classmethod
    def for_mask(
        cls, devices: Sequence[Device], *, mask: str | None, style: str, extra: Mapping[str, str]
    ) -> GrantWriter:
        """Choose the style of masks: as asked, else as the broker's own mask is written."""
        chosen: Style = "uuid" if style == "uuid" else "index"
        return cls(devices, style=mask_style(mask) if style == "auto" else chosen, extra=extra)

    def write(
        self,
        request_id: object,
        lease: Lease,
        *,
        nested: bool,
        waited_s: float,
        by_uuid: bool = False,
    ) -> dict[str, Any]:
        """Tell a client of its lease; `by_uuid` where numbers may mean other devices just now."""
        booked = lease.booked_mib
        said = [{**self._said[uuid], "booked_mib": booked} for uuid in lease.uuids]
        totals = [device["total_mib"] for device in said]
        return {
            "op": "granted",
            "id": request_id,
            "lease": lease.id,
            "gpus": lease.request.gpus,
            "mask": self._mask(lease, "uuid" if by_uuid else self._style),
            "devices": said,
            "memory_mib": booked if said else None,
            "fraction": None
            if lease.request.whole or not said
            else min(booked / t for t in totals),
            "threads": lease.threads,
            "cpus": lease.request.cpus,
            "probe": lease.state == "probe",
            "whole": lease.request.whole,
            "compute": lease.request.compute,
            "processes": lease.request.processes,
            "cores": list(lease.cores),
            "mps": lease.mps or None,
            "enforced_by": lease.enforced_by,
            "extra": self._extra,
            "nested": nested,
            "waited_s": waited_s,
        }

    def _mask(self, lease: Lease, style: Style) -> str | None:
        if lease.request.gpus is None:
            return None
        pairs = [(self._devices[uuid].index, uuid) for uuid in lease.uuids]
        return render_mask(pairs, style) if pairs else ""
