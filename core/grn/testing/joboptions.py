"""The options of the stand-in job, and its memory over time.

Pure but for `argparse`, which prints and exits on a wrong option.
"""

from __future__ import annotations

import argparse

from grn.errors import UsageError
from grn.rules.units import parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Step = tuple[float, int]
    Spike = tuple[float, int, float]

__all__ = ["read_options", "timeline"]

_AFTER_PLAN_S = 1.0
"""How long a job without --seconds holds what its plan reached last."""


def timeline(plan: Sequence[Step], spikes: Sequence[Spike]) -> list[Step]:
    """Return (second, MiB) for every change of the total: the plan's steps with spikes on top."""
    ends = [at + length for at, _, length in spikes]
    moments = sorted({at for at, _ in plan} | {at for at, _, _ in spikes} | set(ends))

    def level(now: float) -> int:
        base = [mib for at, mib in sorted(plan, key=lambda step: step[0]) if at <= now]
        over = [mib for at, mib, length in spikes if at <= now < at + length]
        return (base[-1] if base else 0) + sum(over)

    return [(moment, level(moment)) for moment in moments]


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line; `steps` and `end_s` are worked out from it."""
    options = _parser().parse_args(argv)
    plan = ([(0.0, options.memory)] if options.memory else []) + options.plan
    options.steps = timeline(plan, options.spike)
    last = options.steps[-1][0] if options.steps else 0.0
    options.end_s = last + _AFTER_PLAN_S if options.seconds is None else options.seconds
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grn.testing.job",
        description="A stand-in for a GPU program, on simulated devices ($GRN_SIM_DIR).",
        allow_abbrev=False,
        # Without a width argparse imports shutil, and with it every compression module: 5 ms.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=96),
    )
    add = parser.add_argument
    size, seconds = _checked(_size), _checked(_seconds)
    add("--memory", type=size, default=0, metavar="SIZE", help="device memory held from the start")
    add("--plan", type=_checked(_plan), default=[], metavar='"T:SIZE …"', help="memory over time")
    add("--spike", type=_checked(_spike), action="append", default=[], metavar="T:SIZE:LENGTH")
    add("--seconds", type=seconds, metavar="S", help="run that long after the start delay")
    add("--until-file", metavar="PATH", help="run until this file exists, whatever --seconds says")
    add("--start-delay", type=seconds, default=0.0, metavar="S", help="touch no device before")
    add("--device", type=_checked(_ordinals), default=[0], metavar="K", help="cuda:K; 0,1 or all")
    add("--preallocate", type=_checked(_fraction), default=0.0, metavar="FRACTION")
    add("--busy", type=_checked(_percent), metavar="PERCENT", help="keep a device so busy")
    add("--children", type=int, default=0, metavar="N", help="forked worker processes")
    add("--child-memory", type=size, default=0, metavar="SIZE", help="held by each of them")
    add("--detached-child", type=seconds, metavar="S", help="leave a sleeping daemon behind")
    add("--ignore-sigint", action="store_true")
    add("--child-ignore-sigint", action="store_true")
    add("--exit-code", type=int, default=0, metavar="N")
    add("--print-env", nargs="+", default=[], metavar="NAME")
    add("--print-devices", action="store_true", help="what this process sees, cuda:0 first")
    add("--hold-file", metavar="PATH", help="created once the first memory is held")
    add("--log", metavar="FILE", help="append one line per event, with monotonic times")
    return parser


def _checked(read: Callable[[str], object]) -> Callable[[str], object]:
    """Let argparse print our message: of a ValueError it would show only the function's name."""

    def checked(text: str) -> object:
        try:
            return read(text)
        except UsageError as exc:
            raise argparse.ArgumentTypeError(str(exc)) from exc

    return checked


def _size(text: str) -> int:
    return parse_size_mib(text, allow_zero=True)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1e9:  # noqa: PLR2004 - thirty years; also keeps NaN and infinity out
        raise UsageError(f"{text!r} is not a number of seconds; for example 1.5")
    return number


def _plan(text: str) -> list[Step]:
    found: list[Step] = []
    for word in text.replace(",", " ").split():
        at, colon, size = word.partition(":")
        if not colon:
            raise UsageError(f'{word!r} is not SECOND:SIZE; for example "0:512MiB 1.5:3GiB"')
        found.append((_seconds(at), _size(size)))
    return found


def _spike(text: str) -> Spike:
    words = text.split(":")
    if len(words) != 3:  # noqa: PLR2004 - at, size, length
        raise UsageError(f"{text!r} is not SECOND:SIZE:LENGTH; for example 0.5:2GiB:0.1")
    return _seconds(words[0]), _size(words[1]), _seconds(words[2])


def _fraction(text: str) -> float:
    number = _seconds(text)
    if number > 1:
        raise UsageError(f"{text!r} is not a fraction of the device; for example 0.75")
    return number


def _percent(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:  # noqa: PLR2004 - percent
        raise UsageError(f"{text!r} is not a percentage; for example 90")
    return int(text)


def _ordinals(text: str) -> list[int] | None:
    """Read '0', '0,1' or 'all' (None)."""
    if text == "all":
        return None
    words = text.split(",")
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"{text!r} is not a device; for example 0, or 0,1, or all")
    return [int(word) for word in words]
