"""Groups of jobs that share one lease: pipes and services, and rules with a `group:`.

Design note. Members of a pipe or service group run at once, so their lease is asked for as one, before any
of them starts: each with a part in hand and waiting for the next could wait for ever. Of a user's group
this executor runs each job by itself, as Snakemake does locally; their lease is asked for by the first and
held until the last has ended, as one allocation of a cluster would be. While none of them runs and another
job of this run waits for a device, it is given back: that job may occupy the core for which the next member
waits. That one asks for all of it again.

What belongs together: jobs of one group that depend on each other, as in Snakemake's own groups; and
different rules of one group, as long as no rule is in both parts (then they are repetitions: samples).

Promises: one lease at a time for a group, atomic, computed from its members; who waits inside a group holds
nothing. Must not: be asked by two threads which jobs belong together, see `look_at`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grn.errors import Impossible
from grn_plugins.snakemake import envhook
from grn_plugins.snakemake.granted import Held, acquire, give_back, say, teller
from grn_plugins.snakemake.sharing import Parts, at_once, covers, in_levels
from grn_plugins.snakemake.stopping import NotStartedError, end_marked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from grn.grants import Ending, Grant
    from grn_plugins.snakemake.granted import Terms, Work
    from grn_plugins.snakemake.request import Ask
    from grn_plugins.snakemake.stopping import Running

__all__ = ["Groups"]


class _Place:
    """A member's turn inside its group."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.withdrawn = False

    def withdraw(self, why: str = "") -> None:
        """Wake it up, to find that it is not wanted any more."""
        del why
        with self._changed:
            self.withdrawn = True
            self._changed.notify_all()


class _Group:
    """Jobs under one lease. `whole` describes all of it."""

    def __init__(
        self, whole: Work, works: Mapping[Any, Work], terms: Terms, running: Running
    ) -> None:
        self.whole = whole
        self.asks = {job: work.ask for job, work in works.items()}
        """What each member wishes for, of which `whole` was made."""
        self.left = set(works)
        """Members that have not ended yet."""
        self._terms = terms
        self._running = running
        self._changed = threading.Condition()
        self._asking = False
        self._grant: Grant | None = None
        self._without = False
        self._parts: Parts | None = None
        self._asked: Ask | None = None
        """What the present lease was asked for."""
        self._inside = 0
        self._out = 0
        """Members that were let into the present lease, and have not left it."""
        self._endings: list[Ending] = []
        self._told = False

    # -- the lease ------------------------------------------------------------------------------

    def renew(self, whole: Work, works: Mapping[Any, Work]) -> None:
        """Take in that a member wishes for something else now, as another attempt does."""
        with self._changed:
            self.whole = whole
            self.asks |= {job: work.ask for job, work in works.items()}

    def _is_outgrown(self) -> bool:
        return self._asked is not None and not covers(self._asked, self.whole.ask)

    def open(self, *, enters: bool = False) -> None:
        """Ask for the lease, unless it is there and will do; wait for who asks already.

        One that is too small by now is given back once no member uses it. `enters`: the caller is
        one, from this moment on until it leaves.
        """
        with self._changed:
            while self._asking or (self._out and self._is_outgrown()):
                self._changed.wait()
            if self._without or (self._grant is not None and not self._is_outgrown()):
                self._out += enters
                return
            whole, old = self.whole, self._taken()
            self._asking = True
        grant = None
        try:
            self._hand_in(old)
            grant = acquire(whole, self._terms, self._running)
        except Impossible as error:
            raise Impossible(
                f"{self.whole.name} shares one lease, since its rules are one group: {error.message}."
                " Ask for less, take rules out of the group, or give each a lease of its own with"
                " --grn-groups apart"
            ) from error
        finally:
            with self._changed:
                self._asking = False
                self._changed.notify_all()
        with self._changed:
            self._without = grant is None
            self._out += enters
            if grant is not None:
                self._grant, self._asked = grant, whole.ask
                self._parts = Parts(whole.ask, grant.message)
                devices = ", ".join(str(device["index"]) for device in grant.devices)
                say(f"{self.whole.name} has device {devices}")

    def close(self, *, if_idle: bool = True) -> None:
        """Give the lease back, unless a member runs."""
        with self._changed:
            if self._asking or (if_idle and self._inside):
                return
            old = self._taken()
        self._hand_in(old)

    def _taken(self) -> tuple[Grant | None, list[Ending]]:
        """Take the lease away, to be given back; the group has none then."""
        grant, endings = self._grant, self._endings
        self._grant = self._parts = self._asked = None
        self._endings = []
        self._told = False
        return grant, endings

    def _hand_in(self, old: tuple[Grant | None, list[Ending]]) -> None:
        grant, endings = old
        if grant is None:
            return
        failed = [ending for ending in endings if _failed(ending)]
        if failed and not grant.nested:
            end_marked(grant.lease, self._terms.grace_s)
        give_back(grant, [self.whole], (failed or endings or [_UNUSED])[0])

    def forget(self, lost: set[Any]) -> bool:
        """Wait no more for these members; tell whether no other is left."""
        with self._changed:
            self.left -= lost
            return not self.left

    def close_when_left(self) -> None:
        """Give the lease back once no member runs: a service may take a moment to end."""
        with self._changed:
            while self._inside:
                self._changed.wait()
        self.close()

    # -- the members ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def member(self, job: Any, work: Work) -> Iterator[None]:
        """Run one of them with its part of the lease."""
        with self._changed:
            self._inside += 1
        error: BaseException | None = None
        entered = False
        try:
            self.open(enters=True)
            entered = True
            with self._part(job, work) as held:
                if held is None:
                    yield
                else:
                    with self._running.running(held), envhook.around(held):
                        yield
        except BaseException as problem:
            error = problem
            raise
        finally:
            self._leave(job, error, entered=entered)

    @contextlib.contextmanager
    def _part(self, job: Any, work: Work) -> Iterator[Held | None]:
        place = _Place(self._changed)
        parts, grant = self._parts, self._grant
        if parts is None or grant is None:
            yield None
            return
        with self._running.waiting(place), self._changed:
            while (part := parts.take(work.ask)) is None:
                if place.withdrawn:
                    raise NotStartedError(self._running.closed)
                self._changed.wait()
        message = parts.message(part, work.ask)
        held = Held(work, message, self._running.warden, self._teller(grant))
        error: BaseException | None = None
        try:
            yield held
        except BaseException as problem:
            error = problem
            raise
        finally:
            ending: Ending = held.ending(error)
            if job.is_service and ending.get("signal") == signal.SIGTERM:
                ending["exit_code"], ending["signal"] = 0, None  # how a service is to end
            held.leave()
            with self._changed:
                parts.give_back(part)
                self._endings.append(ending)
                self._changed.notify_all()

    def _teller(self, grant: Grant) -> Callable[[int], None]:
        """Return what names the first process of all to the broker: the others are found below us."""
        tell = teller(grant)

        def once(pid: int) -> None:
            if not self._told:
                self._told = True
                tell(pid)

        return once

    def _leave(self, job: Any, error: BaseException | None, *, entered: bool) -> None:
        with self._changed:
            self._inside -= 1
            self._out -= entered
            self.left.discard(job)
            over = not self.left or error is not None or self._running.waits()
            self._changed.notify_all()
        if over:
            self.close()


