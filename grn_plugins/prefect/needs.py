"""What a task wishes for, from where it may be written: the one place where that is put together.

    runner's arguments  <  tags, if the runner reads them  <  @gpu  <  gpu_options

A later one wins, key by key; one that wants no device drops what an earlier one said of its memory.

Promises: an option that is not known, or makes no sense, is an error where it is written.
Must not: import Prefect, or ask anybody for anything.
"""

from __future__ import annotations

import difflib
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from grn.errors import UsageError
from grn.jobspec import JobSpec
from grn.sources import type_of
from grn.wishes import NORMAL, ONE, Wish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextvars import Token

__all__ = ["Need", "checked", "gpu", "gpu_options", "need_of", "options_of", "tagged"]

T = TypeVar("T")

USUAL: dict[str, Any] = {
    "gpus": ONE,
    "memory": None,
    "policy": None,
    "cpus": None,
    "ram": None,
    "compute": None,
    "processes": None,
    "affinity": None,
    "flavor": None,
    "priority": NORMAL,
    "wait": None,
    "label": "",
    "env": None,
    "if_unavailable": "fail",
    "type": None,
}
"""All options, and what they are where nobody gives them."""

_OF_A_DEVICE = ("memory", "compute")
_ATTRIBUTE = "__grn__"
_TAG_GPUS, _TAG_MEMORY = "gpu", "gpu-memory"

_around: ContextVar[Mapping[str, Any]] = ContextVar("grn_gpu_options", default={})  # noqa: B039 - never changed


# -- writing ----------------------------------------------------------------------------------------


def gpu(gpus: Any = ONE, /, **options: Any) -> Any:
    """Say on a function what its task needs. Under `@task`, or over it; inert under other runners.

        @task
        @gpu(1, memory="8GiB")
        def train(rate): ...

    Args:
        gpus: devices; 0 wants an empty mask, `None` leaves devices alone.
        options: the wishes of `grn.job`: memory, policy, cpus, ram, compute, processes, affinity,
            flavor, priority, wait, label, env, if_unavailable, type.

    Returns:
        A decorator that returns what it is given, not a wrapper.

    Raises:
        UsageError: if an option is not known or makes no sense.
    """
    if callable(gpus) or isinstance(gpus, staticmethod | classmethod):  # @gpu without brackets
        return _marked(gpus, {"gpus": ONE, **checked("gpu()", options)})
    given = checked("gpu()", {"gpus": gpus, **options} if "gpus" not in options else options)
    _wish({**USUAL, **given})

    def mark(function: T) -> T:
        return _marked(function, given)

    return mark


def _marked(function: T, given: Mapping[str, Any]) -> T:
    inner: Any = getattr(function, "fn", function)  # of a Prefect task
    inner = getattr(inner, "__func__", inner)  # of a method, a staticmethod
    if not callable(inner):
        raise UsageError(f"@gpu: {function!r} is neither a function nor a task")
    try:
        setattr(inner, _ATTRIBUTE, {**getattr(inner, _ATTRIBUTE, {}), **given})
    except AttributeError:
        raise UsageError(
            f"@gpu: {inner!r} cannot be marked; put it on a function written in Python"
        ) from None
    return function


class gpu_options:  # noqa: N801 - read as a function, as Prefect's own `tags`
    """Say around a submit what its tasks need, over all that is said elsewhere.

        with gpu_options(gpus=2):
            future = train.submit(0.1)

    The options are those of `gpu`. Blocks may be nested: the inner one wins, key by key.

    Raises:
        UsageError: if an option is not known.
    """

    def __init__(self, **options: Any) -> None:
        self._options = checked("gpu_options()", options)
        self._token: Token[Mapping[str, Any]] | None = None

    def __enter__(self) -> None:
        self._token = _around.set(_over(_around.get(), self._options))

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _around.reset(self._token)
            self._token = None


