"""What a body takes along of its run's context, packed in the flow's process.

Design note. A body needs to know its flow run, its task run, tags, settings; it does not need the flow's
function, hooks or callbacks. These are user code, travel by value from a script, and would drag along
(or fail at) whatever they refer to; so flow and task travel as shells without them. What is the same
for all tasks of a flow run is packed once.

Promises: a flow parameter that cannot be pickled, or is large, fails no task: it stays behind.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import cloudpickle
from prefect.context import FlowRunContext, SettingsContext, TagsContext, TaskRunContext
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_ALLOW_EPHEMERAL_MODE

from grn.isolate.pickling import travels_by_name
from grn_plugins.prefect.inside import begin, mask_of_flow

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Body", "Luggage", "Packer", "api_url", "packed_settings"]

_LARGEST_PARAMETERS = 1 << 20
_MOST_STEPS = 8
_USER_CODE_OF_FLOW = (
    "on_completion_hooks",
    "on_failure_hooks",
    "on_cancellation_hooks",
    "on_crashed_hooks",
    "on_running_hooks",
)
_USER_CODE_OF_TASK = (
    "on_completion_hooks",
    "on_failure_hooks",
    "on_running_hooks",
    "on_rollback_hooks",
    "on_commit_hooks",
)


class Luggage(TypedDict):
    """`of_flow` and `of_task` are pickled apart, as many bodies have the same."""

    of_flow: bytes
    of_task: bytes
    run: dict[str, Any]
    tags: list[str]
    asset: dict[str, Any]
    settings: tuple[str, bytes]
    log_prints: bool


def _shell(*_: Any, **__: Any) -> None:
    """Stand in for a function that stays in the flow's process."""


class Body:
    """A task's function, with its luggage, as a process is to call it.

    It says that it is of the function's module, so that one without an importable name travels whole.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        luggage: Luggage | None,
        initializer: Callable[[], object] | None,
    ) -> None:
        self.__wrapped__ = function
        self.__module__ = getattr(function, "__module__", None) or __name__
        self.__qualname__ = getattr(function, "__qualname__", type(function).__name__)
        self.luggage = luggage
        self.initializer = initializer
        self.mask = mask_of_flow()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it in this process, which has been set up for it."""
        begin(self.mask)
        from grn_plugins.prefect.body import run  # noqa: PLC0415 - only there

        return run(self.__wrapped__, args, kwargs, self.luggage)

    def __reduce__(self) -> tuple[Any, ...]:
        where = _where(self.__wrapped__)
        first = _First(self.initializer)
        if where is not None:
            return _by_name, (first, where, self.luggage, self.mask)
        return _by_value, (first, self.__wrapped__, self.luggage, self.mask)


class _First:
    """The initializer, called as it is unpickled: before what the body itself imports."""

    def __init__(self, initializer: Callable[[], object] | None) -> None:
        self.initializer = initializer

    def __reduce__(self) -> tuple[Any, ...]:
        return _call, (self.initializer,)


def _call(initializer: Callable[[], object] | None) -> None:
    if initializer is not None:
        initializer()


class _Where(NamedTuple):
    """Where an import elsewhere finds a function: from what its name means, by these attributes."""

    module: str
    qualname: str
    steps: tuple[str, ...]

    def find(self) -> Any:
        """Look it up, in a module that is imported."""
        found: Any = sys.modules[self.module]
        for name in (*self.qualname.split("."), *self.steps):
            found = getattr(found, name, None)
        return found


