"""The calls to Linux that the shim needs, at a tenth of the cost of `ctypes`.

`ctypes` takes 3 ms to import and is a thin layer over `_ctypes`, which is used here as `ctypes` itself
does. Where that does not work (another Python), the calls of `grn.supervise.kernel` do.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["become_subreaper", "die_with_parent", "open_signalfd"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_SIGSET_BYTES = 128


def _bind() -> tuple[Callable[..., int], Callable[..., int]] | None:
    """Find prctl and signalfd in the C library that is loaded already."""
    try:
        import _ctypes  # noqa: PLC0415 - see above

        simple: Any = _ctypes._SimpleCData  # noqa: SLF001 - the base of the types in `ctypes`

        class _Int(simple):  # type: ignore[misc]
            _type_ = "i"

        class _Long(simple):  # type: ignore[misc]
            _type_ = "L"

        class _Bytes(simple):  # type: ignore[misc]
            _type_ = "z"

        class _Call(_ctypes.CFuncPtr):
            _flags_ = _ctypes.FUNCFLAG_CDECL
            _restype_ = _Int

        itself: Any = None  # the program, and with it what it has loaded
        library = _ctypes.dlopen(itself, 0)
        prctl = _Call(_ctypes.dlsym(library, "prctl"))
        prctl.argtypes = (_Int, _Long, _Long, _Long, _Long)
        signalfd = _Call(_ctypes.dlsym(library, "signalfd"))
        signalfd.argtypes = (_Int, _Bytes, _Int)
    except (ImportError, AttributeError, OSError, TypeError, ValueError):
        return None
    return prctl, signalfd


_calls = _bind()


def become_subreaper() -> None:
    """Make orphans among our descendants our children, so that none gets out of sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> None:
    """Ask for a signal at the death of the thread that forked us. Survives exec, not fork."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(what: int, value: int) -> None:
    if _calls is None:
        from grn.supervise import kernel  # noqa: PLC0415 - the slow way

        if what == _PR_SET_PDEATHSIG:
            kernel.die_with_parent(value)
        else:
            kernel.become_subreaper()
    elif _calls[0](what, value, 0, 0, 0):
        raise OSError(f"prctl({what}, {value}) failed")


def open_signalfd(signals: Iterable[int]) -> int:
    """Return a descriptor from which these (blocked) signals can be read with their origin."""
    if _calls is None:
        from grn.supervise import kernel  # noqa: PLC0415 - the slow way

        return kernel.open_signalfd(signals)
    bits = 0
    for number in signals:
        bits |= 1 << (number - 1)
    sigset = bits.to_bytes(8, sys.byteorder) + bytes(_SIGSET_BYTES - 8)
    fd = _calls[1](-1, sigset, _SFD_FLAGS)
    if fd < 0:
        raise OSError("signalfd failed: out of descriptors?")
    return fd
