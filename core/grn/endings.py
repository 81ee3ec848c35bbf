"""How a piece of Python ended, in the words in which a lease is given back.

Promises: a failure is never told as a success; what only stopped the work (Ctrl-C, a cancelled task, a
pruned trial) is no failure and teaches nothing; a device that ran out of memory is recognised by what
the frameworks say, wherever it stands in the chain of exceptions.
"""

from __future__ import annotations

from grn.rules.outcome import BUSY, HINT, MEMORY, NOTHING, stderr_says

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.grants import Ending

__all__ = ["ending_of", "says"]

_STOPPED = frozenset({"CancelledError", "GeneratorExit", "KeyboardInterrupt", "TrialPruned"})
_FAILED = 1
_MOST_CAUSES = 16
_BYTE = 0xFF


def ending_of(error: BaseException | None) -> Ending:
    """Tell how a block ended that raised this, or nothing."""
    if error is None:
        return _ended(0)
    if type(error).__name__ in _STOPPED:
        return {**_ended(_FAILED), "stopped": True}
    if isinstance(error, SystemExit):
        return _ended(_exit_code(error.code))
    said = says(error)
    died_of: int | None = getattr(error, "signal", None) if _is_body_died(error) else None
    status: int | None = getattr(error, "status", None) if _is_body_died(error) else None
    if died_of is not None:
        return {**_ended(None), "signal": died_of, "said": said, "said_oom": said == MEMORY}
    return {**_ended(status or _FAILED), "said": said, "said_oom": said == MEMORY}


def _ended(exit_code: int | None) -> Ending:
    return {
        "exit_code": exit_code,
        "signal": None,
        "said": NOTHING,
        "said_oom": False,
        "stopped": False,
    }


def says(error: BaseException) -> str:
    """Tell what an exception and its causes say of the device: a name of `grn.rules.outcome`."""
    found = {_says_one(each) for each in _chain(error)}
    return next((word for word in (MEMORY, BUSY, HINT) if word in found), NOTHING)


def _says_one(error: BaseException) -> str:
    kind = type(error)
    if kind.__name__ == "OutOfMemoryError":  # PyTorch's, CuPy's, and whoever names it so
        return MEMORY
    text = str(error)
    if kind.__name__ in {"XlaRuntimeError", "JaxRuntimeError"} and "RESOURCE_EXHAUSTED" in text:
        return MEMORY
    tail = getattr(error, "tail", "") if _is_body_died(error) else ""
    words = f"{kind.__module__}.{kind.__qualname__}: {text}\n{tail}"
    return stderr_says(words.encode("utf-8", "replace"))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _is_body_died(error: BaseException) -> bool:
    # By its code: to import its class would load all that starts processes.
    return getattr(error, "code", None) == "body-died"


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    return code & _BYTE if isinstance(code, int) else _FAILED
