"""The policies that a replay compares, by name, and one run of one of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from grn.errors import UsageError
from grn.replay.baselines import BestFit, Fgd, Fifo, Grn0
from grn.replay.figures import Figures, Gauges, Mix, measure
from grn.replay.ours import DECLARED, NOTHING, PEAK, Ours, RuleOptions
from grn.replay.whole import WholeMachine
from grn.replay.world import World, WorldOptions
from grn.rules.model import Policy
from grn.rules.waiting import ARRIVAL, RUN_TIME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.replay.job import Job
    from grn.replay.world import Scheduler

    _Make = Callable[[Sequence[Job], WorldOptions], Scheduler]

__all__ = ["POLICIES", "Run", "names_from", "run"]

FIFO, BACKFILL, BEST_FIT, FGD, GRN0 = "fifo", "fifo-backfill", "best-fit", "fgd", "grn0"

_BASELINES: dict[str, _Make] = {
    FIFO: lambda _, world: Fifo(world, patience_s=0.0),
    BACKFILL: lambda _, world: Fifo(world),
    GRN0: lambda _, world: Grn0(world),
    BEST_FIT: lambda _, world: BestFit(world),
    FGD: lambda jobs, world: Fgd(world, Mix(jobs)),
}
_SPREAD, _PACK = Policy.SPREAD, Policy.PACK
_OURS: dict[str, RuleOptions] = {
    "spread/declared": RuleOptions(_SPREAD, ARRIVAL, DECLARED),
    "pack/declared": RuleOptions(_PACK, ARRIVAL, DECLARED),
    "spread": RuleOptions(_SPREAD, ARRIVAL, NOTHING),
    "pack": RuleOptions(_PACK, ARRIVAL, NOTHING),
    "spread/declared/run-time": RuleOptions(_SPREAD, RUN_TIME, DECLARED),
    "spread/run-time": RuleOptions(_SPREAD, RUN_TIME, NOTHING),
    "pack/run-time": RuleOptions(_PACK, RUN_TIME, NOTHING),
    "oracle": RuleOptions(_SPREAD, ARRIVAL, PEAK, all_known=True),
    "oracle/pack": RuleOptions(_PACK, ARRIVAL, PEAK, all_known=True),
    "oracle/run-time": RuleOptions(_SPREAD, RUN_TIME, PEAK, all_known=True),
}
POLICIES = (*_BASELINES, *_OURS)
_SINGLE_ONLY = frozenset({GRN0})


@dataclass(frozen=True, slots=True)
class Run:
    """How one policy is run. `whole`: through the whole `Machine`, its promises checked each step."""

    world: WorldOptions = field(default_factory=WorldOptions)
    rules: RuleOptions = field(default_factory=RuleOptions)
    whole: bool = False
    check: Callable[[World], None] | None = None


def names_from(text: str, jobs: Sequence[Job]) -> list[str]:
    """Read a list of names; `all` leaves out those that cannot run these jobs.

    Raises:
        UsageError: there is no such policy, or it cannot run them.
    """
    several = any(job.gpus > 1 for job in jobs)
    if text == "all":
        return [name for name in POLICIES if not (several and name in _SINGLE_ONLY)]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
        if several and name in _SINGLE_ONLY:
            raise UsageError(f"{name} knows no jobs of several devices: leave them out by --single")
    return names


def run(name: str, jobs: Sequence[Job], how: Run) -> Figures:
    """Play jobs under a policy. They are written to: each run needs its own.

    Raises:
        UsageError: there is no such policy.
    """
    world = how.world
    gauges = Gauges(jobs, world.devices, world.device_mib)
    scheduler = _scheduler(name, jobs, how)
    World(jobs, scheduler, world, gauges, how.check).run()
    return measure(name, jobs, gauges, world.devices, world.device_mib, scheduler.probe_s)


def _scheduler(name: str, jobs: Sequence[Job], how: Run) -> Scheduler:
    if name in _BASELINES:
        return _BASELINES[name](jobs, how.world)
    if name not in _OURS:
        raise UsageError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    named = _OURS[name]
    rules = replace(
        how.rules,
        policy=named.policy,
        order=named.order,
        needs=named.needs,
        all_known=named.all_known,
    )
    return (WholeMachine if how.whole else Ours)(how.world, rules)
