"""What this process has loaded that has read its environment already, or may hold a device.

A mask counts when a process first starts CUDA, a cap on threads when a library is loaded. Later they
change nothing: all that can be done then is to say so, or to use another process.

Must not: import a framework, or make one start its device.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["has_started_device", "may_hold_device", "too_late"]

_THREADED = ("numpy", "torch", "tensorflow", "numexpr", "numba", "polars")
_THREAD_CAPS = ("_NUM_THREADS", "_MAX_THREADS", "VECLIB_MAXIMUM_THREADS")


def _torch(torch: Any) -> bool:
    return bool(torch.cuda.is_initialized())


def _jax(_jax_module: Any) -> bool:
    # Asking JAX for its devices would start them; whether they are, only this private place knows.
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _numba(_numba_module: Any) -> bool:
    return "numba.cuda" in sys.modules


def _cannot_tell(_module: Any) -> None:
    return None


_FRAMEWORKS: dict[str, Callable[[Any], bool | None]] = {
    "torch": _torch,
    "jax": _jax,
    "tensorflow": _cannot_tell,
    "cupy": _cannot_tell,
    "pycuda": _cannot_tell,
    "numba": _numba,
}


def _states() -> dict[str, bool | None]:
    """Map each framework that is loaded to whether it has started a device; `None`: it does not say."""
    found: dict[str, bool | None] = {}
    for name, started in _FRAMEWORKS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            found[name] = started(module)
        except (AttributeError, RuntimeError, TypeError):  # a version, or a stand-in, unknown to us
            found[name] = None
    return found


def may_hold_device() -> bool:
    """Tell whether a framework of this process may have a device open, which it keeps to the end."""
    return any(started is not False for started in _states().values())


def has_started_device() -> str | None:
    """Name a framework that surely has started its device."""
    return next((name for name, started in _states().items() if started), None)


def too_late(names: Iterable[str]) -> str:
    """Say what of these variables comes too late for what is loaded; empty if nothing does."""
    names = list(names)
    parts = []
    late = [name for name, started in _states().items() if name != "numba" or started]
    if late and any(not _is_thread_cap(name) for name in names):
        started = has_started_device()
        parts.append(
            f"{started} has started its device in this process, so the mask of this lease changes"
            " nothing for it"
            if started
            else f"{_listed(late)} imported already: a mask or switch that it has read by now is lost"
        )
    threaded = [name for name in _THREADED if name in sys.modules]
    if threaded and any(map(_is_thread_cap, names)):
        parts.append(f"{_listed(threaded)} imported already: caps on threads come too late")
    return "; ".join(parts)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


def _is_thread_cap(name: str) -> bool:
    return name.endswith(_THREAD_CAPS)
