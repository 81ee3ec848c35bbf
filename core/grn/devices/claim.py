r"""A claim on each real device, so that two brokers never manage one, whoever owns them.

The lock beside a socket keeps apart the brokers of one path. Two users of one machine, each with a
private broker, have two paths; what they share is the device. So each device has a Unix socket with
an abstract name, `\0grn-device-<uuid>`: the kernel gives such a name to one socket at a time, to any
user, and takes it back when the holder dies, however it dies. Nobody accepts on it: connecting is
enough for the kernel to tell who listens.

What it does not do: abstract names belong to a network namespace, so brokers in containers with
networks of their own do not see each other's claims. And a name says only who was first: any user of
the machine can hold one, as any user can fill a device. The holder is named with pid and user.

Must not: wait for anybody, or leave a claim to a program that this process starts.
"""

from __future__ import annotations

import errno
import pwd
import socket
import struct
from typing import TYPE_CHECKING

from grn.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Claims", "claim", "claimed_by"]

_NAME = "\0grn-device-"
_QUEUE = 4096
"""Whoever asks for the holder stays in its queue, since nobody accepts. When it is full (the kernel
may allow fewer, net.core.somaxconn), the claim is as good as before and only its holder has no name."""

_TRIES = 3
_PEERCRED = struct.Struct("3i")


class Claims:
    """The claims of one broker, held until `close` or the end of the process.

    Attributes:
        held: the devices that are ours, in the order in which they were asked for.
        elsewhere: device -> who has it, in words: "pid 123 of user alice (uid 1001)".
    """

    def __init__(self, sockets: Mapping[str, socket.socket], elsewhere: Mapping[str, str]) -> None:
        self._sockets = dict(sockets)
        self.elsewhere = dict(elsewhere)

    @property
    def held(self) -> tuple[str, ...]:
        """The devices that are ours."""
        return tuple(self._sockets)

    def close(self) -> None:
        """Give the devices back. May be called again."""
        _close_all(self._sockets.values())
        self._sockets.clear()


def claim(uuids: Sequence[str]) -> Claims:
    """Claim each device for this process, as far as nobody else has it.

    Raises:
        BrokerUnavailable: the kernel gives no socket, so nobody could say whose a device is.
    """
    taken: dict[str, socket.socket] = {}
    elsewhere: dict[str, str] = {}
    try:
        for uuid in dict.fromkeys(uuids):
            found = _claim_one(_NAME + uuid)
            if isinstance(found, str):
                elsewhere[uuid] = found
            else:
                taken[uuid] = found
    except OSError as error:
        _close_all(taken.values())
        raise BrokerUnavailable(
            f"cannot claim the devices for this broker: {error.strerror or error}"
        ) from error
    return Claims(taken, elsewhere)


def claimed_by(uuid: str) -> str | None:
    """Name who has claimed a device, in words, without claiming it; `None` if nobody has."""
    return _holder(_NAME + uuid)


def _claim_one(name: str) -> socket.socket | str:
    """Return the socket that holds the claim, or who has it."""
    holder: str | None = None
    for _ in range(_TRIES):
        listener = _listen(name)
        if listener is not None:
            return listener
        holder = _holder(name)
        if holder is not None:
            return holder
        # It died, or is about to listen: look again.
    return "a process that is just starting or leaving"


def _listen(name: str) -> socket.socket | None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # not inherited by programs
    try:
        listener.bind(name)
        listener.listen(_QUEUE)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return listener


def _holder(name: str) -> str | None:
    """Name the process that listens; `None` if none does, just now."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
        except ConnectionRefusedError:
            return None
        except BlockingIOError:
            return "a process that cannot be named (too many have asked it)"
        credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
    pid, uid, _ = _PEERCRED.unpack(credentials)
    return f"{_process(pid)} of {_user(uid)}"


def _process(pid: int) -> str:
    return f"pid {pid}" if pid > 0 else "a process in another pid namespace"


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
