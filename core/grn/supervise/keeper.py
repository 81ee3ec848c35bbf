"""A process that stays behind to pass on what a command's background processes write to stderr.

Their standard error is a pipe of ours, or a pseudo-terminal. Without us they would be killed by
SIGPIPE at their next word, or it would be lost. Where they had the real descriptor they would keep
that open, too, so a caller who waits for its end waits no longer than without us.

Promises: it ends when the last of them has closed its end, or nobody reads any more; it holds
nothing else of the caller's, is no part of its session, and dies by signals as any other program.
"""

from __future__ import annotations

import errno
import os
import select
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["stay_behind"]

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_READ = 65536


def stay_behind(fds: Collection[int]) -> None:
    """Fork a process that relays these descriptors to standard error until their end."""
    try:
        pid = os.fork()
    except OSError:  # too many processes: what they write later is lost
        return
    if pid:
        return
    try:
        _detach(fds)
        _relay(set(fds))
    except OSError:  # nobody reads any more, so nobody shall write
        pass
    finally:
        os._exit(0)


def _detach(fds: Collection[int]) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, _STDIN)
    os.dup2(null, _STDOUT)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _STDERR and int(name) not in fds:
            try:
                os.close(int(name))
            except OSError:  # that of this listing
                continue
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _relay(fds: set[int]) -> None:
    poll = select.poll()
    for fd in fds:
        os.set_blocking(fd, True)
        poll.register(fd, select.POLLIN)
    while fds:
        for fd, _ in poll.poll():
            data = _read(fd)
            if not data:
                poll.unregister(fd)
                os.close(fd)
                fds.discard(fd)
            _write_all(data)


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(_STDERR, rest) :]
        except BlockingIOError:  # somebody made the shared file non-blocking, and it is full
            room = select.poll()
            room.register(_STDERR, select.POLLOUT)
            room.poll()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _READ)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""  # so ends a pseudo-terminal whose inner end is closed everywhere
