"""Opens the dashboard that the settings ask for, or says why that cannot be.

Promises: the library that serves is imported only here, when asked for; without it, or on an address that
is taken or open to other machines, whoever started the broker is told what to do. A broker that was
started on demand, for a job, starts all the same, and warns.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from grn.errors import GrnError, UsageError
from grn.rules.address import is_loopback, parse_address

if TYPE_CHECKING:
    from grn.broker.core import BrokerCore
    from grn.dashboard.server import Dashboard
    from grn.settings import Settings

__all__ = ["open_dashboard"]

log = logging.getLogger("grn.broker")


async def open_dashboard(core: BrokerCore, settings: Settings) -> Dashboard | None:
    """Serve at `settings.http`; None if that is not set.

    Raises:
        GrnError: it cannot be served, and the broker was not started on demand.
    """
    if settings.http is None:
        return None
    try:
        return await _opened(core, settings, settings.http)
    except GrnError as error:
        if not core.on_demand:
            raise
        core.warnings.append(f"no dashboard: {error.message}")
        log.warning("no-dashboard reason=%r", error.message)
        return None


async def _opened(core: BrokerCore, settings: Settings, address: str) -> Dashboard:
    host, port = parse_address(address)
    if not is_loopback(host) and not settings.http_open:
        raise UsageError(
            f"--http {address}: other machines can reach this address, and whoever reaches it sees the"
            " names of all jobs; use 127.0.0.1 and `ssh -L`, or say --http-open yes if that is meant"
        )
    try:
        from grn.dashboard.server import Dashboard  # noqa: PLC0415 - heavy, and an extra
    except ModuleNotFoundError as error:
        raise GrnError(
            f"--http needs the package {error.name}: pip install 'grn-plugins[dashboard]'"
        ) from error
    dashboard = await Dashboard.open(core, settings, host, port)
    if not is_loopback(host):
        warning = f"the dashboard at {dashboard.url} is open to other machines: whoever reaches it sees the names of all jobs"
        core.warnings.append(warning)
        log.warning("%s", warning)
    return dashboard
