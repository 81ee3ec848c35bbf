"""Who works a queue off: a lock on a file that is held for life, and dies with its holder."""

from __future__ import annotations

import fcntl
import os

from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.queue.places import Places

__all__ = ["AlreadyOwned", "owner_of", "take"]

_PRIVATE = 0o600
_DIGITS = 32


class AlreadyOwned(GrnError):  # noqa: N818 - named by what happened
    """Another process works this queue off."""

    code = "owned"


def owner_of(places: Places) -> int | None:
    """Return the pid of the queue's owner, if one lives."""
    try:
        fd = os.open(places.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(fd, _DIGITS, 0).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None


def take(places: Places) -> int:
    """Take the lock; the descriptor that is returned holds it.

    Raises:
        AlreadyOwned: somebody has it.
    """
    fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        pid = owner_of(places)
        raise AlreadyOwned(
            f"the queue is worked off already, by process {pid}; `grn queue stop` ends it"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
