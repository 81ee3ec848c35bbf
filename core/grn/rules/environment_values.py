"""What a grant implies for each variable, and how it gets on with a value that the user chose.

Pure functions over `Facts`: our value of a variable (None: we have none), and for ceilings and
composed strings the value that both together make. Memory limits come in four notations: a fraction
of the device, bytes, a percentage, and a list by ordinal.

Must not read os.environ, nor import anything heavy: it runs in front of every job.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Grant = Mapping[str, Any]
    Ours = Callable[["Facts"], str | None]

__all__ = ["ALSO_TELL", "EXTRAS", "Facts", "count", "exceeds", "words_of"]

ALSO_TELL = "GRN_ALSO_TELL"
EXTRAS = ("go", "julia", "r", "torch")
"""What `GRN_ALSO_TELL` may name."""

JAX_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
JAX_FRACTION_NEW = "XLA_CLIENT_MEM_FRACTION"
_OTHER_NAMES = {JAX_FRACTION: JAX_FRACTION_NEW, JAX_FRACTION_NEW: JAX_FRACTION}
TORCH_OPTIONS = "PYTORCH_ALLOC_CONF"
TORCH_OPTIONS_OLD = "PYTORCH_CUDA_ALLOC_CONF"
_TORCH_FRACTION = "per_process_memory_fraction"
_FRACTION_STEPS = 10_000
_MOST_DIGITS = 9
_MIB = 1024**2
_MOST_INTEROP_THREADS = 2
_WHOLE = 100  # percent
_IN_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


class Facts:
    """A grant as the table's rows ask about it, and the values that the user chose."""

    __slots__ = ("_environ", "_explicit", "devices", "extras", "grant", "share", "threads")

    def __init__(
        self, grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]
    ) -> None:
        self.grant = grant
        self._environ = environ
        self._explicit = explicit
        self.devices: list[dict[str, Any]] = grant.get("devices") or []
        self.threads = max(1, grant.get("threads") or grant.get("cpus") or 1)
        self.share = _memory_share(grant) if self.devices else None
        self.extras = words_of(self.user(ALSO_TELL) or also_tell(self))

    def user(self, name: str) -> str | None:
        """Return the value that the user chose for a variable, None if it is unset."""
        value = self._explicit.get(name)
        if value is not None:
            return value
        return None if self.replaced_by(name) else self._environ.get(name)

    def replaced_by(self, name: str) -> str | None:
        """Name the other name of one thing that the request sets, where this one is inherited."""
        other = _OTHER_NAMES.get(name)
        inherited = name in self._environ and name not in self._explicit
        return other if other and inherited and self._explicit.get(other) else None


def words_of(text: str | None) -> list[str]:
    """Read a list such as `torch,julia`."""
    return text.replace(",", " ").lower().split() if text else []


def count(text: str | None) -> int:
    """Read a number of threads, the outermost level of OpenMP's `4,2`; 0 if it is none."""
    first = (text or "").partition(",")[0].strip()
    return int(first[:_MOST_DIGITS]) if first.isascii() and first.isdecimal() else 0


def exceeds(user: str, ours: str) -> bool:
    """Tell whether a number that the user set exceeds ours; what is no number cannot bind."""
    try:
        return not float(user) <= float(ours)  # "nan" is no bound either
    except ValueError:
        return True


def decimal(fraction: float) -> str:
    """Write a fraction with four decimals, cut and not rounded: a share must not grow."""
    if fraction <= 0:
        return "0"
    # The small term undoes what binary fractions lose: 0.0003 * 10000 is 2.9999999999999996.
    steps = max(1, int(fraction * _FRACTION_STEPS + 1e-6))
    return f"{steps / _FRACTION_STEPS:g}"


# What the lease is.


def _memory_share(grant: Grant) -> float | None:
    """Return the part of its device that a job may fill; None for a probe or a whole device."""
    fraction: float | None = grant.get("fraction")
    if grant.get("probe") or grant.get("memory_mib") is None or fraction is None:
        return None
    return fraction if 0 < fraction < 1 else None


def also_tell(facts: Facts) -> str | None:
    """Repeat what the broker's setting names; None where the user names something."""
    told: str | None = (facts.grant.get("extra") or {}).get(ALSO_TELL)
    return None if facts.user(ALSO_TELL) else told


def none(_facts: Facts) -> str | None:
    """Have no value."""
    return None


