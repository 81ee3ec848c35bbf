"""What a body finds around it: its caller's, as they were at the time of the call.

Promises: environment first, everything else after it; nothing is imported or unpickled here.
Everything is built-in types, so that they travel by `marshal`.
"""

from __future__ import annotations

import ctypes
import importlib
import marshal
import os
import sys
import time
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypedDict

from grn.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = [
    "Surroundings",
    "absolute_path",
    "ahead_of_environment",
    "apply",
    "capture",
    "fill_main",
    "find_pad",
    "given",
    "given_fds",
    "unpack",
]

_PAD = "GRN_ISOLATE_PAD"
_PAD_BYTES = 256
_MARKER = "GRN_LEASE"
_COMM_BYTES = 15

given: list[int] = []
"""The descriptors that this process was given for its call."""

_libc = ctypes.CDLL(None)
_libc.getenv.restype = ctypes.c_void_p
_libc.getenv.argtypes = (ctypes.c_char_p,)


class Surroundings(TypedDict):
    """`main_file` and `main_spec` are those of the caller's `__main__`, None if it has none."""

    env: dict[str, str]
    path: list[str]
    argv: list[str]
    cwd: str | None
    affinity: list[int]
    main_file: str | None
    main_spec: str | None
    name: str
    collect: bool


def capture(
    env: Mapping[str, str],
    *,
    cwd: str | None,
    affinity: Collection[int] | None,
    name: str,
    collect: bool,
) -> bytes:
    """Take down this process's surroundings, with those that the caller chose.

    Raises:
        UsageError: the environment has something that no environment can have.
    """
    main = sys.modules.get("__main__")
    surroundings: Surroundings = {
        "env": _checked(env),
        "path": absolute_path(),
        "argv": [str(word) for word in getattr(sys, "argv", None) or [""]],
        "cwd": _here() if cwd is None else os.path.abspath(cwd),
        "affinity": sorted(os.sched_getaffinity(0) if affinity is None else affinity),
        "main_file": getattr(main, "__file__", None),
        "main_spec": getattr(getattr(main, "__spec__", None), "name", None),
        "name": name,
        "collect": collect,
    }
    return marshal.dumps(dict(surroundings))


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed; the body then stays where the server was started
        return None


def absolute_path() -> list[str]:
    """Return `sys.path` for a process that works in another folder."""
    base = _here() or "/"
    return [os.path.normpath(os.path.join(base, entry)) for entry in sys.path]


def _checked(env: Mapping[str, str]) -> dict[str, str]:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"environment: {name!r} and its value {value!r} must be texts")
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise UsageError(
                f"environment: {name!r} cannot be set (empty, or with '=' or NUL in it)"
            )
    return dict(env)


def unpack(head: bytes) -> Surroundings:
    """Read what `capture` wrote."""
    surroundings: Surroundings = marshal.loads(head)  # noqa: S302 - from our own process
    return surroundings


def apply(surroundings: Surroundings, pad: int) -> None:
    """Put them in place, in a process that was forked for them; `pad` as `find_pad` gave it.

    Raises:
        OSError: the working folder is gone or closed to us.
    """
    set_environment(surroundings["env"])
    show_lease(surroundings["env"].get(_MARKER), pad)
    sys.path[:] = surroundings["path"]
    sys.argv[:] = surroundings["argv"]
    importlib.invalidate_caches()  # files may have come since the server looked
    if surroundings["name"]:
        with open("/proc/self/comm", "wb") as file:
            file.write(os.fsencode(surroundings["name"])[:_COMM_BYTES])
    _use_cpus(set(surroundings["affinity"]))
    sys.modules["__main__"] = _new_main(surroundings)
    if surroundings["cwd"] is not None:
        os.chdir(surroundings["cwd"])


def _use_cpus(cpus: set[int]) -> None:
    if cpus == os.sched_getaffinity(0):
        return
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise OSError(error.errno, f"CPUs {sorted(cpus)}: {error.strerror}") from error


def set_environment(env: Mapping[str, str]) -> None:
    """Make this the environment, for Python and for C."""
    for name in list(os.environ):
        del os.environ[name]
    _libc.clearenv()  # also what a library has set behind Python's back
    os.environ.update(env)
    time.tzset()


def _new_main(surroundings: Surroundings) -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if surroundings["main_file"] is not None:
        main.__file__ = surroundings["main_file"]
    if surroundings["main_spec"] is not None:
        main.__spec__ = ModuleSpec(surroundings["main_spec"], None)
    return main


def given_fds() -> tuple[int, ...]:
    """Return a body's numbers for the descriptors that it was given with `fds`, in that order."""
    return tuple(given)


def fill_main(fn: Any) -> None:
    """Give our `__main__` what came of the caller's, so that its names can be looked up."""
    main = sys.modules["__main__"].__dict__
    while fn is not None:
        if isinstance(fn, FunctionType) and fn.__globals__.get("__name__") == "__main__":
            for name, value in fn.__globals__.items():
                main.setdefault(name, value)
            if fn.__module__ == "__main__" and fn.__qualname__ == fn.__name__:
                main.setdefault(fn.__name__, fn)
        fn = _inside(fn)


def _inside(fn: Any) -> Any:
    """Return what a partial, a method or a decorated function is made of, None for others."""
    for name in ("func", "__func__", "__wrapped__"):
        inner = getattr(fn, name, None)
        if callable(inner):
            return inner
    return None


# -- the lease that /proc shows ---------------------------------------------------------------------


def ahead_of_environment() -> dict[str, str]:
    """Return what the server's environment must begin with.

    A process's environment in `/proc` is the memory that its exec left, and brokers look there for
    a lease. A forked process writes its own into room that was left for it.
    """
    return {_PAD: "." * _PAD_BYTES}


def find_pad() -> int:
    """Return where that room is, 0 if there is none; to be called before anything is changed."""
    value = _libc.getenv(_PAD.encode())
    os.environ.pop(_PAD, None)
    return value - len(_PAD) - 1 if value else 0


def show_lease(lease: str | None, pad: int) -> None:
    """Let `/proc` show the lease that this process is under."""
    room = len(_PAD) + 1 + _PAD_BYTES
    text = f"{_MARKER}={lease}".encode()
    if pad and lease and len(text) < room:
        ctypes.memmove(pad, text.ljust(room, b"\0"), room)
