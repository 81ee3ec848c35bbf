"""The action behind `grn(…)`: it waits for its share, has doit's own action run with it, and gives it back.

    ask -> wait -> run the inner action -> release -> (device memory ran out: once more, with more)

Promises: doit finds in `out`, `err`, `result` and `values` what the inner action left there and nothing
else; no failure of ours or of a job ends doit or keeps it waiting; a lease is given back only when all
that ran in it is gone.

Must not: know how commands or callables run, or decide how much an action gets.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from doit.action import BaseAction, CmdAction, PythonAction
from doit.exceptions import InvalidTask, TaskError

from grn import hub
from grn.applied import bound, mask_of_kept
from grn.errors import UNREACHABLE, Cancelled, GrnError
from grn.rules.environment import job_environment
from grn.supervise.retrying import following
from grn.turns import Turn
from grn_plugins.doit import callables, naming
from grn_plugins.doit.commands import Command
from grn_plugins.doit.dropping import drop_waiting, grant_of, this_run
from grn_plugins.doit.failures import of_grn, with_hint
from grn_plugins.doit.saying import say
from grn_plugins.doit.workers import end_with_doit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from doit.exceptions import BaseFail
    from doit.task import Task

    from grn.grants import Grant
    from grn_plugins.doit.options import Options
    from grn_plugins.doit.outcome import Ran

    Run = Callable[[Grant | None, Mapping[str, str], Any, Any], Ran]

__all__ = ["GrnAction"]

_MASK = "CUDA_VISIBLE_DEVICES"
_STOPPED = {"exit_code": 1, "signal": None, "said": "", "said_oom": False, "stopped": True}


class GrnAction(BaseAction):  # type: ignore[misc] # doit has no types
    """An action of a task that runs with its share of a device. Made by `grn` and `grn_task`."""

    def __init__(self, inner: CmdAction | PythonAction, options: Options) -> None:
        self.inner = inner
        self.options = options
        self.run = this_run()

    # -- what doit looks at ---------------------------------------------------------------------

    @property
    def task(self) -> Task | None:
        """The task that it is an action of."""
        return self.inner.task

    @task.setter
    def task(self, task: Task | None) -> None:
        before = self.inner.task
        if before is not None and task is not None and before.name != task.name:
            raise InvalidTask(
                f"task {task.name}: the action {self} is task {before.name}'s already;"
                " call grn(…) once for each task"
            )
        self.inner.task = task

    @property
    def out(self) -> str | None:
        """What it wrote to standard output, where doit captures that."""
        out: str | None = self.inner.out
        return out

    @out.setter
    def out(self, text: str | None) -> None:
        self.inner.out = text

    @property
    def err(self) -> str | None:
        """What it wrote to standard error."""
        err: str | None = self.inner.err
        return err

    @err.setter
    def err(self, text: str | None) -> None:
        self.inner.err = text

    @property
    def result(self) -> Any:
        """What doit compares for `result_dep`."""
        return self.inner.result

    @result.setter
    def result(self, result: Any) -> None:
        self.inner.result = result

    @property
    def values(self) -> Any:
        """What other tasks may get."""
        return self.inner.values

    @values.setter
    def values(self, values: Any) -> None:
        self.inner.values = values

    @property
    def name(self) -> str:
        """The task's name, for people."""
        task = self.inner.task
        return "an action" if task is None else str(task.name)

    def __str__(self) -> str:
        return str(self.inner)

    def __repr__(self) -> str:
        return f"<GrnAction: {self.inner!r}>"

    # -- running --------------------------------------------------------------------------------

    def execute(self, out: Any = None, err: Any = None) -> BaseFail | None:
        """Wait for a share and run the inner action with it, as doit would without us."""
        end_with_doit()
        try:
            failure = self._executed(out, err)
        except Cancelled as error:
            return of_grn(error)
        except GrnError as error:
            failure = of_grn(error)
        except InvalidTask:
            raise
        except Exception as error:  # noqa: BLE001 - out of descriptors, threads, or a defect of ours
            failure = TaskError(f"GRN: {error}", error)
        if failure is not None:
            self.failed()
        return failure

    def failed(self) -> None:
        """Have what waits in this run of doit dropped, if that is wanted."""
        if self.options.cancel_waiting_on_failure:
            drop_waiting(self.run)

    def _executed(self, out: Any, err: Any) -> BaseFail | None:
        if isinstance(self.inner, PythonAction):
            return self._tried(self._call, None, out, err)
        try:
            command = Command(self, self.inner)
        except Exception as error:  # noqa: BLE001 - the task's own function may have made the words
            return TaskError("CmdAction Error creating command string", error)
        return self._tried(command.run, self.inner.pkwargs.get("env"), out, err)

    def _call(self, grant: Grant | None, env: Mapping[str, str], out: Any, err: Any) -> Ran:
        inner: Any = self.inner
        return callables.run_callable(self, inner, grant, env, out, err)

    def _tried(
        self, run: Run, base: Mapping[str, str] | None, out: Any, err: Any
    ) -> BaseFail | None:
        attempt = _Attempts(self, base, err)
        while True:
            ran, grant, report = attempt.once(run, out, err)
            if ran.failure is None:
                return None
            if not attempt.goes_on(ran, report):
                said = ran.ending.get("said", "")
                return with_hint(ran.failure, grant, report, said, attempt.tries)


