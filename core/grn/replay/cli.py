"""The command line of the replay: which trace, which machine, which policies, and in which form."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grn.config.rows import parse_margin
from grn.errors import UsageError
from grn.replay.bounds import bounds_of
from grn.replay.ours import RuleOptions
from grn.replay.plots import plot_waits
from grn.replay.policies import POLICIES, Run, names_from, run
from grn.replay.synthetic import Synthetic, synthetic_rows
from grn.replay.tables import as_csv, as_json, as_table
from grn.replay.trace import Reading, jobs_from, read_rows
from grn.replay.world import WorldOptions
from grn.rules.estimate import Margin
from grn.rules.units import parse_duration_s, parse_size_mib

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from grn.replay.job import Job
    from grn.replay.tables import Outcome
    from grn.replay.trace import Row

__all__ = ["main"]

_OK, _USAGE = 0, 2


@dataclass(frozen=True, slots=True)
class Task:
    """One run: a policy on a trace with one seed. It can be sent to another process."""

    policy: str
    path: str | None
    synthetic: Synthetic
    reading: Reading
    how: Run

    def rows(self) -> Iterable[Row]:
        """Return the trace, row by row."""
        if self.path is None:
            return synthetic_rows(replace(self.synthetic, seed=self.reading.seed))
        return read_rows(self.path)

    def jobs(self) -> list[Job]:
        """Make the jobs anew."""
        return jobs_from(self.rows(), self.reading)


def play(task: Task) -> tuple[Outcome, float]:
    """Run one task; return also how many jobs it played a second of processor time."""
    jobs = task.jobs()
    began = time.process_time()
    figures = run(task.policy, jobs, task.how)
    took_s = max(1e-9, time.process_time() - began)
    return (task.policy, task.reading.seed, figures), len(jobs) / took_s


def main(words: Sequence[str] | None = None) -> int:
    """Replay a trace; return the exit code."""
    parser = _parser()
    options = parser.parse_args(words)
    try:
        _replay(options)
    except (UsageError, OSError) as error:
        sys.stderr.write(f"grn.replay: {error}\n")
        return _USAGE
    return _OK


def _replay(options: argparse.Namespace) -> None:
    if (options.trace is None) == (not options.synthetic):
        raise UsageError("give the path of a trace, or --synthetic")
    first = _task(options, options.seeds[0], "")
    jobs = first.jobs()
    names = names_from(options.policies, jobs)
    bounds = bounds_of(jobs, options.devices)
    tasks = [_task(options, seed, name) for name in names for seed in options.seeds]
    outcomes: list[Outcome] = []
    speeds: dict[str, float] = {}
    for outcome, speed in _play_all(tasks, options.processes):
        outcomes.append(outcome)
        speeds[outcome[0]] = speed
    if options.plot:
        with open(options.plot, "w", encoding="utf-8") as file:
            file.write(plot_waits(outcomes))
    if options.json:
        sys.stdout.write(as_json(outcomes, bounds, _told(options)))
    elif options.csv:
        sys.stdout.write(as_csv(outcomes))
    else:
        sys.stdout.write(as_table(outcomes, bounds))
    if options.speed:
        for name, speed in speeds.items():
            sys.stderr.write(f"{name}: {speed:,.0f} jobs a second\n")


def _play_all(tasks: Sequence[Task], processes: int) -> Iterable[tuple[Outcome, float]]:
    if processes <= 1:
        return map(play, tasks)
    with ProcessPoolExecutor(processes) as pool:
        return list(pool.map(play, tasks))


def _told(options: argparse.Namespace) -> dict[str, Any]:
    left_out = {"json", "csv", "plot", "speed", "processes", "policies"}
    return {key: value for key, value in vars(options).items() if key not in left_out}


def _task(options: argparse.Namespace, seed: int, policy: str) -> Task:
    world = WorldOptions(
        devices=options.devices, device_mib=options.device_memory, ramp_s=options.ramp
    )
    rules = RuleOptions(
        margin=Margin(*parse_margin(options.margin)), provisional_after_s=options.provisional_after
    )
    reading = Reading(
        device_mib=options.device_memory,
        devices=options.devices,
        seed=seed,
        overstated=options.overstated,
        jitter=options.jitter,
        single=options.single,
        days=options.days,
        shortest_s=options.shortest,
        longest_s=options.longest,
        faster=options.faster,
        limit=options.limit,
    )
    made = Synthetic(
        jobs=options.jobs, load=options.load, devices=options.devices, gangs=options.gangs
    )
    return Task(policy, options.trace, made, reading, Run(world, rules, whole=options.whole))


# -- words ----------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grn.replay",
        description="Replay a trace of GPU jobs under the broker's own rules and under what else people use.",
        epilog=f"Policies: {', '.join(POLICIES)}. Columns of a trace: arrival_s, duration_s; if known also"
        " num_gpu, gpu_milli or share or memory_mib, peak_mib, type, user.",
    )
    add = parser.add_argument
    add("trace", nargs="?", help="a CSV file with a row per job")
    add("--synthetic", action="store_true", help="make a trace instead of reading one")
    add("--policies", default="all", metavar="NAMES", help="separated by commas; default: all")
    add("--seeds", type=_seeds, default=[1], metavar="N,N,...", help="1-5 or 1,2,3; default: 1")
    add("--devices", type=_positive, default=8, metavar="N", help="default: 8")
    add("--device-memory", type=_size, default=32768, metavar="SIZE", help="default: 32GiB")
    add("--json", action="store_true", help="all runs as one JSON object")
    add("--csv", action="store_true", help="a line per run")
    add("--plot", metavar="FILE", help="write an SVG picture of the waits")
    add("--speed", action="store_true", help="say on stderr how many jobs a second were played")
    add(
        "--processes",
        type=_positive,
        default=1,
        metavar="N",
        help="run so many at once; default: 1",
    )
    add(
        "--whole",
        action="store_true",
        help="through the whole broker's mind, its promises checked: slow",
    )
    group = parser.add_argument_group("what is taken of a trace")
    add = group.add_argument
    add("--single", action="store_true", help="leave out jobs of several devices")
    add("--days", type=_days, metavar="A-B", help="arrivals from day A to day B of the trace")
    add("--shortest", type=_time, metavar="TIME", help="leave out jobs that ran less")
    add("--longest", type=_time, metavar="TIME", help="leave out jobs that ran longer")
    add("--limit", type=_positive, metavar="N", help="the first N jobs")
    add("--faster", type=_factor, default=1.0, metavar="X", help="jobs arrive X times as fast")
    group = parser.add_argument_group("what a trace does not tell")
    add = group.add_argument
    add("--overstated", type=_share, default=0.35, metavar="SHARE",
        help="types really use from this share to all of what they asked for; default: 0.35")  # fmt: skip
    add("--jitter", type=_share, default=0.03, metavar="SHARE",
        help="by how much the peak of one run may be off; default: 0.03")  # fmt: skip
    add("--ramp", type=_time, default=8.0, metavar="TIME",
        help="when after its start a job's memory appears; default: 8s")  # fmt: skip
    group = parser.add_argument_group("settings of the broker")
    add = group.add_argument
    add("--margin", default="auto", help="as the setting of that name")
    add("--provisional-after", type=_time, default=60.0, metavar="TIME", help="the same")
    group = parser.add_argument_group("a made trace")
    add = group.add_argument
    add("--jobs", type=_positive, default=20000, metavar="N", help="default: 20000")
    add(
        "--load",
        type=_factor,
        default=0.8,
        metavar="X",
        help="1: all the machine can do; default: 0.8",
    )
    add("--gangs", action="store_true", help="one job in a hundred wants several devices")
    return parser


def _checked(read: Any, least: float, most: float = float("inf")) -> Any:
    def parse(text: str) -> Any:
        number = read(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return number

    return parse


_positive = _checked(int, 1)
_share = _checked(float, 0.0, 1.0)
_factor = _checked(float, 1e-6)


def _time(text: str) -> float:
    try:
        return parse_duration_s(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size(text: str) -> int:
    try:
        return parse_size_mib(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seeds(text: str) -> list[int]:
    try:
        if "-" in text:
            first, last = map(int, text.split("-"))
            return list(range(first, last + 1)) or _none(text)
        return [int(word) for word in text.split(",")]
    except ValueError:
        return _none(text)


def _none(text: str) -> list[int]:
    raise argparse.ArgumentTypeError(f"{text!r} is not 1-5 or 1,2,3")


def _days(text: str) -> tuple[float, float]:
    first, dash, last = text.partition("-")
    try:
        days = (float(first), float(last))
    except ValueError:
        days = (0.0, 0.0)
    if not dash or days[0] >= days[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not A-B, such as 114-130")
    return days
