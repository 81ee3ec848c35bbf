"""Snakemake's own test-suite, under `--executor grn`, beside the same under its local executor.

    python -m tests.conformance.snakemake --source PATH [--workers N] [--only EXPRESSION] [--every N]

PATH is what the tests are read from: a checkout of snakemake/snakemake, its git directory (then those of the
installed release, or of the last commit), or an unpacked source distribution. They are written to a
temporary folder, and nothing of them is kept. Left out are tests that need conda, containers, cloud storage
or the network; with the packages snakemake-executor-plugin-cluster-generic, snakemake-storage-plugin-fs and peppy
beside pytest-mock, pytest-timeout and pytest-xdist more of them run. Every job is made to negotiate for a GPU, see `tests.conformance.snakemake_plugin`.

Judged is what the local executor passes and ours does not. What differs is run again by itself with both,
since many of these tests take time as proof of order.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from importlib.metadata import version

from tests.env import BrokerEnv

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = ["main"]

_DEVICES = "sim:8x8GiB"
_LEFT_OUT = (
    *("conda", "singularity", "container", "apptainer", "cwl", "remote", "s3", "gs", "gcs", "http"),
    *(
        "ftp",
        "zenodo",
        "github",
        "gitlab",
        "storage",
        "wrapper",
        "default_remote",
        "slurm",
        "cluster",
    ),
    *("kubernetes", "tibanna", "azure", "modules_", "module_", "report", "r_", "julia", "rust"),
    *("env_modules", "env_file", "ancient_cli", "network"),
)
"""Words in the names of tests that need what is not there."""
_FILES = ("tests/tests.py",)
_PLUGIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "snakemake_plugin.py")
_LIMIT_S = 3600
_EACH_WITHIN_S = 300


def _exported(source: str, folder: str) -> str:
    """Write the tests into a folder; return where they come from, in words."""
    plain = os.path.join(source, "tests")
    if os.path.isdir(plain):
        shutil.copytree(plain, os.path.join(folder, "tests"), symlinks=True)
        return source
    tag = f"v{version('snakemake')}"
    for name in (tag, "HEAD"):
        pack = subprocess.run(
            ["git", "-C", source, "archive", name, "tests"], capture_output=True, check=False
        )
        if pack.returncode == 0:
            subprocess.run(["tar", "x", "-C", folder], input=pack.stdout, check=True)
            return name
    raise SystemExit(f"{source} is neither a checkout of Snakemake nor its git directory")


def _select(only: str) -> str:
    without = " and ".join(f"not {word}" for word in _LEFT_OUT)
    return f"({only}) and {without}" if only else without


def _run(
    folder: str,
    env: BrokerEnv,
    tests: Iterable[str],
    *,
    ours: bool,
    workers: int,
    only: str,
    every: int = 1,
) -> dict[str, str]:
    """Run tests; return what became of each: `passed`, `failed` or `skipped`."""
    report = os.path.join(env.folder, f"report-{ours}.xml")
    plugin = shutil.copy(_PLUGIN, env.folder)  # their tests are a package `tests`, as ours are
    words = [sys.executable, "-m", "pytest", "-q", "-p", os.path.basename(plugin)[: -len(".py")]]
    words += ["-p", "no:cacheprovider", f"--timeout={_EACH_WITHIN_S}", f"--junitxml={report}"]
    words += ["-n", str(workers)] if workers > 1 else []
    words += [*tests, *(["-k", only] if only else [])]
    environ = {
        **env.environ,
        "PATH": f"{os.path.dirname(sys.executable)}:{env.environ['PATH']}",
        "PYTHONPATH": f"{folder}:{env.folder}",
        "GRN_CONFORMANCE": "1" if ours else "",
        "GRN_CONFORMANCE_EVERY": str(every),
    }
    subprocess.run(words, cwd=folder, env=environ, timeout=_LIMIT_S, check=False)
    return _verdicts(report)


def _verdicts(report: str) -> dict[str, str]:
    found = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        kinds = {child.tag for child in case}
        word = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
        path = (case.get("classname") or "").replace(".", "/")
        found[f"{path}.py::{case.get('name')}"] = word
    return found


def _differing(local: dict[str, str], ours: dict[str, str]) -> list[str]:
    return sorted(name for name, word in local.items() if word == "passed" != ours.get(name))


def main(words: Sequence[str] | None = None) -> int:
    """Run the suite twice and print what came of it; 1 if ours fails what local passes."""
    given = _parser().parse_args(words)
    with tempfile.TemporaryDirectory(prefix="grn-conformance-") as folder:
        origin = _exported(os.path.abspath(given.source), folder)
        env = BrokerEnv(tempfile.mkdtemp(dir=folder), _DEVICES)
        env.start()
        try:
            local, ours, worse = _both(folder, env, given)
        finally:
            env.close()
    told = _told(origin, local, ours, worse)
    print(told)  # noqa: T201 - a script
    if given.markdown:
        with open(given.markdown, "w", encoding="utf-8") as file:
            file.write(told + "\n")
    return 1 if worse else 0


def _both(
    folder: str, env: BrokerEnv, given: argparse.Namespace
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    select = _select(given.only)
    files = [path for path in _FILES if os.path.exists(os.path.join(folder, path))]
    how: dict[str, Any] = {"workers": given.workers, "only": select, "every": given.every}
    ours = _run(folder, env, files, ours=True, **how)
    local = _run(folder, env, files, ours=False, **how)
    worse = _differing(local, ours)
    if worse:
        again = _run(folder, env, worse, ours=True, workers=1, only="")
        ours |= again
        worse = _differing({name: local[name] for name in worse}, again)
    return local, ours, worse


def _told(origin: str, local: dict[str, str], ours: dict[str, str], worse: Sequence[str]) -> str:
    lines = [
        f"Snakemake {version('snakemake')}, its own tests ({os.path.basename(origin)}), each job leased:",
        "",
        "| executor | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for name, found in (("local", local), ("grn", ours)):
        counts = [
            sum(word == kind for word in found.values()) for kind in ("passed", "failed", "skipped")
        ]
        lines.append(f"| {name} | {counts[0]} | {counts[1]} | {counts[2]} |")
    both = sorted(name for name, word in ours.items() if word == "failed" == local.get(name))
    for words, names in (("Failed by both", both), ("Passed by local and not by grn", worse)):
        said = ", ".join(name.partition("::")[2] for name in names)
        lines += ["", f"{words}: {said or 'none'}."]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.snakemake")
    parser.add_argument("--source", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="an expression as pytest's -k takes it")
    parser.add_argument("--every", type=int, default=1, help="take each Nth of the tests only")
    parser.add_argument("--markdown", help="write the result there as well")
    return parser


if __name__ == "__main__":
    sys.exit(main())
