"""Where the dashboard listens, and which names it may be called by.

Pure. A page that is served to this machine's browsers can be reached by any page that they show: a name
of somebody else's may be made to mean 127.0.0.1 ("DNS rebinding"), and the browser then takes us for that
somebody. It still says in `Host` which name it used. So only names that nobody else can make mean us are
answered: addresses written in numbers, and `localhost`.
"""

from __future__ import annotations

import ipaddress

from grn.errors import UsageError

__all__ = ["is_loopback", "may_be_called", "parse_address", "url"]

LOOPBACK = "127.0.0.1"
_LOCALHOST = "localhost"
_PORTS = 65536
_EXAMPLES = "write 127.0.0.1:8787, or a port alone, such as 8787"


def parse_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `[IPv6]:PORT` or `PORT`; the host is an address or `localhost`. Port 0: a free one.

    Raises:
        UsageError: it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    host = host if colon else LOOPBACK
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"address {text!r}: an IPv6 address stands in brackets, as in [::1]:8787")
    if not (port.isascii() and port.isdigit() and int(port) < _PORTS):
        raise UsageError(f"address {text!r} has no port from 0 to {_PORTS - 1}: {_EXAMPLES}")
    if host != _LOCALHOST and _number(host) is None:
        raise UsageError(f"address {text!r} names a host by no number: {_EXAMPLES}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host that `parse_address` returned."""
    number = _number(host)
    return host == _LOCALHOST or (number is not None and number.is_loopback)


def may_be_called(header: str | None, *, names: frozenset[str] = frozenset()) -> bool:
    """Tell whether a request with this `Host` may be answered. `names`: others that are surely ours."""
    if not header:
        return False
    host = header.strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    return host == _LOCALHOST or host in names or _number(host) is not None


def url(host: str, port: int) -> str:
    """Return what a browser is given."""
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
