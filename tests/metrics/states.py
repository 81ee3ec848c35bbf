"""States and events such as a broker tells, made by the rules themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules.happenings import KEYS, happenings
from grn.rules.report import status_report
from tests.rules.acting import Stage

if TYPE_CHECKING:
    from grn.rules import events as ev


class Watched(Stage):
    """A stage whose effects are kept as events."""

    def __init__(self, *sizes_mib: int, **more: Any) -> None:
        self.events: list[dict[str, Any]] = []
        super().__init__(*sizes_mib, **more)

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Take one event in, and tell what it means."""
        effects = super().step(event)
        for told, _ in happenings(effects, self.now, self.profiles):
            numbers = {"schema": 1, "seq": len(self.events) + 1, "at": 1000.0 + self.now}
            self.events.append({**numbers, **told})
        return effects

    def status(self) -> dict[str, Any]:
        """Return the state of the books as a broker tells it."""
        report = status_report(self.machine, self.now, ["a warning"])
        return {**report, "recent": [], "disk_problem": None}


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Make one event; what is not given is null."""
    return {"schema": 1, "seq": 1, "at": 1.0, "event": name, **dict.fromkeys(KEYS[name]), **fields}
