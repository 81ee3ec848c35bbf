"""One call of a decorated function: lease, run, give back.

    acquire -> (unknown type and a lighter function: run that, release, acquire again) -> run -> release

A fresh process is given its environment before anything is unpickled in it, and its lease is given
back only when it is gone. In the caller's process the environment is changed for the length of the
call, and one call at a time may do that.

Must not: decide how much a call gets, or catch what the function raises.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from grn import hub, hubasync
from grn.affinity import bind_here, cores_of
from grn.applied import Applied, apply, bound, changes, take_back
from grn.copied import refuse_lost_copies
from grn.endings import ending_of
from grn.errors import UNREACHABLE, BrokerUnavailable, LeaseError, PathError
from grn.jobspec import is_async
from grn.nesting import inside
from grn.rules.environment import derive, job_environment
from grn.saying import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from grn.grants import Ending, Grant
    from grn.isolate import Child
    from grn.jobspec import JobSpec

__all__ = ["call", "call_async"]

_GRACE_S = 5.0


class _Call:
    """One call, whichever way it runs."""

    def __init__(self, wrapper: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.spec: JobSpec = wrapper.__grn_job__
        self.wrapper = wrapper
        self.args = args
        self.kwargs = kwargs
        self.begun = self.stopped = False
        """Whether the function was called; whether we ended its process: neither is news of it."""
        self.peak_mib: int | None = None
        self.child: Child | None = None

    def with_use(self, ending: Ending) -> Ending:
        """Add what its process took, if it had one of its own."""
        return {**ending, **self.child.used} if self.child is not None else ending

    def ending(self, error: BaseException) -> Ending:
        """Tell how it ended that raised this."""
        ending = ending_of(error)
        return ending if self.begun and not self.stopped else {**ending, "stopped": True}

    def is_fresh(self, grant: Grant | None) -> bool:
        """Whether it runs in a process of its own."""
        if self.spec.isolate is not None:
            return self.spec.isolate
        return grant is None or not grant.nested

    def start(self, grant: Grant | None, explicit: Mapping[str, str], *, lighter: bool) -> Child:
        """Start it in a process of its own."""
        from grn.isolate import ForkServer  # noqa: PLC0415 - loads what starts processes

        refuse_lost_copies(self.spec.name, (*self.args, *self.kwargs.values()))
        env = {**os.environ, **explicit}
        cores: list[int] = []
        if grant is not None:
            cores = cores_of(grant, self.spec.name)
            env, told = job_environment(grant.message, os.environ, explicit)
            for text in told:
                warn(text)
        self.child = child = ForkServer.shared().run(
            self._body(lighter=lighter),
            tuple(self.args),
            dict(self.kwargs),
            env=env,
            affinity=cores or None,
            name=self.spec.name,
        )
        self.begun = True
        if grant is not None and not grant.nested:
            grant.hub.started(grant.lease, child.pid)
        return child

    def _body(self, *, lighter: bool) -> Callable[..., Any]:
        function = self.spec.lighter if lighter else self.spec.function
        by_value = getattr(function, "__module__", None) == "__main__"
        if function is not None and by_value and not is_async(function):
            return function
        return _Body(self.wrapper, lighter=lighter)

    @contextlib.contextmanager
    def in_force(self, grant: Grant | None, explicit: Mapping[str, str]) -> Iterator[None]:
        """Change this process's environment, and where this thread runs, for the length of the call."""
        if grant is None:
            yield
            return
        settings = derive(grant.message, dict(os.environ), explicit)
        for each in settings:
            if each.warning:
                warn(each.warning)
        uuids = [device["uuid"] for device in grant.devices]
        applied = Applied(grant.lease, uuids, changes(settings, explicit))
        apply(applied)
        binding = bind_here(grant, self.spec.name)
        try:
            with inside(grant):
                yield
        finally:
            if binding is not None:
                binding.take_back()
            take_back(applied)

    def here(self, *, lighter: bool) -> Any:
        """Call the function itself."""
        self.begun = True
        function = self.spec.lighter if lighter else self.spec.function
        return cast("Callable[..., Any]", function)(*self.args, **self.kwargs)

    def without(self, error: BrokerUnavailable | PathError) -> None:
        """Go on without a lease, if that is wanted.

        Raises:
            BrokerUnavailable, PathError: if it is not.
        """
        if not self.spec.wish.run_without:
            raise error
        warn(f"{self.spec.name} runs without a lease: {error}")

    def tell(self, report: dict[str, Any] | None, *, fresh: bool) -> None:
        """Warn of what the broker noticed."""
        self.peak_mib = report["peak_mib"] if report is not None else None
        notes = [str(note) for note in report["notes"]] if report else []
        if report is not None and report["draining"] and not fresh:
            text = (
                f"{self.spec.name} has ended, but this process still holds device memory: its lease"
                " stays booked until that is freed or the process ends (isolate=True frees it at the"
                " end of each call)"
            )
            notes.append(text)
        for note in notes:
            warn(note)


class _Body:
    """What a fresh process runs. It is pickled as a part of the function's own module."""

    def __init__(self, wrapper: Any, *, lighter: bool) -> None:
        self.wrapper = wrapper
        self.lighter = lighter
        self.__module__ = wrapper.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        value = _Call(self.wrapper, args, kwargs).here(lighter=self.lighter)
        return asyncio.run(_awaited(value)) if asyncio.iscoroutine(value) else value


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


