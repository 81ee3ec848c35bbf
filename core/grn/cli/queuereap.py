"""`grn queue reap` and `grn queue protect`: what finished jobs have left behind, and what is not ours.

Promises: only processes are ended that carry the name of a lease of a job of this queue that is over,
are this user's, and still are the process that was looked at; everybody else's are shown and counted,
never signalled. SIGTERM first, SIGKILL after the grace.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import time

from grn import procs
from grn.cli.numbers import whole
from grn.cli.table import clean
from grn.client import Client
from grn.errors import UNREACHABLE, UsageError
from grn.queue.places import Places
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

__all__ = ["protect", "reap"]

_NAME_BYTES = 60


class _LeftOver:
    """A process of a job that is over; held by a descriptor, so that its number cannot be another's."""

    def __init__(self, job: int, lease: str, pid: int, pidfd: int, start: int) -> None:
        self.job = job
        self.lease = lease
        self.pid = pid
        self.pidfd = pidfd
        self.start = start

    def is_what_it_was(self) -> bool:
        """Whether it still is ours to end."""
        same = procs.start_time(self.pid) == self.start and procs.marker(self.pid) == self.lease
        return same and procs.uid(self.pid) == os.getuid()

    def signal(self, number: int) -> bool:
        """Signal it, if it still is what it was."""
        if not self.is_what_it_was():
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def reap(argv: Sequence[str]) -> int:
    """End what jobs of the queue have left behind."""
    parser = argparse.ArgumentParser(
        prog="grn queue reap",
        description="End the processes that jobs of this queue left behind when they ended.",
        allow_abbrev=False,
    )
    parser.add_argument("--job", type=whole, metavar="ID", help="only those of this job")
    parser.add_argument("--dry-run", action="store_true", help="only show them")
    parser.add_argument("--all", action="store_true", help="of all jobs, where several left some")
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    settings = load({})
    found = list(_left_overs(Places(settings.state_dir), args.job))
    jobs = sorted({each.job for each in found})
    dry = args.dry_run or (len(jobs) > 1 and not args.all)
    ended = {each.pid: None if dry else "TERM" for each in found}
    if not dry:
        _end(found, settings.grace_s)
        ended = {each.pid: "ended" if _gone(each, 0) else "survives" for each in found}
    if args.json:
        rows = [
            {"job": e.job, "pid": e.pid, "name": _name(e.pid), "state": ended[e.pid]} for e in found
        ]
        print(json.dumps({"schema": 1, "dry_run": dry, "processes": rows}))
    else:
        for each in found:
            how = "would be ended" if dry else ended[each.pid]
            print(f"job {each.job}: process {each.pid} {_name(each.pid)} {how}".replace("  ", " "))
    if dry and not args.dry_run and found:
        numbers = ", ".join(map(str, jobs))
        sys.stderr.write(
            f"grn queue: several jobs left processes: {numbers}; --job ID or --all ends them\n"
        )
    if not found and not args.json:
        sys.stderr.write("grn queue: no job that is over has left a process\n")
    for each in found:
        os.close(each.pidfd)
    return int(any(state == "survives" for state in ended.values()))


def _left_overs(places: Places, job: int | None) -> Iterator[_LeftOver]:
    with Store(places) as store:
        over = [e for e in store.entries(q.OVER) if job is None or e.id == job]
        if job is not None and not over:
            raise UsageError(f"job {job} is {store.get(job).state}: it is not over")
    of_lease = {lease: e.id for e in over for lease in _leases(e.result)}
    for lease, pids in procs.with_marker().items():
        if lease not in of_lease:
            continue
        for pid in pids:
            try:
                pidfd = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            start = procs.start_time(pid)
            left = _LeftOver(of_lease[lease], lease, pid, pidfd, start or 0)
            if start is not None and left.is_what_it_was():
                yield left
            else:
                os.close(pidfd)


def _leases(result: Mapping[str, Any]) -> Iterator[str]:
    """Name the leases that a job had: one for each try."""
    for each in (result, *result.get("attempts", ())):
        if each.get("lease"):
            yield each["lease"]


def _end(found: Sequence[_LeftOver], grace_s: float) -> None:
    """SIGTERM to all, SIGKILL to those that are there when the grace is over."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for each in found:
            each.signal(number)
        until = time.monotonic() + grace_s
        left = [each for each in found if not _gone(each, max(0.0, until - time.monotonic()))]
        if not left:
            return
        found = left


def _gone(each: _LeftOver, within_s: float) -> bool:
    poll = select.poll()
    poll.register(each.pidfd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_NAME_BYTES).replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
    return f"({clean(words)})" if words else ""


def protect(argv: Sequence[str]) -> int:
    """Show whose device memory is not GRN's; none of these processes is ever signalled."""
    parser = argparse.ArgumentParser(
        prog="grn queue protect",
        description="Nothing needs to be protected: GRN signals processes of its own jobs only. This "
        "shows how much device memory others hold, which counts as used.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "pids", nargs="*", type=whole, metavar="PID", help="are looked at, not noted"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    args = parser.parse_args(argv)
    marked = {pid: lease for lease, pids in procs.with_marker().items() for pid in pids}
    processes = [
        {"pid": pid, "exists": procs.exists(pid), "lease": marked.get(pid)} for pid in args.pids
    ]
    try:
        with Client(load({})) as client:
            found = client.status()["devices"]
    except UNREACHABLE:
        found = []
        sys.stderr.write("grn queue: no broker runs, so nobody looks at the devices\n")
    devices = [{key: device[key] for key in ("index", "uuid", "foreign_mib")} for device in found]
    if args.json:
        print(json.dumps({"schema": 1, "processes": processes, "devices": devices}))
        return 0
    for each in processes:
        whose = f"of lease {each['lease']}" if each["lease"] else "not GRN's: it is never signalled"
        print(f"process {each['pid']}: {whose if each['exists'] else 'there is none'}")
    for device in devices:
        foreign = device["foreign_mib"]
        print(f"device {device['index']}: {'?' if foreign is None else foreign} MiB held by others")
    return 0
