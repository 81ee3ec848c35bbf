"""Settings: one table, four sources: flag, then `GRN_*` variable, then configuration file, then default.

Promises: every setting has a flag, a key and a variable of the same name; a bad value is a
`UsageError` that names its source and what is allowed; an unknown key is never ignored.

Must not: import anything heavy. Clients load settings before each job, so the configuration file
is opened only where one exists.
"""

from __future__ import annotations

import os

from grn import paths
from grn.config import files
from grn.errors import UsageError
from grn.rules.units import parse_count, parse_duration_s, parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "Settings",
    "as_argv",
    "known_flags",
    "known_keys",
    "load",
    "parse_margin",
    "rows",
    "sourced",
]

_AUTO_MARGIN = (0.05, 256)
_WHOLE = 100  # percent
_SHORTEST_SAMPLE_S = 0.05  # reading a driver more often costs more than it tells
_NO_SETTINGS = frozenset({"flavors", "job"})
"""Tables of the same file that are read where they are needed: see `grn.config.tables`."""
_FOR_OURSELVES = frozenset({"socket", "also_tell"})
_YES = frozenset({"1", "yes", "true", "on"})
_NO = frozenset({"0", "no", "false", "off"})


class Settings:
    """All settings, checked. Times are in seconds, sizes in MiB; None means "found by itself"."""

    __slots__ = (
        "also_tell",
        "cpu_reserve",
        "debug_invariants",
        "devices",
        "grace_s",
        "headroom",
        "idle_exit_s",
        "jobs_at_once",
        "log_level",
        "machine_cpus",
        "machine_ram_mib",
        "margin",
        "mask_style",
        "max_types",
        "policy",
        "provisional_after_s",
        "ram_reserve_mib",
        "sample_fast_s",
        "sample_slow_s",
        "socket",
        "state_dir",
    )

    socket: str | None
    devices: str | None
    policy: str
    margin: str
    headroom: str | None
    cpu_reserve: int
    ram_reserve_mib: int
    machine_cpus: int | None
    machine_ram_mib: int | None
    jobs_at_once: int | None
    mask_style: str | None
    also_tell: str | None
    sample_fast_s: float
    sample_slow_s: float
    provisional_after_s: float
    idle_exit_s: float
    grace_s: float
    state_dir: str
    max_types: int
    debug_invariants: bool
    log_level: str

    def __init__(self, **values: object) -> None:
        for row in _ROWS:
            setattr(self, row.attribute, values.pop(row.attribute, row.default))
        if values:
            raise TypeError(f"no such setting: {', '.join(sorted(values))}")
        self.state_dir = self.state_dir or paths.state_dir(os.environ)

    def __repr__(self) -> str:
        values = ", ".join(f"{row.attribute}={getattr(self, row.attribute)!r}" for row in _ROWS)
        return f"Settings({values})"

    @property
    def margin_rule(self) -> tuple[float, int]:
        """The margin on top of a peak: (share of the peak, floor in MiB), the larger counts."""
        return parse_margin(self.margin)

    @property
    def headroom_rule(self) -> tuple[float, int] | None:
        """What is never handed out of a device: (share, floor in MiB); None: the backend's own."""
        return None if self.headroom is None else parse_margin(self.headroom, what="headroom")


