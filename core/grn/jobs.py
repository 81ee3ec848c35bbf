"""The decorator `@grn.job`: each call of a function runs under a lease.

    @grn.job
    def train(lr): ...

    @grn.job(memory="8GiB", gpus=2)
    async def evaluate(path): ...

Where a call runs. By default in a fresh process, which is gone when the call returns (`isolate=True`):

- a mask and caps on threads count only before a framework is loaded, and the caller's module has
  often imported it at its top; a fresh process has its environment before anything is imported;
- threads and tasks may call at once, each with devices of its own; one process has one mask;
- a device's memory is given back for certain only by the end of its process, so the next job finds
  it free, and what is learnt is this call's need and not that of all calls before it.

Arguments and the return value are copied then: what the function changes in global variables stays in
its process, and a result must be picklable (move tensors to the CPU). `isolate=False` runs the call in
the caller's process, as the older decorator did: one at a time, refused to a second thread, and the
process may keep its device to its end. A call inside a lease (in another job, or under `grn run`) runs
in place, unless `isolate=True` says otherwise: there, the process is the job's already.

An async function gets an event loop of its own in its process (`asyncio.run`); the caller's loop goes on
meanwhile. Cancelling the caller's task stops the job.

Promises: return values and exceptions reach the caller as they are; nothing is learnt from a failure; a
call in an outer lease never waits for another lease. Generators are refused: their body would run
after the lease has ended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from grn import jobcalls
from grn.errors import UsageError
from grn.jobspec import JobSpec, called, is_async, name_of
from grn.wishes import NORMAL, ONE, Wish

if TYPE_CHECKING:
    from typing import Self

    from grn.wishes import IfUnavailable, Policy

__all__ = ["JobFunction", "job"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
F = TypeVar("F", bound=Callable[..., object])


class JobFunction(Protocol[P, R_co]):
    """A decorated function: called like the function itself, and `profile` beside it."""

    __name__: str
    __qualname__: str

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """The function itself, without a lease."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run under a lease."""
        ...

    @overload
    def __get__(self, instance: None, owner: type | None = None, /) -> Self: ...

    @overload
    def __get__(
        self: JobFunction[Concatenate[S, Q], R_co], instance: S, owner: type | None = None, /
    ) -> Callable[Q, R_co]: ...

    def profile(self, function: F, /) -> F:
        """Register a lighter function that is measured in place of the first run.

        It gets the same arguments, and its result is dropped. Later calls, once the type is known to
        the broker, skip it.
        """
        ...


class _Decorator(Protocol):
    """What `grn.job(...)` with wishes returns."""

    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...


@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...


@overload
def job(
    *,
    gpus: int | None = ...,
    memory: str | int | None = ...,
    policy: Policy | None = ...,
    cpus: int | None = ...,
    ram: str | int | None = ...,
    compute: int | None = ...,
    processes: int | None = ...,
    affinity: bool | None = ...,
    group: str = ...,
    group_size: int | None = ...,
    flavor: str | None = ...,
    priority: int = ...,
    wait: float | str | None = ...,
    label: str = ...,
    env: Mapping[str, str] | None = ...,
    if_unavailable: IfUnavailable = ...,
    type: str | None = ...,
    isolate: bool | None = ...,
    jobstr: str | None = ...,
    resource_policy: Policy | None = ...,
    continue_on_server_unavailable: bool = ...,
) -> _Decorator: ...


def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    gpus: int | None = ONE,
    memory: str | int | None = None,
    policy: Policy | None = None,
    cpus: int | None = None,
    ram: str | int | None = None,
    compute: int | None = None,
    processes: int | None = None,
    affinity: bool | None = None,
    group: str = "",
    group_size: int | None = None,
    flavor: str | None = None,
    priority: int = NORMAL,
    wait: float | str | None = None,
    label: str = "",
    env: Mapping[str, str] | None = None,
    if_unavailable: IfUnavailable = "fail",
    type: str | None = None,  # noqa: A002 - the word for it everywhere
    isolate: bool | None = None,
    jobstr: str | None = None,
    resource_policy: Policy | None = None,
    continue_on_server_unavailable: bool = False,
) -> Any:
    """Run each call of a function under a lease. With or without brackets.

    Args:
        function: what is decorated.
        gpus: and what follows, to `if_unavailable`: the wishes of `grn.lease`.
        memory: as there.
        policy: as there.
        cpus: as there.
        ram: as there.
        compute: as there.
        processes: as there.
        affinity: as there; a fresh process is bound before it begins.
        group: as there.
        group_size: as there.
        flavor: as there.
        priority: as there.
        wait: as there.
        label: a name for status displays; the function's name if empty.
        env: as there.
        if_unavailable: as there.
        type: `None` is the function; arguments may stand in it: `"{function} batch={batch}"`.
        isolate: run in a fresh process; `None`: unless the caller is inside a lease already.
        jobstr: another name of `type`.
        resource_policy: another name of `policy`.
        continue_on_server_unavailable: another name of `if_unavailable="run"`.

    Raises:
        UsageError: if a wish makes no sense, or this cannot be a job (a class, a generator).
    """
    wish = Wish(
        gpus=gpus,
        memory=memory,
        policy=_one_name("policy", policy, "resource_policy", resource_policy),
        cpus=cpus,
        ram=ram,
        compute=compute,
        processes=processes,
        affinity=affinity,
        group=group,
        group_size=group_size,
        flavor=flavor,
        priority=priority,
        wait=wait,
        label=label,
        env=env,
        if_unavailable="run" if continue_on_server_unavailable else if_unavailable,
        type=_one_name("type", type, "jobstr", jobstr),
    )
    if isolate is not None and not isinstance(isolate, bool):
        raise UsageError(f"isolate={isolate!r} is neither True nor False, nor None")
    decorate = functools.partial(_decorated, wish=wish, isolate=isolate)
    return decorate if function is None else decorate(function)


def _one_name(name: str, value: str | None, alias: str, other: str | None) -> str | None:
    if value is not None and other is not None:
        raise UsageError(f"{name}= and {alias}= are the same: give one of them")
    return value if other is None else other


def _decorated(function: Any, /, *, wish: Wish, isolate: bool | None) -> Any:
    if isinstance(function, staticmethod | classmethod):
        inner = _decorated(function.__func__, wish=wish, isolate=isolate)
        return type(function)(inner)
    _check(function)
    spec = JobSpec(
        function,
        wish,
        name=name_of(function),
        isolate=isolate,
    )
    spec.check_template()
    wrapper: Any = _wrapper(function)
    functools.update_wrapper(wrapper, function)
    wrapper.__grn_job__ = spec
    wrapper.profile = spec.register_profile
    return wrapper


def _check(function: Any) -> None:
    if isinstance(function, str):
        raise UsageError(f"to name the job's type write @grn.job(type={function!r})")
    if isinstance(function, type) or not callable(function):
        raise UsageError(f"{function!r} is not a function: decorate a function or a method")
    code = called(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise UsageError(
            f"{name_of(function)} is a generator: its body would run after its lease has ended."
            " Return a list, or use `with grn.lease()` in it"
        )


def _wrapper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a plain function: it binds as a method, and is pickled by its name."""
    if is_async(function):

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await jobcalls.call_async(run_async, args, kwargs)

        return run_async

    def run(*args: Any, **kwargs: Any) -> Any:
        return jobcalls.call(run, args, kwargs)

    return run
