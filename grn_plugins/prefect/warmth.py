"""Getting a fork server ready for bodies of Prefect tasks: a second of imports, once.

What a body would do first is done here, in the server: Prefect imported with the collections that are
installed, its models built, its settings read, its logging set up, one client made for its TLS context.

Must not: start a thread, or talk to an API. A client without an address would start a server of its own.
"""

from __future__ import annotations

import pickle
from typing import Any, cast

import prefect.context
import prefect.task_engine
from prefect.client.orchestration import SyncPrefectClient
from prefect.context import SettingsContext, hydrated_context

import grn_plugins.prefect.body
import grn_plugins.prefect.luggage  # noqa: F401 - what bodies need

__all__ = ["client_for", "settings_for", "warm_up"]

_settings: tuple[str, SettingsContext] | None = None
_client: tuple[str, SyncPrefectClient] | None = None


def warm_up(url: str | None, settings: tuple[str, bytes]) -> None:
    """Do it, in the server."""
    global _client  # noqa: PLW0603 - for all bodies
    with settings_for(settings):
        _load_collections()
        with hydrated_context({}, client=cast("Any", object())):  # only the models are built
            pass
        from prefect.logging.configuration import setup_logging  # noqa: PLC0415

        setup_logging()
        if url is not None:
            _client = (url, SyncPrefectClient(url))


def _load_collections() -> None:
    try:
        from prefect.plugins import load_prefect_collections  # noqa: PLC0415 - not public
    except ImportError:
        return
    load_prefect_collections()


def settings_for(packed: tuple[str, bytes]) -> SettingsContext:
    """Return the settings that were sent: those of the server, if they are the same."""
    global _settings  # noqa: PLW0603 - for all bodies
    digest, data = packed
    if _settings is None or _settings[0] != digest:
        sent: dict[str, Any] = pickle.loads(data)  # noqa: S301 - from our own flow
        _settings = (digest, SettingsContext(**sent))
        # Threads without a context of their own look here.
        prefect.context.GLOBAL_SETTINGS_CONTEXT = _settings[1]
    return _settings[1]


def client_for(url: str | None) -> SyncPrefectClient | None:
    """Return a client of the API at this address, `None` without one."""
    if url is None:
        return None
    if _client is not None and _client[0] == url:
        return _client[1]
    return SyncPrefectClient(url)
