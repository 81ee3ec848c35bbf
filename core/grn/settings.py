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
from grn.config.rows import ROWS, parse_margin, read_path
from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from grn.config.rows import Row

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

_NO_SETTINGS = frozenset({"flavors", "job"})
"""Tables of the same file that are read where they are needed: see `grn.config.tables`."""
_FOR_OURSELVES = frozenset({"socket", "also_tell"})


class Settings:
    """All settings, checked. Times are in seconds, sizes in MiB; None means "found by itself"."""

    __slots__ = (
        "aging_s",
        "also_tell",
        "cpu_reserve",
        "debug_invariants",
        "devices",
        "fair_share",
        "grace_s",
        "group_wait_s",
        "headroom",
        "history_days",
        "history_mib",
        "http",
        "http_open",
        "idle_exit_s",
        "jobs_at_once",
        "limits",
        "log_level",
        "machine_cpus",
        "machine_ram_mib",
        "margin",
        "mask_style",
        "max_types",
        "order",
        "policy",
        "priors",
        "private",
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
    fair_share: str
    aging_s: float | None
    group_wait_s: float
    limits: str | None
    mask_style: str | None
    also_tell: str | None
    sample_fast_s: float
    sample_slow_s: float
    provisional_after_s: float
    idle_exit_s: float
    grace_s: float
    state_dir: str
    http: str | None
    http_open: bool
    max_types: int
    history_days: int
    history_mib: int
    order: str
    priors: bool
    private: bool
    debug_invariants: bool
    log_level: str

    def __init__(self, **values: object) -> None:
        for row in ROWS:
            setattr(self, row.attribute, values.pop(row.attribute, row.default))
        if values:
            raise TypeError(f"no such setting: {', '.join(sorted(values))}")
        self.state_dir = self.state_dir or paths.state_dir(os.environ)

    def __repr__(self) -> str:
        values = ", ".join(f"{row.attribute}={getattr(self, row.attribute)!r}" for row in ROWS)
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
    for row in ROWS:
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
    for row in ROWS:
        value = getattr(settings, row.attribute)
        default = paths.state_dir(os.environ) if row.key == "state_dir" else row.default
        if row.key not in _FOR_OURSELVES and value is not None and value != default:
            words.append(f"{row.flag}={_as_text(value)}")
    return words


def known_flags() -> list[tuple[str, str, str]]:
    """Return (flag, metavar, help) of every setting, for the command line's parsers."""
    return [(row.flag, row.metavar, row.help) for row in ROWS]


def known_keys() -> list[str]:
    """Return the keys of all settings in the configuration file."""
    return [row.key for row in ROWS]


def rows() -> Sequence[Row]:
    """Return the table of all settings, for what explains them."""
    return ROWS


def _given(
    row: Row,
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
        value = config[row.key]
        if row.read is read_path and isinstance(value, str) and value[:1] not in ("", "~"):
            value = os.path.join(os.path.dirname(config_path), value)
        yield f"{config_path}, key {row.key}", value


def _tells_a_job(devices: str, environ: Mapping[str, str]) -> bool:
    # Inside a lease GRN_DEVICES tells the job what it holds; only outside is it a wish.
    return "GRN_LEASE" in environ or devices.startswith(("GPU-", "MIG-"))


def _checked(row: Row, source: str, given: object) -> object:
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
    known = [row.key for row in ROWS]
    for key in config:
        if key not in known and key not in _NO_SETTINGS:
            import difflib  # noqa: PLC0415  # only to explain a mistake

            from grn.config.lines import place_of  # noqa: PLC0415 - as above

            close = difflib.get_close_matches(key, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"{place_of(path, text, key)}: unknown key {key!r}; {hint}")
