"""What rules may wish for, under which names, and what is said of wishes that make no sense."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from grn.devices.nvml.nursery import library_is_missing
from grn.errors import UsageError
from grn_plugins.snakemake.request import (
    Ask,
    ask_of,
    check_limits,
    commanded_mask,
    job_type,
    unknown_names,
)
from tests.env import eventually
from tests.snakemake.conftest import job

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow


@pytest.mark.parametrize(
    ("resources", "ask"),
    [
        ({}, None),
        ({"mem_mb": 4000, "tmpdir": "scratch", "_cores": 4}, None),
        ({"gpu": 0}, None),
        ({"gpu": 0, "gpu_mem_mb": 4000}, None),
        ({"gpu_manufacturer": "nvidia"}, None),
        ({"gpu": 1}, Ask(1)),
        ({"gpus": 2}, Ask(2)),
        ({"nvidia_gpu": 3}, Ask(3)),
        ({"gpu": "2"}, Ask(2)),
        ({"gpu": 2, "gpus": 2}, Ask(2)),
        ({"nvidia_gpu": "nvidia-tesla-t4"}, Ask(1, model="t4")),
        ({"gpu_mem_mb": 4000}, Ask(1, memory_mib=4000)),
        ({"gpu_mem_mb": "4000"}, Ask(1, memory_mib=4000)),
        ({"gpu_mem": 4000}, Ask(1, memory_mib=4000)),
        ({"gpu_mem": "4GiB"}, Ask(1, memory_mib=4096)),
        ({"gpu_mem_mib": 4000}, Ask(1, memory_mib=4000)),
        ({"gpu": 2, "gpu_mem_mb": 8001}, Ask(2, memory_mib=4001)),
        ({"gpu_share": 50}, Ask(1, share=50)),
        ({"gpu": 1, "gpu_model": "a100"}, Ask(1, model="a100")),
        ({"gpu_model": "a100"}, Ask(1, model="a100")),
        ({"gpu": 1, "grn_policy": "pack", "grn_type": "t"}, Ask(1, policy="pack", type="t")),
        ({"gpu": 1, "grn_priority": 5}, Ask(1, priority=5)),
        ({"gpu0": 1}, Ask(1, cards=(0,))),
        ({"gpu_1": 1, "gpu0": 0}, Ask(1, cards=(1,))),
        ({"gpu": 1, "gpu1": 1}, Ask(1)),
    ],
)
def test_a_wish_in_all_its_spellings(resources: dict[str, Any], ask: Ask | None) -> None:
    """Names of other plugins mean what they mean there; sizes are of the whole job."""
    assert ask_of(resources) == ask


def test_a_rule_can_be_chosen_by_the_user() -> None:
    """A chosen rule gets one device, unless its resources say otherwise."""
    assert ask_of({}, chosen=True) == Ask(1)
    assert ask_of({"gpu": 2}, chosen=True) == Ask(2)
    assert ask_of({"gpu": 0}, chosen=True) is None


@pytest.mark.parametrize(
    ("resources", "says"),
    [
        ({"gpu": "0.5"}, "gpu_share=50"),
        ({"gpu": 1.5}, "gpu=2 with gpu_share"),
        ({"gpu": -1}, "gpu=-1"),
        ({"gpu": True}, "write gpu=1"),
        ({"gpu": "a100"}, "gpu_model"),
        ({"gpu": 1, "gpus": 2}, "contradict"),
        ({"gpu_mem_mb": 1, "gpu_mem": 2}, "contradict"),
        ({"gpu_mem": "much"}, "gpu_mem 'much'"),
        ({"gpu_mem_mb": -1}, "gpu_mem_mb=-1"),
        ({"gpu_share": 150}, "1 to 100"),
        ({"gpu_share": "half"}, "gpu_share='half'"),
        ({"gpu": 1, "gpu_manufacturer": "amd"}, "NVIDIA"),
        ({"gpu": 1, "grn_policy": "best"}, "spread, pack"),
        ({"gpu": 1, "grn_type": 5}, "grn_type=5"),
    ],
)
def test_a_wish_that_makes_no_sense(resources: dict[str, Any], says: str) -> None:
    """It is named, with what would do."""
    with pytest.raises(UsageError, match=r".") as caught:
        ask_of(resources)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("command", "mask"),
    [
        (None, None),
        ("python train.py", None),
        ("CUDA_VISIBLE_DEVICES=1 python train.py", "1"),
        ("set -e; export CUDA_VISIBLE_DEVICES='0,1'; python train.py", "0,1"),
        ("CUDA_VISIBLE_DEVICES= python train.py", ""),
        ("CUDA_VISIBLE_DEVICES=$GPU python train.py", None),
        ("CUDA_VISIBLE_DEVICES=0 a; CUDA_VISIBLE_DEVICES=1 b", None),
        ("CUDA_VISIBLE_DEVICES=0 a; CUDA_VISIBLE_DEVICES=0 b", "0"),
        ("MY_CUDA_VISIBLE_DEVICES=0 a", None),
    ],
)
def test_devices_that_a_command_names_itself(command: str | None, mask: str | None) -> None:
    """They are read where they are plain to see, and left alone otherwise."""
    assert commanded_mask(command) == mask


def test_names_that_look_like_a_wish() -> None:
    """What nobody reads is worth a word: a misspelt wish runs without its device."""
    names = ["n_gpus", "gpu_memory", "GPU", "gpu", "gpu0", "mem_mb", "grn_pol", "grn_type"]
    assert unknown_names(dict.fromkeys(names, 1)) == ["GPU", "gpu_memory", "grn_pol", "n_gpus"]


def test_what_a_cluster_would_read_is_pointed_out() -> None:
    """Slurm's spelling of a GPU, which nobody reads here."""
    said = {"gres": "gpu:1", "slurm_extra": "'--gres=gpu:2'", "tres_per_task": "gres/gpu:1"}
    assert unknown_names({**said, "partition": "gpu", "runtime": 5}) == sorted(said)
    assert unknown_names({"gres": "lustre:1", "slurm_extra": "'--qos=high'", "tres": 3}) == []


