"""How the processes of a queue hear of changes: a file that is touched, and inotify on it.

Promises: no polling; a change between two waits is not missed; a file that grows can be followed
with the same descriptor.
Must not: say what has changed. Whoever is woken looks at the list.
"""

from __future__ import annotations

import os

from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Changes", "touch"]

_MODIFY, _ATTRIB, _DELETE_SELF, _MOVE_SELF = 0x2, 0x4, 0x400, 0x800
_ANY = _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF
_EVENTS_BYTES = 1 << 14
_PRIVATE = 0o600


def touch(path: str) -> None:
    """Tell everybody who watches the file that something has changed."""
    try:
        os.utime(path)
    except FileNotFoundError:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))


class Changes:
    """A descriptor that is readable once one of the files was touched or has grown.

    Raises:
        GrnError: this process can have no inotify, for a limit on this user.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        import ctypes  # noqa: PLC0415 - who only touches does without

        self._errno = ctypes.get_errno
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        for path in paths:
            self.add(path)

    def add(self, path: str) -> None:
        """Watch one more file."""
        self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(path), _ANY))

    def add_home(self, folder: str) -> None:
        """Also wake when this folder itself is moved or removed, whatever happens in it."""
        mask = _DELETE_SELF | _MOVE_SELF
        self._checked(self._libc.inotify_add_watch(self._fd, os.fsencode(folder), mask))

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._fd

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a change and take it in; `False` if none came in time."""
        import select  # noqa: PLC0415 - as above

        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        happened = bool(poll.poll(None if timeout_s is None else timeout_s * 1000))
        self.drain()
        return happened

    def drain(self) -> None:
        """Forget what has happened until now."""
        try:
            while os.read(self._fd, _EVENTS_BYTES):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = self._errno()
            raise GrnError(
                f"the kernel does not tell of changes: {os.strerror(number)};"
                " raise fs.inotify.max_user_instances or max_user_watches (sysctl)"
            )
        return result
