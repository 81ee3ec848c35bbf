"""The table of all settings, and how each value is read.

Promises: a value that cannot be read is a `UsageError` that names what is allowed.

Must not: import anything heavy (clients load settings before each job), or look at who gave a value.
"""

from __future__ import annotations

import os

from grn.errors import UsageError
from grn.policies import checked
from grn.rules.units import parse_count, parse_duration_s, parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["ROWS", "Row", "parse_margin", "read_path"]

_AUTO_MARGIN = (0.05, 256)
_WHOLE = 100  # percent
_SHORTEST_SAMPLE_S = 0.05  # reading a driver more often costs more than it tells
GROUP_WAIT_S = 600.0
_SHORTEST_GROUP_WAIT_S = 1.0
_SHORTEST_AGING_S = 1.0
_YES = frozenset({"1", "yes", "true", "on"})
_NO = frozenset({"0", "no", "false", "off"})


def parse_margin(text: str, *, what: str = "margin") -> tuple[float, int]:
    """Read `auto`, `0`, `10%` or `512MiB` as (share, floor in MiB); the larger of both counts.

    Raises:
        UsageError: it is none of these.
    """
    stripped = text.strip()
    if stripped.lower() == "auto":
        return _AUTO_MARGIN
    if stripped.endswith("%"):
        return _percent(stripped, what), 0
    if stripped.replace(".", "", 1).isdecimal() and 0 < float(stripped) < 1:
        share = f"{float(stripped) * _WHOLE:g}%"
        raise UsageError(f"{what} {text!r} would be a part of one MiB: {share} is a share")
    try:
        return 0.0, parse_size_mib(stripped, what=what, allow_zero=True)
    except UsageError as error:
        raise UsageError(
            f"{what} {text!r} is neither auto, nor 0, nor a percentage such as 10%, "
            "nor a size such as 512MiB"
        ) from error


def _percent(text: str, what: str) -> float:
    number = text[:-1].strip()
    if number.isascii() and number.replace(".", "", 1).isdigit() and float(number) <= _WHOLE:
        return float(number) / _WHOLE
    raise UsageError(f"{what} {text!r} is not a percentage from 0% to 100%")


class Row:
    """One setting: its names, how to read it, and how to explain it."""

    __slots__ = (
        "attribute",
        "default",
        "flag",
        "help",
        "key",
        "metavar",
        "read",
        "unset",
        "variable",
    )

    def __init__(
        self,
        key: str,
        default: object,
        read: Callable[[str], object],
        metavar: str,
        help_text: str,
        *,
        attribute: str = "",
        unset: str = "found by itself",
    ) -> None:
        self.key = key
        self.attribute = attribute or key
        self.flag = "--" + key.replace("_", "-")
        self.variable = "GRN_" + key.upper()
        self.default = default
        self.read = read
        self.metavar = metavar
        self.help = help_text
        self.unset = unset
        """What the default is called where it is no value."""


def _text(text: str) -> str | None:
    return text.strip() or None


def read_path(text: str) -> str:
    """Read a path of a file, `~` for the home folder; a relative one is of the working folder.

    A broker works in /, where a relative path would mean another place.

    Raises:
        UsageError: no file can be called that.
    """
    if not text or "\0" in text:
        raise UsageError(f"{text!r} is no path")
    return os.path.abspath(os.path.expanduser(text))


