"""Brings a broker up, serves, and brings it down in order.

Up: lock, devices, journal, profiles, take over what lives, listen, READY. The lock comes first, so
nothing is touched while another broker lives; the socket comes last, so whoever can connect can be
served. From then on the names of all these files are guarded. Down: no new grants, waiters are
told, profiles kept, the socket's name removed if it is still ours, then the lock released.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from grn import __version__, hostcpu, paths
from grn.broker import systemd
from grn.broker.acceptor import Acceptor
from grn.broker.connection import Connection
from grn.broker.core import BrokerCore
from grn.broker.guard import Guard
from grn.broker.historian import Historian
from grn.broker.journal import Journal
from grn.broker.lock import InstanceLock, bind_socket, refuse_if_served, unlink_own
from grn.broker.lookout import Lookout, grant_writer, rule_devices
from grn.broker.policies import Policies
from grn.broker.store import ProfileStore
from grn.clashes import clashing_package
from grn.devices import canonical_spec, open_backend
from grn.errors import GrnError
from grn.history.schema import FILE_NAME
from grn.history.writer import HistoryWriter
from grn.rules.crowding import crowding
from grn.rules.estimate import Margin
from grn.rules.fairness import Limits, parse_limits
from grn.rules.machine import Machine
from grn.rules.profiles import ProfileBook
from grn.rules.records import managed_from_record
from grn.rules.waiting import WaitingLine

if TYPE_CHECKING:
    from grn.devices.base import Backend
    from grn.settings import Settings

__all__ = ["main"]

_TYPES_IN_MEMORY = 1000
"""The store knows more; a megabyte or two is enough for those in use."""

_REPORTS_SHOWN = 5
_FOR_OURSELVES, _FOR_THE_GROUP = 0o600, 0o660
log = logging.getLogger("grn.broker")


def main(settings: Settings, *, on_demand: bool = False, ready_fd: int | None = None) -> int:
    """Run a broker until it is stopped; return the exit status.

    Raises:
        GrnError: if it cannot start. A starter that waits on `ready_fd` is told the reason.
    """
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    starter = _Starter(ready_fd)
    try:
        return asyncio.run(_run(settings, starter, on_demand=on_demand))
    except GrnError as error:
        starter.tell(f"ERROR {error.message}")
        raise
    except OSError as error:  # on a full disk the log takes no word: the starter must hear it
        starter.tell(f"ERROR {error}")
        raise


async def _run(settings: Settings, starter: _Starter, *, on_demand: bool) -> int:
    canonical_spec(settings.devices or "")
    _raise_file_limit()
    path = paths.socket_path(os.environ, settings.socket)
    paths.prepare_folder(path, os.environ)
    lock = InstanceLock(path)
    lock.acquire()
    passed = systemd.passed_socket()
    if passed is None:
        refuse_if_served(path)  # by a broker whose lock was removed a moment ago
    journal, records, report = Journal.open(paths.beside(path).journal)
    spec, masks = _devices_wanted(settings, records, on_demand=on_demand)
    folder = os.path.dirname(path)
    backend = open_backend(spec, mask=masks[0], also=masks[1:], state_dir=folder)
    core = _assemble(settings, backend, masks, journal, on_demand=on_demand)
    core.lookout = Lookout(
        core, settings, spec=spec, masks=masks, state_dir=folder, widens=on_demand
    )
    skipped = core.machine.restore(records, core.now())
    _begin_history(core, settings, records)
    crowded = crowding(
        settings.jobs_at_once, settings.machine_cpus or hostcpu.usable_cpus(reserve=0)
    )
    _warn(core, backend.note, report, *_shortened(skipped), clashing_package(), crowded)
    dashboard = None
    if settings.http is not None:
        from grn.dashboard.opening import open_dashboard  # noqa: PLC0415 - only if asked for

        dashboard = await open_dashboard(core, settings)
    listener = passed or bind_socket(path, mode=_mode(path))
    core.lives.take_over()
    core.mps.ask_at_once()
    acceptor = Acceptor(core.loop, listener, lambda: Connection(core))
    guard = Guard(
        core, path, mode=_mode(path), lock=lock, acceptor=acceptor, journal=journal,
        write_journal=core.compact,
    )  # fmt: skip
    _handle_signals(core, core.lookout)
    log.info(
        "ready pid=%d socket=%s devices=%s managed=%d leases=%d",
        core.pid, path, backend.spec, len(core.devices), len(core.machine.leases),
    )  # fmt: skip
    core.announce("started")
    starter.tell(f"READY {core.pid}")
    systemd.notify("READY=1")
    why = await core.until_stopped()
    log.info("leaving reason=%r leases=%d", why, len(core.machine.leases))
    systemd.notify("STOPPING=1")
    if dashboard is not None:
        await dashboard.close()
    guard.close()
    unlink_own(path, acceptor.listener)
    _close(core, acceptor)
    core.backend.close()
    lock.release()
    return 0


def _mode(path: str) -> int:
    """The system broker serves a group; any other one serves its own user."""
    return _FOR_THE_GROUP if path == paths.SYSTEM_SOCKET else _FOR_OURSELVES


def _devices_wanted(
    settings: Settings, records: list[dict[str, Any]], *, on_demand: bool
) -> tuple[str | None, tuple[str | None, ...]]:
    """Return which devices to open, and the masks: those of the broker before us, if it left leases.

    A client that starts its successor knows neither what that one managed nor under which masks.
    """
    wanted, own = settings.devices, (os.environ.get("CUDA_VISIBLE_DEVICES"),)
    told = [found for record in records if (found := managed_from_record(record)) is not None]
    if not on_demand or not told or not any(record.get("ev") == "grant" for record in records):
        return wanted, own
    before, masks = told[-1]
    if wanted is None:
        return before, masks
    canonical = canonical_spec(wanted)
    if canonical == before or (canonical == "auto" and before in ("nvml", "none")):
        return wanted, masks
    return wanted, own


def _assemble(
    settings: Settings,
    backend: Backend,
    masks: tuple[str | None, ...],
    journal: Journal,
    *,
    on_demand: bool,
) -> BrokerCore:
    devices = rule_devices(settings, backend)
    store = ProfileStore(os.path.join(settings.state_dir, "profiles.sqlite"))
    in_memory = min(settings.max_types, _TYPES_IN_MEMORY)
    profiles = ProfileBook(Margin(*settings.margin_rule), limit=in_memory)
    profiles.lends = settings.priors
    policies = Policies(settings.policy)
    machine = Machine(
        devices,
        cpus=settings.machine_cpus or hostcpu.usable_cpus(reserve=settings.cpu_reserve),
        cores=settings.machine_cpus or hostcpu.usable_cpus(reserve=0),
        ram_mib=settings.machine_ram_mib
        or hostcpu.memory_total_mib(reserve_mib=settings.ram_reserve_mib),
        profiles=profiles,
        token=os.urandom(3).hex(),
        note=backend.note,
        core_map=hostcpu.core_map(),
        jobs_at_once=settings.jobs_at_once,
        provisional_after_s=settings.provisional_after_s,
        line=WaitingLine(settings.fair_share, settings.aging_s, settings.order),
        limits=Limits(parse_limits(settings.limits or "")),
        group_wait_s=settings.group_wait_s,
        policies=policies,
    )
    core = BrokerCore(
        asyncio.get_running_loop(),
        machine=machine,
        backend=backend,
        masks=masks,
        devices=devices,
        journal=journal,
        store=store,
        max_types=settings.max_types,
        writer=grant_writer(settings, backend, devices, masks[0]),
        policies=policies,
        release=__version__,
        on_demand=on_demand,
        idle_exit_s=settings.idle_exit_s,
        fast_s=settings.sample_fast_s,
        slow_s=settings.sample_slow_s,
        debug=settings.debug_invariants,
    )
    core.guests.private = settings.private
    return core


def _begin_history(core: BrokerCore, settings: Settings, records: list[dict[str, Any]]) -> None:
    """Record what runs from now on, and what the broker before us had no time to."""
    if not (settings.history_days and settings.history_mib):
        return
    path = os.path.join(settings.state_dir, FILE_NAME)
    writer = HistoryWriter(path, days=settings.history_days, mib=settings.history_mib)
    history = Historian(core.loop, core.machine, writer)
    history.take_over(records, core.now(), time.time())
    core.observers.history = history


def _shortened(reports: list[str]) -> list[str]:
    more = len(reports) - _REPORTS_SHOWN
    return [*reports[:_REPORTS_SHOWN], *([f"{more} more records are skipped"] if more > 0 else [])]


def _warn(core: BrokerCore, *warnings: str | None) -> None:
    for warning in warnings:
        if warning:
            core.warnings.append(warning)
            log.warning("warning reason=%r", warning)


def _close(core: BrokerCore, acceptor: Acceptor) -> None:
    """Close in the order that leaves nobody with half an answer."""
    acceptor.close()
    core.close()
    for connection in list(core.connections):
        connection.close()


def _handle_signals(core: BrokerCore, lookout: Lookout) -> None:
    """TERM, INT: leave in order, the second time at once. USR1: the state into the log.

    HUP: look at the devices again; but leave if it came since our terminal was closed.
    """
    may_hang_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def leave(number: signal.Signals) -> None:
        core.loop.remove_signal_handler(number)  # the next one ends us as usual
        core.stop(number.name)

    def hung_up() -> None:
        if may_hang_up and not _has_terminal():
            leave(signal.SIGHUP)
        else:
            lookout.look()

    for number in (signal.SIGTERM, signal.SIGINT):
        core.loop.add_signal_handler(number, leave, number)
    core.loop.add_signal_handler(signal.SIGHUP, hung_up)
    core.loop.add_signal_handler(signal.SIGUSR1, lambda: log.info("state %r", core.status()))


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _raise_file_limit() -> None:
    """A thousand waiting clients are a thousand descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Starter:
    """Who started us and waits for one line on a pipe, if anybody does."""

    def __init__(self, ready_fd: int | None) -> None:
        self._fd = ready_fd

    def tell(self, line: str) -> None:
        """Write the line; later ones reach nobody, for the descriptor's number may be a file's by then."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.write(fd, " ".join(line.split()).encode(errors="replace") + b"\n")
            os.close(fd)
        except OSError as error:  # it may have left already: no matter
            log.info("starter-left reason=%r", error.strerror)
