"""One command, from its start to the end of all that it has started.

Design note. This is the path of every command, so it is short: `signal`, which loads `enum`, costs more
than the interpreter itself, and is used through `_signal`; a command that ends and leaves nothing needs
no more than this module. As soon as there is something to stop, `grn.shim.stop` takes over.

Promises: the command has the signal dispositions and mask with which we were started; our descriptors are
closed in it, inherited ones pass through; what was ignored when we were started stays ignored.
"""

from __future__ import annotations

import errno
import os
import select
import sys

from grn.shim.kernel import become_subreaper, die_with_parent, open_signalfd
from grn.supervise.programs import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    candidates,
    exec_failure,
    exec_first,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal as signal

__all__ = ["Shim", "main"]

_STEERING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_CHANGED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_GRN_FAILED = 125
_HIGHEST_STANDARD = 2
_INFO_BYTES = 128  # of struct signalfd_siginfo: ssi_signo, ssi_errno, ssi_code, and more
_SI_KERNEL = 0x80
_STAT_START = 19  # in /proc/<pid>/stat after the last ')'


class Options:
    """What `grn.shim.command` has written, read again."""

    __slots__ = (
        "caller",
        "control",
        "cores",
        "executable",
        "grace_s",
        "lease",
        "leftovers",
        "status",
    )

    def __init__(self, words: Sequence[str]) -> None:
        given = dict(word[2:].split("=", 1) for word in words)
        self.caller = given.get("caller")
        self.control = int(given.get("control", "-1"))
        self.status = int(given.get("status", "-1"))
        self.leftovers = given.get("leftovers", "kill")
        self.grace_s = float(given.get("grace", "5"))
        self.lease = given.get("lease")
        self.executable = given.get("executable")
        self.cores = [int(word) for word in given.get("cores", "").split(",") if word]


class Shim:
    """One command under way. `raw` is the wait status of its main process, once it has ended."""

    def __init__(self, options: Options, argv: list[str]) -> None:
        self.options = options
        self.argv = argv
        self.me = os.getpid()
        self.main = 0
        self.raw: int | None = None
        self.used = ""
        """What it took: seconds of CPU, and KiB of resident memory of its largest process."""
        self.strangers = _children_before()
        """Children that were ours before the command was: we had another program's place."""
        self.news: list[tuple[int, bool]] = []
        """Signals that were read and not acted on yet."""
        self.taken: set[int] = set()
        self.signal_fd = self.caller_fd = -1
        self._mask_before: set[int] = set()
        self._child_before: object = None

    # -- the start ------------------------------------------------------------------------------

    def prepare(self) -> bool:
        """Take the signals over and look at the caller; `False` if that is gone."""
        for fd in (self.options.control, self.options.status):
            if fd >= 0:
                os.set_inheritable(fd, False)
        self._take_signals()
        self.signal_fd = open_signalfd(self.taken)
        become_subreaper()
        return self._watch_caller()

    def _take_signals(self) -> None:
        self._mask_before = {*signal.pthread_sigmask(signal.SIG_BLOCK, ())}
        self.taken = {signal.SIGCHLD}
        for number in _STEERING:
            if number not in self._mask_before and signal.getsignal(number) != signal.SIG_IGN:
                self.taken.add(number)
        signal.pthread_sigmask(signal.SIG_BLOCK, {*self.taken, *_CHANGED_BY_PYTHON})
        for changed in {*self.taken, *_CHANGED_BY_PYTHON} - {signal.SIGCHLD}:
            signal.signal(changed, signal.SIG_DFL)
        # An ignored SIGCHLD would let the kernel drop the exit status that we live on.
        self._child_before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _watch_caller(self) -> bool:
        if self.options.caller is None:
            return True
        pid, _, start = self.options.caller.partition(":")
        try:
            self.caller_fd = os.pidfd_open(int(pid))
        except ProcessLookupError:
            return False
        return start == "0" or _start_of(pid) == start

    def start(self) -> int:
        """Start the command; return the descriptor that tells of a failed exec."""
        paths = candidates(self.options.executable or self.argv[0], os.environ)
        env = _environment()
        told, tell = os.pipe2(os.O_CLOEXEC)
        self.main = os.fork()
        if not self.main:
            self._become(paths, env, tell)
        os.close(tell)
        self.tell(f"pid {self.me} {self.main}")
        return told

    def _become(self, paths: Sequence[str], env: dict[str, str], tell: int) -> NoReturn:
        problem = errno.EIO
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() != self.me:  # we died before the line above
                os._exit(NOT_EXECUTABLE)
            if self.options.cores:
                self._bind()
            if self._child_before == signal.SIG_IGN:
                signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask_before)
            problem = exec_first(paths, self.argv, env)
        except OSError as error:
            problem = error.errno or errno.EIO
        finally:
            os.write(tell, str(problem).encode())
            os._exit(NOT_FOUND if problem == errno.ENOENT else NOT_EXECUTABLE)

    def _bind(self) -> None:
        try:
            os.sched_setaffinity(0, self.options.cores)
        except OSError as error:  # they may be another container's; it runs all the same
            text = f"not bound to cores {self.options.cores}: {error.strerror}"
            if self.options.status < 0:
                _say(text)
            self.tell(f"note {text}")

    # -- on the way -----------------------------------------------------------------------------

    def attend(self) -> None:
        """Wait for the command's end, or for whatever comes up before it."""
        poll = select.poll()
        for fd in (self.signal_fd, self.caller_fd, self.options.control):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while self.raw is None and not self.news:
            ready = [fd for fd, _ in poll.poll()]
            self.news = [each for each in self.arrivals() if each[0] != signal.SIGCHLD]
            self.reap()
            if ready != [self.signal_fd]:
                return

    def arrivals(self) -> list[tuple[int, bool]]:
        """Return the signals that have arrived, and whether the terminal has sent them."""
        try:
            data = os.read(self.signal_fd, _INFO_BYTES * 16)
        except BlockingIOError:
            return []
        found = []
        for at in range(0, len(data), _INFO_BYTES):
            number = int.from_bytes(data[at : at + 4], sys.byteorder)
            code = int.from_bytes(data[at + 8 : at + 12], sys.byteorder, signed=True)
            found.append((number, code == _SI_KERNEL))
        return found

    def reap(self) -> bool:
        """Take the statuses of children that have ended; `False` if there are no children left."""
        while True:
            try:
                pid, status, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if not pid:
                return True
            if pid == self.main:
                self.main = 0
                self.raw = status
                self.used = f"{used.ru_utime + used.ru_stime:.3f} {used.ru_maxrss}"

    def tell(self, line: str) -> None:
        """Write a line to whoever wants to know."""
        if self.options.status < 0:
            return
        _write(self.options.status, f"{line}\n".encode())

    # -- the end --------------------------------------------------------------------------------

    def tell_end(self, exec_fd: int) -> None:
        """Say how the command ended; that it could not be executed, on stderr if nobody is told."""
        raw = self.raw or 0
        problem = int(os.read(exec_fd, 16) or b"0")
        os.close(exec_fd)
        if problem and self.options.status < 0:
            _say(exec_failure(problem, self.options.executable or self.argv[0]))
        if problem:
            self.tell(f"exec {problem}")
        elif os.WIFSIGNALED(raw):
            self.tell(f"signal {os.WTERMSIG(raw)} {self.used}")
        else:
            self.tell(f"exit {os.WEXITSTATUS(raw)} {self.used}")

    def end(self) -> NoReturn:
        """End as the command has ended; one that could not even be killed is ours to confess."""
        raw = self.raw
        if raw is None:
            os._exit(_GRN_FAILED)
        if os.WIFSIGNALED(raw):
            from grn.supervise.signals import die_by  # noqa: PLC0415 - most commands do not need it

            die_by(os.WTERMSIG(raw))
        os._exit(os.WEXITSTATUS(raw))


