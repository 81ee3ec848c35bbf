"""What a rule's resources wish for, and the job type under which its need is learnt.

Pure: resources in, an `Ask` or a clear error out. Promises: a rule that names no GPU asks for nothing;
the names of other executor plugins mean what they mean there; sizes are totals of the job, as all of
Snakemake's resources are; nothing is rounded without a word.

Must not: import Snakemake, ask the broker, or decide where a job goes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from grn.errors import UsageError
from grn.policies import checked
from grn.rules.jobtype import LONGEST_NAME
from grn.rules.units import parse_size_mib

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "COUNTS",
    "MEMORIES",
    "Ask",
    "ask_of",
    "check_count",
    "check_limits",
    "commanded_mask",
    "job_type",
    "unknown_names",
]

COUNTS = ("gpu", "gpus", "nvidia_gpu")
"""Names of the number of GPUs; `nvidia_gpu` may name a model instead."""
MEMORIES = ("gpu_mem_mb", "gpu_mem_mib", "gpu_mem")
"""Names of the device memory of the whole job."""
_OTHERS = ("gpu_model", "gpu_manufacturer", "gpu_share", "grn_policy", "grn_type", "grn_priority")
_MAKERS = ("nvidia",)
_WHOLE = 100  # percent
_CARD = re.compile(r"gpu_?([0-9]{1,3})")
_OF_A_CLUSTER = re.compile(r"gres|tres\w*|slurm_extra|\w*_extra", re.IGNORECASE)
_LIKE_A_GPU = re.compile(r"gpu|cuda|vram|mig\b|^grn", re.IGNORECASE)
_MASK = re.compile(
    r"""(?:^|[\s;&|(])(?:export\s+|env\s+)?CUDA_VISIBLE_DEVICES=(["']?)([-\w,. ]*?)\1(?=[\s;&|)]|$)""",
)
_ALL_DIGITS = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?")


class Ask(NamedTuple):
    """What one job wishes for. Memory and share are of each of its devices."""

    gpus: int
    memory_mib: int | None = None
    share: int | None = None
    """Percent of each device."""
    policy: str | None = None
    type: str | None = None
    model: str | None = None
    """Only devices whose name has these words."""
    cards: tuple[int, ...] = ()
    """Only the devices of these numbers, which the rule names itself."""
    priority: int = 0


def ask_of(resources: Mapping[str, object], *, chosen: bool = False) -> Ask | None:
    """Read what resources wish for; `None` if they name no GPU.

    Args:
        resources: of one job, evaluated; what other tools may want is passed over.
        chosen: the user has said that this rule needs a device, though it declares none.

    Raises:
        UsageError: if a wish makes no sense; it is named, with what would do.
    """
    count, model = _count_and_model(resources)
    cards = _cards(resources) if count is None else ()
    memory = _memory_mib(resources)
    share = _share(resources)
    model = model or _text(resources, "gpu_model")
    _check_maker(_text(resources, "gpu_manufacturer"))
    implied = cards or memory or share or model or chosen
    gpus = count if count is not None else (len(cards) or 1 if implied else 0)
    if gpus == 0:  # also where a default gives it memory: so a rule says that it wants none
        return None
    return Ask(
        gpus=gpus,
        memory_mib=-(-memory // gpus) if memory else None,
        share=share,
        policy=_policy(_text(resources, "grn_policy")),
        type=_text(resources, "grn_type"),
        model=model,
        cards=cards,
        priority=_whole(resources, "grn_priority") or 0,
    )


# -- single wishes --------------------------------------------------------------------------------


def _count_and_model(resources: Mapping[str, object]) -> tuple[int | None, str | None]:
    """Return the number of GPUs, and the model that Google's `nvidia_gpu` may name instead."""
    found = {name: resources[name] for name in COUNTS if _is_given(resources.get(name))}
    counts: dict[str, int] = {}
    model = None
    for name, value in found.items():
        if name == "nvidia_gpu" and isinstance(value, str) and not _is_number(value):
            counts[name] = 1
            model = value.strip().removeprefix("nvidia-").removeprefix("tesla-")
        else:
            counts[name] = check_count(name, value)
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{name}={count}" for name, count in counts.items())
        raise UsageError(f"{said} contradict each other: keep gpu alone")
    return next(iter(counts.values()), None), model


def check_count(name: str, value: object) -> int:
    """Read a number of GPUs as somebody wrote it.

    Raises:
        UsageError: it is no whole number of 0 or more.
    """
    if isinstance(value, bool):
        raise UsageError(f"{name}={value} is no number: write {name}={int(value)}")
    if isinstance(value, float) or (isinstance(value, str) and _is_fraction(value)):
        number = float(value)
        if number != int(number):
            raise UsageError(_fraction(name, number))
        return check_count(name, int(number))
    if isinstance(value, str) and _ALL_DIGITS.fullmatch(value.strip()):
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise UsageError(
            f"{name}={value!r} is not a whole number of GPUs. A model is gpu_model, a part of a GPU"
            " gpu_share (percent) or gpu_mem_mb"
        )
    return value


def _fraction(name: str, number: float) -> str:
    percent = round(number * _WHOLE)
    if 0 < number < 1:
        return (
            f"{name}={number:g}: Snakemake would round this to {round(number)}, as resources are whole"
            f" numbers. For a part of a GPU write gpu_share={percent} (percent) or gpu_mem_mb=…"
        )
    return (
        f"{name}={number:g} is no number of GPUs, and Snakemake would round it to {round(number)}."
        f" For parts of GPUs write {name}={int(number) + 1} with gpu_share (percent of each)"
    )


def _cards(resources: Mapping[str, object]) -> tuple[int, ...]:
    """Return the devices that resources such as `gpu0=1` name, one resource for each card."""
    found = []
    for name, value in resources.items():
        match = _CARD.fullmatch(name)
        if match and _is_given(value) and check_count(name, value):
            found.append(int(match[1]))
    return tuple(sorted(found))


def _memory_mib(resources: Mapping[str, object]) -> int | None:
    given = {name: resources[name] for name in MEMORIES if _is_given(resources.get(name))}
    sizes = {name: _size_mib(name, value) for name, value in given.items()}
    if len(set(sizes.values())) > 1:
        said = ", ".join(f"{name}={value}" for name, value in given.items())
        raise UsageError(f"{said} contradict each other: keep gpu_mem_mb alone")
    return next(iter(sizes.values()), None)


def _size_mib(name: str, value: object) -> int:
    """Read a size. A bare number is in MiB, which is what GPU people mean by MB."""
    if isinstance(value, str) and not _is_number(value):
        return parse_size_mib(value, what=name)
    number = _whole({name: value}, name)
    if number is None or number < 0:
        raise UsageError(f"{name}={value!r} is not a size: write MiB, such as {name}=8000")
    return number


def _share(resources: Mapping[str, object]) -> int | None:
    share = _whole(resources, "gpu_share")
    if share is None or share == 0:
        return None
    if not 1 <= share <= _WHOLE:
        raise UsageError(
            f"gpu_share={share} is not a percentage from 1 to {_WHOLE} of each GPU;"
            " for several GPUs write gpu=2"
        )
    return share


def _check_maker(maker: str | None) -> None:
    if maker is not None and maker.lower() not in _MAKERS:
        raise UsageError(
            f"gpu_manufacturer={maker!r}: GRN hands out NVIDIA's devices only; leave it out to run"
            " without a lease"
        )


def _policy(policy: str | None) -> str | None:
    return None if policy is None else checked(policy, what="grn_policy=")


def _whole(resources: Mapping[str, object], name: str) -> int | None:
    value = resources.get(name)
    if not _is_given(value):
        return None
    if isinstance(value, str) and _ALL_DIGITS.fullmatch(value.strip()):
        return int(value)
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{name}={value!r} is not a whole number")
    return value


def _text(resources: Mapping[str, object], name: str) -> str | None:
    value = resources.get(name)
    if not _is_given(value):
        return None
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not a text")
    if len(value) > LONGEST_NAME:
        raise UsageError(f"{name} has {len(value)} characters, {LONGEST_NAME} is the most")
    return str(value).strip() or None


def _is_given(value: object) -> bool:
    """Whether a resource has a value: `None` and "" have none, nor has what is not known yet."""
    return value is not None and value != "" and type(value).__name__ != "TBDString"


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def _is_fraction(text: str) -> bool:
    return _is_number(text) and not _ALL_DIGITS.fullmatch(text.strip())


# -- what else can be wrong -----------------------------------------------------------------------


def unknown_names(resources: Mapping[str, object]) -> list[str]:
    """Return the resources that look like wishes for a GPU and are none that is known here.

    By their names, and by what a cluster's resources say: `gres="gpu:1"`.
    """
    known = {*COUNTS, *MEMORIES, *_OTHERS}
    return sorted(
        name
        for name, value in resources.items()
        if name not in known
        and not _CARD.fullmatch(name)
        and (_LIKE_A_GPU.search(name) or _says_gpu(name, value))
    )


def _says_gpu(name: str, value: object) -> bool:
    said = getattr(value, "raw", value)  # as it is written, not yet reckoned
    return (
        isinstance(said, str)
        and "gpu" in said.lower()
        and _OF_A_CLUSTER.fullmatch(name) is not None
    )


def check_limits(wished: Mapping[str, object], limits: Mapping[str, object]) -> list[str]:
    """Return what to warn of: Snakemake cuts a rule's number to the run's limit without a word."""
    found = []
    for name in (*COUNTS, *MEMORIES):
        wish, limit = wished.get(name), limits.get(name)
        if isinstance(wish, int) and isinstance(limit, int) and wish > limit:
            found.append(
                f"{name}={wish} is cut to {limit} by --resources {name}={limit}: Snakemake does that"
                f" silently. Give a limit of {wish} or more, or none: GRN counts the GPUs"
            )
    return found


# -- the command ----------------------------------------------------------------------------------


def commanded_mask(command: str | None) -> str | None:
    """Return the devices that a command names itself, as in `CUDA_VISIBLE_DEVICES=1 python …`.

    `None` if it names none, more than one list, or one that only the shell knows.
    """
    if not command or "CUDA_VISIBLE_DEVICES=" not in command:
        return None
    found = {match[2].strip() for match in _MASK.finditer(command)}
    return found.pop() if len(found) == 1 else None


# -- the job type ---------------------------------------------------------------------------------


def job_type(
    snakefile: str,
    rule: str,
    params: Mapping[str, object] | None = None,
    wildcards: Mapping[str, object] | None = None,
) -> str:
    """Name the type of a rule's jobs: `FILE::RULE`, and the numbers among its params.

    A batch size changes what a job needs; so params that are numbers are a part of the type, by
    name. Wildcards, and params that only repeat one, say which job it is, not of what kind.
    """
    ids = {str(value) for value in (wildcards or {}).values()}
    numbers = [
        f"{name}={value}" for name, value in (params or {}).items() if _is_size_like(value, ids)
    ]
    return " ".join([f"{snakefile}::{rule}", *sorted(numbers)])[:LONGEST_NAME]


def _is_size_like(value: Any, ids: set[str]) -> bool:
    text = str(value)
    if isinstance(value, bool) or text in ids:
        return isinstance(value, bool)
    if isinstance(value, str):
        return _is_number(text)
    # Numbers of other libraries (a table's cells) are numbers, too; arrays and lists are not.
    return hasattr(value, "__int__") and _is_number(text)
