"""What a command finds in its environment: its share of cores and memory, and its own values."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.scenarios.standin import line, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]

THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def told(stdout: bytes) -> Counter[str]:
    """Count the `NAME=value` lines of all jobs, without their labels."""
    lines = [
        re.sub(r"^\[\d+ .*?\] (?=[A-Z_]+=)", "", text) for text in stdout.decode().splitlines()
    ]
    return Counter(lines)


def test_commands_that_run_together_share_the_cores(new_run: NewRun) -> None:
    """Four that declare nothing get a quarter of the cores each; a user's own larger number stays."""
    run = new_run(machine_cpus=8, cpu_reserve=0)
    job = line("--print-env", *THREADS, "GRN_CPUS", "--seconds=0")
    done = run("-q", "--gpus=0", *[job] * 4)
    assert told(done.stdout) == {f"{name}=2": 4 for name in (*THREADS, "GRN_CPUS")}
    done = run("--gpus=0", *[job] * 4, environ={"OMP_NUM_THREADS": "6"})
    seen = told(done.stdout)
    assert seen["OMP_NUM_THREADS=6"] == 4
    assert all(seen[f"{name}=2"] == 4 for name in THREADS[1:])
    assert done.stderr.count(b"OMP_NUM_THREADS=6") == 1


def test_more_commands_than_cores_get_one_thread_each(new_run: NewRun) -> None:
    """A share is never 0, which libraries read as all."""
    run = new_run(machine_cpus=2, cpu_reserve=0)
    done = run("-q", "--gpus=0", *[line("--print-env", *THREADS, "--seconds=0")] * 4)
    assert told(done.stdout) == {f"{name}=1": 4 for name in THREADS}


def test_declared_cpus_are_booked_and_told(new_run: NewRun) -> None:
    """Who asks for three cores is told three, and others get a share all the same."""
    run = new_run(machine_cpus=4, cpu_reserve=0)
    job = words("--print-env", "OMP_NUM_THREADS", "GRN_CPUS", "--seconds=0")
    done = run("-q", "--gpus=0", "--cpus=3", "--", *job)
    assert told(done.stdout) == {"OMP_NUM_THREADS=3": 1, "GRN_CPUS=3": 1}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_only_cores_that_may_be_used_are_shared_out(new_run: NewRun) -> None:
    """A broker that is bound to one core counts one, however many the machine has."""
    core = min(os.sched_getaffinity(0))
    run = new_run(cpu_reserve=0, on_demand=True)
    bound = {"preexec_fn": lambda: os.sched_setaffinity(0, {core})}
    job = words("--print-env", "OMP_NUM_THREADS", "--seconds=0")
    done = run("-q", "--gpus=0", "--", *job, **bound)
    assert done.stdout == b"OMP_NUM_THREADS=1\n"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_command_bound_to_fewer_cores_is_told_no_more(new_run: NewRun) -> None:
    """Under `taskset` the share is at most the cores that the command itself may use."""
    core = min(os.sched_getaffinity(0))
    run = new_run(broker_environ={"GRN_MACHINE_CPUS": "8", "GRN_CPU_RESERVE": "0"})
    bound = {"preexec_fn": lambda: os.sched_setaffinity(0, {core})}
    job = words("--print-env", "OMP_NUM_THREADS", "--seconds=0")
    done = run("-q", "--gpus=0", "--", *job, **bound)
    assert done.stdout == b"OMP_NUM_THREADS=1\n"


def test_switches_that_count_before_the_import_are_there_from_the_start(new_run: NewRun) -> None:
    """A share finds preallocation off and growth on; the user's own value stays, with one warning."""
    run = new_run()
    names = ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH")
    run.env.client().profiles("set", type="t", memory_mib=4000)
    job = words("--print-env", *names, "--seconds=0")
    done = run("--type=t", "--", *job)
    assert told(done.stdout) == {f"{names[0]}=false": 1, f"{names[1]}=true": 1}
    assert done.stderr == b""
    own = run("--type=t", "--", *job, environ={names[0]: "true"})
    assert told(own.stdout) == {f"{names[0]}=true": 1, f"{names[1]}=true": 1}
    assert own.stderr.count(b"\n") == 1
    assert b"XLA_PYTHON_CLIENT_PREALLOCATE=true stays" in own.stderr


def test_the_share_itself_is_told(new_run: NewRun) -> None:
    """Memory in MiB and as a fraction, full device names, and the order in which CUDA counts."""
    run = new_run("sim:2x8000MiB")
    names = ("GRN_MEM_MIB", "GRN_MEM_FRACTION", "GRN_DEVICES", "CUDA_DEVICE_ORDER")
    done = run("-q", "--memory=2000MiB", "--", *words("--print-env", *names, "--seconds=0"))
    seen = dict(text.split("=", 1) for text in done.stdout.decode().splitlines())
    (device, _) = run.env.status()["devices"]
    assert seen == {
        "GRN_MEM_MIB": "2000",
        "GRN_MEM_FRACTION": "0.25",
        "GRN_DEVICES": device["uuid"],
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def test_the_requests_own_variables_never_choose_the_device(new_run: NewRun) -> None:
    """`--env` sets what the user wants, but not another device than the one that was booked."""
    run = new_run("sim:2x8000MiB")
    own = ("--env=MODE=fast", "--env=CUDA_VISIBLE_DEVICES=1", "--env=OMP_NUM_THREADS=1")
    names = ("MODE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    done = run("--memory=2000MiB", *own, "--", *words("--print-env", *names, "--seconds=0"))
    assert done.stdout == b"MODE=fast\nCUDA_VISIBLE_DEVICES=0\nOMP_NUM_THREADS=1\n"
    assert b"CUDA_VISIBLE_DEVICES=1 of the request was refused" in done.stderr


def test_the_setting_is_for_every_job(new_run: NewRun) -> None:
    """`also_tell` of the broker reaches commands that do not ask; one's own variable goes before it."""
    run = new_run(machine_cpus=2, cpu_reserve=0, also_tell="go,r")
    del run.env.environ["GRN_ALSO_TELL"]  # of the broker that runs
    job = line("--print-env", "GOMAXPROCS", "MC_CORES", "--seconds=0")
    assert told(run("-q", "--gpus=0", job).stdout) == {"GOMAXPROCS=2": 1, "MC_CORES=2": 1}
    done = run("-q", "--gpus=0", job, environ={"GRN_ALSO_TELL": "r"})
    assert told(done.stdout)["MC_CORES=2"] == 1
    assert told(done.stdout)["GOMAXPROCS=2"] == 0


def test_a_variable_is_not_for_the_jobs_of_others(new_run: NewRun) -> None:
    """A broker that one command starts on demand does not take its wish for everybody's."""
    run = new_run(on_demand=True, machine_cpus=2, cpu_reserve=0)
    job = line("--print-env", "GOMAXPROCS", "--seconds=0")
    first = run("-q", "--gpus=0", job, environ={"GRN_ALSO_TELL": "go"})
    assert told(first.stdout)["GOMAXPROCS=2"] == 1, first.stderr
    assert told(run("-q", "--gpus=0", job).stdout)["GOMAXPROCS=2"] == 0
