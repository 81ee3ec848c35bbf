"""A broker that clients start themselves: who it is, what it says, and its sudden death."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from grn.client import Client
from grn.errors import BrokerUnavailable
from tests.env import wait_gone

if TYPE_CHECKING:
    from tests.supervise.grnrun import GrnRun

__all__ = ["broker_pid", "kill_broker", "leases"]


def broker_pid(run: GrnRun) -> int | None:
    """Return the process of the broker that runs, if one does."""
    try:
        with Client(run.env.settings) as client:
            return int(client.broker["pid"])
    except BrokerUnavailable:
        return None


def kill_broker(run: GrnRun) -> int:
    """Kill the broker that runs as nothing can be prepared for; return who it was."""
    pid = broker_pid(run)
    assert pid is not None, "no broker runs"
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    return pid


def leases(run: GrnRun) -> list[dict[str, Any]]:
    """Return the leases that are held; none where no broker runs."""
    try:
        with Client(run.env.settings) as client:
            held: list[dict[str, Any]] = client.status()["leases"]
            return held
    except BrokerUnavailable:
        return []