def test_limits_that_cut_a_wish() -> None:
    """Snakemake lowers a rule's number to the limit of the run."""
    assert check_limits({"gpu": 1}, {"gpu": 2}) == []
    assert check_limits({"gpu": 1}, {}) == []
    (said,) = check_limits({"gpu": 2}, {"gpu": 1})
    assert "cut to 1" in said


def test_the_type_of_a_rule() -> None:
    """File and rule, and the numbers among its params: not what only says which job it is."""
    assert job_type("/w/Snakefile", "train") == "/w/Snakefile::train"
    params = {"batch": 16, "lr": "0.1", "out": "x/7", "seed": "7", "fast": True, "name": "bert"}
    told = job_type("/w/Snakefile", "train", params, {"seed": "7"})
    assert told == "/w/Snakefile::train batch=16 fast=True lr=0.1"


FRACTIONS = """
    def half(wildcards): return 0.5
    rule function:
        output: "function"
        resources: gpu=half
        shell: "touch {output}"
    rule plain:
        output: "plain"
        resources: gpu=1
        shell: "touch {output}"
    rule two:
        output: "two"
        resources: gpu=2, n_gpus=2
        shell: "echo $CUDA_VISIBLE_DEVICES > {output}"
    """


@pytest.mark.parametrize(
    "words",
    [
        ["function"],
        ["plain", "--set-resources", "plain:gpu=0.5"],
        ["plain", "--set-resources", "plain:gpu=1.5"],
    ],
    ids=" ".join,
)
def test_a_fraction_of_a_gpu_is_an_error(new_flow: Callable[..., Flow], words: list[str]) -> None:
    """Wherever it is written; Snakemake would round it, and the rule run without its device."""
    flow = new_flow(FRACTIONS)
    text = flow.run(*words).fails()
    assert "gpu_share" in text
    assert not (flow.folder / words[0]).exists()


def test_a_fraction_in_the_snakefile_is_an_error(new_flow: Callable[..., Flow]) -> None:
    """As a plain number; Snakemake 8 refuses it by itself, and says what kinds of values there are."""
    flow = new_flow(
        """
        rule literal:
            output: "literal"
            resources: gpu=0.5
            shell: "touch {output}"
        """
    )
    text = flow.run().fails()
    assert "gpu_share=50" in text or "have to be integers" in text
    assert not (flow.folder / "literal").exists()


