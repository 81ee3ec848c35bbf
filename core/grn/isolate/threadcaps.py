"""Caps on threads for libraries that were preloaded, and so read their environment too early.

OpenBLAS (in numpy) and the OpenMP runtimes read `OMP_NUM_THREADS` and its kin once, when they are
loaded. In a body that is the environment of the server; so they are told the body's caps by calls.

Must not: do anything to a body whose caps are those that the library has already: OpenBLAS starts
its threads when it is told a number.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["apply", "look"]

_OPENBLAS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
_OPENMP = ("OMP_NUM_THREADS",)
_LIBRARIES = {"openblas": _OPENBLAS, "libgomp": _OPENMP, "libomp": _OPENMP, "libiomp": _OPENMP}
_NAMES = (
    ("omp_get_max_threads", "omp_set_num_threads"),
    *(
        (f"{before}openblas_get_num_threads{after}", f"{before}openblas_set_num_threads{after}")
        for before in ("", "scipy_")
        for after in ("", "64_", "_64")
    ),
)

_found: list[tuple[tuple[str, ...], Callable[[], int], Callable[[int], None]]] = []


def look() -> None:
    """Find such libraries in this process, for it and all that are forked from it."""
    _found.clear()
    for path, variables in _loaded():
        try:
            library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError:  # its file is another by now
            continue
        for getter, setter in _NAMES:
            get, put = getattr(library, getter, None), getattr(library, setter, None)
            if get is not None and put is not None:
                _found.append((variables, get, put))
                break


def _loaded() -> Iterator[tuple[str, tuple[str, ...]]]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        paths = {line.rstrip("\n").split(maxsplit=5)[5] for line in file if "/" in line}
    for path in sorted(paths):
        for word, variables in _LIBRARIES.items():
            if word in os.path.basename(path):
                yield path, variables


def apply(env: Mapping[str, str]) -> None:
    """Tell them what this environment says."""
    for variables, get, put in _found:
        cap = next((cap for name in variables if (cap := _number(env.get(name)))), 0)
        if cap and get() != cap:
            put(cap)


def _number(text: str | None) -> int:
    first = (text or "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0
