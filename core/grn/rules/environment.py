"""What a job is told through its environment: one table, a row per variable.

Each variable belongs to one class, which decides between our value and one that is there already:

- authority: ours wins, and a request that wants another value is refused it. A mask that the user
  set has already narrowed the request by the time a grant arrives here;
- ceiling: the smaller of the two wins;
- default: the user's value stays; one that undoes the sharing earns a warning;
- composed: strings that the user puts together (allocator options, flags) stay as they are.

The user's value is the one that the request names in `env`, else the one in the job's environment;
a variable that is set and empty there counts as unset, as the programs that read it see it.

Promises: nothing is said about devices to a job that asked for none; deriving twice changes nothing.
Must not read os.environ, nor import anything heavy: it runs in front of every job.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    Verdict = Literal["set", "kept", "merged", "refused", "untouched"]
    Kind = Literal["authority", "ceiling", "default", "composed"]
    Grant = Mapping[str, Any]
    Ours = Callable[["Facts"], str | None]

__all__ = ["TABLE", "Facts", "Row", "Setting", "derive", "explain_lines", "job_environment"]

_MASK = "CUDA_VISIBLE_DEVICES"
_JAX_FRACTION_NEW = "XLA_CLIENT_MEM_FRACTION"
_FRACTION_STEPS = 10_000
_MOST_DIGITS = 9


class Setting:
    """What was decided about one variable; `value` is what the job finds, None is unset."""

    __slots__ = ("name", "reason", "value", "verdict", "warning")

    def __init__(
        self, name: str, value: str | None, reason: str, verdict: Verdict, warning: str = ""
    ) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        self.verdict = verdict
        self.warning = warning

    def __repr__(self) -> str:
        return f"Setting({self.name!r}, {self.value!r}, {self.reason!r}, {self.verdict!r})"


class Facts:
    """A grant as the table's rows ask about it, and the values that the user chose."""

    __slots__ = ("_environ", "_explicit", "devices", "grant", "share", "threads")

    def __init__(
        self, grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]
    ) -> None:
        self.grant = grant
        self._environ = environ
        self._explicit = explicit
        self.devices: list[dict[str, Any]] = grant.get("devices") or []
        self.threads = max(1, grant.get("cpus") or grant.get("threads") or 1)
        self.share = _memory_share(grant) if self.devices else None

    def user(self, name: str) -> str | None:
        """Return the value that the user chose for a variable, None if it is unset."""
        value = self._explicit.get(name)
        return self._environ.get(name) if value is None else value


class Row:
    """One variable: who reads it and when, its class, our value (None: we have none), and why."""

    __slots__ = ("kind", "name", "ours", "reader", "when", "why")

    def __init__(
        self, name: str, *, kind: Kind, reader: str, when: str, ours: Ours, why: str
    ) -> None:
        self.name = name
        self.kind = kind
        self.reader = reader
        self.when = when
        self.ours = ours
        self.why = why


def derive(grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]) -> list[Setting]:
    """Decide about every variable that the grant, the table or the request's `env` touches.

    Args:
        grant: the broker's answer (lease, mask, devices, memory_mib, fraction, threads, cpus, probe,
            and extra: variables of the device backend, with authority).
        environ: the environment that the job would have without us.
        explicit: the request's `env`.
    """
    facts = Facts(grant, environ, explicit)
    settings = [setting for row in TABLE if (setting := _decide(row, facts, explicit)) is not None]
    extra: Mapping[str, str] = grant.get("extra") or {}
    for name, value in extra.items():
        row = Row(
            name, kind="authority", reader="", when="", ours=_none, why="for this machine's devices"
        )
        settings.append(_authority(row, value, explicit))
    decided = {setting.name for setting in settings}
    settings.extend(
        Setting(name, value, "asked for by the request", "set")
        for name, value in explicit.items()
        if name not in decided
    )
    return settings


