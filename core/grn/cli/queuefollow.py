"""`grn queue log` and `grn queue wait`: what jobs write, and how they end, as it happens.

Promises: no polling: both sleep until the list changes or a log grows; bytes are passed on as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from grn.cli.numbers import whole
from grn.errors import JournalError, UsageError
from grn.queue.changes import Changes
from grn.queue.lock import owner_of
from grn.queue.places import Places
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.rules.units import parse_duration_s
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["log", "wait"]

_CHUNK = 1 << 16
_FAILED = 1
_NOT_IN_TIME = 75
_STDOUT = 1
_NAMED = 8
_TRY_AGAIN_S = 1.0
_FORGOTTEN: tuple[str, int | None] = (q.CANCELLED, None)


def log(argv: Sequence[str]) -> int:
    """Write out what a job wrote, and with `-f` what it goes on to write."""
    parser = argparse.ArgumentParser(
        prog="grn queue log", description="Show what a job wrote.", allow_abbrev=False
    )
    parser.add_argument("job", type=whole, metavar="ID")
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
        description="Wait until jobs have ended (without numbers: all that are in the queue now and "
        "not held). The status is theirs, the highest if there are several.",
        allow_abbrev=False,
    )
    parser.add_argument("jobs", type=whole, nargs="*", metavar="ID")
    parser.add_argument("--any", action="store_true", help="until one of them has ended")
    parser.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="at most so long (10m): status 75"
    )
    parser.add_argument("--json", action="store_true", help="how they ended, as one JSON object")
    args = parser.parse_args(argv)
    places = Places(load({}).state_dir)
    places.prepare()
    changes = Changes([places.changes])
    with Store(places) as store:
        wanted = [store.get(job).id for job in args.jobs] or _all_that_run(store)
        if not wanted:
            _nothing_to_wait_for(store)
    until = None if args.timeout is None else time.monotonic() + args.timeout
    said = False
    while True:
        ends = _ends(places, wanted)
        # What is not there any more was taken off the list, or cleared.
        over = [job for job in wanted if ends.get(job, _FORGOTTEN)[0] in q.OVER]
        if len(over) == len(wanted) or (args.any and over):
            return _told(over, ends, as_json=args.json)
        if not said and owner_of(places) is None:
            said = True
            sys.stderr.write("grn queue: nobody works the queue off: `grn queue start`\n")
        left_s = None if until is None else until - time.monotonic()
        if left_s is not None and (left_s <= 0 or not changes.wait(left_s)):
            sys.stderr.write(f"grn queue: {len(wanted) - len(over)} job(s) have not ended\n")
            return _NOT_IN_TIME
        if left_s is None:
            changes.wait()


def _ends(places: Places, wanted: Sequence[int]) -> dict[int, tuple[str, int | None]]:
    """Look how jobs have ended; a full disk, where nobody can look, is waited out."""
    said = False
    while True:
        try:
            with Store(places) as store:
                return store.ends(wanted)
        except JournalError as error:
            if not said:
                sys.stderr.write(f"grn queue: {error.message}\n")
                said = True
            time.sleep(_TRY_AGAIN_S)


def _seconds(text: str) -> float:
    try:
        return parse_duration_s(text, what="--timeout")
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from None


def _all_that_run(store: Store) -> list[int]:
    return [job for job, state in store.alive().items() if state != q.HELD]


def _nothing_to_wait_for(store: Store) -> None:
    """Say so: a job that was quicker than we has a status, and it is not in ours."""
    ill = store.numbers(sorted(q.OVER - {q.OK}))
    some = ", ".join(map(str, ill[:_NAMED])) + (", ..." if ill[_NAMED:] else "")
    what = f"; {len(ill)} in the list did not end well ({some})" if ill else ""
    sys.stderr.write(
        f"grn queue: nothing to wait for{what}. `grn queue wait ID ...` has the status of jobs that"
        " are over, too\n"
    )


def _told(over: Sequence[int], ends: Mapping[int, tuple[str, int | None]], *, as_json: bool) -> int:
    found = {job: ends.get(job, _FORGOTTEN) for job in over}
    if as_json:
        import json  # noqa: PLC0415 - few ask for it

        jobs = [
            {"id": job, "state": state, "exit_code": code} for job, (state, code) in found.items()
        ]
        print(json.dumps({"schema": 1, "jobs": jobs}))
    return max((_status(state, code) for state, code in found.values()), default=0)


def _status(state: str, code: int | None) -> int:
    return 0 if state == q.OK else code or _FAILED
