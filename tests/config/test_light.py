"""What configuration costs where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import json, os, sys
from grn.cli.runargs import parse
from grn.cli.runjobs import build_jobs
from grn import settings
before = set(sys.modules)
settings.load({}, os.environ)
build_jobs(parse(["--gpus=0", "--", "true"]), os.environ)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(cwd: Path, home: Path) -> list[str]:
    """Return the modules that settings and wishes load beyond those of the command line."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{CODE}"],
        capture_output=True,
        check=True,
        cwd=cwd,
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
    )
    names: list[str] = json.loads(done.stdout)
    return names


def test_without_a_file_nothing_is_imported(tmp_path: Path) -> None:
    """Neither TOML nor rules: a start without configuration stays as quick as it was."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['grn-plugins']\n")
    assert loaded(tmp_path / "a" / "b", tmp_path) == []


def test_with_a_file_it_is_read(tmp_path: Path) -> None:
    """The counterpart, so that the test above can fail."""
    (tmp_path / "grn.toml").write_text("[[job]]\nmatch = 'x'\ntype = 'y'\n")
    assert {"tomllib", "grn.config.tables", "fnmatch"} <= set(loaded(tmp_path, tmp_path))
