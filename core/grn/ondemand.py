"""Start a broker when none answers, once, however many clients ask at the same instant.

The problem: sixteen clients find no broker and all start one. The order that has no race: connect;
when nobody listens, take the spawn lock; **connect again under it**, since whoever held it before us
may have started one; only then start a broker and wait until it says READY on a pipe. The lock is
the kernel's (flock), so it dies with its holder, and its file is never unlinked: a second file of
the same name would be a second lock.

The broker must not be tied to the client that happened to start it: own session, no inherited
descriptors, no lease marker in its environment, and no child of ours. It goes through `sh`, which
puts it in the background and exits; else it would stay a zombie of a long-lived client, and a
supervisor, which adopts orphans, would take it for a leftover of its job and kill it.

Must not: import subprocess, sleep, or be imported while a broker answers.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import sys
import time

from grn import paths, procs
from grn.connection import open_socket
from grn.errors import BrokerSilent, BrokerUnavailable, PathError
from grn.settings import as_argv

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

    from grn.settings import Settings

__all__ = ["connect", "ensure_broker"]

_READY_TIMEOUT_S = 10.0
_READY_FD = 3  # its number in the broker
_ABOVE_READY_FD = 10
_ROUNDS = 3
_COLLISION_S = 5.0
_COLLISION_STEP_MS = 20
_LOG_LIMIT = 4 << 20
_LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 8
_OWN = 0o600
_DETACH = 'umask 077; cd /; "$@" &'
_ALREADY = "already running"

# A lease's marker would count the broker as that lease's process, and its mask would be the
# broker's; systemd's variables speak to the client that was started by it, not to our child.
_NOT_FOR_BROKERS = (
    *("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC"),
    "GRN_ALSO_TELL",  # for the jobs of who starts it, not for everybody's
)
_OF_THE_LEASE = ("GRN_LEASE", "GRN_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def ensure_broker(settings: Settings) -> socket.socket:
    """Connect to the broker, starting one if there is none.

    Raises:
        BrokerUnavailable: none could be started; the message has its last words and its log.
        PathError: the socket's path or folder cannot be used as it is.
    """
    path = paths.socket_path(os.environ, settings.socket)
    connection = connect(path)
    if connection is not None:
        return connection
    _refuse_if_not_ours_to_start(path)
    paths.prepare_folder(path, os.environ)
    lock = _take_spawn_lock(paths.beside(path).spawn_lock)
    try:
        return _connect_or_spawn(path, settings)
    finally:
        os.close(lock)


def connect(path: str) -> socket.socket | None:
    """Connect to the socket; None when nobody listens there.

    Raises:
        BrokerSilent: somebody listens there and takes no connection.
        PathError: something other than a missing broker is in the way.
    """
    try:
        return open_socket(path)
    except BrokerSilent:
        raise
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        if error.errno == errno.ECONNREFUSED:  # a dead broker's socket, or no socket at all
            paths.check_socket_place(path)
            return None
        raise PathError(_why_not(path, error)) from error


def _why_not(path: str, error: OSError) -> str:
    if error.errno in {errno.EACCES, errno.EPERM}:
        return (
            f"no permission to connect to the broker's socket {path}; it is another user's: join "
            "its group, or set GRN_SOCKET to a path of your own"
        )
    return f"cannot connect to {path}: {error.strerror or error}; set GRN_SOCKET to another path"


def _refuse_if_not_ours_to_start(path: str) -> None:
    folder = os.path.dirname(path)
    if path == paths.SYSTEM_SOCKET and not os.access(folder, os.W_OK):
        raise BrokerUnavailable(
            f"this machine's broker at {path} does not run, and only its owner can start it; a "
            "second one would hand out the same devices twice. Have it started, or set GRN_SOCKET"
        )


def _take_spawn_lock(path: str) -> int:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _OWN)
    except OSError as error:
        raise PathError(f"cannot open the lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who holds it is done within the READY time-out
    except BaseException:
        os.close(lock)
        raise
    return lock


def _connect_or_spawn(path: str, settings: Settings) -> socket.socket:
    # Several rounds: a broker may leave (idle, or killed) between its READY and our connect.
    for _ in range(_ROUNDS):
        connection = connect(path)
        if connection is not None:
            return connection
        _spawn(path, settings)
    connection = connect(path)
    if connection is None:
        raise BrokerUnavailable(
            f"{_ROUNDS} brokers started at {path} and each was gone at once; "
            f"see {paths.beside(path).log}"
        )
    return connection


def _spawn(path: str, settings: Settings) -> None:
    """Start a broker and return once it serves."""
    log = paths.beside(path).log
    log_start = _open_new_log_page(log)
    told, tell = os.pipe()
    try:
        _launch(_command(path, settings), log, tell)
    finally:
        os.close(tell)
    try:
        line = _read_line(told)
    finally:
        os.close(told)
    if line.startswith("READY"):
        return
    if line.startswith("ERROR"):
        text = line.removeprefix("ERROR").strip()
        # Someone starts one by hand at this moment: it holds the lock and is about to listen.
        if text.startswith(_ALREADY) and _serves_soon(path):
            return
        raise BrokerUnavailable(f"the broker could not start: {text}")
    raise BrokerUnavailable(f"the broker {line}; its log {log} {_last_words(log, log_start)}")


def _command(path: str, settings: Settings) -> list[str]:
    if not sys.executable:
        raise BrokerUnavailable(
            "no broker runs and this Python does not know its own executable, so none can be "
            "started from here; start one with: grn broker"
        )
    # -P: a grn.py or select.py in the client's working folder must not become part of the broker.
    program = [sys.executable, "-P", "-m", "grn", "broker", "--on-demand"]
    return [*program, f"--ready-fd={_READY_FD}", f"--socket={path}", *as_argv(settings)]


def _launch(command: Sequence[str], log: str, tell: int) -> None:
    # Moved out of the way first: dup2 onto its own number would leave close-on-exec set.
    high = fcntl.fcntl(tell, fcntl.F_DUPFD_CLOEXEC, _ABOVE_READY_FD)
    log_flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, log_flags, _OWN),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        (os.POSIX_SPAWN_DUP2, high, _READY_FD),
        *((os.POSIX_SPAWN_CLOSE, fd) for fd in _inherited_fds()),
    ]
    was_subreaper = _set_subreaper(0)
    try:
        # Signals that we ignore or block (nohup, a supervisor) are no choice of the broker's.
        shell = os.posix_spawn(
            "/bin/sh",
            ["sh", "-c", _DETACH, "grn-broker", *command],
            _environment(os.environ),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=(
                signal.SIGINT,
                signal.SIGQUIT,
                signal.SIGTERM,
                signal.SIGHUP,
                signal.SIGPIPE,
                signal.SIGCHLD,
                signal.SIGUSR1,
            ),
        )
        _reap(shell)
    except OSError as error:
        raise BrokerUnavailable(
            f"cannot start a broker with its log at {log}: {error.strerror or error}"
        ) from error
    finally:
        if was_subreaper:
            _set_subreaper(1)
        os.close(high)


def _inherited_fds() -> list[int]:
    """List descriptors that exec would pass on, such as a lock or a pipe of the calling shell."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > _READY_FD and os.get_inheritable(int(name)):
                found.append(int(name))
        except OSError:  # the descriptor of this very listing, or closed by another thread
            continue
    return found


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    in_lease = "GRN_LEASE" in environ
    drop = (*_NOT_FOR_BROKERS, *_OF_THE_LEASE) if in_lease else _NOT_FOR_BROKERS
    kept = {name: value for name, value in environ.items() if name not in drop}
    kept[procs.BROKER_SIGN] = "1"  # a supervisor that adopts it knows it for what it is
    # What is relative means our working folder, not the broker's.
    for name in ("GRN_STATE_DIR", "GRN_CONFIG"):
        if kept.get(name):
            kept[name] = os.path.abspath(kept[name])
    if "PYTHONPATH" in kept:
        entries = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(os.path.abspath(entry) for entry in entries)
    return kept


