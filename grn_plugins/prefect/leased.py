"""`@leased`: each call of a function runs in a process of its own, under a lease of the host it is on.

    @task
    @leased(memory="8GiB")
    def train(rate): ...

For tasks whose engine is somewhere else: in a worker of Dask or Ray, in a `task.serve()` process, or in
the flow itself when a task is called and not submitted. Whichever process calls asks the broker of its
own host. It needs no Prefect around it: a plain Dask future can be had of such a function, too.

Design note. Workers run several tasks at once, in threads, and a process has one environment; so a
lease that sets variables there would give the devices of one task to another. Hence a process for each
call, as `GRNTaskRunner` has it, and by the same code. Inside a lease (under that runner, or in a worker
that was started by `grn run`) the function is just called: what it wants is there.

Promises: what a call wants is checked where it is written; a retry is a new lease and a new process;
the death of a worker ends its calls, and gives back what they held.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from typing import TYPE_CHECKING, Any, overload

from prefect.context import TaskRunContext
from prefect.tasks import Task

from grn.errors import UsageError
from grn.wishes import ONE, Wish
from grn_plugins.prefect import ends
from grn_plugins.prefect.bodies import Bodies
from grn_plugins.prefect.calls import Stopped, TaskTimedOut
from grn_plugins.prefect.needs import USUAL, Need, checked, job_type_of, need_of
from grn_plugins.prefect.shown import Board

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ParamSpec, Protocol, TypeVar

    from grn_plugins.prefect.calls import Attempts

    P = ParamSpec("P")
    R = TypeVar("R")

    class _Decorator(Protocol):
        def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


__all__ = ["leased"]

_LEASE = "GRN_LEASE"
_AFTER_PREFECT_S = 0.1
"""How much later than Prefect's clock ours ends a call: its exception is then in this thread already."""


