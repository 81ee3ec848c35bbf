"""How a call in a process of its own can fail, other than by an exception of the body.

Each class names one kind of failure, so that an engine can retry the one and report the other.
"""

from __future__ import annotations

import signal

from grn.errors import GrnError

__all__ = ["BodyDied", "CannotStart", "StillRunning", "Unpicklable"]


class CannotStart(GrnError, RuntimeError):
    """No process could be started, or it could not be given the folder that was asked for.

    Preloading may have failed or have left threads behind; there may be no room for a process.
    """

    code = "cannot-start"


class StillRunning(GrnError, TimeoutError):
    """The body has not ended in the time that the caller allowed; it goes on."""

    code = "still-running"


class BodyDied(GrnError, RuntimeError):
    """The process ended before it returned a result.

    `signal` is the number of the signal that killed it, else None; `status` is its exit status, else
    None; both are None when nobody could see how it ended. `tail` is the end of what it wrote to its
    standard error, if that is a file.
    """

    code = "body-died"

    def __init__(
        self,
        message: str,
        *,
        signal: int | None = None,
        status: int | None = None,
        tail: str = "",
    ) -> None:
        super().__init__(message)
        self.signal = signal
        self.status = status
        self.tail = tail

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,), self.__dict__

    @classmethod
    def of(cls, who: str, exit_code: int | None, *, stopped: bool, tail: str) -> BodyDied:
        """Describe an end; `exit_code` is negative for a signal, None if it is not known."""
        if exit_code is None:
            how = "ended together with the fork server that started it"
        elif exit_code < 0:
            how = f"was killed by {signal_name(-exit_code)}"
            if exit_code == -signal.SIGKILL and not stopped:
                how += " (by the kernel, if the memory of this machine or container ran out)"
        else:
            how = f"left with exit status {exit_code}"
        message = f"{who} {how} before it returned a result"
        if stopped:
            message = f"{who} was stopped before it returned a result"
        return cls(
            f"{message}; its last words:\n{tail}" if tail else message,
            signal=-exit_code if exit_code is not None and exit_code < 0 else None,
            status=exit_code if exit_code is not None and exit_code >= 0 else None,
            tail=tail,
        )


class Unpicklable(GrnError, TypeError):
    """Something could not travel between the processes.

    `what` is "arguments" (with the function itself), "result" or "exception"; `type_name` is the
    class of an exception that could not be brought back, and `traceback_text` what it said.
    """

    code = "unpicklable"

    def __init__(
        self, message: str, *, what: str = "", type_name: str = "", traceback_text: str = ""
    ) -> None:
        super().__init__(message)
        self.what = what
        self.type_name = type_name
        self.traceback_text = traceback_text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,), self.__dict__


def signal_name(number: int) -> str:
    """Return "SIGKILL" for 9, "signal 99" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