def _where(function: Any) -> _Where | None:
    """Say where the function is found; `None` if it must travel by value."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    qualname = getattr(function, "__qualname__", "<locals>")
    if module is None or module.__name__ == "__main__" or "<" in qualname:
        return None
    where = _Where(module.__name__, qualname, ())
    for _ in range(_MOST_STEPS):
        found = where.find()
        if found is function:
            return where if travels_by_name(module) else None
        # What has the name may be the task, or a wrapper of the function.
        step = "fn" if hasattr(found, "fn") else "__wrapped__"
        where = where._replace(steps=(*where.steps, step))
    return None


def _by_name(_: None, where: _Where, luggage: Luggage | None, mask: str | None) -> Body:
    __import__(where.module)
    return _by_value(None, where.find(), luggage, mask)


def _by_value(
    _: None, function: Callable[..., Any], luggage: Luggage | None, mask: str | None
) -> Body:
    body = Body(function, luggage, None)
    body.mask = mask
    return body


# -- packing ----------------------------------------------------------------------------------------


class Packer:
    """Packs for the tasks of one runner; what stays the same is packed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flow: tuple[Any, bytes] | None = None
        self._tasks: dict[int, tuple[Any, bytes]] = {}

    def pack(self, task: Any, url: str | None) -> Luggage:
        """Pack what the run context of this thread says; `task` is the original one.

        Raises:
            Exception: what cannot be pickled.
        """
        run = TaskRunContext.get()
        if run is None:
            raise RuntimeError("a task's body is started outside of a task run")
        tags = TagsContext.get()
        return {
            "of_flow": self._of_flow(),
            "of_task": self._of_task(task, run),
            "run": {
                "task_run": run.task_run,
                "parameters": run.parameters,
                "start_time": run.start_time,
                "input_keyset": run.input_keyset,
                "persist_result": run.persist_result,
            },
            "tags": sorted(tags.current_tags),
            "asset": _asset_context(),
            "settings": packed_settings(url),
            "log_prints": run.log_prints,
        }

    def _of_flow(self) -> bytes:
        context = FlowRunContext.get()
        if context is None:
            return b""
        with self._lock:
            if self._flow is None or self._flow[0] is not context:
                self._flow = (context, _packed_flow(context))
            return self._flow[1]

    def _of_task(self, task: Any, run: Any) -> bytes:
        with self._lock:
            known = self._tasks.get(id(task))
            if known is None:
                shell = copy.copy(task)
                for name in _USER_CODE_OF_TASK:
                    setattr(shell, name, [])
                shell.fn = _shell
                shell.__dict__.pop("__wrapped__", None)
                shell.cache_key_fn = shell.retry_condition_fn = shell.task_run_name = None
                shell.cache_policy = shell._user_cache_policy = None  # noqa: SLF001 - may hold functions
                packed = cloudpickle.dumps(
                    {"task": shell, "result_store": _dumped(run.result_store)}
                )
                known = self._tasks[id(task)] = (task, packed)
            return known[1]


def _packed_flow(context: Any) -> bytes:
    flow = context.flow
    shell = copy.copy(flow)
    if shell is not None:
        for name in _USER_CODE_OF_FLOW:
            if hasattr(shell, name):
                setattr(shell, name, [])
        shell.fn = _shell
        shell.__dict__.pop("__wrapped__", None)
        if callable(getattr(shell, "flow_run_name", None)):
            shell.flow_run_name = None
    packed = {
        "flow": shell,
        "flow_run": context.flow_run,
        "log_prints": context.log_prints,
        "start_time": context.start_time,
        "input_keyset": context.input_keyset,
        "persist_result": context.persist_result,
        "result_store": _dumped(context.result_store),
        "parameters": _small_parameters(context.parameters or {}),
    }
    data: bytes = cloudpickle.dumps(packed)
    return data


def _dumped(store: Any) -> Any:
    return store.model_dump(
        serialize_as_any=True, exclude_unset=True, context={"include_secrets": True}
    )


class _Full(Exception):  # noqa: N818 - says what happened
    """What is pickled is larger than it may be."""


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _LARGEST_PARAMETERS:
            raise _Full
        return super().write(data)


def _small_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in parameters.items():
        with contextlib.suppress(Exception):  # large, or of a class that cannot be pickled
            cloudpickle.dump(value, _Bounded())
            kept[name] = value
    return kept


def _asset_context() -> dict[str, Any]:
    try:
        from prefect.context import AssetContext  # noqa: PLC0415 - not in all versions
    except ImportError:
        return {}
    context = AssetContext.get()
    if context is None or not (context.downstream_assets or context.direct_asset_dependencies):
        return {}
    return dict(context.serialize())


# -- settings ---------------------------------------------------------------------------------------

_settings: tuple[Any, str | None, tuple[str, bytes]] | None = None
_settings_lock = threading.Lock()


def packed_settings(url: str | None) -> tuple[str, bytes]:
    """Return a digest of this process's settings, and the settings, with the API that it uses."""
    global _settings  # noqa: PLW0603 - dumping them takes 20 ms, and they are nearly always the same
    context = SettingsContext.get()
    if context is None:
        return "", b""
    with _settings_lock:
        if _settings is None or _settings[0] is not context.settings or _settings[1] != url:
            updates: dict[Any, Any] = {PREFECT_SERVER_ALLOW_EPHEMERAL_MODE: False}
            if url is not None:
                updates[PREFECT_API_URL] = url
            settings = context.settings.copy_with_update(updates=updates)
            dumped = SettingsContext(profile=context.profile, settings=settings).serialize()
            data = cloudpickle.dumps(dumped)
            _settings = (context.settings, url, (hashlib.sha256(data).hexdigest(), data))
        return _settings[2]


def api_url() -> str | None:
    """Return the address of the API that the run in this thread talks to."""
    for context in (TaskRunContext.get(), FlowRunContext.get()):
        client = getattr(context, "client", None)
        if client is not None:
            return str(client.api_url).rstrip("/")
    return None
