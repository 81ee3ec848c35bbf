"""Other packages that would replace ours, or the binding to the driver, without a word.

The older `gpu-resource-negotiator` installs a package `grn` too, and three packages install another
`pynvml` than `nvidia-ml-py`: whichever was installed last overwrites the other one's files, or shadows
them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["clashing_bindings", "clashing_package"]

_OLDER = "gpu_resource_negotiator-"
_METADATA = (".dist-info", ".egg-info")
_OTHER_BINDINGS = {"nvidia_ml_py3": "nvidia-ml-py3", "py3nvml": "py3nvml", "pynvml": "pynvml"}
"""How the folders of their metadata begin -> packages that bring another `pynvml`."""

_PYNVML_BRINGS_NONE = 12
"""From this version on `pynvml` depends on nvidia-ml-py instead of bringing a module of its own."""


def clashing_package() -> str | None:
    """Say what is wrong and how to cure it, if the older package is installed beside us."""
    for folder, names in _listed(sys.path):
        if any(name.lower().startswith(_OLDER) for name in names):
            return (
                f"gpu-resource-negotiator is installed in {folder}: it overwrites the package grn;"
                " cure: pip uninstall gpu-resource-negotiator, then"
                " pip install --force-reinstall grn-plugins"
            )
    return None


def clashing_bindings(*before: str) -> list[tuple[str, str]]:
    """Return (package, folder) of each package that brings another `pynvml`, as installed here.

    The folders `before` are looked at before those of `sys.path`.
    """
    found: dict[tuple[str, str], None] = {}
    for folder, names in _listed([*before, *sys.path]):
        for name in names:
            project, _, version = name.lower().removesuffix(".dist-info").partition("-")
            package = _OTHER_BINDINGS.get(project)
            if package is None or not name.lower().endswith(_METADATA):
                continue
            major = version.partition(".")[0]
            if package == "pynvml" and major.isdigit() and int(major) >= _PYNVML_BRINGS_NONE:
                continue
            found[package, folder] = None
    return list(found)


def _listed(folders: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    for folder in folders:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue  # an entry of the path that is a zip file, or not there
        yield folder, names