@overload
def leased(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def leased(
    gpus: int | None = ...,
    memory: str | int | None = ...,
    *,
    preload: Sequence[str] = ...,
    initializer: Callable[[], object] | None = ...,
    grace_s: float = ...,
    **wishes: Any,
) -> _Decorator: ...


def leased(
    gpus: Any = ONE,
    memory: str | int | None = None,
    *,
    preload: Sequence[str] = (),
    initializer: Callable[[], object] | None = None,
    grace_s: float = 5.0,
    **wishes: Any,
) -> Any:
    """Run each call of a function in a process of its own under a lease. With or without brackets.

    Args:
        gpus: devices; 0 wants an empty mask, `None` leaves devices alone.
        memory: on each device: MiB, a text such as `"8GiB"`, or `"whole"`; learnt if it is not given.
        preload: modules that are imported once for all calls in a process, see `GRNTaskRunner`.
        initializer: a function that each process calls first, with its environment in place.
        grace_s: how long a process that is stopped has to leave by itself.
        wishes: the other wishes of `grn.job`: policy, cpus, ram, compute, processes, affinity, flavor,
            priority, wait, label, env, if_unavailable, type.

    Raises:
        UsageError: if an option is not known or makes no sense, or this is not a function.
    """
    function: Any = None
    if not (gpus is None or isinstance(gpus, int)):
        function, gpus = gpus, ONE
    if isinstance(preload, str):
        raise UsageError(f"preload={preload!r}: give a list of module names")
    options = checked("leased()", {"gpus": gpus, "memory": memory, **wishes})
    Wish(**{**USUAL, **options})  # what makes no sense is told here
    key = (tuple(preload), initializer, grace_s)
    decorate = functools.partial(_decorated, options=options, key=key)
    return decorate if function is None else decorate(function)


def _decorated(function: Any, /, *, options: dict[str, Any], key: _Key) -> Any:
    if isinstance(function, staticmethod | classmethod):
        return type(function)(_decorated(function.__func__, options=options, key=key))
    if isinstance(function, Task):
        raise UsageError(
            f"@leased stands over @task on {function.name}: put it under it, so that the task's"
            " function is what runs under a lease"
        )
    if isinstance(function, type) or not callable(function):
        raise UsageError(f"@leased: {function!r} is not a function")
    call = _Leased(function, options, key)
    need_of(function, call.name, options, None)  # a type with an argument that it does not have
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await call.run_async(args, kwargs)

        wrapper: Any = run_async
    else:

        def run(*args: Any, **kwargs: Any) -> Any:
            return call.run(args, kwargs)

        wrapper = run
    functools.update_wrapper(wrapper, function)
    wrapper.__grn__ = dict(options)  # under `GRNTaskRunner` it wishes for the same
    return wrapper


# -- a decorated function ---------------------------------------------------------------------------


class _Leased:
    """A function and what its calls want. Travels with the function to other hosts."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], key: _Key) -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.options = options
        self.key = key
        self.type = job_type_of(function, self.name)  # told here, where its file is
        self._retried: dict[Any, Attempts] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_retried": {}}

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call it, from any thread."""
        need = self._need()
        if need is None:
            return self.function(*args, **kwargs)
        attempts = self._attempts(need)
        try:
            with _Limit(self.name, attempts):
                return _bodies(self.key).run(self.function, attempts, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again
            return self._state_or_raise(error, attempts)

    async def run_async(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call it beside an event loop, which goes on meanwhile."""
        need = self._need()
        if need is None:
            return await self.function(*args, **kwargs)
        attempts = self._attempts(need)
        try:
            return await _bodies(self.key).run_async(self.function, attempts, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again
            return self._state_or_raise(error, attempts)

    def _need(self) -> Need | None:
        """Return what a call wants; `None` if it needs no process: it has its lease, or wants none."""
        if os.environ.get(_LEASE):
            return None
        need = need_of(self.function, self.name, self.options, None, job_type=self.type)
        if not need.is_ours:
            return None
        return _Unmasked(need) if _has_mask_of_ray() else need

    # -- one task run, several attempts -------------------------------------------------------------

    def _attempts(self, need: Need) -> Attempts:
        """Return those of this task run: after an out-of-memory the next one asks for more."""
        context = TaskRunContext.get()
        if context is None:
            return _bodies(self.key).attempts(need)
        known = self._retried.pop(context.task_run.id, None)
        return known or _bodies(self.key).attempts(need, retries=context.task.retries)

    def _state_or_raise(self, error: BaseException, attempts: Attempts) -> Any:
        """Keep the attempts for a retry; return the state that Prefect is to make of this, if any."""
        context = TaskRunContext.get()
        if context is None:
            raise error
        if context.task_run.run_count <= context.task.retries:
            self._retried[context.task_run.id] = attempts
        if not _is_of_a_body(error):
            raise error
        return ends.state_of(error)


def _is_of_a_body(error: BaseException) -> bool:
    """Whether a body has left by this, which is not to end the worker that called."""
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C comes to the main thread
        return threading.current_thread() is not threading.main_thread()
    return isinstance(error, SystemExit)


def _has_mask_of_ray() -> bool:
    """Whether Ray has set an empty mask, as its older versions do for a task that wants no GPU of it."""
    return "RAY_RAYLET_PID" in os.environ and os.environ.get("CUDA_VISIBLE_DEVICES") == ""


class _Unmasked(Need):
    """A need that no mask narrows: the one that is set here nobody has meant."""

    def __init__(self, need: Need) -> None:
        self.__dict__.update(need.__dict__)

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the message that asks for a lease, and the variables that the wish sets."""
        message, explicit = super().request(args, kwargs)
        return {**message, "mask": None}, explicit


class _Limit:
    """Ends a call when its task's time is over.

    Prefect raises an exception in the thread then, which cannot wake one that waits for a device or a
    process; so the wait is ended, too. The time is Prefect's: it begins before the wait for a device.
    """

    def __init__(self, name: str, attempts: Attempts) -> None:
        context = TaskRunContext.get()
        self._name = name
        self._limit_s: float | None = context.task.timeout_seconds if context is not None else None
        self._attempts = attempts
        self._timer: threading.Timer | None = None

    def __enter__(self) -> None:
        if self._limit_s is not None:
            after_s = self._limit_s + _AFTER_PREFECT_S
            self._timer = threading.Timer(after_s, self._attempts.stop, ["its time is over"])
            self._timer.daemon = True
            self._timer.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        if isinstance(error, Stopped):
            raise TaskTimedOut(
                f"{self._name} was not done within its limit of {self._limit_s:g} s, and was ended"
            ) from error


# -- what the calls of a process share --------------------------------------------------------------

if TYPE_CHECKING:
    _Key = tuple[tuple[str, ...], Callable[[], object] | None, float]

_made: dict[_Key, Bodies] = {}
_making = threading.Lock()


class _Unread(Board):
    """A board that keeps no rows: nobody would read them, and a worker lives long."""

    def note(self, row: dict[str, Any]) -> None:
        """Do nothing."""


def _bodies(key: _Key) -> Bodies:
    with _making:
        bodies = _made.get(key)
        if bodies is None:
            preload, initializer, grace_s = key
            bodies = _made[key] = Bodies(preload, initializer, grace_s=grace_s)
            bodies.board = _Unread()
        return bodies


def _forked() -> None:
    global _making  # noqa: PLW0603 - the parent's lock may be held for ever in a child
    _making = threading.Lock()
    _made.clear()


os.register_at_fork(after_in_child=_forked)