def load(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read all settings. `flags` maps keys to what the command line gave; None is "not given".

    Raises:
        UsageError: a value is malformed, or the configuration file is, or has an unknown key.
    """
    return sourced(flags, environ)[0]


def sourced(
    flags: Mapping[str, object] | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[Settings, dict[str, str]]:
    """Read all settings as `load` does; return with them who said each that is not the default."""
    config_path, config, text = files.read_user(environ)
    _refuse_unknown_keys(config_path, config, text)
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for row in _ROWS:
        for source, given in _given(row, flags or {}, environ, config_path, config):
            values[row.attribute] = _checked(row, source, given)
            sources[row.key] = source
            break
    settings = Settings(**values)
    if "state_dir" not in values:
        settings.state_dir = paths.state_dir(environ)
    # A slow pace below the fast one would be a faster one; the fast one is what was asked for.
    settings.sample_slow_s = max(settings.sample_slow_s, settings.sample_fast_s)
    return settings, sources


def as_argv(settings: Settings) -> list[str]:
    """Return the flags that make another program use the same settings, defaults left out.

    The socket is left out as well: who starts a broker says by itself where it shall listen. And so
    is what else jobs are told: in the variables of who starts a broker on demand it is for his own.
    """
    words: list[str] = []
    for row in _ROWS:
        value = getattr(settings, row.attribute)
        default = paths.state_dir(os.environ) if row.key == "state_dir" else row.default
        if row.key not in _FOR_OURSELVES and value is not None and value != default:
            words.append(f"{row.flag}={_as_text(value)}")
    return words


def known_flags() -> list[tuple[str, str, str]]:
    """Return (flag, metavar, help) of every setting, for the command line's parsers."""
    return [(row.flag, row.metavar, row.help) for row in _ROWS]


def known_keys() -> list[str]:
    """Return the keys of all settings in the configuration file."""
    return [row.key for row in _ROWS]


def rows() -> Sequence[_Row]:
    """Return the table of all settings, for what explains them."""
    return _ROWS


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


class _Row:
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


def _path(text: str) -> str:
    return os.path.abspath(text)  # a broker works in /, so a relative path would mean another place


def _one_of(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip().lower() in choices:
            return text.strip().lower()
        raise UsageError(f"{what} {text!r} is not one of: {', '.join(choices)}")

    return read


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


_ROWS = (
    _Row("socket", None, _path, "PATH", "the broker's socket"),
    _Row(
        "devices",
        None,
        _text,
        "SPEC",
        "the devices to manage, such as sim:4x16GiB or none",
        unset="auto",
    ),
    _Row(
        "policy",
        "spread",
        _one_of("policy", ("spread", "pack")),
        "spread|pack",
        "take the fitting device with most (spread) or least (pack) room",
    ),
    _Row("margin", "auto", _margin, "auto|0|10%|512MiB", "what is booked on top of a known peak"),
    _Row(
        "headroom",
        None,
        _headroom,
        "auto|0|2%|256MiB",
        "what is never handed out of a device",
        unset="auto",
    ),
    _Row("cpu_reserve", 2, _count("cpu_reserve"), "N", "CPU cores that are never handed out"),
    _Row(
        "ram_reserve",
        1024,
        _size("ram_reserve", allow_zero=True),
        "SIZE",
        "main memory that is never handed out",
        attribute="ram_reserve_mib",
    ),
    _Row("machine_cpus", None, _count("machine_cpus", 1), "N", "CPU cores, instead of those found"),
    _Row(
        "machine_ram",
        None,
        _size("machine_ram", allow_zero=False),
        "SIZE",
        "main memory, instead of what was found",
        attribute="machine_ram_mib",
    ),
    _Row(
        "jobs_at_once",
        None,
        _count("jobs_at_once", 1),
        "N",
        "how many jobs share the CPU cores",
        unset="those that are there",
    ),
    _Row(
        "mask_style",
        None,
        _mask_style,
        "auto|index|uuid",
        "how a job's device mask is written",
        unset="auto",
    ),
    _Row(
        "also_tell",
        None,
        _also_tell,
        "WORDS",
        "what else every job is told of its share: go, julia, r, torch",
        unset="nothing",
    ),
    _Row(
        "sample_fast",
        0.1,
        _duration("sample_fast", _SHORTEST_SAMPLE_S),
        "TIME",
        "pace of measuring while something is being learnt",
        attribute="sample_fast_s",
    ),
    _Row(
        "sample_slow",
        1.0,
        _duration("sample_slow", _SHORTEST_SAMPLE_S),
        "TIME",
        "pace of measuring at other times",
        attribute="sample_slow_s",
    ),
    _Row(
        "provisional_after",
        60.0,
        _duration("provisional_after"),
        "TIME",
        "a first run whose memory is steady for so long lets its siblings start",
        attribute="provisional_after_s",
    ),
    _Row(
        "idle_exit",
        60.0,
        _duration("idle_exit"),
        "TIME",
        "a broker started on demand leaves after so long without work",
        attribute="idle_exit_s",
    ),
    _Row(
        "grace",
        5.0,
        _duration("grace"),
        "TIME",
        "time between TERM and KILL for a job that is stopped",
        attribute="grace_s",
    ),
    _Row(
        "state_dir",
        "",
        _path,
        "DIR",
        "where profiles and history are kept",
        unset="~/.local/state/grn",
    ),
    _Row("max_types", 5000, _count("max_types", 1), "N", "how many job types are remembered"),
    _Row(
        "debug",
        False,
        _switch,
        "yes|no",
        "check the books after every step",
        attribute="debug_invariants",
    ),
    _Row(
        "log",
        "info",
        _one_of("log", ("debug", "info", "warning", "error")),
        "LEVEL",
        "how much is logged: debug, info, warning or error",
        attribute="log_level",
    ),
)


def _given(
    row: _Row,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config_path: str,
    config: Mapping[str, object],
) -> Iterator[tuple[str, object]]:
    """Yield (source, value) for each place that gives the setting, the strongest first."""
    if flags.get(row.key) is not None:
        yield row.flag, flags[row.key]
    variable = environ.get(row.variable)
    if variable and not (row.key == "devices" and _tells_a_job(variable, environ)):
        yield row.variable, variable
    if row.key in config:
        yield f"{config_path}, key {row.key}", config[row.key]


def _tells_a_job(devices: str, environ: Mapping[str, str]) -> bool:
    # Inside a lease GRN_DEVICES tells the job what it holds; only outside is it a wish.
    return "GRN_LEASE" in environ or devices.startswith(("GPU-", "MIG-"))


def _checked(row: _Row, source: str, given: object) -> object:
    if isinstance(given, bool):
        given = "yes" if given else "no"
    if not isinstance(given, (str, int, float)):
        raise UsageError(f"{source}: {given!r} is neither a text nor a number ({row.metavar})")
    try:
        return row.read(_as_text(given))
    except UsageError as error:
        raise UsageError(f"{source}: {error.message}") from error


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):  # str() would write small and large ones with an exponent
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return str(value)


def _refuse_unknown_keys(path: str, config: Mapping[str, object], text: str) -> None:
    known = [row.key for row in _ROWS]
    for key in config:
        if key not in known and key not in _NO_SETTINGS:
            import difflib  # noqa: PLC0415  # only to explain a mistake

            from grn.config.lines import place_of  # noqa: PLC0415 - as above

            close = difflib.get_close_matches(key, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"{place_of(path, text, key)}: unknown key {key!r}; {hint}")
