"""The files of the page are where `pip install` takes them from."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from grn.report.page import SCRIPTS
from tests.env import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_page_files_are_in_wheel_and_sdist(tmp_path: Path) -> None:
    """Both have every part of the page, and the folder has no part that is not used."""
    pytest.importorskip("hatchling", reason="builds a wheel: pip install hatchling")
    words = ["-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    parts = {*SCRIPTS, "page.css", "page.html"}
    assert set(os.listdir(os.path.join(ROOT, "core", "grn", "report", "page"))) == parts
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        assert {f"grn/report/page/{name}" for name in parts} <= set(packed.namelist())
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as packed_too:
        inside = {name.partition("/")[2] for name in packed_too.getnames()}
    assert {f"core/grn/report/page/{name}" for name in parts} <= inside
