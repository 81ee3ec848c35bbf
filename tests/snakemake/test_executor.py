"""Jobs of every kind that Snakemake has, under leases; and those that wish for nothing, without."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from tests.env import eventually
from tests.snakemake.conftest import job

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

TELL = "echo $CUDA_VISIBLE_DEVICES $GRN_LEASE $GRN_MEM_MIB $OMP_NUM_THREADS"
KINDS = f"""
    SMALL = 500
    rule all:
        input:
            "shell", "python", "bash", "run", "shadow", "wrapper", "consumed", "served", "cpu", "both"
    rule shell:
        output: "shell"
        log: "shell.log"
        benchmark: "shell.tsv"
        threads: 2
        resources: gpu_mem_mb=SMALL
        shell: "echo to-the-log >&2 2> {{log}}; {TELL} > {{output}}"
    rule python:
        output: "python"
        resources: gpu_mem_mb=SMALL
        script: "kind.py"
    rule bash:
        output: "bash"
        resources: gpu_mem_mb=SMALL
        script: "kind.sh"
    rule run:
        output: "run"
        resources: gpu_mem_mb=SMALL
        run:
            shell("{TELL} > {{output}}.shell")
            import os
            names = ("CUDA_VISIBLE_DEVICES", "GRN_LEASE", "GRN_MEM_MIB", "OMP_NUM_THREADS")
            with open(output[0], "w") as file:
                print(*map(os.environ.get, names), file=file)
    rule shadow:
        output: "shadow"
        shadow: "minimal"
        resources: gpu_mem_mb=SMALL
        shell: "{TELL} > {{output}}"
    rule wrapper:
        output: "wrapper"
        resources: gpu_mem_mb=SMALL
        wrapper: "file:own"
    rule produce:
        output: pipe("piped")
        resources: gpu_mem_mb=SMALL
        shell: "{TELL} > {{output}}"
    rule consume:
        input: "piped"
        output: "consumed"
        resources: gpu_mem_mb=SMALL
        shell: "cat {{input}} > {{output}}; {TELL} >> {{output}}"
    rule serve:
        output: service("service")
        resources: gpu_mem_mb=SMALL
        shell: "{TELL} > {{output}}; sleep 600"
    rule use:
        input: "service"
        output: "served"
        resources: gpu_mem_mb=SMALL
        shell: "cat {{input}} > {{output}}; {TELL} >> {{output}}"
    rule cpu:
        output: "cpu"
        shell: "echo ${{{{CUDA_VISIBLE_DEVICES-unset}}}} ${{{{GRN_LEASE-none}}}} > {{output}}"
    rule both:
        output: "both"
        resources: gpu="2"
        shell: "{TELL} > {{output}}"
    """


# Older ones look for conda as soon as a workflow has a wrapper.
WRAPPERS = int(version("snakemake").partition(".")[0]) >= 9


def _kinds(new_flow: Callable[..., Flow]) -> Flow:
    flow = new_flow(KINDS if WRAPPERS else KINDS.replace('"wrapper", ', ""))
    flow.write("kind.sh", f"{TELL} > ${{snakemake_output[0]}}\n")
    python = """
        import os
        names = ("CUDA_VISIBLE_DEVICES", "GRN_LEASE", "GRN_MEM_MIB", "OMP_NUM_THREADS")
        with open(snakemake.output[0], "w") as file:
            print(*map(os.environ.get, names), file=file)
        """
    flow.write("kind.py", python)
    flow.write("own/wrapper.py", python)
    flow.write("own/environment.yaml", "dependencies: []\n")
    return flow


def test_every_kind_of_job_finds_its_lease(new_flow: Callable[..., Flow]) -> None:
    """Shell, scripts, run, shadow, wrapper, pipes and services: device, lease, memory and threads."""
    flow = _kinds(new_flow)
    text = flow.run(cores=6).ok()
    assert "has failed" not in text, "to be terminated is a good end for a service"
    told = {
        name: flow.lines(name)
        for name in ("shell", "python", "bash", "run", "run.shell", "shadow", "both")
    }
    if WRAPPERS:
        told["wrapper"] = flow.lines("wrapper")
    for name, ((mask, lease, mib, threads),) in told.items():
        assert mask == "0,1" if name == "both" else mask in {"0", "1"}, name
        assert lease, name
        assert name == "both" or mib == "500", name
        assert threads == ("2" if name == "shell" else "1"), name
    assert told["run"] == told["run.shell"]
    leases = {lines[0][1] for name, lines in told.items() if name != "run.shell"}
    assert len(leases) == len(told) - 1, "each job has a lease to itself"
    for name in ("consumed", "served"):
        one, other = flow.lines(name)
        assert one[1] == other[1], "who runs at once shares one lease"
        assert (one[2], other[2]) == ("500", "500"), "and has its part of it"
        assert one[1] not in leases
    assert flow.lines("cpu") == [["unset", "none"]]
    assert len(flow.lines("shell.tsv")) == 2
    assert flow.idle()


def test_each_job_by_a_snakemake_of_its_own(new_flow: Callable[..., Flow]) -> None:
    """`--grn-exec-mode spawn` does the same by Snakemake's public interface alone."""
    flow = _kinds(new_flow)
    run = flow.run("shell", "python", "cpu", "--grn-exec-mode=spawn")
    run.ok()
    for name in ("shell", "python"):
        ((mask, lease, mib, _),) = flow.lines(name)
        assert (mask in {"0", "1"}, bool(lease), mib) == (True, True, "500")
    assert flow.lines("cpu") == [["unset", "none"]]
    assert len(flow.lines("shell.tsv")) == 2


