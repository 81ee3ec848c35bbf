"""`grn queue start`, `stop`, `pause`, `resume`, `limit`: who works the queue off, and how."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback

from grn.errors import GrnError, UsageError
from grn.queue.changes import Changes
from grn.queue.lock import owner_of, take
from grn.queue.places import Places
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from grn.queue.entry import Entry
    from grn.queue.worklist import Worklist

__all__ = ["limit", "pause", "resume", "start", "stop"]

_READY = b"+"
_LOG_MODE = 0o600
_MOST_DESCRIPTORS = 1 << 16
_LOOK_AGAIN_S = 1.0


def start(argv: Sequence[str]) -> int:
    """Work the queue off: in the background, or with `--foreground` here."""
    parser = argparse.ArgumentParser(
        prog="grn queue start",
        description="Work the queue off, as many jobs at a time as there is room for.",
        allow_abbrev=False,
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--idle", action="store_true", help="wait for more when all is done (default)")
    how.add_argument("--drain", action="store_true", help="end when all is done")
    parser.add_argument("--limit", type=_positive, metavar="N", help="run at most N at a time")
    parser.add_argument("--foreground", action="store_true", help="do not go into the background")
    args = parser.parse_args(argv)
    if "GRN_LEASE" in os.environ:
        raise UsageError(
            f"this is inside a job (lease {os.environ['GRN_LEASE']}), and a queue would end with it:"
            " start it from a shell outside; `grn queue add` works here, too"
        )
    places = Places(load({}).state_dir)
    places.prepare()
    with Store(places) as store:
        limits = {} if args.limit is None else {"limit": str(args.limit)}
        if owner_of(places) is None:
            store.set_control(paused="0", mode="drain" if args.drain else "idle", **limits)
    if args.foreground:
        _work(places, drain=args.drain)
        return 0
    return _in_background(places, drain=args.drain)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _work(places: Places, *, drain: bool, ready: int | None = None) -> None:
    from grn.queue.owner import DRAIN, IDLE, Owner  # noqa: PLC0415 - only who works

    owner = Owner(places, mode=DRAIN if drain else IDLE)
    if ready is not None:
        os.write(ready, _READY)
        os.close(ready)
    owner.run()


def _in_background(places: Places, *, drain: bool) -> int:
    """Start the owner in a session of its own; return once it has the queue."""
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _become_owner(places, tell, drain=drain)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)  # the one between: the owner is its child
    if answer != _READY:
        raise GrnError(
            answer.decode(errors="replace") or f"it did not start: see {places.owner_log}"
        )
    sys.stderr.write(f"grn queue: worked off by process {owner_of(places)}\n")
    return 0


def _become_owner(places: Places, tell: int, *, drain: bool) -> NoReturn:
    status = 1
    try:
        if os.fork():  # who started us need not wait for us
            os._exit(0)
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _redirect(places, tell)
        os.chdir("/")
        os.umask(0o077)
        _work(places, drain=drain, ready=tell)
        status = 0
    except GrnError as error:
        sys.stderr.write(f"{error.message}\n")
        os.write(tell, error.message.encode("utf-8", "backslashreplace"))
    except BaseException:  # noqa: BLE001 - the last place where it can be told
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _redirect(places: Places, keep: int) -> None:
    """Let go of all that belongs to who started us: terminal, pipes, locks."""
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(places.owner_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _LOG_MODE)
    for number, fd in enumerate((null, log, log)):
        os.dup2(fd, number)
    os.closerange(3, keep)
    os.closerange(keep + 1, _MOST_DESCRIPTORS)


def stop(argv: Sequence[str]) -> int:
    """Have the owner take no more jobs, or end all; return when it has ended."""
    parser = argparse.ArgumentParser(
        prog="grn queue stop",
        description="Take no more jobs. Those that run go on; the rest stays in the list.",
        allow_abbrev=False,
    )
    parser.add_argument("--now", action="store_true", help="end the jobs that run, too")
    args = parser.parse_args(argv)
    places = Places(load({}).state_dir)
    places.prepare()
    if owner_of(places) is None and not args.now:
        sys.stderr.write("grn queue: nobody works it off, so there is nothing to stop\n")
        return 0
    changes = Changes([places.changes])
    with Store(places) as store:
        store.set_control(stop="now" if args.now else "stop")
    while owner_of(places) is not None:
        changes.wait(_LOOK_AGAIN_S)
    changes.close()
    if args.now:
        return _end_all(places)
    with Store(places) as store:
        running = store.counts().get(q.RUNNING, 0)
    if running:
        sys.stderr.write(
            f"grn queue: stopped; {running} job(s) run on (`grn queue cancel ID` ends one)\n"
        )
    return 0


def _end_all(places: Places) -> int:
    """Wait until the jobs that were told to end have ended, also those without an owner."""
    from grn.queue.running import tell_runner  # noqa: PLC0415 - seldom needed
    from grn.queue.worklist import Worklist  # noqa: PLC0415 - the same

    changes = Changes([places.changes])
    lock = take(places)  # nobody starts anything meanwhile
    try:
        with Worklist(places) as store:
            while active := store.entries(q.ACTIVE):
                for entry in store.cancel_running():
                    tell_runner(entry, signal.SIGTERM)
                for entry in active:
                    _end(store, entry)
                changes.wait(_LOOK_AGAIN_S)
    finally:
        os.close(lock)
        changes.close()
    return 0


def _end(store: Worklist, entry: Entry) -> None:
    """Have a job that waits come back; see to one whose runner is gone."""
    from grn.queue.running import tell_runner  # noqa: PLC0415 - seldom needed

    if entry.state == q.WAITING and not entry.recalled and store.recall(entry.id):
        tell_runner(entry, signal.SIGTERM)
    if entry.state == q.STARTING or not tell_runner(entry, 0):
        store.gone(entry.id, entry.attempt, "its runner was gone when the queue was stopped")


def pause(argv: Sequence[str]) -> int:
    """Start nothing until `resume`; what runs goes on."""
    return _set(
        argv, "pause", "Start no more jobs until `grn queue resume`; what runs goes on.", "1"
    )


def resume(argv: Sequence[str]) -> int:
    """Go on after `pause`."""
    return _set(argv, "resume", "Start jobs again after `grn queue pause`.", "0")


def _set(argv: Sequence[str], name: str, description: str, value: str) -> int:
    argparse.ArgumentParser(prog=f"grn queue {name}", description=description).parse_args(argv)
    with Store(Places(load({}).state_dir)) as store:
        store.set_control(paused=value)
    return 0


def limit(argv: Sequence[str]) -> int:
    """Set how many jobs may run at a time, or show it."""
    parser = argparse.ArgumentParser(
        prog="grn queue limit",
        description="Run at most N jobs of the queue at a time; `none`: as many as there is room for.",
    )
    parser.add_argument("number", nargs="?", metavar="N")
    parser.add_argument("--json", action="store_true", help="show it as one JSON object")
    args = parser.parse_args(argv)
    with Store(Places(load({}).state_dir)) as store:
        if args.number is None:
            found = store.control("limit")
            print(f'{{"schema": 1, "limit": {found or "null"}}}' if args.json else found or "none")
            return 0
        if args.number != "none" and not (args.number.isdecimal() and int(args.number)):
            raise UsageError(f"{args.number!r} is neither a number of 1 or more nor `none`")
        store.set_control(limit="" if args.number == "none" else args.number)
    return 0
