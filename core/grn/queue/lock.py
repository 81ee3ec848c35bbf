"""Who works a queue off: a lock on a file that is held for life, and dies with its holder.

It is a lock of the open file description (`F_OFD_SETLK`), since that kind can be asked about without
taking it: who only looks never is in the way of who starts.
"""

from __future__ import annotations

import fcntl
import os
import struct

from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.queue.places import Places

__all__ = ["AlreadyOwned", "owner_of", "still_holds", "take"]

_PRIVATE = 0o600
_DIGITS = 32
_FLOCK = struct.Struct("@hhqqi4x")  # struct flock of fcntl(2): type, whence, start, length, pid
_WHOLE_FILE = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class AlreadyOwned(GrnError):  # noqa: N818 - named by what happened
    """Another process works this queue off."""

    code = "owned"


def owner_of(places: Places) -> int | None:
    """Return the pid of the queue's owner, if one lives; 0 if it has not written its pid yet."""
    try:
        fd = os.open(places.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE))
        if kind == fcntl.F_UNLCK:
            return None
        text = os.pread(fd, _DIGITS, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)


def take(places: Places) -> int:
    """Take the lock; the descriptor that is returned holds it.

    Raises:
        AlreadyOwned: somebody has it.
    """
    while True:
        fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        except (BlockingIOError, PermissionError):  # fcntl(2) allows both
            os.close(fd)
            raise AlreadyOwned(
                f"the queue is worked off already, by process {owner_of(places)}; `grn queue stop`"
                " ends it"
            ) from None
        if still_holds(places, fd):
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
            return fd
        os.close(fd)  # somebody removed the file between open and lock


def still_holds(places: Places, fd: int) -> bool:
    """Whether the lock's name still leads to this lock; if not, another can be taken."""
    try:
        named = os.stat(places.lock)
    except FileNotFoundError:
        return False
    own = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)