def checked(where: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what is no option.

    Raises:
        UsageError: if one is not known; it is named, with what was perhaps meant.
    """
    for name in options:
        if name not in USUAL:
            near = difflib.get_close_matches(name, USUAL, 1)
            perhaps = f" (did you mean {near[0]}=?)" if near else ""
            raise UsageError(
                f"{where} has no option {name}={options[name]!r}{perhaps}; known: {', '.join(USUAL)}"
            )
    return dict(options)


def options_of(function: Any) -> dict[str, Any]:
    """Return what `@gpu` said on a function."""
    while function is not None:
        found = getattr(getattr(function, "__func__", function), _ATTRIBUTE, None)
        if found is not None:
            return dict(found)
        function = getattr(function, "__wrapped__", None)
    return {}


def tagged(tags: Iterable[str]) -> dict[str, Any]:
    """Read tags such as `gpu:2` and `gpu-memory:8GiB`.

    Raises:
        UsageError: if one begins like these and is neither.
    """
    found: dict[str, Any] = {}
    for tag in sorted(tags):
        name, colon, value = tag.partition(":")
        if not colon or not name.startswith(_TAG_GPUS):
            continue
        if name == _TAG_MEMORY:
            found["memory"] = value
        elif name == _TAG_GPUS and value.isdecimal():
            found["gpus"] = int(value)
        else:
            raise UsageError(f"tag {tag!r}: gpu:NUMBER and gpu-memory:SIZE are known")
    if "memory" in found:
        found.setdefault("gpus", ONE)
    return found


# -- putting together -------------------------------------------------------------------------------


def _over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**lower, **upper}
    if "gpus" in upper and not upper["gpus"]:
        for name in _OF_A_DEVICE:
            if name not in upper:
                merged.pop(name, None)
    if lower.get("env") and upper.get("env"):
        merged["env"] = {**lower["env"], **upper["env"]}
    return merged


def _wish(options: Mapping[str, Any]) -> Wish:
    return Wish(**options)


class Need:
    """What one task asks for, and under which type its need is learnt."""

    def __init__(
        self, wish: Wish, function: Callable[..., Any], name: str, job_type: str = ""
    ) -> None:
        self.wish = wish
        self.name = name
        self._spec: JobSpec | None = None
        if wish.type:
            self._spec = JobSpec(function, wish, name=name, isolate=None)
            self._spec.check_template()
            self._type = wish.type
        else:
            self._type = job_type or job_type_of(function, name)

    @property
    def asks(self) -> bool:
        """Whether there is anything to ask a broker for."""
        wish = self.wish
        return bool(wish.gpus or wish.cpus or wish.ram_mib or wish.flavor)

    @property
    def is_ours(self) -> bool:
        """Whether it wants a process of ours: else it runs as if there were no GRN."""
        return self.asks or self.wish.gpus == 0

    def request(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the message that asks for a lease, and the variables that the wish sets."""
        if self._spec is not None:
            message, explicit = self._spec.request(args, kwargs)
        else:
            message, explicit = self.wish.request(self._type, in_process=False)
            message["label"] = message["label"] or self.name
        return {**message, "engine": "prefect"}, explicit


def need_of(
    function: Callable[..., Any],
    name: str,
    defaults: Mapping[str, Any],
    tags: Iterable[str] | None,
    *,
    job_type: str = "",
) -> Need:
    """Put together what the task of this function needs; `tags` only where they are read.

    `job_type` is that of the function, if it cannot be told from it any more: it came from another host.
    `name` is the task's; "" of what is no task, whose wishes are only looked at.

    Raises:
        UsageError: if what is said in different places makes no sense together.
    """
    options = dict(defaults)
    for more in (tagged(tags or ()), options_of(function), _around.get()):
        options = _over(options, more)
    try:
        return Need(_wish({**USUAL, **options}), function, name, job_type)
    except UsageError as error:
        raise UsageError(f"task {name}: {error}" if name else str(error)) from error


def job_type_of(function: Callable[..., Any], name: str) -> str:
    """Name the type of a function: `module:qualname`, or its file where no module can be imported."""
    inner: Any = getattr(function, "__func__", function)
    while getattr(inner, "__wrapped__", None) is not None:
        inner = inner.__wrapped__
    module = getattr(inner, "__module__", None) or ""
    qualname = getattr(inner, "__qualname__", name)
    if "<lambda>" in qualname:
        qualname = qualname.replace("<lambda>", name)
    elif not _has_importable_name(module):
        return type_of(inner)
    return f"{module}:{qualname}"


def _has_importable_name(module: str) -> bool:
    found = sys.modules.get(module)
    spec = getattr(found, "__spec__", None)
    return module != "__main__" and spec is not None and not module.startswith("__prefect_loader")
