"""The page about Snakemake names what there is, and what it shows works."""

from __future__ import annotations

import os
import re
from dataclasses import fields
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

yaml = pytest.importorskip("yaml", reason="Snakemake brings it")


def page() -> str:
    """Return docs/snakemake.md."""
    with open(os.path.join(ROOT, "docs", "snakemake.md"), encoding="utf-8") as file:
        return file.read()


def test_all_settings_are_there() -> None:
    """Each flag of the executor is in the page."""
    from grn_plugins.snakemake.settings import ExecutorSettings

    flags = [f"--grn-{each.name.replace('_', '-')}" for each in fields(ExecutorSettings)]
    assert [flag for flag in flags if flag not in page()] == []


def test_all_resources_are_there() -> None:
    """Each resource that is read is in the page."""
    from grn_plugins.snakemake import request

    names = [*request.COUNTS, request.MEMORIES[0], *request._OTHERS]
    assert [name for name in names if f"`{name}`" not in page()] == []


def test_the_example_names_its_files() -> None:
    """Its README names every file beside it."""
    folder = os.path.join(ROOT, "examples", "snakemake")
    with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    scripts = [name for name in os.listdir(os.path.join(folder, "scripts")) if name.endswith(".py")]
    assert scripts
    for name in ["Snakefile", "run.sh", *(f"scripts/{name}" for name in scripts)]:
        assert f"`{name}`" in readme, name


def test_the_profile_can_be_copied(new_flow: Callable[..., Flow]) -> None:
    """With it a workflow that says nothing of GPUs has them where the profile says so."""
    (profile,) = re.findall(r"```yaml\n(.*?)```", page(), re.DOTALL)
    assert yaml.safe_load(profile)["executor"] == "grn"
    flow = new_flow(
        """
        rule all:
            input: "a", "b", "c"
        rule train:
            output: "a"
            shell: "echo ${{CUDA_VISIBLE_DEVICES-none}} > {output}"
        rule evaluate:
            output: "b"
            shell: "echo ${{GRN_MEM_MIB-none}} > {output}"
        rule plot:
            output: "c"
            shell: "echo ${{CUDA_VISIBLE_DEVICES-none}} > {output}"
        """
    )
    if not _knows_schedulers():
        profile = profile.replace("scheduler: grn", "#")
    flow.write("profiles/gpu/config.yaml", profile)
    flow.run("--profile", "profiles/gpu", executor="").ok()
    assert flow.lines("a")[0][0] in {"0", "1"}
    assert flow.lines("b") == [["4000"]]
    assert flow.lines("c") == [["none"]]


def _knows_schedulers() -> bool:
    try:
        import snakemake_interface_scheduler_plugins  # noqa: F401 - whether it is there
    except ModuleNotFoundError:
        return False
    return True
