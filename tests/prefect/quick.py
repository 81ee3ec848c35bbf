"""What makes a flow run quick. Light: scripts of tests import it."""

from __future__ import annotations

from typing import Any

__all__ = ["quick"]


def quick() -> dict[Any, Any]:
    """Return settings without a flow's heartbeat, whose end takes a second; older Prefects have none."""
    from prefect import settings

    name = getattr(settings, "PREFECT_FLOWS_HEARTBEAT_FREQUENCY", None)
    return {} if name is None else {name: None}
