"""`grn queue next`, `move`, `hold`, `release`, `rm`, `cancel`, `retry`, `clear`: changes of the list.

Promises: a job is named by its number, or by its name where one job has it; what a command cannot do
to one of its jobs, it does to none; who runs is ended by `cancel` only.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

from grn.cli.numbers import LARGEST, whole
from grn.errors import UsageError
from grn.queue.changes import Changes
from grn.queue.places import Places
from grn.queue.worklist import Worklist
from grn.rules import queueing as q
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.queue.entry import Entry
    from grn.queue.store import Store

__all__ = ["cancel", "clear", "hold", "move", "next_", "release", "retry", "rm"]


_LOOK_AGAIN_S = 1.0


def _store() -> Worklist:
    return Worklist(Places(load({}).state_dir))


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"grn queue {name}", description=description, allow_abbrev=False
    )


def _jobs(store: Store, words: Sequence[str]) -> list[int]:
    return [_job(store, word) for word in words]


def _job(store: Store, word: str) -> int:
    """Find the job that a word names.

    Raises:
        UsageError: there is none, or there are several.
    """
    if word.isdecimal() and int(word) <= LARGEST:
        return store.get(int(word)).id
    found = store.named(word) or store.named(os.path.basename(word))
    if len(found) == 1:
        return found[0].id
    if not found:
        raise UsageError(f"there is no job {word!r} in the queue that has not ended")
    numbers = ", ".join(str(entry.id) for entry in reversed(found))
    raise UsageError(f"{len(found)} jobs are named {word!r}: {numbers}; say which, by number")


def next_(argv: Sequence[str]) -> int:
    """Move jobs to the head; what is not in the list is added there."""
    parser = _parser("next", "Move jobs to the head of the queue, in this order.")
    parser.add_argument("jobs", nargs="+", metavar="ID|NOTEBOOK")
    args = parser.parse_args(argv)
    with _store() as store:
        known = [w for w in args.jobs if w.isdigit() or store.named(os.path.basename(w))]
        if known and len(known) == len(args.jobs):
            store.put_first(_jobs(store, args.jobs))
            return 0
    if known:
        raise UsageError(
            f"{known[0]} is in the queue, others are not: move and add them by themselves"
        )
    from grn.cli.queueadd import add  # noqa: PLC0415 - only for what is new

    return add(["--first", *args.jobs])


def move(argv: Sequence[str]) -> int:
    """Move one job."""
    parser = _parser("move", "Move a job that has not started before another one, or to the end.")
    parser.add_argument("job", metavar="ID")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--before", metavar="ID")
    where.add_argument("--last", action="store_true")
    args = parser.parse_args(argv)
    with _store() as store:
        job = _job(store, args.job)
        other = None if args.last else _job(store, args.before)
        if other != job:
            store.put_before(job, other)
    return 0


def hold(argv: Sequence[str]) -> int:
    """Keep jobs from starting."""
    parser = _parser("hold", "Keep jobs from starting until `grn queue release`.")
    parser.add_argument("jobs", nargs="+", metavar="ID")
    args = parser.parse_args(argv)
    with _store() as store:
        jobs = _jobs(store, args.jobs)
        store.hold(jobs)
        _call_back(store, jobs)
    return 0


def _call_back(store: Store, jobs: Sequence[int]) -> None:
    """Have jobs come back from the broker; they cannot start any more, whenever they hear of it."""
    from grn.queue.running import tell_runner  # noqa: PLC0415 - few do this

    for entry in map(store.get, jobs):
        if entry.state == q.WAITING:
            tell_runner(entry, signal.SIGTERM)


def release(argv: Sequence[str]) -> int:
    """Let held jobs start."""
    parser = _parser("release", "Let jobs start that were held.")
    parser.add_argument("jobs", nargs="+", metavar="ID")
    args = parser.parse_args(argv)
    with _store() as store:
        store.let_go(_jobs(store, args.jobs))
    return 0


def rm(argv: Sequence[str]) -> int:
    """Take jobs off the list that have not started."""
    parser = _parser("rm", "Take jobs off the list. One that runs is ended by `grn queue cancel`.")
    parser.add_argument("jobs", nargs="*", metavar="ID|NAME")
    parser.add_argument("--all", action="store_true", help="all that have not started")
    args = parser.parse_args(argv)
    if bool(args.jobs) == args.all:
        raise UsageError("say which jobs, or --all")
    with _store() as store:
        if args.all:
            waiting = {q.QUEUED, q.HELD, q.STARTING, q.WAITING}
            jobs = [job for job, state in store.alive().items() if state in waiting]
        else:
            jobs = _jobs(store, args.jobs)
        _cancel(store, jobs, "taken off the list", running=False)
        store.forget(jobs)
    return 0


def cancel(argv: Sequence[str]) -> int:
    """End jobs, also those that run; return when they have ended."""
    parser = _parser("cancel", "End jobs: SIGTERM to all of their processes, later SIGKILL.")
    parser.add_argument("jobs", nargs="+", metavar="ID")
    args = parser.parse_args(argv)
    with _store() as store:
        _cancel(store, _jobs(store, args.jobs), "cancelled before it started")
    return 0


def _cancel(store: Worklist, jobs: Sequence[int], why: str, *, running: bool = True) -> None:
    """Cancel jobs; return when all have ended."""
    from grn.queue.running import tell_runner, watched  # noqa: PLC0415 - only who ends jobs

    changes = Changes([Places(load({}).state_dir).changes])
    marked = store.cancel(list(dict.fromkeys(jobs)), why, running=running)
    told = [entry for entry in marked if entry.state not in q.OVER]
    for entry in told:
        tell_runner(entry, signal.SIGTERM)
    while told:
        for entry in told:
            pidfd = watched(entry)
            if pidfd is None:  # it may have been killed, and nobody else may look after it
                store.gone(entry.id, entry.attempt, "its runner was gone when it was cancelled")
            else:
                os.close(pidfd)
        ends = store.ends([entry.id for entry in told])
        told = [e for e in told if ends.get(e.id, (q.CANCELLED, None))[0] not in q.OVER]
        if told:
            changes.wait(_LOOK_AGAIN_S)
    changes.close()


def retry(argv: Sequence[str]) -> int:
    """Add jobs once more that have ended."""
    parser = _parser("retry", "Add jobs once more that have ended; each gets a new number.")
    parser.add_argument("jobs", nargs="*", type=whole, metavar="ID")
    parser.add_argument(
        "--failed",
        action="store_true",
        help="all that did not end well, and those that were to run after them",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object (schema 1) on stdout")
    parser.add_argument("--first", action="store_true", help="at the head of the queue")
    args = parser.parse_args(argv)
    if bool(args.jobs) == args.failed:
        raise UsageError("say which jobs, or --failed")
    with _store() as store:
        entries = _failed(store) if args.failed else [store.get(job) for job in args.jobs]
        for entry in entries:
            if entry.state not in q.OVER:
                raise UsageError(f"job {entry.id} is {entry.state}: it has not ended")
        ids = store.add_again(entries, first=args.first) if entries else []
    if args.json:
        import json  # noqa: PLC0415 - few ask for it

        pairs = [{"id": new, "of": old.id} for old, new in zip(entries, ids, strict=True)]
        print(json.dumps({"schema": 1, "jobs": pairs}))
    else:
        sys.stdout.write("".join(f"{number}\n" for number in ids))
    if not ids:
        sys.stderr.write("grn queue: no job has failed that was not added again already\n")
    return 0


def _failed(store: Store) -> list[Entry]:
    """List what did not end well and was not added again, with what was to come after it."""
    over = store.entries(q.OVER)
    failed = {e.id for e in over if e.state not in (q.OK, q.CANCELLED) and not e.retried_as}
    for entry in sorted(
        over, key=lambda each: each.id
    ):  # a job is younger than what it comes after
        if entry.state == q.CANCELLED and not entry.retried_as and not entry.cancelled:
            failed |= {entry.id} if failed & set(entry.spec.after) else set()
    return [entry for entry in over if entry.id in failed]


def clear(argv: Sequence[str]) -> int:
    """Forget jobs that have ended."""
    parser = _parser("clear", "Forget the jobs that have ended, and their logs.")
    parser.add_argument("--ok", action="store_true", help="only those that ended well")
    args = parser.parse_args(argv)
    with _store() as store:
        store.forget(store.numbers([q.OK] if args.ok else sorted(q.OVER)))
    return 0
