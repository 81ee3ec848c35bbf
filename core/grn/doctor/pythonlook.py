"""Looks at the interpreter's packages as a broker that is started here would see them."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING

import grn
from grn.clashes import clashing_bindings, clashing_package
from grn.devices.nvml.binding import import_binding
from grn.doctor.facts import PythonFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["look"]

_NEEDED = ("grn-plugins", "msgpack", "nvidia-ml-py", "rich")


def look() -> PythonFacts:
    """Find versions and clashes. Imports the binding, which calls no driver."""
    with _path_of_a_broker():
        _, problem = import_binding()
        return PythonFacts(
            python=f"Python {platform.python_version()} ({sys.executable})",
            package=os.path.dirname(os.path.abspath(grn.__file__)),
            versions={name: _version(name) for name in _NEEDED},
            clash=clashing_package(),
            binding_problem=problem,
            other_bindings=tuple(clashing_bindings()),
        )


@contextlib.contextmanager
def _path_of_a_broker() -> Iterator[None]:
    """Leave out the folder of the script or the working folder, as brokers do (`python -P`)."""
    before = list(sys.path)
    if not sys.flags.safe_path:
        del sys.path[:1]
    try:
        yield
    finally:
        sys.path[:] = before


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