# -- one at a time in this process ----------------------------------------------------------------

_here = threading.Lock()
_inside: ContextVar[int] = ContextVar("grn_inside", default=0)


@contextlib.contextmanager
def _alone(spec: JobSpec) -> Iterator[None]:
    """Let one outermost call at a time run in this process; those that it makes itself are inside.

    Raises:
        LeaseError: if another thread or task is in such a call.
    """
    if spec.isolate is not False or _inside.get() == os.getpid():
        yield
        return
    if not _here.acquire(blocking=False):
        raise LeaseError(
            f"{spec.name} has isolate=False, and another thread or task of this process is in such a"
            " call: a process has one environment, so they cannot have different devices. Leave"
            " isolate=False out, or give each its own process"
        )
    token = _inside.set(os.getpid())
    try:
        yield
    finally:
        _inside.reset(token)
        _here.release()


def _forked() -> None:
    global _here  # noqa: PLW0603 - the parent's call is not the child's
    _here = threading.Lock()


os.register_at_fork(after_in_child=_forked)


# -- blocking -------------------------------------------------------------------------------------


def call(wrapper: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a decorated function."""
    this = _Call(wrapper, args, kwargs)
    with _alone(this.spec):
        grant, explicit = _granted(this)
        if grant is not None and this.spec.wants_lighter(grant):
            _run(this, grant, explicit, lighter=True)
            this.spec.lighter_is_useless = not this.peak_mib
            grant, explicit = _granted(this)
        return _run(this, grant, explicit, lighter=False)


def _granted(this: _Call) -> tuple[Grant | None, dict[str, str]]:
    message, explicit = this.spec.request(this.args, this.kwargs)
    try:
        with bound() if message["in_process"] else contextlib.nullcontext():
            return hub.acquire(message, wait_s=this.spec.wish.wait_s), explicit
    except UNREACHABLE as error:
        this.without(error)
        return None, explicit


def _run(this: _Call, grant: Grant | None, explicit: Mapping[str, str], *, lighter: bool) -> Any:
    fresh = this.is_fresh(grant)
    ending = ending_of(None)
    try:
        if fresh:
            return _in_process_of_its_own(this, grant, explicit, lighter=lighter)
        with this.in_force(grant, explicit):
            return this.here(lighter=lighter)
    except BaseException as error:
        ending = this.ending(error)
        raise
    finally:
        if grant is not None:
            this.tell(hub.release(grant, **this.with_use(ending)), fresh=fresh)


def _in_process_of_its_own(
    this: _Call, grant: Grant | None, explicit: Mapping[str, str], *, lighter: bool
) -> Any:
    child = this.start(grant, explicit, lighter=lighter)
    try:
        return child.result()
    except BaseException:
        if not child.wait(0):  # ours, not the job's: Ctrl-C, or what a signal's handler raised
            this.stopped = True
            child.stop(_GRACE_S)
        raise
    finally:
        child.close()


# -- in an event loop -----------------------------------------------------------------------------


async def call_async(wrapper: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a decorated async function."""
    this = _Call(wrapper, args, kwargs)
    with _alone(this.spec):
        grant, explicit = await _granted_async(this)
        if grant is not None and this.spec.wants_lighter(grant):
            await _run_async(this, grant, explicit, lighter=True)
            this.spec.lighter_is_useless = not this.peak_mib
            grant, explicit = await _granted_async(this)
        return await _run_async(this, grant, explicit, lighter=False)


async def _granted_async(this: _Call) -> tuple[Grant | None, dict[str, str]]:
    message, explicit = this.spec.request(this.args, this.kwargs)
    try:
        with bound() if message["in_process"] else contextlib.nullcontext():
            return await hubasync.acquire(message, wait_s=this.spec.wish.wait_s), explicit
    except UNREACHABLE as error:
        this.without(error)
        return None, explicit


async def _run_async(
    this: _Call, grant: Grant | None, explicit: Mapping[str, str], *, lighter: bool
) -> Any:
    fresh = this.is_fresh(grant)
    ending = ending_of(None)
    try:
        if fresh:
            return await _in_process_of_its_own_async(this, grant, explicit, lighter=lighter)
        with this.in_force(grant, explicit):
            value = this.here(lighter=lighter)
            return await value if asyncio.iscoroutine(value) else value
    except BaseException as error:
        ending = this.ending(error)
        raise
    finally:
        if grant is not None:
            this.tell(await hubasync.release(grant, this.with_use(ending)), fresh=fresh)


async def _in_process_of_its_own_async(
    this: _Call, grant: Grant | None, explicit: Mapping[str, str], *, lighter: bool
) -> Any:
    starting = asyncio.ensure_future(
        asyncio.to_thread(this.start, grant, explicit, lighter=lighter)
    )
    try:
        child = await asyncio.shield(starting)
    except asyncio.CancelledError:
        await _stop(this, await starting)  # it must not run on without its lease
        raise
    try:
        await _gone(child)
    except BaseException:
        await _stop(this, child)
        raise
    try:
        return child.result()
    finally:
        child.close()


async def _stop(this: _Call, child: Child) -> None:
    this.stopped = True
    await asyncio.shield(asyncio.to_thread(child.stop, _GRACE_S))
    child.close()


async def _gone(child: Child) -> None:
    """Wait until a process has ended, without a thread for it."""
    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    loop.add_reader(child.fileno(), _set, gone)
    try:
        await gone
    finally:
        loop.remove_reader(child.fileno())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
