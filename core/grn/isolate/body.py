"""The life of one child: from a copy of the server to a process of its own, and to its end.

Promises: the environment is in place before anything is rebuilt; what the body returned or raised
is written before its threads are awaited and its exit handlers run, and counts even if these fail;
the process ends here and nowhere else.

Must not: touch the server's descriptors; these are closed before it begins.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import signal
import sys
import threading
import traceback
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from grn.isolate import failure, parcel, surroundings, threadcaps
from grn.isolate.pickling import Returning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

__all__ = ["NOT_REBUILT", "NO_PLACE", "RAISED", "RETURNED", "UNPICKLABLE", "live", "write_text"]

RETURNED, RAISED, UNPICKLABLE, NOT_REBUILT, NO_PLACE = 1, 2, 3, 4, 5
"""Kinds of parcel that go back: a value, an exception's record, or a text that says why not."""

_FAILED = 1


def live(call: int, result: int, streams: Sequence[int], pad: int) -> NoReturn:
    """Be the process that runs the call in one parcel, and write another.

    `streams` are the descriptors for standard input, output and error.
    """
    status = _FAILED
    try:
        _take_streams(streams)
        reset_signals()
        status = _run(call, result, pad)
        _finish()
    except SystemExit as error:  # of a copy that the body has forked, or of an exit handler
        status = _exit_status(error)
    except BaseException as error:  # noqa: BLE001 - a copy of the server must not run on
        traceback.print_exception(error)
    finally:
        _flush()
        os._exit(status)


def _take_streams(streams: Sequence[int]) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        # By lines, also into a file or pipe: several bodies may share it, and one may be killed.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def reset_signals() -> None:
    """Let signals do what they do in a Python program that was just started."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run(call: int, result: int, pad: int) -> int:
    sent = parcel.read(call)
    if sent is None:
        raise OSError("the call was not written to its end")
    around = surroundings.unpack(sent.head)
    try:
        surroundings.apply(around, pad)
    except OSError as error:
        write_text(result, NO_PLACE, str(error))
        return _FAILED
    threadcaps.apply(around["env"])
    try:
        fn, args, kwargs = sent.load(mapped=True)
    except BaseException as error:  # noqa: BLE001 - imports run the user's own code
        text = "".join(traceback.format_exception(error)).rstrip()
        write_text(result, NOT_REBUILT, f"{type(error).__name__}: {error}\n{text}")
        return _FAILED
    os.close(call)
    surroundings.fill_main(fn)
    _reseed()
    back = Returning()
    me = os.getpid()
    try:
        value = fn(*args, **kwargs)
        if around["collect"] and isinstance(value, GeneratorType):
            value = list(value)
    except BaseException as error:  # all of it is the caller's to see
        if os.getpid() != me:
            raise
        return _write_raised(result, error, back)
    if os.getpid() != me:  # the body has forked, and has forgotten to end the copy
        return 0
    return _write_returned(result, value, back)


def _reseed() -> None:
    # `random` does so by itself at each fork.
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()


# -- what goes back ---------------------------------------------------------------------------------


def _write_returned(result: int, value: Any, back: Returning) -> int:
    try:
        _write_value(result, value, back)
    except Exception as error:  # noqa: BLE001 - the value's own code ran
        kind = type(value).__name__
        write_text(result, UNPICKLABLE, f"{kind}: {type(error).__name__}: {error}{_hint(value)}")
        return _FAILED
    return 0


def _write_value(result: int, value: Any, back: Returning) -> None:
    def by_value(file: Any, keep: Callable[[pickle.PickleBuffer], bool]) -> None:
        back.by_value(value, file, keep)

    try:
        parcel.write(result, RETURNED, b"", lambda file, keep: back.by_name(value, file, keep))
    except Exception:  # noqa: BLE001 - whatever it was, the slower way knows more
        parcel.write(result, RETURNED, b"", by_value)


def _hint(value: Any) -> str:
    if isinstance(value, CoroutineType):
        value.close()
        return "; an async function is not awaited here: call asyncio.run(…) in the function"
    if isinstance(value, GeneratorType):
        return "; return a list, since a generator's code would run here, without the device"
    return ""


def _write_raised(result: int, error: BaseException, back: Returning) -> int:
    here = error.__traceback__
    error.__traceback__ = here.tb_next if here is not None else None  # without our own frame
    taken = failure.record(error, back.dumps)
    parcel.write(result, RAISED, b"", lambda file, _: pickle.Pickler(file).dump(taken))
    return _exit_status(error)


def _exit_status(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        return _FAILED
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else _FAILED


def write_text(result: int, kind: int, text: str) -> None:
    """Write why there is no value."""
    parcel.write(result, kind, b"", lambda file, _: pickle.Pickler(file).dump(text))


# -- the end ----------------------------------------------------------------------------------------


def _finish() -> None:
    """End as an interpreter does: wait for threads, then run the exit handlers."""
    shutdown: Callable[[], None] = threading._shutdown  # type: ignore[attr-defined]  # noqa: SLF001
    shutdown()  # as multiprocessing's own children do
    atexit._run_exitfuncs()  # noqa: SLF001 - the same


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):  # closed, or nobody reads it any more
            continue
