"""How an attempt that raised ends, where Prefect's engine would make the wrong thing of it.

An ordinary exception is the engine's: it fails, or is retried. But one that the *body* raised to leave
(`sys.exit`, Ctrl-C) would be raised again in the flow, as if the flow were to leave; and a task that was
stopped did not fail. Both become states that the task returns: Crashed, Cancelled.

Promises: such a state is never kept as a cached result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.exceptions import Abort, Pause
from prefect.states import Cancelled, Crashed
from prefect.transactions import get_transaction

from grn_plugins.prefect.calls import Stopped

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

__all__ = ["state_of"]


def state_of(error: BaseException) -> State[Any] | None:
    """Return the state that an attempt returns instead of raising this, `None` if it is to raise."""
    if isinstance(error, Stopped):
        state: State[Any] = Cancelled(message=f"The task was stopped: {error}")
    elif isinstance(error, Exception | Pause | Abort | GeneratorExit):
        return None
    else:
        state = Crashed(message=_crash(error), data=error)
    transaction = get_transaction()
    if transaction is not None:
        transaction.write_on_commit = False
    return state


def _crash(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "Execution was aborted by an interrupt signal."
    if isinstance(error, SystemExit):
        return f"Execution was aborted by Python system exit call: sys.exit({error.code!r})."
    return f"Execution was interrupted by an unexpected exception: {type(error).__name__}: {error}"
