"""Looks for the broker of this user: where its socket is, whether it answers, what it says.

Promises: bounded, whatever listens there; starts no broker and changes nothing.
"""

from __future__ import annotations

import os
import pwd
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

from grn import paths, procs
from grn.connection import Connection
from grn.doctor.disk import free_mib, obstacle_to_writing
from grn.doctor.facts import BrokerFacts, PlaceFacts
from grn.errors import BrokerSilent, GrnError, from_code

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ask_broker", "place_of", "user_name"]

ANSWER_WITHIN_S = 5.0
_PEERCRED = struct.Struct("3i")
_LOG_TAIL_BYTES = 1 << 16
_LAST_WARNINGS = 3
_LEVELS = (" WARNING ", " ERROR ", " CRITICAL ")
_SHOWN = 300


def place_of(environ: Mapping[str, str], chosen: str | None, source: str) -> PlaceFacts:
    """Find the socket's path, and what is in the way of one there; `source` says who chose it."""
    try:
        path = paths.socket_path(environ, chosen)
        paths.check_socket_place(path)
    except (GrnError, OSError) as error:
        return PlaceFacts(problem=str(error), chosen=source)
    folder = os.path.dirname(path)
    return PlaceFacts(
        path,
        source or _how_chosen(path, environ),
        is_system=path == paths.SYSTEM_SOCKET,
        obstacle=obstacle_to_writing(folder),
        free_mib=free_mib(folder),
    )


def _how_chosen(path: str, environ: Mapping[str, str]) -> str:
    if path == paths.SYSTEM_SOCKET:
        return "this machine's broker for all users"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime and path.startswith(f"{runtime.rstrip('/')}/"):
        return "in XDG_RUNTIME_DIR"
    return "in the temporary folder, since XDG_RUNTIME_DIR is not usable"


def ask_broker(path: str, within_s: float = ANSWER_WITHIN_S) -> BrokerFacts:
    """Ask whoever listens at the path for its state."""
    log = paths.beside(path).log
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(within_s)
            sock.connect(path)
            return _told(sock, path, within_s, log)
    except (FileNotFoundError, ConnectionRefusedError):
        return BrokerFacts(log=log, log_warnings=_last_warnings(log, None))
    except GrnError as error:
        said = error.message
    except PermissionError:
        said = f"no permission to connect to {path}: join its group, or set GRN_SOCKET"
    except BlockingIOError:
        said = f"the queue of {path} is full: it does not answer"
    except OSError as error:
        said = f"cannot connect to {path}: {error.strerror or error}"
    return BrokerFacts(problem=said, lock_pid=_lock_pid(path), log=log)


def _told(sock: socket.socket, path: str, within_s: float, log: str) -> BrokerFacts:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    _, listener_uid, _ = _PEERCRED.unpack(credentials)
    connection = Connection(sock, path=path)
    status = _status(connection, time.monotonic() + within_s)
    hello = connection.broker
    pid = hello.get("pid")  # who listened first may be systemd
    uid = procs.uid(pid) if isinstance(pid, int) else None
    return BrokerFacts(
        runs=True,
        pid=pid,
        user=user_name(listener_uid if uid is None else uid),
        release=str(hello.get("release", "")),
        on_demand=bool(hello.get("on_demand")),
        status=status,
        log=log,
        log_warnings=_last_warnings(log, pid),
    )


def _status(connection: Connection, until_s: float) -> dict[str, Any]:
    """Read all pages of the status."""
    status: dict[str, Any] | None = None
    page, more = 0, True
    while more:
        connection.send({"op": "status", "page": page, "id": connection.next_id()})
        answer = _answer(connection, until_s)
        told, more, page = answer["status"], answer["more"], page + 1
        if status is None:
            status = told
        else:
            for key in ("leases", "waiters", "recent"):
                status.setdefault(key, []).extend(told.get(key, ()))
    assert status is not None  # noqa: S101 - there is a first page
    return status


def _answer(connection: Connection, until_s: float) -> dict[str, Any]:
    while True:
        answer = connection.recv(max(0.0, until_s - time.monotonic()))
        if answer is None:
            raise BrokerSilent(
                f"a broker greets at {connection.path}, but does not tell its state: it is stuck"
            )
        if answer.get("op") in ("error", "refused"):
            raise from_code(answer["code"], answer["message"])
        if answer.get("op") == "status":
            return answer


def user_name(uid: int | None) -> str | None:
    """Name a user for people."""
    if uid is None:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _lock_pid(path: str) -> int | None:
    """Return the pid that a broker wrote into its lock, if there is such a process."""
    try:
        with open(paths.beside(path).lock, encoding="ascii", errors="replace") as file:
            text = file.read(32).strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and os.path.exists(f"/proc/{text}") else None


def _last_warnings(log: str, pid: int | None) -> tuple[str, ...]:
    """Return the last lines of the log that are warnings, of the broker that runs or the last one."""
    lines = _tail(log)
    sign = " ready pid=" if pid is None else f" ready pid={pid} "
    started = [number for number, line in enumerate(lines) if sign in line]
    if started or pid is not None:
        lines = lines[started[-1] :] if started else []
    found = [line[:_SHOWN] for line in lines if any(level in line for level in _LEVELS)]
    return tuple(found[-_LAST_WARNINGS:])


def _tail(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
