"""The few calls to Linux that Python 3.11 does not offer, bound once before any fork.

Must not be imported by anything that runs where no job is started: `ctypes` takes milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["become_subreaper", "die_with_parent", "open_signalfd"]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SFD_NONBLOCK = os.O_NONBLOCK
_SFD_CLOEXEC = os.O_CLOEXEC
_SIGSET_BYTES = 128  # glibc's and musl's sigset_t: room for 1024 signals

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, *(ctypes.c_ulong,) * 4)
_signalfd = _libc.signalfd
_signalfd.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int)


def become_subreaper() -> None:
    """Make orphans among our descendants our children, so that none gets out of sight."""
    if _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise _last_error()


def die_with_parent(signal: int) -> None:
    """Ask for `signal` at the death of the thread that forked us. Survives exec, not fork."""
    if _prctl(_PR_SET_PDEATHSIG, signal, 0, 0, 0):
        raise _last_error()


def open_signalfd(signals: Iterable[int]) -> int:
    """Return a descriptor from which these (blocked) signals can be read with their origin."""
    bits = 0
    for number in signals:
        bits |= 1 << (number - 1)
    # An array of machine words, of which 64 signals fill the first: little-endian is not assumed.
    sigset = bits.to_bytes(8, sys.byteorder) + bytes(_SIGSET_BYTES - 8)
    fd = int(_signalfd(-1, sigset, _SFD_NONBLOCK | _SFD_CLOEXEC))
    if fd < 0:
        raise _last_error()
    return fd


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
