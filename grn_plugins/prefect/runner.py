"""`GRNTaskRunner`: every submitted task gets its own devices in its own process.

    @flow(task_runner=GRNTaskRunner(memory="8GiB"))
    def study(): ...

Design note. Prefect's engine runs a task in a thread of the flow's process, as with Prefect's own
thread runner; only the task's *function* runs in a fresh process, under a lease. So the engine, which
survives, resolves inputs before a device is asked for, finds cached results without one, retries with a
new lease, and writes every state, also that of a process that was killed. The alternative, an engine in
each process (as Prefect's process pool has it), loses all this and is several times slower.

Promises: entering it, copying it and pickling it cost nothing; what it needs is started at the first
submit. Must not: keep anything in the template that a flow is decorated with, but for its copies that run.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from prefect.context import FlowRunContext, TagsContext
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

from grn.errors import UsageError
from grn.wishes import ONE
from grn_plugins.prefect import ends, leases, nested
from grn_plugins.prefect.bodies import Bodies
from grn_plugins.prefect.calls import Place
from grn_plugins.prefect.needs import checked, need_of
from grn_plugins.prefect.order import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType

    from prefect.futures import PrefectConcurrentFuture
    from prefect.tasks import Task

    from grn_plugins.prefect.calls import Attempts
    from grn_plugins.prefect.needs import Need

__all__ = ["GRNTaskRunner"]

_INTERRUPTED = "its flow was interrupted"
_LOOKED_AT = 100
_CANCELLED = "its flow was cancelled"
_FLOW_FAILED = "its flow failed before a device was free"


class GRNTaskRunner(ThreadPoolTaskRunner[Any]):
    """A task runner that gives each submitted task a lease and a process of its own.

    Args:
        gpus: devices for each task; 0 wants an empty mask, `None` leaves devices alone: such tasks run
            in threads of the flow, as with Prefect's own runner.
        memory: on each device: MiB, a text such as `"8GiB"`, or `"whole"`; learnt if it is not given.
        preload: modules that are imported once, for all processes. They must not start threads, open
            a device, or read an environment that tasks are to be given.
        initializer: a function that each process calls first, with its environment in place.
        tags: whether tags such as `gpu:2` and `gpu-memory:8GiB` on tasks are wishes. Each tag costs
            calls of Prefect's concurrency API, so `@gpu` is the better place.
        artifact: whether a flow run gets a table of its leases.
        grace_s: how long a process that is stopped has to leave by itself.
        max_workers: how many tasks may be under way at once, waiting ones included; no bound by
            default, so that tasks can wait for tasks.
        wishes: the other wishes of `grn.job`: policy, cpus, ram, compute, processes, affinity, flavor,
            priority, wait, label, env, if_unavailable, type.

    All are what tasks want that say nothing else: see `gpu` and `gpu_options`.

    Raises:
        UsageError: if an option is not known or makes no sense.
    """

    def __init__(
        self,
        gpus: int | None = ONE,
        memory: str | int | None = None,
        *,
        preload: Sequence[str] = (),
        initializer: Callable[[], object] | None = None,
        tags: bool = False,
        artifact: bool = True,
        grace_s: float = 5.0,
        max_workers: int | None = None,
        **wishes: Any,
    ) -> None:
        if isinstance(preload, str):
            raise UsageError(f"preload={preload!r}: give a list of module names")
        super().__init__(max_workers=max_workers)
        self._defaults = checked("GRNTaskRunner()", {"gpus": gpus, "memory": memory, **wishes})
        try:
            need_of(_nothing, "", {**self._defaults, "type": None}, None)
        except UsageError as error:
            raise UsageError(f"GRNTaskRunner(): {error}") from error
        self._own: dict[str, Any] = {
            "preload": tuple(preload),
            "initializer": initializer,
            "tags": tags,
            "artifact": artifact,
            "grace_s": grace_s,
            "max_workers": max_workers,
        }
        self._copies: list[weakref.ref[GRNTaskRunner]] = []
        self._bodies = Bodies(preload, initializer, grace_s=grace_s)
        self._line = Line()
        self._flow_run: Any = None

    # -- what Prefect does with a runner ------------------------------------------------------------

    def duplicate(self) -> Self:
        """Return a new runner with the same options."""
        twin = type(self)(**self._defaults, **self._own)
        self._copies = [ref for ref in self._copies if ref() is not None] + [weakref.ref(twin)]
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(type(self), **self._defaults, **self._own), ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GRNTaskRunner):
            return False
        return self._defaults == other._defaults and self._own == other._own

    __hash__ = None  # type: ignore[assignment]  # as of all task runners

    def cancel_all(self) -> None:
        """Stop all tasks. Prefect calls this of the flow's template: its copies are meant."""
        for ref in self._copies:
            twin = ref()
            if twin is not None:
                twin._bodies.running.stop(_CANCELLED)  # noqa: SLF001 - our own class
        super().cancel_all()

    def __enter__(self) -> Self:
        super().__enter__()
        self._bodies = Bodies(
            self._own["preload"], self._own["initializer"], grace_s=self._own["grace_s"]
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is not None and not issubclass(exc_type, Exception):
            self._bodies.running.stop(_INTERRUPTED)
        elif exc_type is not None or self._flow_has_failed():
            self._bodies.running.withdraw(_FLOW_FAILED)
        try:
            super().__exit__(exc_type, exc_value, traceback)
        except BaseException:  # Ctrl-C while the last tasks were waited for
            self._bodies.running.stop(_INTERRUPTED)
            super().__exit__(exc_type, exc_value, traceback)
            raise
        finally:
            interrupted = exc_type is not None and not issubclass(exc_type, Exception)
            if self._own["artifact"] and self._bodies.board.rows and not interrupted:
                leases.publish(self._flow_run, self._bodies.board.rows, self._bodies.url)

    def _flow_has_failed(self) -> bool:
        """Whether the flow failed: Prefect has dealt with its exception by the time we are left."""
        state = getattr(self._flow_run, "state", None)
        return state is not None and not state.is_running() and not state.is_completed()

    # -- submitting ---------------------------------------------------------------------------------

    def submit(
        self,
        task: Task[Any, Any],
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> PrefectConcurrentFuture[Any]:
        """Have a task run, once its inputs are there and it has its lease.

        Raises:
            UsageError: if what it wishes for makes no sense.
        """
        need = need_of(task.fn, task.name, self._defaults, self._tags_of(task))
        if not need.is_ours or not self._started:
            return super().submit(task, parameters, wait_for, dependencies)
        if nested.applies():
            ours, place = nested.wrapped(task, need), Place()
        else:
            place = self._place(parameters, wait_for, need)
            ours = self._wrapped(task, need, place)
        try:
            future = super().submit(ours, parameters, wait_for, dependencies)
        except BaseException:
            place.leave()
            raise
        future.wrapped_future.add_done_callback(lambda _: place.leave())
        return future

    def _tags_of(self, task: Task[Any, Any]) -> set[str] | None:
        if not self._own["tags"]:
            return None
        context = TagsContext.get()
        return set(task.tags) | set(context.current_tags if context is not None else ())

    def _place(self, parameters: Mapping[str, Any], wait_for: Any, need: Need) -> Place:
        """Give it a place in the order of submits, if it could ask at once."""
        inputs = [*parameters.values(), *(wait_for or ())]
        return Place() if not need.asks or any(map(_is_awaited, inputs)) else Place(self._line)

    def _wrapped(self, task: Task[Any, Any], need: Need, place: Place) -> Task[Any, Any]:
        context = FlowRunContext.get()
        if context is not None:
            self._flow_run = context.flow_run
            self._bodies.warm_up()  # while the engine prepares, and a device is waited for
        attempts = self._bodies.attempts(need, timeout_s=task.timeout_seconds, retries=task.retries)
        ours = copy.copy(task)
        ours.timeout_seconds = None  # ours to keep: from the lease on, by ending the process
        ours.fn = _Function(task, functools.partial(self._run, task, attempts, place))
        return ours

    def _run(
        self,
        task: Task[Any, Any],
        attempts: Attempts,
        place: Place,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run a task's function once, called by its engine in its run context."""
        try:
            return self._bodies.run(task.fn, attempts, args, kwargs, task=task, place=place)
        except BaseException as error:
            state = ends.state_of(error)
            if state is None:
                raise
            return state


class _Function:
    """A task's function as the engine calls it: in a thread of the flow, with all inputs there."""

    def __init__(self, task: Task[Any, Any], call: Callable[..., Any]) -> None:
        functools.update_wrapper(self, task.fn)
        self.__code__ = getattr(task.fn, "__code__", None)  # cached results are told apart by it
        self._asynchronous = task.isasync
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._asynchronous:  # its loop is this task's alone, but Prefect renews slots in it
            return asyncio.to_thread(self._call, args, kwargs)
        return self._call(args, kwargs)


def _is_awaited(value: Any) -> bool:
    """Whether a parameter is the future of another task, or has one at its top."""
    if isinstance(value, PrefectFuture):
        return True
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple | set):
        return False
    return any(isinstance(each, PrefectFuture) for each in islice(value, _LOOKED_AT))


def _nothing() -> None:
    """Have no needs."""
