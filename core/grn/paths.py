"""Where the socket, the files beside it and the state live, and whether those places are safe.

Promises: broker and client, given the same environment, name the same socket; a path is never cut
off; a private folder is ours, 0700 and no symlink, or a `PathError` names the cure. Folders that
a user chose and that exist already are used as they are.

Must not: remove or replace anything, or import more than `os` on a job's hot path.
"""

from __future__ import annotations

import os
import stat

from grn.errors import PathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "SOCKET_PATH_LIMIT",
    "SYSTEM_SOCKET",
    "Beside",
    "beside",
    "check_socket_place",
    "existing_or_private_dir",
    "prepare_folder",
    "private_dir",
    "socket_path",
    "state_dir",
]

SOCKET_PATH_LIMIT = 107  # bytes: sun_path has 108 with the NUL at its end (unix(7))
SYSTEM_SOCKET = "/run/grn/broker.sock"
_NAME = "broker.sock"
_PRIVATE = 0o700
_SHORT_ROOT = "/tmp"  # noqa: S108  # private_dir checks the folder made in it


class Beside:
    """The files that stand beside a socket and carry its name."""

    __slots__ = ("journal", "lock", "log", "spawn_lock")

    def __init__(self, socket: str) -> None:
        self.lock = f"{socket}.lock"
        self.spawn_lock = f"{socket}.spawn.lock"
        self.journal = f"{socket}.journal"
        self.log = f"{socket}.log"


def beside(socket: str) -> Beside:
    """Name the files beside this socket."""
    return Beside(socket)


def socket_path(environ: Mapping[str, str], explicit: str | None = None) -> str:
    """Return the broker's socket: explicit, $GRN_SOCKET, system, runtime folder or temp folder.

    A path over 107 bytes is replaced by a short one in a private folder, the same each time.

    Raises:
        PathError: the private folder in the temp folder belongs to someone else, or even the short
            path is too long.
    """
    given = explicit or environ.get("GRN_SOCKET")
    if given:
        return _short_enough(os.path.abspath(given))
    if _is_socket(SYSTEM_SOCKET):
        return SYSTEM_SOCKET
    runtime = _runtime_dir(environ)
    if runtime is not None:
        return _short_enough(os.path.join(runtime, "grn", _NAME))
    folder = _temp_folder(environ)
    _refuse_foreign(folder)  # else a stranger's socket, planted there, would be our broker
    return _short_enough(os.path.join(folder, _NAME))


def state_dir(environ: Mapping[str, str]) -> str:
    """Return the folder for what outlives the broker: profiles, history, the queue."""
    given = environ.get("GRN_STATE_DIR")
    if given:
        return os.path.abspath(given)
    state_home = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state_home):  # the XDG specification: relative paths are to be ignored
        home = environ.get("HOME") or os.path.expanduser("~")
        state_home = os.path.join(home, ".local", "state")
    return os.path.join(state_home, "grn")


def private_dir(path: str) -> None:
    """Make the folder 0700 whatever the umask, or check that an existing one is ours alone.

    Raises:
        PathError: it is a symlink, no folder, another user's, or cannot be made.
    """
    above = os.path.dirname(path)
    if above and not os.path.exists(above):
        private_dir(above)
    try:
        os.mkdir(path, _PRIVATE)
    except FileExistsError:
        pass
    except OSError as error:
        raise PathError(
            f"cannot make the folder {path}: {error.strerror}; set GRN_SOCKET or GRN_STATE_DIR "
            "to a place where you may write"
        ) from error
    found = _refuse_foreign(path)
    if found is not None and stat.S_IMODE(found.st_mode) != _PRIVATE:
        # Ours, but open to others or narrowed by the umask. Nobody else can swap it under us.
        os.chmod(path, _PRIVATE)


def existing_or_private_dir(path: str) -> None:
    """Use a folder that exists as it is; make a missing one 0700."""
    if os.path.isdir(path):
        return
    if os.path.lexists(path):
        raise PathError(f"{path} is not a folder; move it away or choose another path")
    private_dir(path)


def prepare_folder(socket: str, environ: Mapping[str, str]) -> None:
    """Make or check the folder of the socket: strictly where GRN chose it, else only that it is one."""
    folder = os.path.dirname(socket)
    if folder in _own_folders(environ):
        private_dir(folder)
    else:
        existing_or_private_dir(folder)


def check_socket_place(path: str) -> bool:
    """Say whether a socket stands at the path; False when nothing does.

    Raises:
        PathError: something that is not a socket is there. It is never removed.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PathError(f"cannot look at the socket's path {path}: {error.strerror}") from error
    if stat.S_ISSOCK(mode):
        return True
    raise PathError(
        f"{path} is {_kind(mode)}, not a socket, and was not touched; move it away or choose "
        "another path with --socket or GRN_SOCKET"
    )


def _short_enough(path: str) -> str:
    if _length(path) <= SOCKET_PATH_LIMIT:
        return path
    import hashlib  # noqa: PLC0415  # rarely needed, and slow to load

    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:12] + ".sock"
    folder = _short_folder()
    short = os.path.join(folder, name)
    if _length(short) > SOCKET_PATH_LIMIT:
        raise PathError(
            f"the socket's path has {_length(path)} bytes, the limit is {SOCKET_PATH_LIMIT}: "
            f"{path}; set GRN_SOCKET to a shorter one"
        )
    _refuse_foreign(folder)
    return short


def _length(path: str) -> int:
    return len(os.fsencode(path))  # bytes count, not characters


def _short_folder() -> str:
    return f"{_SHORT_ROOT}/grn-{os.geteuid()}"


def _temp_folder(environ: Mapping[str, str]) -> str:
    temp = environ.get("TMPDIR", "")
    if not (os.path.isabs(temp) and os.path.isdir(temp)):
        temp = _SHORT_ROOT
    return os.path.join(temp, f"grn-{os.geteuid()}")


def _runtime_dir(environ: Mapping[str, str]) -> str | None:
    # After `su` or in a container the variable may name a folder that is missing or another user's.
    path = environ.get("XDG_RUNTIME_DIR", "")
    if not os.path.isabs(path):
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() else None


def _own_folders(environ: Mapping[str, str]) -> set[str]:
    runtime = _runtime_dir(environ)
    chosen = {_short_folder(), _temp_folder(environ)}
    return chosen if runtime is None else {*chosen, os.path.join(runtime, "grn")}


def _refuse_foreign(folder: str) -> os.stat_result | None:
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PathError(f"cannot look at the folder {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise PathError(
            f"{folder} is {_kind(found.st_mode)}, not a folder of our own; remove it, or set "
            "GRN_SOCKET to a path in a folder of yours"
        )
    if found.st_uid != os.geteuid():
        raise PathError(
            f"the folder {folder} belongs to uid {found.st_uid}, not to you (uid {os.geteuid()}); "
            "have it removed, or set GRN_SOCKET to a path in a folder of yours"
        )
    return found


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return False


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISLNK, "a symlink"), (stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"))
    return next((name for test, name in kinds if test(mode)), "a special file")
