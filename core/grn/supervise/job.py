"""One job: what it is, where it stands, and how it ended.

    NEW --asked--> WAITING --granted--> RUNNING --main ended--> LEAVING --> RELEASING --> OVER
                      |  ^                                                     |  |
                      |  +------------------- once more, after an OOM ---------+  |
                      +--- refused, cancelled, too late --------------------------+--> OVER

LEAVING: the main process has ended, what it left behind is being waited for or stopped.
"""

from __future__ import annotations

from grn.rules.outcome import (
    CANCELLED,
    FAILED,
    NOTHING,
    OK,
    OOM,
    OOM_SUSPECTED,
    describe_end,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.supervise.loop import Timer
    from grn.supervise.output import Stream, Tail
    from grn.supervise.spawn import Child
    from grn.supervise.tree import Owner

__all__ = ["LEAVING", "NEW", "OVER", "RELEASING", "RUNNING", "WAITING", "Conduct", "Job"]

NEW, WAITING, RUNNING = "new", "waiting", "running"
LEAVING, RELEASING, OVER = "leaving", "releasing", "over"

_LEGAL = {
    NEW: {WAITING, OVER},
    WAITING: {RUNNING, OVER},
    RUNNING: {LEAVING, RELEASING},
    LEAVING: {RELEASING},
    RELEASING: {WAITING, OVER},
    OVER: set[str](),
}

USAGE_STATUS = 2
TIME_LIMIT_STATUS = 124
GRN_FAILED_STATUS = 125
NOT_GRANTED_STATUS = 75
_SIGNAL_BASE = 128


class Conduct:
    """How the jobs of one run are treated: the same for all of them."""

    __slots__ = (
        "environ",
        "explicit",
        "grace_s",
        "late_s",
        "leftovers",
        "retries_on_oom",
        "run_without_broker",
        "time_limit_s",
        "wait_s",
    )

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        explicit: Mapping[str, str],
        grace_s: float = 5.0,
        late_s: float = 0.0,
        leftovers: str = "keep",
        retries_on_oom: int = 0,
        run_without_broker: bool = False,
        time_limit_s: float | None = None,
        wait_s: float | None = None,
    ) -> None:
        self.environ = environ
        self.explicit = explicit
        self.grace_s = grace_s
        self.late_s = late_s  # of the waiting time: it took so long to reach the broker
        self.leftovers = leftovers
        self.retries_on_oom = retries_on_oom
        self.run_without_broker = run_without_broker
        self.time_limit_s = time_limit_s
        self.wait_s = wait_s


class Job:
    """A command with its request, its process and its end."""

    __slots__ = (
        "asked_s",
        "attempts",
        "child",
        "code",
        "command",
        "cpu_s",
        "deadline",
        "exit_code",
        "explicit",
        "grant",
        "kills",
        "label",
        "note",
        "number",
        "outcome",
        "overdue",
        "own_status",
        "owner",
        "peak_mib",
        "problem",
        "ran_s",
        "reason",
        "remedy",
        "request",
        "rss_mib",
        "said",
        "signal",
        "started_s",
        "state",
        "stopped",
        "streams",
        "tail",
        "timed_out",
        "tries",
        "waited_s",
        "words",
    )

    def __init__(
        self,
        number: int,
        *,
        command: str,
        words: Sequence[str],
        label: str,
        request: dict[str, Any],
    ) -> None:
        self.number = number
        self.command = command
        self.words = words
        self.label = label
        self.request = request
        self.explicit: Mapping[str, str] = {}
        """Variables that the request sets for this job, over those of the whole run."""
        self.state = NEW
        self.tries = 0
        self.asked_s = 0.0
        self.waited_s = 0.0
        self.started_s = 0.0
        self.ran_s = 0.0
        self.reason = ""
        self.overdue = False
        self.said = NOTHING
        self.remedy = NOTHING
        self.note = ""
        self.kills: int | None = None
        self.attempts: list[dict[str, Any]] = []
        self.grant: dict[str, Any] = {}
        self.owner: Owner | None = None
        self.child: Child | None = None
        self.deadline: Timer | None = None
        self.streams: list[Stream] = []
        self.tail: Tail | None = None
        self.exit_code: int | None = None
        self.cpu_s: float | None = None
        self.rss_mib: int | None = None
        self.signal: int | None = None
        self.stopped = False
        self.timed_out = False
        self.outcome = ""
        self.peak_mib: int | None = None
        self.problem = ""
        self.code = ""
        """The broker's word for why it refused the job, or ours for that there is none."""
        self.own_status: int | None = None

    def move(self, state: str) -> None:
        """Go on to another state; an illegal step is a defect of ours."""
        if state not in _LEGAL[self.state]:
            raise AssertionError(f"job {self.number}: {self.state} -> {state}")
        self.state = state

    def begin_again(self) -> None:
        """Forget how the last try ended, before another one; `attempts` has it."""
        self.exit_code = self.signal = self.cpu_s = self.rss_mib = None
        self.said = NOTHING
        self.note = ""

    def fail(self, status: int, problem: str, result: str = FAILED) -> None:
        """End the job by our own doing, with a status that is ours and not the command's."""
        self.own_status = status
        self.problem = problem
        self.outcome = result

    @property
    def type(self) -> str:
        """The name under which its memory need is learnt."""
        return str(self.request["type"])

    @property
    def lease(self) -> str | None:
        """The id of the lease that is the job's own; None for one shared with an outer job."""
        return None if self.grant.get("nested") else self.grant.get("lease")

    @property
    def nested(self) -> dict[str, Any] | None:
        """What names it to the broker if it shares an outer job's lease: id, lease, memory_mib."""
        if not self.grant.get("nested"):
            return None
        declared = self.request.get("memory_mib")
        mib = self.grant["memory_mib"] if declared == "whole" else declared
        return {"id": self.grant["id"], "lease": self.grant["lease"], "memory_mib": mib}

    @property
    def devices(self) -> list[dict[str, Any]]:
        """The devices that it was granted, as the broker describes them."""
        devices: list[dict[str, Any]] = self.grant.get("devices") or []
        return devices

    @property
    def status(self) -> int:
        """The exit status as a shell would show it."""
        if self.own_status is not None:
            return self.own_status
        if self.timed_out:
            return TIME_LIMIT_STATUS
        if self.signal is not None:
            return _SIGNAL_BASE + self.signal
        return GRN_FAILED_STATUS if self.exit_code is None else self.exit_code

    @property
    def result(self) -> str:
        """How it ended, in a few words for people."""
        if self.problem:
            return f"{self.status} {self.problem}"
        if self.timed_out:
            return f"{TIME_LIMIT_STATUS} time limit reached"
        if self.outcome == OK:
            return "ok"
        end = describe_end(self.exit_code, self.signal)
        if self.note:
            end += f"; {self.note}"
        if self.outcome in {OOM, OOM_SUSPECTED}:
            return f"{self.outcome} ({end})"
        return end if self.signal is None else f"{self.status} {end}"

    @property
    def never_started_by_choice(self) -> bool:
        """Whether the run was stopped before the job's turn, the first one or another."""
        never = self.own_status is not None and self.outcome == CANCELLED
        return never and not self.overdue

    def failed(self) -> bool:
        """Tell whether the command ended badly by itself."""
        return self.signal is not None or self.exit_code != 0
