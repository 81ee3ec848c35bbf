"""Start a program as our child: fork, make the child what a plain start would be, exec.

Design note. `subprocess` would cost 10 ms to import and cannot set a parent-death signal without
running Python code in the child anyway. Between fork and exec only calls that were bound before
are made, and every way out of the child is `_exit`. That exec failed is told through a pipe that a
successful exec closes; it is read when the child is reaped, so a start never waits for the exec.

Promises: the child dies with us (SIGKILL by the kernel; children of its own do not); it has the
signal dispositions, mask and file limit with which we were started; descriptors that we opened are
closed in it, inherited ones pass through.
"""

from __future__ import annotations

import errno
import os
import resource
import signal

from grn.supervise.kernel import die_with_parent
from grn.supervise.programs import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    candidates,
    exec_failure,
    exec_first,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

    from grn.supervise.signals import Signals

__all__ = [
    "NOT_EXECUTABLE",
    "NOT_FOUND",
    "Child",
    "Spawner",
    "exec_failure",
    "hold_standard_descriptors",
]

_HIGHEST_STANDARD = 2
_OUR_FILES = 64
_FILES_PER_CHILD = 4  # two pipes, the one that tells of exec, a log


class Child:
    """A started process; `errors` is the pipe that tells why exec failed."""

    __slots__ = ("errors", "pid")

    def __init__(self, pid: int, errors: int) -> None:
        self.pid = pid
        self.errors = errors

    def exec_errno(self) -> int:
        """Return the errno of a failed exec, 0 if it worked. Call once, after the child's end."""
        try:
            text = os.read(self.errors, 16)
        finally:
            os.close(self.errors)
        return int(text or b"0")


class Spawner:
    """Starts children of this process."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._me = os.getpid()
        self._files_before: tuple[int, int] | None = None

    def raise_file_limit(self) -> None:
        """Make room for the pipes of many children; a child gets the limit that we had."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            self._files_before = (soft, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def room(self) -> int:
        """Tell for how many children at once there are descriptors."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, (soft - _OUR_FILES) // _FILES_PER_CHILD)

    def spawn(
        self,
        words: Sequence[str],
        env: Mapping[str, str],
        descriptors: Sequence[int | None] = (None, None, None),
        cores: Sequence[int] = (),
    ) -> Child:
        """Start `words` with `env`; `descriptors` replace 0, 1 and 2 where not None.

        With `cores` the program is bound to them before it can count them.

        Raises:
            OSError: the process could not be made (limits, memory). A program that cannot be
                executed shows later, in `Child.exec_errno`.
        """
        paths = candidates(words[0], env)
        told, tell = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError:
            os.close(told)
            os.close(tell)
            raise
        if pid == 0:
            self._become(paths, words, env, descriptors, cores, tell)
        os.close(tell)
        return Child(pid, told)

    def _become(
        self,
        paths: Sequence[str],
        words: Sequence[str],
        env: Mapping[str, str],
        descriptors: Sequence[int | None],
        cores: Sequence[int],
        tell: int,
    ) -> NoReturn:
        problem = errno.EIO
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != self._me:  # we died before the line above
                os._exit(NOT_EXECUTABLE)
            for number, descriptor in enumerate(descriptors):
                if descriptor is not None:
                    os.dup2(descriptor, number)
            if self._files_before is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._files_before)
            if cores:
                _bind(cores)
            self._signals.restore_in_child()
            problem = exec_first(paths, words, env)
        except OSError as error:
            problem = error.errno or errno.EIO
        finally:
            os.write(tell, str(problem).encode())
            os._exit(NOT_FOUND if problem == errno.ENOENT else NOT_EXECUTABLE)


def _bind(cores: Sequence[int]) -> None:
    """Bind the child to its cores; one that cannot be runs all the same, and its reader is told."""
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:  # the broker may use cores that are not ours, in another container
        text = f"grn run: not bound to cores {', '.join(map(str, cores))}: {error.strerror}\n"
        os.write(_HIGHEST_STANDARD, text.encode())


def hold_standard_descriptors() -> None:
    """Occupy 0, 1 and 2 if they are closed, so that no pipe of ours takes such a number.

    The placeholders close at exec: a child finds them as closed as we did.
    """
    while True:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        if fd > _HIGHEST_STANDARD:
            os.close(fd)
            return
