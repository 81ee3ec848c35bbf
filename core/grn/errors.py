"""What can go wrong, as classes that callers can catch and the wire can carry.

Each class is also the built-in that fits, has a fixed `code` for the wire and an `exit_status` for
the command line, and is picklable. A message says what happened, with numbers, and what to do.
"""

from __future__ import annotations

__all__ = [
    "UNREACHABLE",
    "BrokerGone",
    "BrokerSilent",
    "BrokerUnavailable",
    "Cancelled",
    "GrnError",
    "Impossible",
    "JournalError",
    "LeaseError",
    "PathError",
    "ProtocolError",
    "Refused",
    "UsageError",
    "WaitExpired",
    "from_code",
]


class GrnError(Exception):
    """Root of all errors that GRN raises on purpose."""

    code = "error"
    exit_status = 125

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UsageError(GrnError, ValueError):
    """Bad input: a malformed size, an unknown policy, an empty command, a missing file."""

    code = "usage"
    exit_status = 2


class Refused(GrnError, RuntimeError):
    """The broker will not grant this request."""

    code = "refused"


class Impossible(Refused):
    """The request can never be met on this machine."""

    code = "impossible"


class Cancelled(Refused):
    """The request was withdrawn before it was granted."""

    code = "cancelled"


class WaitExpired(Refused, TimeoutError):
    """The request was not granted in the time that the caller allowed."""

    code = "wait-expired"
    exit_status = 75


class BrokerUnavailable(GrnError, ConnectionError):
    """No broker can be reached or started."""

    code = "no-broker"


class BrokerSilent(BrokerUnavailable):
    """Something listens at the broker's socket, but it cannot be reached or does not answer."""

    code = "broker-silent"


class BrokerGone(BrokerUnavailable):
    """The connection to the broker ended."""

    code = "broker-gone"


class ProtocolError(GrnError, ValueError):
    """Bytes that are not our protocol: wrong magic, too long, too deep, cut off."""

    code = "protocol"


class PathError(GrnError, OSError):
    """A socket, folder or file cannot be used as it is: wrong owner, too long, not a socket."""

    code = "path"


class JournalError(GrnError, OSError):
    """The journal or the profile store cannot be written, so nothing new may be granted."""

    code = "disk"


class LeaseError(GrnError, RuntimeError):
    """A lease is unknown, ended, or not the caller's."""

    code = "lease"


UNREACHABLE = (BrokerUnavailable, PathError)
"""What it means that nobody can be asked for a lease: `if_unavailable="run"` goes on without."""

_BY_CODE: dict[str, type[GrnError]] = {
    cls.code: cls
    for cls in (
        UsageError,
        Refused,
        Impossible,
        Cancelled,
        WaitExpired,
        BrokerUnavailable,
        BrokerGone,
        BrokerSilent,
        ProtocolError,
        PathError,
        JournalError,
        LeaseError,
    )
}


def from_code(code: str, message: str) -> GrnError:
    """Build the error that a reply's `code` names; an unknown code becomes a plain `GrnError`."""
    return _BY_CODE.get(code, GrnError)(message)
