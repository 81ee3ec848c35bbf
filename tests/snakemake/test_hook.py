"""Negotiation without the executor: by a variable, or by a line in the Snakefile."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.snakemake.conftest import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.snakemake.conftest import Flow

    NewFlow = Callable[..., Flow]

RULES = """
    rule all:
        input: "shell", "script", "run", "cpu"

    rule by_shell:
        output: "shell"
        resources: gpu=1, gpu_mem_mb=1000
        shell: "echo ${CUDA_VISIBLE_DEVICES-none} ${GRN_LEASE-none} > {output}"

    rule by_script:
        output: "script"
        resources: gpu=1, gpu_mem_mb=1000
        script: "job.py"

    rule by_run:
        output: "run"
        resources: gpu=1, gpu_mem_mb=1000
        run:
            import os
            said = [os.environ.get(name, "none") for name in ("CUDA_VISIBLE_DEVICES", "GRN_LEASE")]
            with open(output[0], "w") as file:
                print(*said, file=file)

    rule by_cpu:
        output: "cpu"
        shell: "echo ${CUDA_VISIBLE_DEVICES-none} ${GRN_LEASE-none} > {output}"
    """.replace("${", "${{").replace("-none}", "-none}}")
SCRIPT = """
    import os
    said = [os.environ.get(name, "none") for name in ("CUDA_VISIBLE_DEVICES", "GRN_LEASE")]
    with open(snakemake.output[0], "w") as file:
        print(*said, file=file)
    """
LINE = "from grn_plugins.snakemake import negotiate; negotiate()\n"
GPU_RULES = ("shell", "script", "run")


def _set_up(flow: Flow, *folders: str) -> None:
    flow.write("job.py", SCRIPT)
    rules = flow.read("Snakefile")
    flow.write("with_line", f"{LINE}{rules}")
    for name in folders:
        (flow.folder / name).mkdir()


def _told(flow: Flow, folder: str) -> dict[str, list[str]]:
    """Return the mask and the lease of each rule's job."""
    return {name: flow.lines(f"{folder}/{name}")[0] for name in (*GPU_RULES, "cpu")}


def test_jobs_of_the_local_executor_have_leases(new_flow: NewFlow) -> None:
    """By the variable or by the line: a lease for each GPU job, none for others, none without."""
    flow = new_flow(RULES)
    _set_up(flow, "variable", "line", "neither", "never")
    words = {
        "variable": ("-s", "Snakefile"),
        "line": ("-s", "with_line"),
        "neither": ("-s", "Snakefile"),
        "never": ("-s", "with_line"),
    }
    variable = {"variable": "1", "never": "0"}
    runs = [
        flow.run(*said, "--directory", name, executor="", GRN_NEGOTIATE=variable.get(name))
        for name, said in words.items()
    ]
    for run in runs:
        run.ok()
    leases = []
    for name in ("variable", "line"):
        told = _told(flow, name)
        assert told["cpu"] == ["none", "none"]
        assert all(told[rule][0] in {"0", "1"} for rule in GPU_RULES), told
        leases += [told[rule][1] for rule in GPU_RULES]
    assert len(set(leases)) == 2 * len(GPU_RULES)
    for name in ("neither", "never"):
        assert all(said == ["none", "none"] for said in _told(flow, name).values())
    assert flow.idle()


def test_only_within_the_devices_that_were_given(new_flow: NewFlow) -> None:
    """A mask that the job comes with, as a cluster sets it, is all that is asked for."""
    flow = new_flow(RULES)
    _set_up(flow, "second", "both", "executor")
    second = flow.run(
        "--directory", "second", executor="", GRN_NEGOTIATE="1", CUDA_VISIBLE_DEVICES="1"
    )
    inside = _inside_a_lease(flow, "both")
    executor = flow.run("-s", "with_line", "--directory", "executor", GRN_NEGOTIATE="1")
    for run in (second, inside, executor):
        run.ok()
    told = _told(flow, "second")
    assert [told[rule][0] for rule in GPU_RULES] == ["1", "1", "1"]
    assert told["cpu"] == ["1", "none"], "a job without a wish has what it came with"
    told = _told(flow, "both")
    assert len({tuple(said) for said in told.values()}) == 1, "one lease, one device, for all"
    told = _told(flow, "executor")
    assert len({told[rule][1] for rule in GPU_RULES}) == len(GPU_RULES)
    granted = {
        int(told[rule][1].rpartition("-")[2])
        for told in (_told(flow, name) for name in ("second", "executor"))
        for rule in GPU_RULES
    }
    inner = int(_told(flow, "both")["shell"][1].rpartition("-")[2])
    assert granted | {inner} == set(range(1, 8)), "no lease beside those that jobs were told of"


def _inside_a_lease(flow: Flow, folder: str) -> Run:
    path = flow.folder / "inside"
    argv = [sys.executable, "-m", "grn", "run", "--gpus", "1", "--memory", "4000MiB", "--"]
    argv += [sys.executable, "-m", "snakemake", "-j4", "--directory", folder]
    with open(path, "wb") as output:
        process = flow.env.popen(
            argv,
            cwd=flow.folder,
            env={**flow.env.environ, "GRN_NEGOTIATE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    return Run(process, path)


def test_attempts_are_those_of_the_rule(new_flow: NewFlow) -> None:
    """With `retries: 2` a `run:` rule is executed three times, each in a lease of its attempt's size."""
    flow = new_flow(
        """
        rule grows:
            output: "never"
            retries: 2
            resources: gpu=1, gpu_mem_mb=lambda wildcards, attempt: attempt * 1000
            run:
                import os
                with open("tries", "a") as file:
                    print(os.environ["GRN_LEASE"], os.environ["GRN_MEM_MIB"], file=file)
                raise ValueError("never")
        """
    )
    text = flow.run(executor="", GRN_NEGOTIATE="1").fails()
    tries = flow.lines("tries")
    assert [mib for _, mib in tries] == ["1000", "2000", "3000"], text
    assert len({lease for lease, _ in tries}) == 3


def test_a_start_that_runs_nothing_says_nothing(new_env: Callable[..., BrokerEnv]) -> None:
    """`snakemake --version` prints the version, whatever the variable says, and starts no broker."""
    env = new_env(start=False)
    words = [sys.executable, "-m", "snakemake", "--version"]
    told = [
        subprocess.run(
            words,
            env={**env.environ, **more},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        for more in ({}, {"GRN_NEGOTIATE": "1"}, {"GRN_NEGOTIATE": "nonsense"})
    ]
    assert len({(run.stdout, run.stderr) for run in told}) == 1
    assert told[0].stderr == ""


def test_nothing_is_imported_that_is_not_wanted(new_env: Callable[..., BrokerEnv]) -> None:
    """Snakemake's plugin search loads none of GRN itself."""
    code = (
        "import sys, snakemake_executor_plugin_grn\n"
        "try: import snakemake_scheduler_plugin_grn\n"
        "except ModuleNotFoundError: pass\n"  # a Snakemake before 9.10
        "print([name for name in sys.modules if name == 'grn' or name.startswith('grn.')])"
    )
    env = new_env(start=False)
    told = subprocess.run(
        [sys.executable, "-c", code],
        env=env.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert told.stdout == "[]\n"
