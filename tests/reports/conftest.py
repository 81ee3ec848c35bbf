"""Drivers that are not like the one of today: the stand-in, built from changed source."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT
from tests.fakenvml.build import SONAME, compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_SOURCE = os.path.join(ROOT, "tests", "fakenvml", "fakenvml.c")


@pytest.fixture
def other_driver(tmp_path: Path) -> Callable[..., str]:
    """Return a function that builds a driver; it returns the folder for `LD_LIBRARY_PATH`.

    `without` names functions that are missing in it; `changed` replaces text of its source.
    """

    def build(*, without: tuple[str, ...] = (), changed: Mapping[str, str] | None = None) -> str:
        cc = compiler()
        if cc is None:
            pytest.skip("no C compiler here (cc, gcc or clang) to build a stand-in NVIDIA driver")
        with open(_SOURCE, encoding="utf-8") as file:
            text = file.read()
        for old, new in (changed or {}).items():
            assert text.count(old) == 1, f"{old!r} is not in {_SOURCE} exactly once"
            text = text.replace(old, new)
        folder = tmp_path / "driver"
        folder.mkdir()
        (folder / "driver.c").write_text(text, encoding="utf-8")
        renamed = [f"-D{name}=missing_{name}" for name in without]
        library = [f"-Wl,-soname,{SONAME}", "-o", str(folder / SONAME), str(folder / "driver.c")]
        argv = [cc, "-shared", "-fPIC", "-O0", "-fvisibility=hidden", *renamed, *library]
        subprocess.run([*argv, "-lpthread"], check=True, capture_output=True)
        return str(folder)

    return build