def test_what_is_asked_for_in_vain(new_flow: Callable[..., Flow]) -> None:
    """A wish that no device can meet ends the run within seconds, with both numbers."""
    flow = new_flow(
        """
        rule memory:
            output: "memory"
            resources: gpu=1, gpu_mem_mb=9000
            shell: "touch {output}"
        rule devices:
            output: "devices"
            retries: 1
            resources: gpu=3
            shell: "touch {output}"
        rule model:
            output: "model"
            resources: gpu=1, gpu_model="h100"
            shell: "touch {output}"
        rule card:
            output: "card"
            resources: gpu7=1
            shell: "touch {output}"
        """
    )
    names = ("memory", "devices", "model", "card")
    text = flow.run(*names, "--keep-going").fails()
    assert "9000 MiB" in text
    assert "8000 MiB" in text
    assert "3 devices asked, this broker manages 2" in text
    assert "gpu_model='h100' is none of the devices here: 0 (Simulated 8000 MiB)" in text
    assert "gpu7 is wanted" in text
    assert "Traceback" not in text
    assert "command exited" not in text, "no command has run"
    assert not any((flow.folder / name).exists() for name in names)


@pytest.mark.skipif(not library_is_missing(), reason="this machine has a driver of NVIDIA's")
@pytest.mark.parametrize("executor", ["grn", "local"])
def test_without_a_gpu_it_says_how_to_try_it(new_flow: Callable[..., Flow], executor: str) -> None:
    """In Snakemake's own words, and with no word of a command that has failed: none has run."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            resources: gpu=1
            shell: "touch {output}"
        """,
        "auto",
    )
    text = flow.run(executor=executor, GRN_NEGOTIATE="1").fails()
    assert "1 device asked, this broker manages none" in text
    assert "--grn-devices sim:4x16GiB" in text
    assert "GRN_DEVICES" in text
    assert "command exited" not in text
    assert "\nError in rule" not in text


def test_a_wish_in_vain_does_not_wait(new_flow: Callable[..., Flow]) -> None:
    """On a device that is taken, what could be granted later waits; what never can ends by itself."""
    flow = new_flow(
        """
        rule later:
            output: "later"
            resources: gpu=1, gpu_mem_mb=8000
            shell: "touch {output}"
        rule never:
            output: "never"
            resources: gpu=1, gpu_mem_mb=9000
            shell: "touch {output}"
        """,
        "sim:1x8000MiB",
    )
    with flow.env.client().acquire("other", memory_mib=8000):
        later = flow.run("later", "--nolock")
        eventually(lambda: len(flow.env.status()["waiters"]) == 1)
        text = flow.run("never", "--nolock").fails()
        assert later.process.poll() is None, later.text
        assert len(flow.env.status()["waiters"]) == 1
    assert "9000 MiB" in text
    assert "8000 MiB" in text
    assert not (flow.folder / "never").exists()
    later.ok()


def test_models_shares_and_policies_reach_the_broker(new_flow: Callable[..., Flow]) -> None:
    """A model narrows the devices; two shares of a half fit on one, and a third waits."""
    flow = new_flow(
        """
        rule all:
            input: expand("half{i}", i=range(3)), "large", "whole"
        rule half:
            output: "half{i}"
            resources: gpu_share=50, gpu_model="8000"
            shell: "echo $CUDA_VISIBLE_DEVICES $GRN_MEM_MIB > {output}; sleep 0.5"
        rule large:
            output: "large"
            resources: gpu="1", gpu_model="simulated 16000", gpu_mem="1GiB"
            shell: "echo $CUDA_VISIBLE_DEVICES $GRN_MEM_MIB > {output}"
        rule whole:
            output: "whole"
            resources: gpu_share=100, gpu_model="16000"
            shell: "echo $CUDA_VISIBLE_DEVICES $GRN_MEM_MIB > {output}"
        """,
        "sim:1x8000MiB,1x16000MiB",
    )
    flow.run(cores=5).ok()
    assert [flow.lines(f"half{i}") for i in range(3)] == [[["0", "4000"]]] * 3
    assert flow.lines("large") == [["1", "1024"]]
    assert flow.lines("whole") == [["1", "16000"]]