def _failed(ending: Ending) -> bool:
    return bool(ending.get("exit_code") or ending.get("signal") or ending.get("stopped"))


_UNUSED: Ending = {
    "exit_code": None,
    "signal": None,
    "said": "",
    "said_oom": False,
    "stopped": True,
}


class Groups:
    """The groups of one run."""

    def __init__(
        self,
        workflow: Any,
        work_of: Callable[[Any], Work | None],
        terms: Terms,
        running: Running,
        *,
        together: bool,
    ) -> None:
        """Begin; `together` is whether a user's groups share a lease."""
        self._workflow = workflow
        self._work_of = work_of
        self._terms = terms
        self._running = running
        self._together = together
        self._group_of: dict[Any, _Group] = {}
        running.on_waiting(self.yield_idle)

    # -- pipes and services ---------------------------------------------------------------------

    @contextlib.contextmanager
    def at_once(self, group_job: Any) -> Iterator[None]:
        """Hold the lease of jobs that run at once for the length of a block that runs them."""
        works = {job: work for job in group_job if (work := self._work_of(job)) is not None}
        if not works:
            yield
            return
        ask = at_once([work.ask for work in works.values()])
        group = _Group(_whole(works, ask, group_job.groupid), works, self._terms, self._running)
        group.open()
        self._group_of |= dict.fromkeys(works, group)
        try:
            yield
        finally:
            for job in works:
                self._group_of.pop(job, None)
            group.close_when_left()

    # -- a user's groups ------------------------------------------------------------------------

    def look_at(self, job: Any) -> None:
        """Find out who belongs to a job that is about to run. For the scheduling thread only."""
        if not self._together:
            return
        group = self._group_of.get(job)
        if group is not None:
            self._look_again(group, job)
            return
        name = self._name_of(job)
        if name is None:
            return
        for members in self._components(name):
            works = {each: work for each in members if (work := self._tried(each)) is not None}
            if job not in works or len(works) == 1:
                continue
            whole = _whole(works, self._ask_of(members, works), name)
            group = _Group(whole, works, self._terms, self._running)
            self._group_of |= dict.fromkeys(works, group)
            return

    def _look_again(self, group: _Group, job: Any) -> None:
        """See whether a member that comes again, as another attempt, wishes for the same."""
        work = self._tried(job)
        if work is None or work.ask == group.asks.get(job):
            return
        left = group.left | {job}
        works = {each: work for each in left if (work := self._tried(each)) is not None}
        group.renew(replace(group.whole, ask=self._ask_of(left, works)), works)

    def _ask_of(self, members: set[Any], works: Mapping[Any, Work]) -> Ask:
        levels = self._levels(members)
        return in_levels([[works[x].ask for x in level if x in works] for level in levels])

    def share_of(self, job: Any, work: Work) -> AbstractContextManager[None] | None:
        """Return what runs a job with its part of its group's lease; `None` if it has no group."""
        group = self._group_of.get(job)
        return None if group is None else group.member(job, work)

    def gives_up(self, failed: Any) -> None:
        """Wait no more for what needs a job that has failed for good. For the scheduling thread only."""
        groups = set(self._group_of.values())
        if not groups:
            return
        left = set[Any]().union(*(group.left for group in groups))
        lost = {failed} | {job for job in left if failed in self._all_before(job)}
        for group in groups:
            if group.forget(lost):  # what it left behind may take a while to end
                threading.Thread(target=group.close, name="grn-give-back").start()

    def _all_before(self, job: Any) -> set[Any]:
        """Return all that a job depends on, directly or not."""
        before: set[Any] = set()
        stack = [job]
        while stack:
            for each in self._dependencies(stack.pop()):
                if each not in before:
                    before.add(each)
                    stack.append(each)
        return before

    def yield_idle(self) -> None:
        """Give back what no member uses just now: others of this run wait."""
        for group in set(self._group_of.values()):
            group.close()

    def close(self) -> None:
        """Give back what is held still, at the end of the run."""
        self.yield_idle()

    def _tried(self, job: Any) -> Work | None:
        try:
            return self._work_of(job)
        except Exception:  # noqa: BLE001 - it is told when that job itself is to run
            return None

    def _name_of(self, job: Any) -> str | None:
        """Return a job's group, as the Snakefile or `--groups` say; Snakemake itself says none here."""
        from snakemake.io import apply_wildcards  # noqa: PLC0415 - only where there are groups

        rule = job.rule
        set_here = self._workflow.group_settings.overwrite_groups.get(rule.name)
        name = set_here or getattr(rule, "_group", None)
        if callable(name):
            name, _ = rule.apply_input_function(name, job.wildcards)
        return apply_wildcards(name, job.wildcards) if isinstance(name, str) else None

    def _components(self, name: str) -> list[set[Any]]:
        """Return the sets of jobs of a group that share a lease."""
        dag = self._workflow.dag
        jobs = [
            job for job in dag.needrun_jobs() if not job.is_group() and self._name_of(job) == name
        ]
        found: list[set[Any]] = []
        for job in jobs:
            near = {job, *(each for each in self._dependencies(job) if each in jobs)}
            apart = [each for each in found if not each & near]
            found = [*apart, near.union(*(each for each in found if each & near))]
        return _with_other_rules(found)

    def _dependencies(self, job: Any) -> Iterable[Any]:
        dag = self._workflow.dag
        known = getattr(dag, "_dependencies", None) or getattr(dag, "dependencies", {})
        return list(known.get(job, ()))

    def _levels(self, members: set[Any]) -> list[list[Any]]:
        """Put members into levels, each of which needs only what is in those before it."""
        level: dict[Any, int] = {}

        def of(job: Any) -> int:
            if job not in level:
                above = [of(each) for each in self._dependencies(job) if each in members]
                level[job] = 1 + max(above, default=-1)
            return level[job]

        depth = 1 + max(map(of, members))
        return [[job for job in members if level[job] == at] for at in range(depth)]


def _with_other_rules(components: Sequence[set[Any]]) -> list[set[Any]]:
    """Join components that have no rule in common: they are not repetitions of each other."""
    joined: list[set[Any]] = []
    for component in components:
        rules = {job.rule.name for job in component}
        for other in joined:
            if not rules & {job.rule.name for job in other}:
                other.update(component)
                break
        else:
            joined.append(set(component))
    return joined


def _whole(works: dict[Any, Work], ask: Any, name: object) -> Work:
    some = next(iter(works.values()))
    rules = sorted({job.rule.name for job in works})
    file = some.type.partition("::")[0]
    types = {work.ask.type for work in works.values() if work.ask.type}
    return replace(
        some,
        name=f"group {name} ({', '.join(rules)})",
        type=types.pop() if len(types) == 1 else f"{file}::{'+'.join(rules)}",
        label=f"group {name}: {', '.join(rules)}",
        ask=ask,
        commanded=None,
        logs=(),
    )