def _one_of(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() in choices:
            return text.strip().lower()
        raise UsageError(f"{what} {text!r} is not one of: {', '.join(choices)}")

    return read


def _policy(text: str) -> str:
    return checked(text.strip().lower())


def _margin(text: str) -> str:
    parse_margin(text)
    return text.strip()


def _headroom(text: str) -> str | None:
    parse_margin(text, what="headroom")
    return None if text.strip().lower() == "auto" else text.strip()


def _mask_style(text: str) -> str | None:
    style = _one_of("mask_style", ("auto", "index", "uuid"))(text)
    return None if style == "auto" else style


def _also_tell(text: str) -> str | None:
    from grn.rules.environment_values import EXTRAS, words_of  # noqa: PLC0415 - seldom set

    words = words_of(text)
    unknown = [word for word in words if word not in EXTRAS]
    if unknown:
        raise UsageError(f"{', '.join(unknown)} is none of {', '.join(EXTRAS)}")
    return ",".join(words) or None


def _http(text: str) -> str | None:
    from grn.rules.address import parse_address  # noqa: PLC0415 - seldom set

    if not text.strip() or text.strip().lower() == "off":
        return None
    parse_address(text)
    return text.strip()


def _limits(text: str) -> str | None:
    from grn.rules.fairness import parse_limits  # noqa: PLC0415 - seldom set

    return ",".join(map(str, parse_limits(text, _uid_of))) or None


def _uid_of(name: str) -> int:
    import pwd  # noqa: PLC0415 - seldom set

    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UsageError(f"there is no user {name!r} on this machine") from None


def _size(what: str, *, allow_zero: bool) -> Callable[[str], int]:
    return lambda text: parse_size_mib(text, what=what, allow_zero=allow_zero)


def _count(what: str, minimum: int = 0) -> Callable[[str], int]:
    return lambda text: parse_count(text, what=what, minimum=minimum)


def _duration(what: str, minimum_s: float = 0.0) -> Callable[[str], float]:
    def read(text: str) -> float:
        seconds = parse_duration_s(text, what=what)
        if seconds < minimum_s:
            raise UsageError(f"{what} {text!r} is shorter than the least allowed, {minimum_s} s")
        return seconds

    return read


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in _YES | _NO:
        return word in _YES
    raise UsageError(f"{text!r} is neither yes nor no (1, 0, true, false, on and off do as well)")


ROWS = (
    Row("socket", None, read_path, "PATH", "the broker's socket"),
    Row(
        "devices",
        None,
        _text,
        "SPEC",
        "the devices to manage, such as sim:4x16GiB or none",
        unset="auto",
    ),
    Row(
        "policy",
        "spread",
        _policy,
        "spread|pack|NAME",
        "take the fitting device with most (spread) or least (pack) room",
    ),
    Row("margin", "auto", _margin, "auto|0|10%|512MiB", "what is booked on top of a known peak"),
    Row(
        "headroom",
        None,
        _headroom,
        "auto|0|2%|256MiB",
        "what is never handed out of a device",
        unset="auto",
    ),
    Row(
        "cpu_reserve",
        2,
        _count("cpu_reserve"),
        "N",
        "CPU cores of those found that are never handed out",
    ),
    Row(
        "ram_reserve",
        1024,
        _size("ram_reserve", allow_zero=True),
        "SIZE",
        "main memory of what was found that is never handed out",
        attribute="ram_reserve_mib",
    ),
    Row("machine_cpus", None, _count("machine_cpus", 1), "N", "CPU cores to hand out, all of them"),
    Row(
        "machine_ram",
        None,
        _size("machine_ram", allow_zero=False),
        "SIZE",
        "main memory to hand out, all of it",
        attribute="machine_ram_mib",
    ),
    Row(
        "jobs_at_once",
        None,
        _count("jobs_at_once", 1),
        "N",
        "how many jobs share the CPU cores",
        unset="those that are there",
    ),
    Row(
        "fair_share",
        "off",
        _one_of("fair_share", ("off", "user", "client")),
        "off|user|client",
        "who takes turns in the queue: users, or clients such as one workflow; off: by arrival",
    ),
    Row(
        "aging",
        None,
        _duration("aging", _SHORTEST_AGING_S),
        "TIME",
        "how long a wait is worth one step of priority",
        attribute="aging_s",
        unset="none is",
    ),
    Row(
        "group_wait",
        GROUP_WAIT_S,
        _duration("group_wait", _SHORTEST_GROUP_WAIT_S),
        "TIME",
        "how long a group of requests waits for those of it that are missing",
        attribute="group_wait_s",
    ),
    Row(
        "order",
        "arrival",
        _one_of("order", ("arrival", "run-time")),
        "arrival|run-time",
        "which of equal priority goes first: who came first, or who is expected to be over soon",
    ),
    Row(
        "priors",
        False,
        _switch,
        "yes|no",
        "whether an unknown type may share by what the same program needed with other arguments",
    ),
    Row(
        "private",
        True,
        _switch,
        "yes|no",
        "whether users of one broker are not shown the types and labels of each other's jobs",
    ),
    Row(
        "limits",
        None,
        _limits,
        "PATTERN=N,...",
        "how many jobs of a type, label:PATTERN=N of a label, user:NAME=N of a user, may run at once",
        unset="no limits",
    ),
    Row(
        "mask_style",
        None,
        _mask_style,
        "auto|index|uuid",
        "how a job's device mask is written",
        unset="auto",
    ),
    Row(
        "also_tell",
        None,
        _also_tell,
        "WORDS",
        "what else every job is told of its share: go, julia, r, torch",
        unset="nothing",
    ),
    Row(
        "sample_fast",
        0.1,
        _duration("sample_fast", _SHORTEST_SAMPLE_S),
        "TIME",
        "pace of measuring while something is being learnt",
        attribute="sample_fast_s",
    ),
    Row(
        "sample_slow",
        1.0,
        _duration("sample_slow", _SHORTEST_SAMPLE_S),
        "TIME",
        "pace of measuring at other times",
        attribute="sample_slow_s",
    ),
    Row(
        "provisional_after",
        60.0,
        _duration("provisional_after"),
        "TIME",
        "a first run whose memory is steady for so long lets its siblings start",
        attribute="provisional_after_s",
    ),
    Row(
        "idle_exit",
        60.0,
        _duration("idle_exit"),
        "TIME",
        "a broker started on demand leaves after so long without work",
        attribute="idle_exit_s",
    ),
    Row(
        "grace",
        5.0,
        _duration("grace"),
        "TIME",
        "time between TERM and KILL for a job that is stopped",
        attribute="grace_s",
    ),
    Row(
        "state_dir",
        "",
        read_path,
        "DIR",
        "where profiles and history are kept",
        unset="~/.local/state/grn",
    ),
    Row(
        "http",
        None,
        _http,
        "ADDRESS:PORT",
        "serve a live page for browsers there, such as 127.0.0.1:8787",
        unset="off",
    ),
    Row(
        "http_open",
        False,
        _switch,
        "yes|no",
        "let that address be one that other machines reach",
    ),
    Row("max_types", 5000, _count("max_types", 1), "N", "how many job types are remembered"),
    Row("history_days", 90, _count("history_days"), "N", "how long what ran is recorded; 0: never"),
    Row(
        "history_mib",
        512,
        _count("history_mib"),
        "N",
        "how many MiB the record of what ran may take; 0: none is kept",
    ),
    Row(
        "debug",
        False,
        _switch,
        "yes|no",
        "check the books after every step",
        attribute="debug_invariants",
    ),
    Row(
        "log",
        "info",
        _one_of("log", ("debug", "info", "warning", "error")),
        "LEVEL",
        "how much is logged: debug, info, warning or error",
        attribute="log_level",
    ),
)
