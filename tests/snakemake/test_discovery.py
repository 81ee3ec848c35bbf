"""The plugin is found through its name, and never keeps Snakemake from starting."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from pathlib import Path

_WITH = [sys.executable, "-m", "snakemake"]
_HEAVY = (
    *("asyncio", "grn", "grn.hub", "grn_plugins.snakemake.executor", "msgpack", "pynvml", "rich"),
    *("grn_plugins.snakemake.hook", "sqlite3"),
)


def _snakemake(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRN_")}
    return subprocess.run(
        [*_WITH, *words],
        env={**env, **environ},
        capture_output=True,
        text=True,
        check=False,
        cwd="/",  # not the checkout: what is there would be found first
    )


def test_it_is_offered_with_its_settings() -> None:
    """`--help` knows the executor and its flags."""
    shown = _snakemake("--help").stdout
    assert "--grn-no-broker" in shown
    assert "grn" in shown.partition("--executor")[2][:400]


def test_its_import_loads_nothing_heavy() -> None:
    """What every start of Snakemake pays for is a few lines."""
    code = (
        "import sys, snakemake_interface_executor_plugins.executors.base,"
        " snakemake_interface_executor_plugins.settings\n"
        "before = set(sys.modules)\n"
        "import snakemake_executor_plugin_grn\n"
        "print(*sorted(set(sys.modules) - before - {'__future__'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    )
    assert not set(done.stdout.split()) & set(_HEAVY)
    assert set(done.stdout.split()) == {
        "grn_plugins",
        "grn_plugins.snakemake",
        "grn_plugins.snakemake.settings",
        "snakemake_executor_plugin_grn",
    }


@pytest.mark.parametrize("broken", ["grn", "grn_plugins"])
def test_a_broken_installation_does_not_break_snakemake(tmp_path: Path, broken: str) -> None:
    """Whatever of GRN cannot be imported, Snakemake starts; only who wants the executor hears of it."""
    package = tmp_path / broken.replace(".", "/")
    package.mkdir(parents=True)
    for folder in [package, *package.parents]:
        if folder == tmp_path:
            break
        (folder / "__init__.py").write_text("")
    (package / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n")
    (tmp_path / "Snakefile").write_text("rule a:\n    output: 'a'\n    shell: 'touch {output}'\n")
    environ = {"PYTHONPATH": str(tmp_path)}
    done = _snakemake("--version", **environ, GRN_NEGOTIATE="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()[0].isdigit()
    where = ["--directory", str(tmp_path), "-s", str(tmp_path / "Snakefile"), "-j1"]
    done = _snakemake(*where, "--executor", "grn", **environ)
    assert done.returncode == 1
    assert "broken on purpose" in done.stderr
    assert "grn doctor" in done.stderr
    assert _snakemake(*where, **environ).returncode == 0


def test_it_is_found_from_a_wheel(tmp_path: Path) -> None:
    """The wheel has the module at its top, where Snakemake looks."""
    pytest.importorskip("hatchling", reason="builds a wheel: pip install hatchling")
    import zipfile

    words = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(tmp_path / "site")
    assert "snakemake_executor_plugin_grn/__init__.py" in names
    code = (
        "import pkgutil, sys; sys.path = [p for p in sys.path if 'toplevel' not in p];"
        f" sys.path.insert(0, {str(tmp_path / 'site')!r});"
        "print(*[m.name for m in pkgutil.iter_modules() if m.ispkg and m.name.endswith('_grn')]);"
        "import snakemake_executor_plugin_grn as found; print(found.__file__, found.ExecutorSettings)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "snakemake_executor_plugin_grn" in done.stdout.splitlines()[0]
    assert str(tmp_path / "site") in done.stdout
