"""The state of the books for whoever asks: the rules' report with what only the broker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn import procs
from grn.rules.expected import Expectations
from grn.rules.explaining import explain
from grn.rules.lost import lost_now
from grn.rules.report import status_report
from grn.rules.seeing import warnings as seen_warnings

if TYPE_CHECKING:
    from grn.broker.core import BrokerCore

__all__ = ["Teller"]

_PROCESSES_S = 10.0
"""For how long a look at all processes serves who only watches: it costs more than all the rest."""

_REST = 9.0
"""It serves whoever asks for nine times as long as it took: a client that asks for the status again and
again must not keep everybody else waiting."""


class Teller:
    """Puts a status together."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._expected = Expectations()
        self._marked: dict[str, list[int]] = {}
        self._marked_s = -_PROCESSES_S
        self._rested_s = 0.0

    def status(self, *, closely: bool) -> dict[str, Any]:
        """Describe the books; processes that were left behind as of now only if `closely`."""
        core = self._core
        core.observers.tell()
        now = core.now()
        starts = self._expected.at(core.machine, now)
        report = status_report(core.machine, now, self._warnings(closely=closely), starts)
        report["disk_problem"] = core.machine.disk_problem or None
        report["recent"] = list(core.observers.recent)
        if report["waiters"]:
            report["lost"] = lost_now(core.machine)
        report["broker"] = {
            "pid": core.pid,
            "devices": core.backend.spec,
            "meter": core.backend.meter,
        }
        return report

    def explain(self, subject: str, gpus: int, uid: int) -> dict[str, Any]:
        """Explain a job or a type, see `grn.rules.explaining`."""
        core = self._core
        core.observers.tell()
        now = core.now()
        return explain(
            core.machine,
            subject,
            now,
            expected=self._expected.at(core.machine, now),
            ended=core.observers.recent,
            gpus=gpus,
            uid=uid,
        )

    def _warnings(self, *, closely: bool) -> list[str]:
        core = self._core
        warnings = [*core.warnings, *seen_warnings(core.machine)]
        warnings += self._left_behind(closely=closely)
        if core.machine.disk_problem:
            warnings.append(f"{core.machine.disk_problem}: nothing new is granted")
        return warnings + [problem for problem in core.problems() if problem]

    def _left_behind(self, *, closely: bool) -> list[str]:
        """Name processes of leases that have ended: they hold no device memory, but they live."""
        now = self._core.now()
        if now >= (self._rested_s if closely else self._marked_s + _PROCESSES_S):
            self._marked, self._marked_s = dict(procs.with_marker()), now
            took_s = self._core.now() - now
            self._rested_s = now + took_s + _REST * took_s
        machine = self._core.machine
        ended = {
            # They lived when it was looked, perhaps some time ago, and the lease as well.
            lease: [pid for pid in pids if procs.marker(pid) == lease]
            for lease, pids in self._marked.items()
            if lease not in machine.leases and lease.startswith(f"{machine.token}-")
        }
        return [
            f"lease {lease} has ended; of its processes {', '.join(map(str, pids))} still live"
            for lease, pids in ended.items()
            if pids
        ]
