"""What systemd says to a service and hears from it: socket activation and readiness.

Protocols: sd_listen_fds(3) and sd_notify(3). The variables are taken out of the environment, so
that no job inherits them.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from grn.errors import PathError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

__all__ = ["notify", "passed_socket"]

_FIRST_FD = 3


def passed_socket(environ: MutableMapping[str, str] = os.environ) -> socket.socket | None:
    """Return the listening socket that systemd passed to this process, if it did.

    Raises:
        PathError: if what was passed is not one listening Unix stream socket.
    """
    meant_for = environ.pop("LISTEN_PID", None)
    count = environ.pop("LISTEN_FDS", None)
    environ.pop("LISTEN_FDNAMES", None)
    if meant_for != str(os.getpid()) or not count:
        return None
    sock = socket.socket(fileno=_FIRST_FD)
    sock.set_inheritable(False)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if count != "1" or sock.family != socket.AF_UNIX or not listening:
        raise PathError("systemd must pass exactly one listening Unix stream socket")
    return sock


def notify(state: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Tell the service manager our state (`READY=1`, `STOPPING=1`), if there is one."""
    address = environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto(state.encode(), address)
