"""Leases as context managers: `with grn.lease() as lease:` and `async with grn.lease_async() as lease:`.

For code that finds its own way into a process: a Dask or Ray worker, a step of Slurm, a trial of
Optuna, a subprocess. What is held is given back at the end of the block, whatever ends it.

    with grn.lease(memory="8GiB") as lease:
        subprocess.run(["python", "train.py"], env={**os.environ, **lease.env}, check=True)

    with grn.lease() as lease:
        lease.apply()          # before the framework is imported
        import torch

Promises: how the block ended decides what is learnt: a failure makes no profile; a request inside a
lease (`GRN_LEASE`) is a part of that lease. In a forked child a lease of its parent is only looked at.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from grn import hub, hubasync
from grn.affinity import bind_here
from grn.applied import Applied, apply, bound, changes, mask_of_kept, take_back
from grn.endings import ending_of
from grn.errors import UNREACHABLE, BrokerUnavailable, GrnError, LeaseError, PathError
from grn.nesting import enter, leave
from grn.reporting import of_frameworks, whole_mib
from grn.rules.environment import derive, explain_lines
from grn.saying import warn
from grn.sources import caller_type
from grn.wishes import NORMAL, ONE, Wish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from grn.affinity import Binding
    from grn.grants import Grant
    from grn.wishes import IfUnavailable, Policy

__all__ = ["HeldLease", "LeaseBlock", "LeaseBlockAsync", "lease", "lease_async"]

_ANSWER_WITHIN_S = 5.0


class HeldLease:
    """What a block holds. Without a broker (`if_unavailable="run"`) it holds nothing and sets nothing."""

    def __init__(self, grant: Grant | None, explicit: Mapping[str, str]) -> None:
        self.grant = grant
        message = grant.message if grant is not None else {}
        self.id: str = message.get("lease", "")
        """The lease's id; empty if there is none."""
        self.devices: list[dict[str, Any]] = message.get("devices", [])
        """Index, UUID, model, total and booked MiB of each device."""
        self.memory_mib: int | None = message.get("memory_mib")
        """MiB booked on each device."""
        self.cores: list[int] = grant.cores if grant is not None else []
        """The cores of one's own, if some were asked for: `apply` binds to them."""
        self._settings = derive(message, dict(os.environ), explicit) if grant is not None else []
        self._explicit = explicit
        self._applied: Applied | None = None
        self._ended = False
        self._binding: Binding | None = None

    @property
    def env(self) -> dict[str, str]:
        """What the lease sets: for a subprocess `{**os.environ, **lease.env}`."""
        return {name: value for name, value in self._changes().items() if value is not None}

    def environment(self) -> dict[str, str]:
        """Return the process's environment with what the lease sets."""
        whole = {**os.environ, **self._changes()}
        return {name: value for name, value in whole.items() if value is not None}

    def _changes(self) -> dict[str, str | None]:
        return changes(self._settings, self._explicit)

    def explain(self) -> str:
        """Say of each variable what it is, why, and what became of your own value."""
        if self.grant is None:
            return "no lease: the environment stays as it is"
        return "\n".join(explain_lines(self._settings))

    def warnings(self) -> list[str]:
        """Say which of your own values work against sharing the device."""
        return [each.warning for each in self._settings if each.warning]

    def apply(self) -> None:
        """Set this process's environment, until the end of the block, and bind it to its cores.

        Bound are the thread that calls and those that it starts in the block. To be called before a framework is imported; what comes too late is warned of. A second call
        does nothing.

        Raises:
            LeaseError: if a lease with other devices is in force in this process, in whichever
                thread; if the process may have other devices open since an earlier lease; or if
                this lease has ended.
        """
        if self.grant is None or self._applied is not None:
            return
        if self._ended:
            raise LeaseError(f"lease {self.id} has ended with its block: apply it within")
        if self.grant.pid != os.getpid():
            raise LeaseError(
                f"lease {self.id} is held by process {self.grant.pid}, not by this one"
            )
        applied = Applied(self.id, [device["uuid"] for device in self.devices], self._changes())
        apply(applied)
        self._applied = applied
        self._binding = bind_here(self.grant, f"lease {self.id}")

    def take_back(self) -> None:
        """Undo `apply` before the end of the block."""
        binding, self._binding = self._binding, None
        if binding is not None:
            binding.take_back()
        applied, self._applied = self._applied, None
        if applied is not None:
            take_back(applied)

    def report_peak(
        self,
        mib: float | None = None,
        *,
        bytes: float | None = None,  # noqa: A002 - what frameworks count in
    ) -> bool:
        """Tell the broker the most device memory that was held, see `grn.report_peak`.

        Returns:
            Whether the broker has taken the figure in; `False` without a lease or a figure.
        """
        peak = whole_mib(mib, bytes)
        peak = of_frameworks() if peak is None else peak
        if self.grant is None or not peak:
            return False
        try:
            message = {"op": "peak", "lease": self.id, "mib": peak}
            self.grant.hub.call(message, within_s=_ANSWER_WITHIN_S)
        except GrnError as error:
            warn(f"the peak of {peak} MiB was not reported to GRN: {error}")
            return False
        return True

    def __repr__(self) -> str:
        on = [device["index"] for device in self.devices]
        return f"<lease {self.id or 'none'} on {on}, {self.memory_mib} MiB each>"


