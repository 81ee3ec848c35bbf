"""`grn queue log` and `grn queue wait`: what jobs write, and how they end, as it happens.

Promises: no polling: both sleep until the list changes or a log grows; bytes are passed on as they are.
"""

from __future__ import annotations

import argparse
import os
import sys

from grn.errors import UsageError
from grn.queue.changes import Changes
from grn.queue.places import Places
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.queue.entry import Entry

__all__ = ["log", "wait"]

_CHUNK = 1 << 16
_FAILED = 1
_NOT_IN_TIME = 75
_STDOUT = 1


def log(argv: Sequence[str]) -> int:
    """Write out what a job wrote, and with `-f` what it goes on to write."""
    parser = argparse.ArgumentParser(
        prog="grn queue log", description="Show what a job wrote.", allow_abbrev=False
    )
    parser.add_argument("job", type=int, metavar="ID")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    args = parser.parse_args(argv)
    places = Places(load({}).state_dir)
    places.prepare()
    changes = Changes([places.changes])
    done, path, watched = 0, "", ""
    while True:
        with Store(places) as store:
            entry = store.get(args.job)
        if entry.log != path:  # it was called back, and starts with another log
            path, done = entry.log, 0
        over = entry.state in q.OVER
        if path and os.path.exists(path):
            if args.follow and watched != path:
                changes.add(path)
                watched = path
            done = _pass_on(path, done)
        elif not args.follow:
            raise UsageError(f"job {entry.id} is {entry.state}: it has written nothing yet")
        if over or not args.follow:
            return 0
        changes.wait()


def _pass_on(path: str, done: int) -> int:
    with open(path, "rb") as file:
        file.seek(done)
        while data := file.read(_CHUNK):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(_STDOUT, rest) :]
            done += len(data)
    return done


def wait(argv: Sequence[str]) -> int:
    """Wait for jobs to end; return the highest of their statuses."""
    parser = argparse.ArgumentParser(
        prog="grn queue wait",
        description="Wait until jobs have ended (all that are in the queue, without numbers). The "
        "status is theirs, the highest if there are several.",
        allow_abbrev=False,
    )
    parser.add_argument("jobs", type=int, nargs="*", metavar="ID")
    parser.add_argument("--any", action="store_true", help="until one of them has ended")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="at most so long: status 75"
    )
    args = parser.parse_args(argv)
    places = Places(load({}).state_dir)
    places.prepare()
    changes = Changes([places.changes])
    with Store(places) as store:
        alive = [state for state in q.STATES if state not in q.OVER]
        wanted = args.jobs or [entry.id for entry in store.entries(alive)]
    while True:
        with Store(places) as store:
            entries = [store.get(job) for job in wanted]
        over = [entry for entry in entries if entry.state in q.OVER]
        if len(over) == len(entries) or (args.any and over):
            return max(map(_status, over), default=0)
        if not changes.wait(args.timeout):
            sys.stderr.write(f"grn queue: {len(entries) - len(over)} job(s) have not ended\n")
            return _NOT_IN_TIME


def _status(entry: Entry) -> int:
    if entry.state == q.OK:
        return 0
    return entry.exit_code or _FAILED
