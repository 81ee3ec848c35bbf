"""Snakemake with `--executor grn` beside its own local executor.

Three questions: what do a hundred tiny jobs cost in one run, without and with a wish for a GPU; what does
one GPU rule add, run after run; what does the installed plugin cost a Snakemake that does not use it.
Runs that are compared follow each other in turn, so that a busy minute meets all of them.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.bench.figures import Figure, median
from tests.bench.stage import broker, private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["measure"]

_MOST_TIMES = 1.05
_MOST_MS_PER_JOB = 20.0
_MOST_MS_VERSION = 5.0
_JOBS, _IN_A_ROW = 100, 30
_DEVICES = "sim:8x16GiB"
_FLOW = """
rule all:
    input: expand("{out}/{{i}}", i=range({count}))
rule touch:
    output: "{out}/{{i}}"
    {resources}
    shell: "touch {{output}}"
"""
_GPU = "resources: gpu=1"
# What our plugins add to `snakemake --version` is a few ms of a second or more: so it is timed by itself, at
# the end of one that was not shown them.
_VERSION = """
import argparse, importlib, pkgutil, sys, time
found = pkgutil.iter_modules
pkgutil.iter_modules = lambda *a: (m for m in found(*a) if not m.name.endswith("_plugin_grn"))
sys.argv = ["snakemake", "--version"]
from snakemake.cli import main
try:
    main()
except SystemExit:
    pass
pkgutil.iter_modules = found
took_s = 0.0
for kind in {kinds!r}:
    interface = importlib.import_module(f"snakemake_interface_{{kind}}_plugins.registry")
    registry = getattr(interface, f"{{kind.capitalize()}}PluginRegistry")()
    name = f"snakemake_{{kind}}_plugin_grn"
    assert name not in sys.modules
    began = time.process_time()
    registry.register_plugin(name, importlib.import_module(name))
    registry.plugins["grn"].register_cli_args(argparse.ArgumentParser(), registry.get_plugin_type())
    took_s += time.process_time() - began
print(took_s)
"""
_MIXED = """
rule all:
    input: expand("{out}/gpu{{i}}", i=range(12)), expand("{out}/cpu{{i}}", i=range(12))
rule gpu:
    output: "{out}/gpu{{i}}"
    resources: gpu=1, gpu_share=100
    shell: "sleep 2; touch {{output}}"
rule cpu:
    output: "{out}/cpu{{i}}"
    shell: "sleep 0.2; touch {{output}}"