class _Block:
    """What both forms of a block share."""

    def __init__(self, wish: Wish, job_type: str) -> None:
        self._wish = wish
        self._type = job_type
        self._held: HeldLease | None = None
        self._outside: tuple[int, int] | None = None

    def _request(self) -> tuple[dict[str, Any], dict[str, str]]:
        if self._held is not None:
            raise LeaseError("this block holds a lease already: call grn.lease() for another one")
        return self._wish.request(self._type, in_process=True, mask=mask_of_kept())

    def _hold(self, grant: Grant | None, explicit: Mapping[str, str]) -> HeldLease:
        self._held = held = HeldLease(grant, explicit)
        self._outside = enter(grant)
        for text in held.warnings():
            warn(text)
        return held

    def _unavailable(self, error: BrokerUnavailable | PathError) -> HeldLease:
        """Go on without a lease, if that is wanted.

        Raises:
            BrokerUnavailable, PathError: if it is not.
        """
        if not self._wish.run_without:
            raise error
        warn(f"running without a lease: {error}")
        return self._hold(None, {})

    def _let_go(self) -> Grant | None:
        held, self._held = self._held, None
        if held is None:
            return None
        leave(self._outside)
        held.take_back()
        held._ended = True  # noqa: SLF001 - made here, and let go of here
        return held.grant


def tell_notes(report: dict[str, Any] | None) -> None:
    """Warn of what the broker noticed about a job that has ended."""
    for note in report["notes"] if report else ():
        warn(str(note))


class LeaseBlock(_Block):
    """What `grn.lease()` returns. Each entry is a request of its own; not to be entered twice at once."""

    def __enter__(self) -> HeldLease:
        message, explicit = self._request()
        try:
            with bound():
                grant = hub.acquire(message, wait_s=self._wish.wait_s)
        except UNREACHABLE as error:
            return self._unavailable(error)
        return self._hold(grant, explicit)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        grant = self._let_go()
        if grant is not None:
            tell_notes(hub.release(grant, **ending_of(error)))


class LeaseBlockAsync(_Block):
    """What `grn.lease_async()` returns; see `LeaseBlock`."""

    async def __aenter__(self) -> HeldLease:
        message, explicit = self._request()
        try:
            with bound():
                grant = await hubasync.acquire(message, wait_s=self._wish.wait_s)
        except UNREACHABLE as error:
            return self._unavailable(error)
        return self._hold(grant, explicit)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        grant = self._let_go()
        if grant is not None:
            tell_notes(await hubasync.release(grant, ending_of(error)))


def lease(
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
) -> LeaseBlock:
    """Hold a lease for the length of a `with` block.

    Args:
        gpus: devices; 0 wants an empty mask, `None` leaves devices alone.
        memory: on each device: MiB, a text such as `"8GiB"`, or `"whole"`; `None`: what was learnt.
        policy: `"spread"` or `"pack"`; `None` takes the broker's.
        cpus: CPUs to book; `None` books none.
        ram: host memory to book, as `memory`.
        compute: percent of each device's multiprocessors to book; `None` books none.
        processes: how many of the job's processes use a device; `None` is one.
        affinity: cores of its own, to which `apply` binds; `None` is no, unless the flavor says so.
        group: start together with the other requests of this user that name it, all or none.
        group_size: how many those are, this one included.
        flavor: a name from the configuration, for what is not given here.
        priority: higher goes first.
        wait: give up after so long: seconds, or a text such as `"10m"`.
        label: a name for status displays.
        env: variables for the job; they outrank defaults, never masks.
        if_unavailable: `"run"` goes on without a lease, with a warning, where there is no broker.
        type: what the need is learnt under; `None`: the calling function, `FILE::NAME`.

    Raises:
        UsageError: if a wish makes no sense.
    """
    wish = Wish(
        gpus=gpus,
        memory=memory,
        policy=policy,
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
        if_unavailable=if_unavailable,
        type=type,
    )
    return LeaseBlock(wish, type or caller_type(1))


def lease_async(
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
    type: str | None = None,  # noqa: A002 - as above
) -> LeaseBlockAsync:
    """Hold a lease for the length of an `async with` block; the arguments are those of `lease`.

    Raises:
        UsageError: if a wish makes no sense.
    """
    wish = Wish(
        gpus=gpus,
        memory=memory,
        policy=policy,
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
        if_unavailable=if_unavailable,
        type=type,
    )
    return LeaseBlockAsync(wish, type or caller_type(1))
