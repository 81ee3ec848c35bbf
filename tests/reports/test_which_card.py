"""Which card a job gets, and by which name it is told: reports about masks, numbers and UUIDs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.env import PATIENCE_S, eventually
from tests.reports.scene import FAST, box_of, device, jobs_of, python, runner, wait_measured
from tests.scenarios.standin import touch, words

if TYPE_CHECKING:
    from tests.reports.scene import NewEnv

MASK = "CUDA_VISIBLE_DEVICES"

# How programs read the mask: each prints how many devices it thinks it was given.
INTEGERS = "import os; print(len([int(word) for word in os.environ[MASK].split(',')]))"
BEFORE_TORCH_2 = """\
import os, re
count = 0
for word in os.environ[MASK].split(","):
    number = re.match(r"\\s*[0-9]+", word)  # strtoul; a UUID ends the list
    if number is None:
        break
    count += 1
print(count)
"""
ASKS_THE_DRIVER = """\
import os
import pynvml
pynvml.nvmlInit()
names = os.environ[MASK].split(",") + os.environ["GRN_DEVICES"].split(",")
print(len({pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(name)) for name in names}))
"""


def reads(program: str) -> list[str]:
    """Return the words of a program that reads the mask."""
    return python(program.replace("MASK", repr(MASK)))


def test_cuda_counts_the_fastest_first_and_the_tools_by_bus(new_env: NewEnv) -> None:
    """tensorflow/tensorflow#32881, Device-SMI#40, gpustack#1633, dask-cuda#777, bonito#120.

    The job's cuda:0 is the card that was booked, even if its user asked for CUDA's own order.
    """
    env = new_env("nvml:1x8000MiB,1x12000MiB,1x12200MiB,order=fastest:2,1,0", **FAST)
    run = runner(env)
    end = f"--until-file={run.path('end')}"
    job = run.start(
        "-q",
        "--memory=12100MiB",
        "--",
        *words("--memory=12100MiB", "--print-devices", end),
        environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
    )
    wait_measured(env, 12100, place=2)
    assert env.status()["warnings"] == [], "nobody strays to another card"
    touch(run.path("end"))
    out, said = job.communicate(timeout=PATIENCE_S)
    assert (re.findall(rb"^cuda:\d index=\d", out, re.MULTILINE), said) == (
        [b"cuda:0 index=2"],
        b"",
    )


def test_the_driver_ignores_the_brokers_own_mask(new_env: NewEnv) -> None:
    """gpuopenanalytics/pynvml#28: NVML lists every card, whatever CUDA_VISIBLE_DEVICES says.

    A broker that was given two cards manages those two, in that order, and no job gets a third.
    """
    env = new_env("nvml:3x8000MiB", start=False, **FAST)
    env.start(env={**env.environ, MASK: "2,0"})
    run = runner(env)
    count = "import pynvml as N; N.nvmlInit(); print(N.nvmlDeviceGetCount())"
    assert run("-q", "--gpus=none", "--", *python(count)).stdout == b"3\n"
    assert [entry["index"] for entry in env.status()["devices"]] == [2, 0]
    both = run("-q", "--gpus=2", "--memory=1GiB", f"echo ${MASK}")
    assert both.stdout == b"2,0\n"
    refused = run("-q", "--gpus=3", "--memory=1GiB", "true")
    assert refused.returncode == 125
    assert b"manages 2" in refused.stderr


@pytest.mark.parametrize(
    "program", [INTEGERS, BEFORE_TORCH_2], ids=["int() of each entry", "torch before 2.0"]
)
def test_programs_that_cannot_read_uuids(new_env: NewEnv, program: str) -> None:
    """vllm#13815, vllm#20939, dask-cuda#435, gpustack#4844, mjlab#1029; pytorch#90543, #92315.

    Jobs are told numbers unless somebody wants UUIDs, so each entry can be read as an integer and
    old frameworks count right.
    """
    run = runner(new_env("nvml:3x8000MiB"))
    done = run("-q", "--gpus=2", "--memory=1GiB", "--", *reads(program))
    assert (done.stdout, done.stderr) == (b"2\n", b"")


@pytest.mark.parametrize("why", ["asked for", "as the broker's own mask, a prefix"])
def test_the_driver_knows_whole_uuids_only(new_env: NewEnv, why: str) -> None:
    """vllm#51677: NVML does not find a device by the first part of its UUID, which CUDA accepts.

    Where UUIDs are told they are whole ones, even under a broker whose own mask has prefixes.
    """
    env = new_env("nvml:3x8000MiB", start=False)
    if why == "asked for":
        env.start(env={**env.environ, "GRN_MASK_STYLE": "uuid"})
    else:
        prefixes = ",".join(uuid[:14] for uuid in box_of(env).uuids)
        env.start(env={**env.environ, MASK: prefixes})
    done = runner(env)("-q", "--gpus=2", "--memory=1GiB", "--", *reads(ASKS_THE_DRIVER))
    assert (done.stdout, done.stderr) == (b"2\n", b"")


def test_a_program_that_takes_the_masks_number_for_an_ordinal(new_env: NewEnv) -> None:
    """unsloth#670: under the mask `1` there is no cuda:1.

    Such a program fails with its own words, and that is no lack of memory: it is not run again,
    and the next job of its type is not booked more.
    """
    env = new_env("nvml:2x8000MiB", start=False)
    env.start(env={**env.environ, MASK: "1"})
    run = runner(env)
    ordinal = f"--device=${MASK}"
    command = f"echo once >>runs; exec {' '.join(words('--memory=1GiB'))} {ordinal}"
    done = run("--json", "--memory=1GiB", "--retries-on-oom=3", command)
    assert b"invalid device ordinal" in done.stderr
    assert [job["outcome"] for job in jobs_of(done)] == ["failed"]
    assert run.wait_for("runs") == "once"


def test_the_mask_is_there_before_the_program_is(new_env: NewEnv) -> None:
    """pytorch#23544, #80876, #95073, #122085, #159641: a mask set after the import counts by halves.

    HAMi#1196, nvshare#11: a library that is loaded into the job to count misses calls. The kernel hands the mask to the program at its start; nothing of ours is loaded into it.
    """
    run = runner(new_env("nvml:2x8000MiB"))
    initial = "print(*open('/proc/self/environ').read().split('\\0'), sep='\\n')"
    done = run("-q", "--gpus=2", "--memory=1GiB", "--", *python(initial))
    told = set(done.stdout.decode().splitlines())
    assert {f"{MASK}=0,1", "CUDA_DEVICE_ORDER=PCI_BUS_ID"} <= told
    assert not [entry for entry in told if entry.startswith("LD_PRELOAD=")]


def test_no_wish_and_no_devices_are_two_things(new_env: NewEnv) -> None:
    """ray#54928, ray#54868: asking for zero GPUs blanked the mask, to everybody's surprise.

    Without a wish the mask stays as it was, with 0 it is empty, and `--explain` says which; neither
    waits for a device that somebody else has.
    """
    env = new_env("nvml:1x8000MiB")
    env.talker().acquire("t", memory_mib="whole")
    run = runner(env)
    shown = f'echo "${{{MASK}-unset}}"'
    before = {"environ": {MASK: "0,1"}}
    assert run("-q", "--gpus=none", shown).stdout == b"unset\n"
    assert run("-q", "--gpus=none", shown, **before).stdout == b"0,1\n"
    assert run("-q", "--gpus=0", shown, **before).stdout == b"\n"
    for gpus, word in (("none", b"untouched"), ("0", b"set")):
        said = run("--explain", f"--gpus={gpus}", "true", **before).stdout
        (line,) = [text for text in said.splitlines() if text.startswith(MASK.encode())]
        assert line.split()[-1] == word, said


def test_a_job_that_chooses_its_own_card_is_named(new_env: NewEnv) -> None:
    """pytorch#80876, unsloth#670: a program overwrites the mask that it was given.

    What it holds on a card that is not its own counts there, for others, and a warning names it.
    """
    env = new_env("nvml:2x8000MiB", **FAST)
    run = runner(env)
    job = " ".join(words("--memory=3000MiB", f"--until-file={run.path('end')}"))
    rogue = run.start("-q", "--memory=4000MiB", "--label=rogue", f"{MASK}=1 exec {job}")
    (warning,) = eventually(lambda: env.status()["warnings"], what="a warning")
    assert "'rogue'" in warning
    assert "device 1" in warning
    entry = device(env, 1)
    assert (entry["booked_mib"], entry["free_mib"]) == (0, 5000)
    touch(run.path("end"))
    assert rogue.wait(PATIENCE_S) == 0