def mask(facts: Facts) -> str | None:
    """Name the devices; None where none was asked for."""
    value: str | None = facts.grant.get("mask")
    return value


def order(facts: Facts) -> str | None:
    """Name the order in which the mask counts."""
    return None if facts.grant.get("mask") is None else "PCI_BUS_ID"


def lease(facts: Facts) -> str:
    """Name the lease."""
    return str(facts.grant["lease"])


def uuids(facts: Facts) -> str:
    """List the devices by their full UUIDs."""
    return ",".join(device["uuid"] for device in facts.devices)


def booked_mib(facts: Facts) -> str:
    """Tell the booking on each device."""
    memory_mib: int | None = facts.grant.get("memory_mib")
    if memory_mib is None:  # a whole device or a probe: all that there is to have
        memory_mib = min((device.get("booked_mib") or 0 for device in facts.devices), default=0)
    return str(memory_mib if facts.devices else 0)


def booked_fraction(facts: Facts) -> str:
    """Tell the booking as a part of the device."""
    if not facts.devices:
        return "0"
    fraction: float | None = facts.grant.get("fraction")
    if fraction is not None:
        return decimal(min(1.0, fraction))
    return decimal(min(_booked_part(device) for device in facts.devices))


def _booked_part(device: Mapping[str, Any]) -> float:
    booked: int = device.get("booked_mib") or 0
    total: int = device.get("total_mib") or 0
    return min(1.0, booked / total) if total else 0.0


def cpus(facts: Facts) -> str:
    """Tell the CPUs: those that were declared, else the fair share."""
    declared: int | None = facts.grant.get("cpus")
    return str(facts.threads if declared is None else declared)


# Threads.


def threads(facts: Facts) -> str:
    """Return the share of the cores. A plain number: numexpr fails on OpenMP's `4,2`."""
    return str(facts.threads)


def blas_threads(facts: Facts) -> str:
    """Return the share, or the user's smaller number for OpenMP.

    These libraries take that one where theirs is unset: ours must not raise it. (PyTorch, too: for it
    the number for MKL outranks the one for OpenMP.)
    """
    return str(min(facts.threads, count(facts.user("OMP_NUM_THREADS")) or facts.threads))


def numexpr_threads(facts: Facts) -> str:
    """Return the same, and no more than the user's own maximum admits."""
    most = count(facts.user("NUMEXPR_MAX_THREADS"))
    return str(min(int(blas_threads(facts)), most or facts.threads))


def numexpr_max(facts: Facts) -> str:
    """Return a maximum that admits the user's own number: numexpr prints an error otherwise."""
    return str(max(facts.threads, count(facts.user("NUMEXPR_NUM_THREADS"))))


def interop_threads(facts: Facts) -> str:
    """Return how many operations may run beside each other: each has threads of its own."""
    return str(min(facts.threads, _MOST_INTEROP_THREADS))


def threads_if_asked(extra: str) -> Ours:
    """Make a row that only counts where `GRN_ALSO_TELL` names it."""
    return lambda facts: str(facts.threads) if extra in facts.extras else None


# Device memory.


def with_device(value: str) -> Ours:
    """Make a row that only counts for jobs with a device."""
    return lambda facts: value if facts.devices else None


def jax_share(facts: Facts) -> str | None:
    """Return the share under the name that every jaxlib reads, unless the user took the new one."""
    return None if facts.user(JAX_FRACTION_NEW) else _share(facts)


def jax_share_new(facts: Facts) -> str | None:
    """Return the share as a bound for the user's value under the new name."""
    return _share(facts) if facts.user(JAX_FRACTION_NEW) else None


def _share(facts: Facts) -> str | None:
    return None if facts.share is None else decimal(facts.share)


def cupy_limit(facts: Facts) -> str | None:
    """Return the booking in bytes."""
    return None if facts.share is None else str(facts.grant["memory_mib"] * _MIB)


def torch_fraction(facts: Facts) -> str | None:
    """Return the option, where it was asked for and nothing outranks its variable."""
    if facts.share is None or "torch" not in facts.extras or facts.user(TORCH_OPTIONS_OLD):
        return None
    return f"{_TORCH_FRACTION}:{decimal(facts.share)}"


def mps_folder(facts: Facts) -> str | None:
    """Name the pipe directory of the MPS daemon that limits this lease."""
    folder: str | None = facts.grant.get("mps")
    return folder or None


