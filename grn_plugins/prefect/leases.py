"""A flow run's leases as one table among its artifacts: one call of the API for a whole flow run.

Must not: fail a flow because its table could not be written.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.logging.loggers import get_logger
from prefect.settings import PREFECT_API_URL, temporary_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    from prefect.client.schemas.actions import ArtifactCreate
except ImportError:  # it moved once before
    ArtifactCreate = None  # type: ignore[assignment,misc]

__all__ = ["publish"]

_KEY = "grn-leases"
_MOST_ROWS = 1000


def publish(flow_run: Any, rows: Sequence[dict[str, Any]], url: str | None) -> None:
    """Write the table."""
    if flow_run is None or url is None or ArtifactCreate is None:
        return
    table = ArtifactCreate(
        key=_KEY,
        type="table",
        description=_description(len(rows)),
        data=json.dumps(list(rows[-_MOST_ROWS:])),
        flow_run_id=flow_run.id,
    )
    try:
        with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
            client.create_artifact(table)
    except Exception:  # noqa: BLE001 - the flow has done its work
        get_logger("task_runner.grn").warning("The table of leases is not written", exc_info=True)


def _description(count: int) -> str:
    last = f", the last {_MOST_ROWS} of them" if count > _MOST_ROWS else ""
    return f"Leases of {count} task attempts{last}"