def test_what_is_worth_a_warning(new_flow: Callable[..., Flow]) -> None:
    """A limit that cuts a wish, a name that nobody reads, a pattern that fits no rule."""
    flow = new_flow(FRACTIONS)
    text = flow.run("two", "--resources", "gpu=1", "--grn-rules", "trian").ok()
    assert "gpu=2 is cut to 1 by --resources gpu=1" in text
    assert "the resource n_gpus says nothing to GRN" in text
    assert "'trian' is no rule of this workflow" in text


def test_a_command_that_sets_its_own_mask_gets_that_device(
    new_flow: Callable[..., Flow],
) -> None:
    """Cards as resources of their own and a mask in front: booked is what is used, and it is said."""
    flow = new_flow(
        """
        rule all:
            input: expand("out/{i}_{card}", i=range(4), card=range(2))
        rule base:
            output: "none/{i}"
            params: card=0
            shell: "CUDA_VISIBLE_DEVICES={params.card} HOLD && echo $GRN_DEVICES > {output}"
        use rule base as zero with:
            output: "out/{i}_0"
            params: card=0
            resources: gpu0=1
        use rule base as one with:
            output: "out/{i}_1"
            params: card=1
            resources: gpu=1
        """.replace("HOLD", job("--memory=3000MiB", "--seconds=0.5"))
    )
    text = flow.run(cores=8).ok()
    assert "zero: its command sets CUDA_VISIBLE_DEVICES=0 itself" in text
    assert "one: its command sets CUDA_VISIBLE_DEVICES=1 itself" in text
    cards = {device["index"]: device["uuid"] for device in flow.env.status()["devices"]}
    for i in range(4):
        for card, uuid in cards.items():
            assert flow.lines(f"out/{i}_{card}") == [[uuid]]
    assert all(profile["peak_mib"] == 3000 for profile in flow.env.client().profiles())


def test_a_parallel_loop_is_one_job(new_flow: Callable[..., Flow]) -> None:
    """A rule whose command starts several trainings at once is measured as their sum."""
    flow = new_flow(
        """
        rule train:
            output: "done"
            resources: gpus=1
            shell: "python loop.py && touch {output}"
        """,
        "sim:1x10000MiB",
    )
    flow.write(
        "loop.py",
        f"""
        import subprocess
        line = {job("--memory=900MiB", "--seconds=1")!r}
        for _ in range(2):
            running = [subprocess.Popen(line, shell=True) for _ in range(4)]
            assert not any(each.wait() for each in running)
        """,
    )
    flow.run().ok()
    (profile,) = flow.env.client().profiles()
    assert profile["peak_mib"] == 3600
    assert profile["runs"] == 1


def test_nothing_declared_and_sizes_from_a_table(new_flow: Callable[..., Flow]) -> None:
    """Rules chosen by a setting, a batch size in the params: each size is learnt by itself."""
    flow = new_flow(
        """
        TABLE = {"a": 8, "b": 16, "c": 32, "d": 64}
        rule all:
            input: expand("model/{m}", m=TABLE)
        rule data:
            output: "data"
            shell: "echo the-data > {output}"
        rule train:
            input: "data"
            output: "model/{m}"
            log: "log/{m}"
            params: batch=lambda wildcards: TABLE[wildcards.m]
            shell: "(cat {input} | python train.py {params.batch} /dev/stdin > {output}) 2> {log}"
        """,
        "sim:1x10000MiB",
    )
    flow.write(
        "train.py",
        f"""
        import subprocess, sys
        print(open(sys.argv[2]).read().strip())
        print("to the log", file=sys.stderr)
        memory = int(sys.argv[1]) * 125
        line = {job("--seconds=0.5")!r} + f" --memory={{memory}}MiB"
        sys.exit(subprocess.call(line, shell=True))
        """,
    )
    flow.run("--grn-rules", "train").ok()
    for name in "abcd":
        assert flow.lines(f"model/{name}") == [["the-data"]]
        assert flow.lines(f"log/{name}") == [["to", "the", "log"]]
    peaks = {
        each["type"].rpartition("batch=")[2]: each["peak_mib"]
        for each in flow.env.client().profiles()
    }
    assert peaks == {"8": 1000, "16": 2000, "32": 4000, "64": 8000}
