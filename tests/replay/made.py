"""Small traces, and a checker that knows nothing of any scheduler."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from grn.replay.synthetic import Synthetic, synthetic_rows
from grn.replay.trace import Reading, jobs_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.replay.job import Job
    from grn.replay.world import World

DEVICE_MIB = 10000


def job(number: int, at: float, runs_s: float, mib: int, **more: object) -> Job:
    """Make a job that declares `mib`, holds as much, and wants no compute to speak of."""
    from grn.replay.job import Job

    given = {"gpus": 1, "type": f"t{mib}", "peak_mib": mib, "compute": 0.0, **more}
    return Job(
        number=number,
        arrival_s=at,
        duration_s=runs_s,
        declared_mib=mib,
        **given,  # type: ignore[arg-type]
    )


def made_jobs(seed: int = 1, *, jobs: int = 300, load: float = 1.2, **how: object) -> list[Job]:
    """Draw a busy little trace for four devices, with a few jobs of several devices."""
    rows = synthetic_rows(Synthetic(jobs=jobs, load=load, devices=4, gangs=True, seed=seed))
    return jobs_from(rows, Reading(devices=4, device_mib=DEVICE_MIB, seed=seed, **how))  # type: ignore[arg-type]


class Overseer:
    """Looks at the world after each step: what is there must fit, and nobody runs twice."""

    def __init__(self) -> None:
        self.most_held_mib = 0
        self.looks = 0
        self.runs: defaultdict[int, set[float]] = defaultdict(set)

    def __call__(self, world: World) -> None:
        """Check the world as it is now."""
        self.looks += 1
        for device, jobs in enumerate(world.on):
            held = sum(each.peak_mib for each in jobs.values() if each.holds)
            assert held == world.used_mib[device]
            assert held <= world.options.device_mib
            self.most_held_mib = max(self.most_held_mib, held)
            for each in jobs.values():
                assert device in each.at
                assert len(set(each.at)) == len(each.at) == each.gpus
                assert each.started_s <= world.now
                assert each.ended_s < 0
                self.runs[each.number].add(each.started_s)


def assert_all_ended_once(jobs: Sequence[Job], overseer: Overseer) -> None:
    """Each job ended once: as many runs as out-of-memory ends, and one more if it ended well."""
    for each in jobs:
        assert each.ended_s >= each.arrival_s
        assert not each.at
        assert len(overseer.runs[each.number]) == each.ooms + (not each.failed)
        assert each.ended_s - each.started_s >= (0 if each.failed else each.duration_s - 1e-6)
