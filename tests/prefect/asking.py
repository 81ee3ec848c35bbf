"""What a Prefect server knows of runs, asked as its user interface does."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

__all__ = ["Api"]


class Api:
    """A server's API."""

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, path: str, question: dict[str, Any] | None = None) -> Any:
        """Ask; without a question it is a GET."""
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self._url}/{path}",
            data=None if question is None else json.dumps(question).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - the same
            return json.load(answer)

    def task_run(self, run_id: object) -> dict[str, Any]:
        """Return a task run."""
        found: dict[str, Any] = self.ask(f"task_runs/{run_id}")
        return found

    def tasks_of(self, flow_run_id: object) -> list[dict[str, Any]]:
        """Return all task runs of a flow run."""
        found: list[dict[str, Any]] = self.ask(
            "task_runs/filter", {"task_runs": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
        )
        return found

    def states_of(self, task_run_id: object) -> list[dict[str, Any]]:
        """Return the states of a task run, the first one first."""
        found: list[dict[str, Any]] = self.ask(f"task_run_states/?task_run_id={task_run_id}")
        return sorted(found, key=lambda state: str(state["timestamp"]))

    def logs_of(self, flow_run_id: object) -> list[str]:
        """Return what was logged under a flow run."""
        question = {"logs": {"flow_run_id": {"any_": [str(flow_run_id)]}}, "limit": 200}
        return [str(log["message"]) for log in self.ask("logs/filter", question)]

    def artifacts_of(self, flow_run_id: object) -> list[dict[str, Any]]:
        """Return the artifacts of a flow run."""
        question = {"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
        found: list[dict[str, Any]] = self.ask("artifacts/filter", question)
        return found

    def events_of(self, resource: str) -> list[dict[str, Any]]:
        """Return the events of one resource."""
        question = {"filter": {"resource": {"id": [resource]}}, "limit": 50}
        found: list[dict[str, Any]] = self.ask("events/filter", question)["events"]
        return found