def mps_memory(facts: Facts) -> str | None:
    """Return each client's part of the booking, by the ordinals that the job counts with."""
    if facts.share is None or not facts.grant.get("mps"):
        return None
    mib = max(1, facts.grant["memory_mib"] // _processes(facts))
    return ",".join(f"{ordinal}={mib}M" for ordinal in range(len(facts.devices)))


def mps_compute(facts: Facts) -> str | None:
    """Return each client's part of the multiprocessors, where some were booked."""
    compute: int | None = facts.grant.get("compute")
    if not compute or not facts.devices or not facts.grant.get("mps"):
        return None
    return str(max(1, compute // _processes(facts)))


def _processes(facts: Facts) -> int:
    """Return how many clients share the limits: MPS counts each process by itself."""
    return max(1, facts.grant.get("processes") or 1)


# Our value and the user's together.


def smaller(_facts: Facts, user: str, ours: str) -> str:
    """Return the smaller of two numbers."""
    return ours if exceeds(user, ours) else user


def smaller_size(facts: Facts, user: str, ours: str) -> str:
    """Return the smaller of ours in bytes and the user's, in bytes or percent of the device."""
    text = user.strip()
    try:
        if text.endswith("%"):
            total = min(device["total_mib"] for device in facts.devices) * _MIB
            size = float(text[:-1]) / _WHOLE * total
        else:
            size = float(int(text))
    except ValueError:
        return ours
    return user if 0 < size <= int(ours) else ours  # 0 is "no limit"


def smaller_limits(_facts: Facts, user: str, ours: str) -> str:
    """Return the smaller limit for each ordinal; the user's for others stay."""
    theirs = dict(_entries(user, "="))
    limits = dict(_entries(ours, "="))
    for ordinal, limit in limits.items():
        size = _limit_mib(theirs.get(ordinal, ""))
        if size is None or size > (_limit_mib(limit) or 0.0):
            theirs[ordinal] = limit
    merged = {name: value for name, value in theirs.items() if _limit_mib(value) is not None}
    if merged == dict(_entries(user, "=")):
        return user
    return ",".join(f"{name}={value}" for name, value in merged.items())


def with_fraction(_facts: Facts, user: str, ours: str) -> str:
    """Put our key beside those of the user, whose own fraction stays if it is smaller."""
    key, _, share = ours.partition(":")
    own = [value for name, value in _entries(user, ":") if name == key]
    if own and not exceeds(own[-1], share):
        return user
    # By key, not by comma alone: a list in brackets has commas of its own.
    kept = [part for part in _options(user) if part.partition(":")[0].strip() != key]
    return ",".join([*kept, ours])


def _entries(text: str, between: str) -> list[tuple[str, str]]:
    parts = (part.partition(between) for part in _options(text))
    return [(name.strip(), value.strip()) for name, _, value in parts]


def _options(text: str) -> list[str]:
    """Split at commas that are in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _limit_mib(text: str) -> float | None:
    """Read `2G` or `512MB`; None if it is no limit."""
    digits = text.upper().removesuffix("B")
    unit = _IN_MIB.get(digits[-1:])
    number = digits[:-1] if unit else digits
    if not (number.isascii() and number.isdecimal()):
        return None
    return int(number) * (unit or 1 / _MIB)


# What is worth a word.


def about_extras(facts: Facts) -> str:
    """Tell of words that `GRN_ALSO_TELL` does not know."""
    unknown = [word for word in facts.extras if word not in EXTRAS]
    if not unknown:
        return ""
    return f"{ALSO_TELL}: {', '.join(unknown)} is none of {', '.join(EXTRAS)}"


def about_both_fractions(facts: Facts) -> str:
    """Tell of both of JAX's names for one thing."""
    if not (facts.devices and facts.user(JAX_FRACTION) and facts.user(JAX_FRACTION_NEW)):
        return ""
    return (
        f"{JAX_FRACTION} and {JAX_FRACTION_NEW} are both set, with which JAX does not start: unset"
        " one of them"
    )


def about_old_options(facts: Facts) -> str:
    """Tell why the fraction that was asked for is not set."""
    if facts.share is None or "torch" not in facts.extras or not facts.user(TORCH_OPTIONS_OLD):
        return ""
    return (
        f"PyTorch is not limited to this job's share: {TORCH_OPTIONS_OLD} is set, which outranks"
        f" {TORCH_OPTIONS}; move its options there"
    )
