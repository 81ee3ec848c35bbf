"""How the kernel tells that a name leads elsewhere: inotify, and the table of mounts.

Files and folders are watched themselves, not what happens in a folder: a socket in a busy /tmp costs
no wake-up until its own name changes. A lock file that we hold open shows its removal as a change of
its link count (`IN_ATTRIB`), since the file itself lives on. Something mounted over a folder changes
no file in it, as when a login makes a new runtime folder; for that there is the table of mounts.

Promises: readable once something happened since the last `renew`; silent otherwise.
Must not: say what happened. Whoever is woken looks at the names themselves.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NameWatch"]

_ATTRIB, _MOVED_TO, _CREATE = 0x4, 0x80, 0x100
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_ONLYDIR, _DONT_FOLLOW = 0x01000000, 0x02000000
_OF_A_FILE = _ATTRIB | _DELETE_SELF | _MOVE_SELF | _DONT_FOLLOW
_OF_A_FOLDER = _DELETE_SELF | _MOVE_SELF | _ONLYDIR
_OF_WHAT_IS_TO_COME = _OF_A_FOLDER | _CREATE | _MOVED_TO

_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})
"""Gone: whoever looks sees it. Or a folder that we may pass and not list: not ours to rename."""

_EVENTS_BYTES = 1 << 14
_MOUNTS = "/proc/self/mountinfo"


class NameWatch:
    """A descriptor that is readable when one of the watched names may lead elsewhere.

    Raises:
        OSError: this process can have no inotify (a limit of the user's, or of the kernel).
    """

    def __init__(self) -> None:
        # One descriptor for all; and only epoll can leave out that a /proc file is readable.
        self._epoll = select.epoll()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._watched: set[int] = set()
        self._mounts = -1
        self._epoll.register(self._inotify, select.EPOLLIN)
        self._watch_mounts()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._epoll.fileno()

    def renew(self, files: Iterable[str], folder: str, *, awaited: bool) -> None:
        """Watch what these names lead to by now; forget what happened, and what they led to before.

        Call it first and look at the names after it: what happens later makes the descriptor
        readable again.

        Args:
            files: watched for losing their names; missing ones are left out.
            folder: it and all above it are watched for being moved.
            awaited: wake up also for what is made in the folder, or in the last one that exists.

        Raises:
            OSError: the limit of watches is reached.
        """
        before, self._watched = self._watched, set()
        for path in files:
            self._add(path, _OF_A_FILE)
        for above in _and_all_above(folder):
            wakes = awaited and os.path.isdir(above)
            self._add(above, _OF_WHAT_IS_TO_COME if wakes else _OF_A_FOLDER)
            awaited = awaited and not wakes
        for watch in before - self._watched:
            self._libc.inotify_rm_watch(self._inotify, watch)  # fails if its file is gone
        self.drain()

    def drain(self) -> None:
        """Forget what has happened until now."""
        self._epoll.poll(0)  # asking is what resets the table of mounts
        try:
            while os.read(self._inotify, _EVENTS_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Stop watching."""
        self._epoll.close()
        os.close(self._inotify)
        if self._mounts >= 0:
            os.close(self._mounts)

    def _watch_mounts(self) -> None:
        try:
            self._mounts = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no /proc: then nothing tells of mounts
            return
        self._epoll.register(self._mounts, select.EPOLLPRI)

    def _add(self, path: str, mask: int) -> None:
        name = os.fsencode(path)
        try:
            watch = self._checked(self._libc.inotify_add_watch(self._inotify, name, mask))
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
            return
        self._watched.add(watch)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result


def _and_all_above(folder: str) -> list[str]:
    """List the folder and those above it, the deepest first."""
    found = [folder]
    while os.path.dirname(found[-1]) != found[-1]:
        found.append(os.path.dirname(found[-1]))
    return found
