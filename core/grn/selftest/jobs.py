"""One `grn run` of ours: started as a user starts it, and what its program says."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from grn.selftest.ground import PREFIX
from grn.selftest.lines import Lines, object_in
from grn.selftest.verdict import FailedError, SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grn.selftest.ground import Ground

__all__ = ["Program", "look_without_lease"]

_NOT_GRANTED = 75
_END_WITHIN_S = 20.0
_LEAST_S = 1.0
_STATUS_BYTES = 1 << 16
_LAST_WORDS = 300


class Program:
    """A job that runs, until `finish`."""

    def __init__(
        self,
        ground: Ground,
        name: str,
        words: Sequence[str],
        *,
        memory_mib: int,
        wait_s: float,
        limit_s: float,
        left_s: Callable[[], float],
        mask: str | None = None,
        gpus: int = 1,
    ) -> None:
        """Ask for a share for `python -m WORDS`; `mask` narrows it to devices by UUID."""
        self.name = name
        self._shared = not ground.private
        told, tell = os.pipe()
        self._told = told
        self._left_s = left_s
        self._errors = os.path.join(ground.folder, f"{name}.{time.monotonic_ns()}.stderr")
        argv = [
            *[sys.executable, "-P", "-m", "grn", "run", *ground.words],
            *[f"--type={PREFIX}{name}", f"--label={PREFIX}{name}", f"--memory={memory_mib}MiB"],
            *[f"--gpus={gpus}", f"--wait={wait_s:.3f}", f"--time-limit={limit_s:.3f}"],
            *["--die-with-parent", "--leftovers=kill", "--quiet", f"--status-fd={tell}"],
            *["--", sys.executable, "-P", "-m", *words],
        ]
        environ = ground.environ()
        if mask is not None:
            environ["CUDA_VISIBLE_DEVICES"] = mask
        pipe = subprocess.PIPE
        try:
            with open(self._errors, "wb") as errors:
                self.process = subprocess.Popen(  # noqa: S603 - our own program
                    argv, stdin=pipe, stdout=pipe, stderr=errors, env=environ, pass_fds=[tell]
                )
        finally:
            os.close(tell)
        assert self.process.stdout is not None  # noqa: S101 - it is a pipe
        self._lines = Lines(self.process.stdout.fileno())
        self._status: dict[str, Any] | None = None

    def hear(self, event: str, within_s: float) -> dict[str, Any]:
        """Wait for a word of the program.

        Raises:
            SkippedError: it says that it cannot do this here, or found no room beside other jobs.
            FailedError: it ended before, or the time is over.
        """
        deadline = time.monotonic() + within_s
        while (said := self._lines.next(deadline - time.monotonic())) is not None:
            if said.get("event") == event:
                return said
            if said.get("event") == "unavailable":
                raise SkippedError(said["reason"])
        if not self._lines.ended:
            raise FailedError(f"the job did not get so far within {within_s:.0f} s ({event})")
        status = self.finish()
        if status["exit_code"] == _NOT_GRANTED and self._shared:
            raise SkippedError(f"no room beside the jobs that run: {status['problem']}")
        raise FailedError(self._why(status))

    def _why(self, status: Mapping[str, Any]) -> str:
        if status["problem"]:
            return f"grn run: {status['problem']}"
        words = self.last_words() or "it said nothing"
        return f"the job ended with {status['exit_code']} ({status['outcome']}): {words}"

    def last_words(self) -> str:
        """Return the end of what was written to standard error."""
        with open(self._errors, "rb") as file:
            text = file.read().decode("utf-8", "replace")
        return " ".join(text.split())[-_LAST_WORDS:]

    def finish(self) -> dict[str, Any]:
        """Let it end; return what `grn run` says of its end.

        Raises:
            FailedError: it does not end.
        """
        if self._status is not None:
            return self._status
        self._let_go()
        within_s = min(_END_WITHIN_S, max(_LEAST_S, self._left_s()))
        try:
            self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise FailedError(f"the job did not end within {within_s:.0f} s") from None
        text = _read(self._told)
        if not text:
            raise FailedError(
                f"grn run ended with {self.process.returncode} and no word of its job:"
                f" {self.last_words()}"
            )
        status: dict[str, Any] = json.loads(text)
        self._status = status
        return status

    def terminate(self) -> None:
        """Have it end."""
        self._let_go()
        if self.process.poll() is None:
            self.process.terminate()

    def close(self, within_s: float) -> None:
        """See it off, by force if need be; one that hangs in the driver is left to its fate."""
        self.terminate()
        if not _ended(self.process, within_s):
            self.process.kill()
            _ended(self.process, _LEAST_S)
        os.close(self._told)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _let_go(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()


def _ended(process: subprocess.Popen[Any], within_s: float) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _read(told: int) -> bytes:
    """Read what was written to a pipe whose writer has ended."""
    poll = select.poll()
    poll.register(told, select.POLLIN)
    return os.read(told, _STATUS_BYTES) if poll.poll(_LEAST_S * 1000) else b""


def look_without_lease(
    ground: Ground, kind: str, more: Mapping[str, str], within_s: float
) -> list[str]:
    """Return the bare UUIDs that a program sees under these variables; it takes no memory.

    Raises:
        FailedError: it failed.
    """
    argv = [sys.executable, "-P", "-m", "grn.selftest.worker", f"--devices={kind}"]
    pipe, environ = subprocess.PIPE, {**ground.environ(), **more}
    process = subprocess.Popen(  # noqa: S603 - our own program
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environ
    )
    try:
        out, err = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()  # it may hang in the driver, so nobody waits for its end
        _ended(process, _LEAST_S)
        text = f"a program without a lease did not end within {within_s:.0f} s"
        raise FailedError(text) from None
    for said in map(object_in, out.splitlines()):
        if said is not None and said.get("event") == "sees":
            uuids: list[str] = said["uuids"]
            return uuids
    words = " ".join(err.decode("utf-8", "replace").split())[-_LAST_WORDS:]
    raise FailedError(f"a program without a lease ended with {process.returncode}: {words}")
