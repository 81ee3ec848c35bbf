"""The configuration files: the user's one and the project's one, found and read.

The user's is `$GRN_CONFIG`, else `$XDG_CONFIG_HOME/grn/config.toml`, else `~/.config/grn/config.toml`.
The project's is the nearest `grn.toml`, or `pyproject.toml` with a `[tool.grn]` table, from the working
folder upwards. The search ends with the folder that holds `.git`, with the home folder and with the
file system of the working folder: what lies above belongs to something else. A file of a stranger
(neither ours, nor root's, nor of the owner of the working folder) is passed over, since somebody who
can write to `/tmp` must not set variables of whatever is run below it.

Promises: without files a search is a few system calls for each folder and imports nothing; a file that
cannot be read or is no TOML is a `UsageError` with its name and line.
Must not: know what the files mean, or keep anything: an edit counts for the next request.
"""

from __future__ import annotations

import errno
import os
import stat

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

__all__ = ["Found", "find_project", "read", "read_user", "user_path"]

OWN_NAME, SHARED_NAME = "grn.toml", "pyproject.toml"
_NOT_IN_QUOTES = b" \t\"'"


class Found:
    """What the search for a project's file came to: its path, and files that were passed over."""

    __slots__ = ("passed_over", "path")

    def __init__(self) -> None:
        self.path: str | None = None
        self.passed_over: list[str] = []
        """Each with the reason, for people."""


def user_path(environ: Mapping[str, str]) -> str:
    """Return where the user's file is, or would be."""
    chosen = environ.get("GRN_CONFIG")
    if chosen:
        return chosen
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # the XDG specification: relative paths are to be ignored
        folder = os.path.join(_home(environ), ".config")
    return os.path.join(folder, "grn", "config.toml")


def read_user(environ: Mapping[str, str]) -> tuple[str, dict[str, Any], str]:
    """Read the user's file: its path, its tables and its text; both are empty if there is none.

    Raises:
        UsageError: it cannot be read, or `GRN_CONFIG` names one that does not exist.
    """
    path = user_path(environ)
    if not os.path.exists(path):
        if environ.get("GRN_CONFIG"):
            raise UsageError(f"GRN_CONFIG: there is no file {path}")
        return path, {}, ""
    return (path, *read(path))


def find_project(start: str | None = None, environ: Mapping[str, str] = os.environ) -> Found:
    """Look for the project's file from the folder `start` (default: the working folder) upwards."""
    found = Found()
    first: os.stat_result | None = None
    home: os.stat_result | None = None
    for folder in _upwards(start):
        try:
            here = os.stat(folder)
        except OSError:  # the working folder was removed, or we may not look there
            break
        if first is None:
            first, home = here, _stat(_home(environ))
        elif here.st_dev != first.st_dev:
            break
        found.path = _in_folder(folder, first.st_uid, found.passed_over)
        at_home = home is not None and os.path.samestat(here, home)
        if found.path or at_home or os.access(os.path.join(folder, ".git"), os.F_OK):
            break
    return found


def read(path: str) -> tuple[dict[str, Any], str]:
    """Read a TOML file; return its tables and its text.

    Raises:
        UsageError: it cannot be read, or is not TOML; the message has the line.
    """
    import tomllib  # noqa: PLC0415 - most machines have no configuration file

    text = _decoded(path, _bytes_of(path))
    try:
        return tomllib.loads(text), text
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def _bytes_of(path: str) -> bytes:
    try:
        return _content(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _content(path: str) -> bytes:
    """Return what a file has; of a pipe or a device, which may never end, nothing is read."""
    with open(path, "rb", opener=_without_waiting) as file:
        info = os.fstat(file.fileno())
        if not (stat.S_ISREG(info.st_mode) or os.path.samestat(info, os.stat(os.devnull))):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for a writer of a pipe


def _decoded(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path} is not valid TOML: line {line} is not UTF-8") from error


def _upwards(start: str | None) -> Iterator[str]:
    try:
        folder = os.path.abspath(start or os.getcwd())
    except FileNotFoundError:  # the working folder was removed
        return
    yield folder
    while folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
        yield folder


def _in_folder(folder: str, owner: int, passed_over: list[str]) -> str | None:
    """Return the project's file in this folder; one of GRN's own goes before a shared one."""
    own = os.path.join(folder, OWN_NAME)
    if os.access(own, os.F_OK) and _is_trusted(own, owner, passed_over):
        return own
    shared = os.path.join(folder, SHARED_NAME)
    if not os.access(shared, os.F_OK) or not _may_name_us(shared):
        return None
    is_ours = _is_trusted(shared, owner, passed_over) and _has_our_table(shared)
    return shared if is_ours else None


def _is_trusted(path: str, owner: int, passed_over: list[str]) -> bool:
    info = _stat(path)
    if info is None:  # it was removed this moment
        return False
    if info.st_uid in {0, os.geteuid(), owner}:
        return True
    passed_over.append(
        f"{path}: it belongs to user {info.st_uid}, who is neither you, nor root, nor the owner of"
        " the working folder"
    )
    return False


def _may_name_us(path: str) -> bool:
    """Tell whether a `pyproject.toml` may hold `[tool.grn]`, without the cost of reading TOML.

    One that cannot be read is other tools' business.
    """
    try:
        bare = _content(path).translate(None, _NOT_IN_QUOTES)
    except OSError:
        return False
    return b"tool.grn" in bare or (b"grn" in bare and (b"[tool]" in bare or b"tool=" in bare))


def _has_our_table(path: str) -> bool:
    tools = read(path)[0].get("tool")
    return isinstance(tools, dict) and "grn" in tools


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")