def test_who_wishes_for_nothing_needs_no_broker(new_flow: Callable[..., Flow]) -> None:
    """Rules without a GPU, dry runs and --touch: nobody asks for a broker, or starts one."""
    flow = _kinds(new_flow)
    nowhere = str(flow.folder / "no" / "socket")
    runs = [
        flow.run("cpu", GRN_SOCKET=nowhere),
        flow.run("shell", "both", "-n", "--nolock", GRN_SOCKET=nowhere),
    ]
    assert "shell" in [run.ok() for run in runs][1]
    flow.write("both", "as it was")
    flow.run("both", "--touch", GRN_SOCKET=nowhere).ok()
    assert not os.path.exists(os.path.dirname(nowhere))
    assert flow.read("both") == "as it was"


def test_a_result_from_the_cache_takes_no_device(new_flow: Callable[..., Flow]) -> None:
    """Between-workflow caching: the second workflow gets the result without a lease."""
    text = """
        rule train:
            output: "model"
            cache: True
            resources: gpu=1
            shell: "echo trained >> OUTSIDE; touch {output}"
        """
    flow = new_flow(text, "sim:1x8000MiB")
    flow.write("Snakefile", text.replace("OUTSIDE", str(flow.folder / "runs")))
    (flow.folder / "kept").mkdir()
    cache = {"SNAKEMAKE_OUTPUT_CACHE": str(flow.folder / "kept")}
    flow.run("--cache", **cache).ok()
    (flow.folder / "model").unlink()
    text = flow.run("--cache", "--forceall", **cache).ok()
    assert "has device" not in text
    assert len(flow.lines("runs")) == 1


def test_settings_come_from_a_profile_and_the_environment(new_flow: Callable[..., Flow]) -> None:
    """A profile and SNAKEMAKE_GRN_… say the same as flags; rules are chosen by name or pattern."""
    flow = new_flow(
        """
        rule all:
            input: "train_a", "train_b", "other"
        rule train_a:
            output: "train_a"
            shell: "TELL > {output}; sleep 1"
        rule train_b:
            output: "train_b"
            shell: "TELL > {output}; sleep 1"
        rule other:
            output: "other"
            shell: "TELL > {output}"
        """.replace("TELL", "echo ${{GRN_LEASE-none}}")
    )
    flow.write(
        "profile/config.yaml",
        """
        executor: grn
        cores: 4
        grn-rules: "train_*"
        grn-policy: pack
        """,
    )
    run = flow.run("--profile", "profile", executor="", SNAKEMAKE_GRN_WAIT="2m")
    run.ok()
    assert flow.lines("train_a") != [["none"]] != flow.lines("train_b")
    assert flow.lines("other") == [["none"]]
    text = flow.run("other", "--forceall", SNAKEMAKE_GRN_WAIT="soon").fails()
    assert "--grn-wait" in text
    assert 'File "' not in text, "a trace of our code tells the user nothing"


def test_without_a_broker_it_fails_or_runs_as_it_is_told(new_flow: Callable[..., Flow]) -> None:
    """No broker to be had: an error that says so, or, where that is wanted, no lease."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            resources: gpu=1
            shell: "echo ${{CUDA_VISIBLE_DEVICES-unset}} > {output}"
        """
    )
    flow.write("nothing", "a file, where a socket should be")
    socket = str(flow.folder / "nothing")
    assert "socket" in flow.run(GRN_SOCKET=socket).fails()
    text = flow.run("--grn-no-broker=run", GRN_SOCKET=socket).ok()
    assert "run without leases" in text
    assert flow.lines("out") == [["unset"]]