def job_environment(
    grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Build the job's whole environment, and the warnings to show to its user."""
    env = dict(environ)  # once: each look-up in os.environ decodes
    settings = derive(grant, env, explicit)
    for setting in settings:
        if setting.value is not None:
            env[setting.name] = setting.value
    return env, [setting.warning for setting in settings if setting.warning]


def explain_lines(settings: list[Setting]) -> list[str]:
    """Lay settings out in columns: name, value, reason, verdict."""
    cells = [("NAME", "VALUE", "REASON", "VERDICT")]
    cells += [(each.name, _shown(each.value), each.reason, each.verdict) for each in settings]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return [
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {reason:<{widths[2]}}  {verdict}"
        for name, value, reason, verdict in cells
    ]


def _shown(value: str | None) -> str:
    if value is None:
        return "(unset)"
    return value if value and value.isprintable() else repr(value)


# How each class decides.


def _decide(row: Row, facts: Facts, explicit: Mapping[str, str]) -> Setting | None:
    ours = row.ours(facts)
    if ours is None:
        return _untouched(row, facts)
    if row.kind == "authority":
        return _authority(row, ours, explicit)
    if row.kind == "ceiling":
        return _ceiling(row, ours, facts, explicit)
    return _default(row, ours, facts, explicit)


def _untouched(row: Row, facts: Facts) -> Setting | None:
    user = facts.user(row.name)
    if user is None:
        return None
    if row.kind == "composed":
        why = row.why
    else:
        why = "the device is not shared" if facts.devices else "no device was asked for"
    return Setting(row.name, user, f"left as you set it: {why}", "untouched")


def _authority(row: Row, ours: str, explicit: Mapping[str, str]) -> Setting:
    wanted = explicit.get(row.name)
    if wanted is None or wanted == ours:
        return Setting(row.name, ours, row.why, "set")
    return Setting(
        row.name,
        ours,
        f"GRN decides this one; the request wanted {wanted!r}",
        "refused",
        f"{row.name}={wanted} of the request was refused: GRN decides it, and it is {ours!r} here "
        f"({row.why})",
    )


def _ceiling(row: Row, ours: str, facts: Facts, explicit: Mapping[str, str]) -> Setting:
    newer = facts.user(_JAX_FRACTION_NEW)
    if newer:  # with both names set jaxlib raises ValueError
        over = _exceeds(newer, ours)
        return Setting(
            row.name,
            facts.user(row.name),
            f"you set the newer {_JAX_FRACTION_NEW}",
            "untouched",
            f"{_JAX_FRACTION_NEW}={newer} is more than this job's share of {ours}" if over else "",
        )
    user = facts.user(row.name)
    if not user:
        return Setting(row.name, ours, row.why, "set")
    if not _exceeds(user, ours):
        return Setting(row.name, user, f"yours is within the share of {ours}", "kept")
    return Setting(
        row.name,
        ours,
        f"the smaller of the share and your {user!r}",
        "refused" if explicit.get(row.name) else "merged",
        f"{row.name}={user} is lowered to {ours}, this job's share of the device",
    )


def _default(row: Row, ours: str, facts: Facts, explicit: Mapping[str, str]) -> Setting:
    user = facts.user(row.name)
    if user is None or (not user and row.name not in explicit):
        return Setting(row.name, ours, row.why, "set")
    if user == ours:
        return Setting(row.name, user, "yours is the same", "kept")
    reason = "asked for by the request" if row.name in explicit else "yours stays"
    return Setting(row.name, user, reason, "kept", _harm(row.name, user, ours, facts.threads))


def _harm(name: str, user: str, ours: str, threads: int) -> str:
    """Say what a kept value does to the sharing; nothing if it does no harm."""
    if ours.isdecimal():
        if _count(user) <= threads:
            return ""
        return (
            f"{name}={user} stays as you set it, but this job's share is {threads} of the machine's "
            f"CPUs: it may slow its neighbours down"
        )
    if {"0": "false"}.get(user, user.lower()) == ours:  # jaxlib reads 0 as false, too
        return ""
    return (
        f"{name}={user} stays as you set it, but only {ours!r} lets jobs share a device: this one "
        f"may take memory that it does not need, and will be learnt as that large"
    )


# Our values.


def _memory_share(grant: Grant) -> float | None:
    """Return the part of its device that a job may fill; None for a probe or a whole device."""
    fraction: float | None = grant.get("fraction")
    if grant.get("probe") or grant.get("memory_mib") is None or fraction is None:
        return None
    return fraction if 0 < fraction < 1 else None


def _none(_facts: Facts) -> str | None:
    return None


def _mask(facts: Facts) -> str | None:
    mask: str | None = facts.grant.get("mask")
    return mask


def _order(facts: Facts) -> str | None:
    return None if facts.grant.get("mask") is None else "PCI_BUS_ID"


def _lease(facts: Facts) -> str:
    return str(facts.grant["lease"])


def _uuids(facts: Facts) -> str:
    return ",".join(device["uuid"] for device in facts.devices)


def _booked_mib(facts: Facts) -> str:
    memory_mib: int | None = facts.grant.get("memory_mib")
    if memory_mib is None:  # a whole device or a probe: all that there is to have
        memory_mib = min((device.get("booked_mib") or 0 for device in facts.devices), default=0)
    return str(memory_mib if facts.devices else 0)


def _booked_fraction(facts: Facts) -> str:
    if not facts.devices:
        return "0"
    fraction: float | None = facts.grant.get("fraction")
    if fraction is not None:
        return _decimal(min(1.0, fraction))
    return _decimal(min(_booked_part(device) for device in facts.devices))


def _booked_part(device: Mapping[str, Any]) -> float:
    booked: int = device.get("booked_mib") or 0
    total: int = device.get("total_mib") or 0
    return min(1.0, booked / total) if total else 0.0


def _cpus(facts: Facts) -> str:
    declared: int | None = facts.grant.get("cpus")
    return str(facts.threads if declared is None else declared)


def _share(facts: Facts) -> str | None:
    return None if facts.share is None else _decimal(facts.share)


def _with_device(value: str) -> Ours:
    return lambda facts: value if facts.devices else None


def _threads(facts: Facts) -> str:
    return str(facts.threads)


def _numexpr_threads(facts: Facts) -> str:
    most = _count(facts.user("NUMEXPR_MAX_THREADS"))
    return str(min(facts.threads, most or facts.threads))


def _numexpr_max(facts: Facts) -> str:
    """Return a maximum that admits the user's own number: numexpr prints an error otherwise."""
    return str(max(facts.threads, _count(facts.user("NUMEXPR_NUM_THREADS"))))


def _decimal(fraction: float) -> str:
    """Write a fraction with four decimals, cut and not rounded: a share must not grow."""
    if fraction <= 0:
        return "0"
    # The small term undoes what binary fractions lose: 0.0003 * 10000 is 2.9999999999999996.
    steps = max(1, int(fraction * _FRACTION_STEPS + 1e-6))
    return f"{steps / _FRACTION_STEPS:g}"


def _count(text: str | None) -> int:
    """Read a number of threads, the outermost level of OpenMP's `4,2`; 0 if it is none."""
    first = (text or "").partition(",")[0].strip()
    return int(first[:_MOST_DIGITS]) if first.isascii() and first.isdecimal() else 0


def _exceeds(user: str, ours: str) -> bool:
    """Tell whether a fraction that the user set exceeds ours; what is no number cannot bind."""
    try:
        return not float(user) <= float(ours)  # "nan" is no bound either
    except ValueError:
        return True


def _thread_cap(name: str, reader: str, when: str, ours: Ours = _threads) -> Row:
    return Row(
        name,
        kind="default",
        reader=reader,
        when=when,
        ours=ours,
        why="this job's share of the CPUs",
    )


def _told(name: str, ours: Ours, why: str) -> Row:
    return Row(
        name,
        kind="authority",
        reader="the job, and GRN inside it",
        when="any time",
        ours=ours,
        why=why,
    )


def _composed(name: str, reader: str, when: str) -> Row:
    return Row(
        name, kind="composed", reader=reader, when=when, ours=_none, why="a string that you compose"
    )


TABLE = (
    Row(
        _MASK,
        kind="authority",
        reader="the CUDA driver; PyTorch also reads it itself",
        when="first cuInit",
        ours=_mask,
        why="the devices of this lease",
    ),
    Row(
        "CUDA_DEVICE_ORDER",
        kind="authority",
        reader="the CUDA driver",
        when="first cuInit",
        ours=_order,
        why="the numbers in the mask count by bus",
    ),
    _told("GRN_LEASE", _lease, "the lease, which marks the job's processes"),
    _told("GRN_DEVICES", _uuids, "full UUIDs of the devices"),
    _told("GRN_MEM_MIB", _booked_mib, "booked on each device"),
    _told("GRN_MEM_FRACTION", _booked_fraction, "the booking as a part of the device"),
    _told("GRN_CPUS", _cpus, "this job's share of the CPUs"),
    Row(
        "XLA_PYTHON_CLIENT_PREALLOCATE",
        kind="default",
        reader="jaxlib",
        when="backend start",
        ours=_with_device("false"),
        why="JAX would take 75 % of the device at once",
    ),
    Row(
        "TF_FORCE_GPU_ALLOW_GROWTH",
        kind="default",
        reader="TensorFlow",
        when="device creation",
        ours=_with_device("true"),
        why="TensorFlow would take the whole device at once",
    ),
    Row(
        # Every jaxlib reads the old name; the new one beside it is a ValueError.
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        kind="ceiling",
        reader="jaxlib",
        when="backend start",
        ours=_share,
        why="this job's share of the device",
    ),
    _thread_cap("OMP_NUM_THREADS", "OpenMP, PyTorch; MKL, OpenBLAS if theirs is unset", "load"),
    _thread_cap("OPENBLAS_NUM_THREADS", "OpenBLAS", "load"),
    _thread_cap("MKL_NUM_THREADS", "MKL", "load"),
    _thread_cap("BLIS_NUM_THREADS", "BLIS", "load"),
    _thread_cap("VECLIB_MAXIMUM_THREADS", "Accelerate (macOS)", "load"),
    _thread_cap("NUMEXPR_NUM_THREADS", "numexpr", "import", _numexpr_threads),
    _thread_cap("NUMEXPR_MAX_THREADS", "numexpr", "import", _numexpr_max),
    _thread_cap("NUMBA_NUM_THREADS", "numba", "import"),
    _thread_cap("RAYON_NUM_THREADS", "Rust programs with rayon", "first use"),
    _thread_cap("POLARS_MAX_THREADS", "Polars", "import"),
    _thread_cap("LOKY_MAX_CPU_COUNT", "joblib", "n_jobs=-1"),
    _thread_cap("TF_NUM_INTRAOP_THREADS", "TensorFlow", "session start"),
    _thread_cap("PYTHON_CPU_COUNT", "Python 3.13 and newer", "interpreter start"),
    _composed("PYTORCH_ALLOC_CONF", "PyTorch", "allocator start"),
    _composed("PYTORCH_CUDA_ALLOC_CONF", "PyTorch before the new name", "allocator start"),
    _composed("XLA_FLAGS", "XLA", "backend start"),
)
