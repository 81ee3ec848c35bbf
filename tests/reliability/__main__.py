"""The simulation by command.

python -m tests.reliability                       # 10,000 seeds of 500 events, on all cores
python -m tests.reliability --seeds 1000000       # as before a release
python -m tests.reliability --seed 1234           # one day, told event by event, and shrunk
python -m tests.reliability --planted             # which of the planted bugs are caught, and how
"""

from __future__ import annotations

import argparse
import contextlib
import sys

from tests.reliability import planted
from tests.reliability.shrink import shrunk
from tests.reliability.simulation import Day, numbers
from tests.reliability.sweep import EVENTS, replay_command, sweep_on_all_cores, why_it_fails


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _many(first: int, seeds: int, events: int, cores: int | None) -> int:
    result = sweep_on_all_cores(first, seeds, events, cores)
    _say(result.text())
    for seed, why in list(result.failed.items())[:20]:
        _say(f"seed {seed}: {why}\n  {replay_command(seed, events)}")
    return 1 if result.failed else 0


def _one(seed: int, events: int) -> int:
    story = numbers(seed, events)
    error = why_it_fails(story)
    if error is None:
        day = Day(story)
        day.run()
        _say(f"seed {seed}: all is well, checksum {day.trace:08x}")
        return 0
    kind = type(error)
    short = shrunk(story, lambda part: isinstance(why_it_fails(part), kind))
    _say(f"seed {seed}, shrunk to {len(short) - 1} of {events} events:")
    with contextlib.suppress(Exception):
        Day(short, _say).run()
    _say(f"{kind.__name__}: {why_it_fails(short)}")
    return 1


def main() -> int:
    """Do what the words say."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--cores", type=int)
    parser.add_argument("--seed", type=int, help="one seed: told, and shrunk if it fails")
    parser.add_argument(
        "--planted", nargs="?", const="all", help="with a planted bug, or with each of them"
    )
    args = parser.parse_args()
    if args.planted == "all":
        return planted.table(_say)
    with planted.planted(args.planted) if args.planted else contextlib.nullcontext():
        if args.seed is not None:
            return _one(args.seed, args.events)
        return _many(args.first, args.seeds, args.events, args.cores if not args.planted else 1)


if __name__ == "__main__":
    sys.exit(main())
