"""`grn config`: what is in force, and who said it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.cli import config
from grn.settings import rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROJECT = """\
[flavors.small]
memory = "1GiB"
env = { A = "x" }

[[job]]
match = ["a.py", "b.py"]
flavor = "small"
"""
USER = """\
# mine
policy = "pack"
"grace" = 7.5

[flavors.small]
gpus = 2

[[job]]
match = "*"
flavor = "large"
"""


@pytest.fixture
def project(tmp_path: Path, clean_environ: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with both files, as the working folder."""
    del clean_environ
    folder = tmp_path / "home" / "project"
    folder.mkdir(parents=True)
    (folder / "grn.toml").write_text(PROJECT)
    (tmp_path / "home" / ".config" / "grn").mkdir(parents=True)
    (tmp_path / "home" / ".config" / "grn" / "config.toml").write_text(USER)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def shown(project: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `grn config` and return what it prints."""
    del project

    def run(*argv: str) -> str:
        assert config.main(argv) == 0
        return capsys.readouterr().out

    return run


def test_every_setting_has_its_value_and_its_source(
    shown: Callable[..., str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flag, variable, line of the file, or default."""
    monkeypatch.setenv("GRN_MARGIN", "10%")
    told = json.loads(shown("--json", "--cpu-reserve", "3"))
    assert told["schema"] == 1
    by_key = {setting["key"]: setting for setting in told["settings"]}
    assert list(by_key) == [row.key for row in rows()]
    user = project.parent / ".config" / "grn" / "config.toml"
    for key, value, source in (
        ("cpu_reserve", 3, "--cpu-reserve"),
        ("margin", "10%", "GRN_MARGIN"),
        ("policy", "pack", f"{user}:2"),
        ("grace", 7.5, f"{user}:3"),
        ("idle_exit", 60, "default"),
        ("jobs_at_once", None, "default"),
    ):
        assert (by_key[key]["value"], by_key[key]["source"]) == (value, source)


def test_flavors_and_rules_have_their_files(shown: Callable[..., str], project: Path) -> None:
    """In the words of a request, with file and line; what was replaced is told as well."""
    told = json.loads(shown("--json"))
    user, own = told["files"]["user"]["path"], str(project / "grn.toml")
    assert told["files"] == {"user": {"path": user, "exists": True}, "project": own}
    assert told["flavors"] == [
        {"name": "small", "memory_mib": 1024, "env": {"A": "x"}, "file": own, "line": 1}
    ]
    assert told["overridden"] == [{"name": "small", "gpus": 2, "file": user, "line": 5}]
    assert told["rules"] == [
        {"match": ["a.py", "b.py"], "flavor": "small", "file": own, "line": 5},
        {"match": ["*"], "flavor": "large", "file": user, "line": 8},
    ]


def test_people_read_tables(shown: Callable[..., str], project: Path) -> None:
    """Settings with units, what each flavor gives, and what looks wrong."""
    text = shown("--machine-ram=3GiB")
    lines = [line.split() for line in text.splitlines()]
    assert ["idle_exit", "60", "s", "default"] in lines
    assert ["machine_ram", "3072", "MiB", "--machine-ram"] in lines
    assert f"small  {project}/grn.toml:1  memory 1 GiB, env A=x" in text
    assert "the project's flavor small replaces that of" in text
    assert "number 1: there is no flavor 'large'" in text
    assert f"project's file: {project}/grn.toml" in text


def test_rules_that_are_switched_off_are_shown_as_such(
    shown: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule that is listed and does nothing would be a riddle."""
    assert "GRN_RULES" not in shown()
    monkeypatch.setenv("GRN_RULES", "no")
    assert "note: GRN_RULES switches the rules off" in shown()


def test_the_paths_can_be_used_by_an_editor(shown: Callable[..., str], project: Path) -> None:
    """One a line: the user's, then the project's; also where a file is broken."""
    (project / "grn.toml").write_text("broken")
    user = project.parent / ".config" / "grn" / "config.toml"
    user.write_text("broken, too")
    assert shown("path") == f"{user}\n{project}/grn.toml\n"
    user.unlink()
    (project / "grn.toml").unlink()
    assert shown("path") == f"{user}\n"
    told = {"user": {"path": str(user), "exists": False}, "project": None}
    assert json.loads(shown("path", "--json"))["files"] == told


def test_a_broken_file_is_a_usage_error_with_its_line(project: Path) -> None:
    """Status 2, nothing on stdout, no broker, no traceback."""
    (project / "grn.toml").write_text("\n\n[flavors.small\n")
    done = subprocess.run(
        [sys.executable, "-m", "grn", "config"],
        check=False,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"grn config: {project}/grn.toml is not valid TOML: ")
    assert "line 3" in done.stderr
    assert done.stderr.count("\n") == 1
