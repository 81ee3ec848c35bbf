"""Builds the stand-in libcuda once for a test session."""

from __future__ import annotations

import os
import subprocess

__all__ = ["build"]

SONAME = "libcuda.so.1"
_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakecuda.c")
_FLAGS = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden")


def build(cc: str, folder: str) -> str:
    """Compile the library into a folder; return the folder, for `LD_LIBRARY_PATH`."""
    library = os.path.join(folder, SONAME)
    argv = [cc, *_FLAGS, f"-Wl,-soname,{SONAME}", "-o", library, _SOURCE]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv)} failed:\n{done.stderr}"
    return folder