"""
_MOST_OF_WITHOUT = 0.6


def measure(*, quick: bool) -> list[Figure]:
    """Measure; nothing where Snakemake is not installed."""
    if importlib.util.find_spec("snakemake") is None:
        note = "Snakemake is not installed: pip install 'grn-plugins[snakemake]'"
        return [
            Figure("snakemake", "100 jobs, beside local", None, "times", _MOST_TIMES, note=note)
        ]
    rounds = 2 if quick else 5
    scheduler = [_last_cpu_job(1 if quick else 3)] if _has_scheduler_plugins() else []
    return [*_many(rounds), _one_rule(rounds), _version(4 * rounds), *scheduler]


def _many(rounds: int) -> list[Figure]:
    ways = {
        "local": ("local", ""),
        "grn, no GPU": ("grn", ""),
        "grn, gpu=1 each": ("grn", _GPU),
    }
    walls = _in_turn(ways, _JOBS, 8, rounds)
    local = median(walls["local"])
    return [
        Figure(
            "snakemake",
            f"{_JOBS} touch jobs, -j 8: {name}",
            median(walls[name]) / local,
            "times",
            _MOST_TIMES,
            baseline=f"local {local:.2f} s, this {median(walls[name]):.2f} s",
            raw={"local_s": walls["local"], "grn_s": walls[name]},
        )
        for name in ways
        if name != "local"
    ]


def _one_rule(rounds: int) -> Figure:
    ways = {"local": ("local", _GPU), "grn": ("grn", _GPU)}
    walls = _in_turn(ways, _IN_A_ROW, 1, rounds)
    local, ours = median(walls["local"]), median(walls["grn"])
    return Figure(
        "snakemake",
        "added to one GPU rule",
        (ours - local) / _IN_A_ROW * 1000,
        "ms",
        _MOST_MS_PER_JOB,
        baseline=f"without a lease {local / _IN_A_ROW * 1000:.0f} ms",
        raw={"local_s": walls["local"], "grn_s": walls["grn"], "jobs": _IN_A_ROW},
    )


def _in_turn(
    ways: Mapping[str, tuple[str, str]], count: int, cores: int, rounds: int
) -> dict[str, list[float]]:
    """Return how long each way took, each time."""
    walls: dict[str, list[float]] = {name: [] for name in ways}
    with broker(_DEVICES) as stage, private() as folder:
        for turn in range(rounds + 1):
            for name, (executor, resources) in ways.items():
                path = os.path.join(folder, "Snakefile")
                with open(path, "w", encoding="utf-8") as file:
                    out = f"out-{turn}-{executor}-{len(resources)}"
                    file.write(_FLOW.format(out=out, count=count, resources=resources))
                words = ["snakemake", f"-j{cores}", "--executor", executor, "-q", "all"]
                wall = _wall([sys.executable, "-m", *words], folder, stage.environ)
                if turn:  # the first round warms up
                    walls[name].append(wall)
    return walls


def _version(rounds: int) -> Figure:
    kinds = ("executor", *(("scheduler",) if _has_scheduler_plugins() else ()))
    code = _VERSION.format(kinds=kinds)
    with private() as folder:
        argv = [sys.executable, "-c", code]
        said = [
            subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True).stdout
            for _ in range(rounds + 1)
        ]
    times = [float(each.split()[-1]) * 1000 for each in said[1:]]
    return Figure(
        "snakemake",
        "--version with the plugin installed",
        median(times),
        "ms of CPU more",
        _MOST_MS_VERSION,
        raw={"ms": times},
    )


def _has_scheduler_plugins() -> bool:
    return importlib.util.find_spec("snakemake_interface_scheduler_plugins") is not None


def _last_cpu_job(rounds: int) -> Figure:
    """Twelve GPU jobs for two devices, twelve jobs without one, four cores: when are the latter done."""
    ways = ("greedy", "grn")
    last: dict[str, list[float]] = {name: [] for name in ways}
    last_gpu: dict[str, list[float]] = {name: [] for name in ways}
    with broker("sim:2x16GiB") as stage, private() as folder:
        for turn in range(rounds):
            for name in ways:
                out = os.path.join(folder, f"{name}-{turn}")
                with open(os.path.join(folder, "Snakefile"), "w", encoding="utf-8") as file:
                    file.write(_MIXED.format(out=out))
                words = ["snakemake", "-j4", "--executor", "grn", "--scheduler", name, "-q", "all"]
                began = time.time()
                _wall([sys.executable, "-m", *words], folder, stage.environ)
                done = {each.name: each.stat().st_mtime - began for each in os.scandir(out)}
                last[name].append(max(s for job, s in done.items() if job.startswith("cpu")))
                last_gpu[name].append(max(s for job, s in done.items() if job.startswith("gpu")))
    without, with_it = median(last["greedy"]), median(last["grn"])
    gpu = f"last GPU job {median(last_gpu['greedy']):.1f} and {median(last_gpu['grn']):.1f} s"
    return Figure(
        "snakemake",
        "--scheduler grn: last job without a GPU",
        with_it / without,
        "times",
        _MOST_OF_WITHOUT,
        baseline=f"{without:.1f} s without, {with_it:.1f} s with; {gpu}",
        raw={"without_s": last["greedy"], "with_s": last["grn"], "gpu_s": last_gpu},
    )


def _wall(argv: Sequence[str], folder: str, environ: Mapping[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        argv, cwd=folder, env=dict(environ), capture_output=True, check=False, text=True
    )
    wall = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv[:6])} ended with {done.returncode}:\n{done.stderr}")
    return wall