def main(words: list[str]) -> NoReturn:
    """Run a command; `words` are what `grn.shim.command` made, from the options on."""
    at = words.index("--")
    try:
        _run(Options(words[:at]), words[at + 1 :])
    except OSError as error:
        _say(f"{words[at + 1]} could not be started: {error.strerror or error}")
        os._exit(_GRN_FAILED)


def _run(options: Options, argv: list[str]) -> NoReturn:
    _hold_standard_descriptors()
    shim = Shim(options, argv)
    if not shim.prepare():  # nobody is there any more who wants it
        os._exit(_GRN_FAILED)
    exec_fd = shim.start()
    shim.attend()
    done = shim.raw is not None and (options.leftovers == "keep" or not shim.reap())
    if done:
        shim.tell_end(exec_fd)
    else:
        from grn.shim.stop import Stopping  # noqa: PLC0415 - most commands do not need it

        Stopping(shim, exec_fd).run()
    shim.end()


def _children_before() -> list[int]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    from grn import procs  # noqa: PLC0415 - only who was another program before

    return procs.children(os.getpid())


def _start_of(pid: str) -> str:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        line = os.read(fd, 1024).decode("ascii", "replace")
    except ProcessLookupError:
        return ""
    finally:
        os.close(fd)
    return line[line.rfind(")") + 2 :].split()[_STAT_START]


def _environment() -> dict[str, str]:
    """Return the environment without what Python adds to its own where the locale is C (PEP 538)."""
    env = dict(os.environ)
    if env.get("LC_CTYPE") == "C.UTF-8":
        with open("/proc/self/environ", "rb") as file:
            if b"LC_CTYPE" not in {word.partition(b"=")[0] for word in file.read().split(b"\0")}:
                del env["LC_CTYPE"]
    return env


def _hold_standard_descriptors() -> None:
    """Let no descriptor of ours take the number of a closed standard one."""
    fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    while fd <= _HIGHEST_STANDARD:
        fd = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.close(fd)


def _say(text: str) -> None:
    _write(_HIGHEST_STANDARD, f"grn: {text}\n".encode("utf-8", "replace"))


def _write(fd: int, text: bytes) -> None:
    try:
        os.write(fd, text)
    except OSError:  # nobody reads any more
        return
