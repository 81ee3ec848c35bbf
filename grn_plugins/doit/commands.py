"""How a command of doit's runs with its share: doit itself runs it, under a shim.

What runs is a copy of doit's action with four things replaced: its words begin with the shim, its
environment is the job's, a descriptor is passed on to the shim, and there is no shell but the one that
stands in the words. So the shell's rules, the output and what doit makes of it, the folder and the
rest are doit's own.

Must not: write to the action's output, or end before its command has.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

from doit.exceptions import TaskError
from doit.task import IOConfig
from doit.tools import Interactive, LongRunning

from grn import shim
from grn.affinity import cores_of
from grn.rules.outcome import MEMORY, NOTHING, killed_for_host_ram, stderr_says
from grn.supervise.hostram import KillCount
from grn.supervise.programs import exec_failure
from grn_plugins.doit.outcome import Ran
from grn_plugins.doit.saying import say
from grn_plugins.doit.shimline import Line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from doit.action import CmdAction
    from doit.exceptions import BaseFail

    from grn.grants import Ending, Grant
    from grn_plugins.doit.action import GrnAction

__all__ = ["Command"]

_SHELL = "/bin/sh"  # as subprocess has it
_REPLACED = frozenset({"expand_action", "pkwargs", "shell", "task"})
_STDERR = 2
_AT_ONCE_S = 0.2
_kill_count = KillCount()
_TAIL_CHARACTERS = 1 << 16


class Command:
    """One command, with its words expanded: it may run more than once."""

    def __init__(self, action: GrnAction, inner: CmdAction) -> None:
        """Expand the words.

        Raises:
            Exception: whatever doit or the task's own function raises on that.
        """
        self._action = action
        self._inner = inner
        self._text = inner.expand_action()

    def run(self, grant: Grant | None, env: Mapping[str, str], out: Any, err: Any) -> Ran:
        """Run it to its end."""
        options = self._action.options
        kills = _kill_count.read()
        line = Line(lambda pid: _tell_started(grant, pid))
        try:
            double = self._double(line, grant, env)
            failure = _executed(double, *_usable(double, out, err))
            if not line.is_gone(_AT_ONCE_S):
                line.stop(options.grace_s)  # doit has swallowed a Ctrl-C
        except BaseException:  # Ctrl-C, above all
            line.stop(options.grace_s)
            raise
        finally:
            line.close()
        self._take_over(double)
        for note in line.notes:
            say(f"{self._action.name}: {note}", err)
        if failure is not None and line.exec_errno:
            failure.message += f" ({exec_failure(line.exec_errno, self._program())})"
        elif failure is not None and _killed_for_ram(line, kills):
            failure.message += " (killed by the kernel: the host's RAM ran out)"
        return Ran(failure, _ending(line, double.err or ""))

    # -- what doit runs in its place ------------------------------------------------------------

    def _double(self, line: Line, grant: Grant | None, env: Mapping[str, str]) -> CmdAction:
        inner, options = self._inner, self._action.options
        words = shim.command(
            self._words(),
            control_fd=line.fd,
            status_fd=line.fd,
            leftovers=options.leftovers,
            grace_s=options.grace_s,
            lease=grant.lease if grant is not None and not grant.nested else None,
            executable=self._executable(),
            cores=cores_of(grant, self._action.name) if grant is not None else (),
        )
        double = copy.copy(inner)
        double.values = {}
        double.shell = False
        shown = _Words(words, self._text)
        double.expand_action = lambda: shown
        double.pkwargs = {
            **inner.pkwargs,
            "env": dict(env),
            "pass_fds": (*inner.pkwargs.get("pass_fds", ()), line.fd),
        }
        double.pkwargs.pop("executable", None)
        double.pkwargs.pop("close_fds", None)  # with pass_fds it is True
        return double

    def _words(self) -> list[str]:
        text = self._text
        words = [text] if isinstance(text, str | bytes | os.PathLike) else list(text)
        if self._inner.shell:
            words = [self._inner.pkwargs.get("executable") or _SHELL, "-c", *words]
        return [os.fsdecode(word) for word in words]

    def _executable(self) -> str | None:
        given = self._inner.pkwargs.get("executable")
        return None if given is None or self._inner.shell else os.fsdecode(given)

    def _program(self) -> str:
        return self._executable() or self._words()[0]

    def _take_over(self, double: CmdAction) -> None:
        """Bring what doit has noted on the copy to where doit looks for it."""
        for name, value in vars(double).items():
            if name not in _REPLACED:
                setattr(self._inner, name, value)


class _Words(list[str]):
    """The words with the shim in front, which doit shows as what the task says."""

    def __init__(self, words: list[str], text: Any) -> None:
        super().__init__(words)
        self._text = text

    def __str__(self) -> str:
        return str(self._text)

    __repr__ = __str__


class _Capturing:
    """A task whose output is captured, whatever it says itself."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self.io = IOConfig({"capture": True})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)


def _usable(double: CmdAction, out: Any, err: Any) -> tuple[Any, Any]:
    """See that uncaptured output has somewhere to go: a reporter's stream may be no file.

    doit itself breaks down there.
    """
    if _is_file(out) and _is_file(err):
        return out, err
    if isinstance(double, LongRunning | Interactive):  # never captured
        return (out if _is_file(out) else _STDERR), (err if _is_file(err) else None)
    if double.task is not None and double.task.io.capture is False:
        double.task = _Capturing(double.task)
    return out, err


def _is_file(stream: Any) -> bool:
    if stream is None:
        return True
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


def _executed(double: CmdAction, out: Any, err: Any) -> BaseFail | None:
    """Have doit run it; what cannot be started is a failed task, not the end of the run."""
    try:
        failure: BaseFail | None = double.execute(out, err)
    except Exception as error:  # noqa: BLE001 - whatever Popen and its keywords come up with
        return TaskError(f"Command could not be started: '{double.expand_action()}'", error)
    return failure


# -- the end --------------------------------------------------------------------------------------


def _tell_started(grant: Grant | None, pid: int) -> None:
    if grant is not None and not grant.nested:
        grant.hub.started(grant.lease, pid)


def _killed_for_ram(line: Line, kills: int | None) -> bool:
    return killed_for_host_ram(
        exit_code=line.exit_code,
        signal=line.signal,
        kills_before=kills,
        kills_after=_kill_count.read(),
    )


def _ending(line: Line, errput: str) -> Ending:
    failed = line.exit_code != 0 or line.signal is not None
    tail = errput[-_TAIL_CHARACTERS:].encode("utf-8", "replace")
    said = stderr_says(tail) if failed else NOTHING
    return {
        "exit_code": line.exit_code,
        "signal": line.signal,
        "said": said,
        "said_oom": said == MEMORY,
        "stopped": line.stopped,
        **line.used,
    }