def test_inside_a_lease_it_shares_that_lease(new_flow: Callable[..., Flow]) -> None:
    """Snakemake in a job of GRN's: its jobs run in that job's lease, and never wait for another."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            resources: gpu=1
            shell: "echo $GRN_LEASE $CUDA_VISIBLE_DEVICES > {output}"
        """,
        "sim:1x8000MiB",
    )
    client = flow.env.client()
    with client.acquire("outer", memory_mib=8000) as outer:
        run = flow.run(GRN_LEASE=outer.id, CUDA_VISIBLE_DEVICES="0")
        run.ok()
        assert flow.lines("out") == [[outer.id, "0"]]
    eventually(flow.idle, what="no lease is left")


def test_jobs_that_are_known_share_a_device(new_flow: Callable[..., Flow]) -> None:
    """The first job of a rule is measured alone; the next ones share, and none exceeds the device."""
    flow = new_flow(
        """
        rule all:
            input: expand("out/{i}", i=range(5))
        rule train:
            output: "out/{i}"
            resources: gpu=1
            shell: "HOLD && touch {output}"
        """.replace("HOLD", job("--memory=2000MiB", "--seconds=1", "--log=diary")),
        "sim:1x8000MiB",
    )
    run = flow.run(cores=5)
    text = run.ok()
    assert text.count("to be measured") == 1
    assert text.count("2000 MiB booked") == 4


def test_without_a_limit_no_device_is_given_twice(new_flow: Callable[..., Flow]) -> None:
    """Four rules, four cores, two devices and no --resources: two run at once, each on its own."""
    rules = "".join(
        f"""
        rule {name}:
            output: "{name}"
            resources: gpu=1
            shell: "for at in begin end; do echo $at $CUDA_VISIBLE_DEVICES >> times; sleep 0.3; done;"
                   " touch {{output}}"
        """
        for name in "abcd"
    )
    flow = new_flow("rule all:\n            input: 'a', 'b', 'c', 'd'\n" + rules)
    flow.write("Snakefile", "\n        rule all:\n            input: 'a', 'b', 'c', 'd'\n" + rules)
    flow.run().ok()
    busy: set[str] = set()
    for at, mask in flow.lines("times"):
        if at == "begin":
            assert mask in {"0", "1"}
            assert mask not in busy, flow.read("times")
            busy.add(mask)
        else:
            busy.discard(mask)
    assert len(flow.lines("times")) == 8


def test_a_benchmark_does_not_count_the_wait(new_flow: Callable[..., Flow]) -> None:
    """It begins when the device is there, not when the job was handed to the executor."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            benchmark: "bench.tsv"
            resources: gpu=1
            shell: "touch {output}"
        """,
        "sim:1x8000MiB",
    )
    with flow.env.client().acquire("other", memory_mib=8000):
        run = flow.run()
        run.wait_for("train (job 0) waits")  # that is said after two seconds
        released = time.time()
    run.ok()
    seconds = float(flow.lines("bench.tsv")[1][0])
    assert (flow.folder / "bench.tsv").stat().st_mtime - seconds > released


def test_benchmarks_repeat_inside_one_lease(new_flow: Callable[..., Flow]) -> None:
    """A repeated benchmark runs in one lease per job; outputs are protected, inputs temporary."""
    flow = new_flow(
        """
        rule all:
            input: expand("out/{sample}", sample=["a", "b", "c"])
        rule prepare:
            output: temp("prepared/{sample}")
            shell: "touch {output}"
        rule map:
            input: "prepared/{sample}"
            output: protected("out/{sample}")
            benchmark: repeat("bench/{sample}.tsv", 3)
            resources: gpu=1
            shell: "HOLD && echo $GRN_LEASE >> leases && touch {output}"
        """.replace("HOLD", job("--memory=2000MiB", "--seconds=0.3"))
    )
    flow.run("--resources", "gpu=2").ok()
    leases = [lease for (lease,) in flow.lines("leases")]
    assert sorted(leases.count(lease) for lease in set(leases)) == [3, 3, 3]
    for sample in "abc":
        assert len(flow.lines(f"bench/{sample}.tsv")) == 4
        assert not (flow.folder / f"out/{sample}").stat().st_mode & 0o222
        assert not (flow.folder / f"prepared/{sample}").exists()