def _set_subreaper(value: int) -> bool:
    """Make this process adopt orphans or not; say whether it did.

    While `sh` exits, a supervisor steps aside for about a millisecond, so that the broker goes to
    init. An orphan of the job that slips past in that moment is still found by its lease marker.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int(0)
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if bool(before.value) != bool(value):
        libc.prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0)
    return bool(before.value)


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:  # the embedding program ignores SIGCHLD or waits for any child
        return


def _read_line(told: int) -> str:
    """Return the broker's line on the pipe, or words for what became of it."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    poll = select.poll()  # not select(): it fails for descriptors over 1023
    poll.register(told, select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return f"did not get ready within {_READY_TIMEOUT_S:g} s"
        chunk = os.read(told, 4096)
        if not chunk:
            return "died while it started"
        line += chunk
    return line.decode("utf-8", "replace").strip()


def _serves_soon(path: str) -> bool:
    # Nothing tells us when a broker that is not our child listens: look, for a bounded time.
    deadline = time.monotonic() + _COLLISION_S
    while time.monotonic() < deadline:
        connection = connect(path)
        if connection is not None:
            connection.close()
            return True
        select.poll().poll(_COLLISION_STEP_MS)
    return False


def _open_new_log_page(log: str) -> int:
    """Return the log's length before this start; a log that grew too long is set aside."""
    try:
        size = os.stat(log).st_size
        if size <= _LOG_LIMIT:
            return size
        os.replace(log, f"{log}.old")
    except OSError:  # none yet; a real obstacle shows when the broker's output is opened
        return 0
    return 0


def _last_words(log: str, start: int) -> str:
    try:
        with open(log, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(start, end - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    lines = [line for line in lines if line.strip()]
    if lines:
        return "ends:\n" + "\n".join(lines[-_LOG_TAIL_LINES:])
    full = os.statvfs(os.path.dirname(log)).f_bavail == 0
    return "has no word of it" + (", for its disk is full: make room there" if full else "")