class _Attempts:
    """The tries of one execution. `tries` and `request` are what a further one is decided from."""

    def __init__(self, action: GrnAction, base: Mapping[str, str] | None, err: Any) -> None:
        self.tries = 0
        self._action = action
        self._wish = action.options.wish
        self._base = dict(os.environ) if base is None else dict(base)
        self._err = err
        inner = action.inner
        here = isinstance(inner, PythonAction) and callables.runs_here(inner, action.options)
        if isinstance(inner, PythonAction) and action.options.isolate is True and not here:
            callables.warm_up()
        self.request, self._explicit = self._wish.request(
            naming.job_type(action),
            in_process=here,
            mask=(mask_of_kept() if here else None) or self._base.get(_MASK),
        )
        self.request["label"] = self.request["label"] or action.name
        self.request["engine"] = "doit"

    def once(self, run: Run, out: Any, err: Any) -> tuple[Ran, Grant | None, dict[str, Any] | None]:
        """Wait, run, give back.

        Raises:
            GrnError: if nothing was granted.
        """
        self.tries += 1
        grant = self._granted()
        ending: Any = _STOPPED
        try:
            ran = run(grant, self._environment(grant), out, err)
            ending = ran.ending
            if ran.failure is not None and not self._retries_left:
                self._action.failed()  # before others get what is given back
        finally:
            report = hub.release(grant, **ending) if grant is not None else None
        for note in report["notes"] if report is not None else ():
            self._say(str(note))
        return ran, grant, report

    @property
    def _retries_left(self) -> int:
        return self._action.options.retries_on_oom - (self.tries - 1)

    def goes_on(self, ran: Ran, report: dict[str, Any] | None) -> bool:
        """Whether to run again, since the device's memory ran out; the request is changed for that."""
        if report is None or ran.ending.get("stopped"):
            return False
        change = following(
            self,
            retries=self._action.options.retries_on_oom,
            remedy=str(report["remedy"]),
            next_mib=report["next_mib"],
        )
        if change is None:
            return False
        self.request.update(change)
        self._say(f"{self._action.name}: the device's memory ran out, try {self.tries + 1} follows")
        return True

    def _granted(self) -> Grant | None:
        turn = Turn(
            self.request,
            wait_s=self._wish.wait_s,
            waits=lambda reason: self._say(f"{self._action.name} waits: {reason}"),
        )
        try:
            with self._bound():
                return grant_of(turn, self._action.run)
        except UNREACHABLE as error:
            if not self._wish.run_without:
                raise
            self._say(f"{self._action.name} runs without a lease: {error}")
            return None

    def _bound(self) -> contextlib.AbstractContextManager[None]:
        return bound() if self.request["in_process"] else contextlib.nullcontext()

    def _environment(self, grant: Grant | None) -> dict[str, str]:
        if grant is None:
            return {**self._base, **self._explicit}
        env, warnings = job_environment(grant.message, self._base, self._explicit)
        for text in warnings:
            self._say(text)
        return env

    def _say(self, text: str) -> None:
        say(text, self._err)
