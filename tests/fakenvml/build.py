"""Builds the stand-in libnvidia-ml once for a test session."""

from __future__ import annotations

import os
import shutil
import subprocess

__all__ = ["build", "compiler"]

SONAME = "libnvidia-ml.so.1"
_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakenvml.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden")


def compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(cc: str, folder: str) -> str:
    """Compile the library into a folder; return the folder, which is what a loader needs.

    The linker finds it by its SONAME, and a program by `LD_LIBRARY_PATH`, set before it starts.
    """
    library = os.path.join(folder, SONAME)
    argv = [cc, *_FLAGS, f"-Wl,-soname,{SONAME}", "-o", library, _SOURCE, "-lpthread"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)} failed:\n{done.stderr}"
    return folder
