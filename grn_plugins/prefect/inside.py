"""What a process knows of itself if it runs the body of a task. Set once, when the body begins.

Must not: import Prefect.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["begin", "is_body", "mask_of_flow", "unmasked"]

_LEASE = "GRN_LEASE"

_mask_of_flow: list[str | None] = []


def begin(mask_of_flow: str | None) -> None:
    """Be a body's process; `mask_of_flow` is the mask that its flow's process has."""
    _mask_of_flow[:] = [mask_of_flow]


def is_body() -> bool:
    """Whether this process runs a body."""
    return bool(_mask_of_flow)


def mask_of_flow() -> str | None:
    """Return the mask that the flow's process has, in it and in its bodies without a lease."""
    if _mask_of_flow and not os.environ.get(_LEASE):
        return _mask_of_flow[0]
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def unmasked(message: dict[str, Any]) -> dict[str, Any]:
    """Return a request, as the flow would make it, of a body that has no lease.

    Its own mask is empty because it asked for no device, not because it may not have one.
    """
    if not _mask_of_flow or message.get("outer"):
        return message
    return {**message, "mask": _mask_of_flow[0]}
