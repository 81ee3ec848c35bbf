"""Groups: one lease computed from the members, shared out among those that run together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from grn.errors import UsageError
from grn_plugins.snakemake.request import Ask
from grn_plugins.snakemake.sharing import Parts, at_once, covers, in_levels
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

TELL = "echo $GRN_LEASE $CUDA_VISIBLE_DEVICES > {output}"


def _rules(*rules: tuple[str, str, int, str]) -> str:
    """Write rules: name, input, GPUs, group."""
    return "".join(
        f"""
        rule {name}:
            input: {needs!r} if {needs!r} else []
            output: "{name}"
            group: "{group}"
            resources: gpu={gpus}
            shell: "{TELL}"
        """
        for name, needs, gpus, group in rules
    )


def test_a_chain_holds_one_lease(new_flow: Callable[..., Flow]) -> None:
    """Rules of one group, one after the other, run in one lease of what the largest needs."""
    flow = new_flow(_rules(("a", "", 1, "g"), ("b", "a", 2, "g"), ("c", "b", 1, "g")))
    text = flow.run("c").ok()
    ((one, first),), ((two, second),), ((three, third),) = map(flow.lines, "abc")
    assert one == two == three
    assert second == "0,1"
    assert {first, third} <= {"0", "1"}
    assert text.count("has device 0, 1") == 1
    assert flow.idle()


def test_a_group_that_asks_for_too_much_is_refused_at_once(new_flow: Callable[..., Flow]) -> None:
    """Members that would run together are added up; the error names both numbers and the way out."""
    rules = [(name, "", 1, "g") for name in "abcd"]
    flow = new_flow("rule all:\n    input: 'a', 'b', 'c', 'd'\n" + _rules(*rules))
    flow.write("Snakefile", _all("abcd") + _rules(*rules))
    began = time.monotonic()
    text = flow.run().fails()
    took = time.monotonic() - began
    assert "4 devices asked, this broker manages 2" in text
    assert "--grn-groups apart" in text
    assert took < 60, "it waits for ever"
    assert not flow.lines("a")
    flow.run("--grn-groups", "apart").ok()


def _all(names: str) -> str:
    return f"""
        rule all:
            input: {list(names)!r}
        """


def test_repetitions_of_a_group_are_groups_of_their_own(new_flow: Callable[..., Flow]) -> None:
    """A group for each sample: more samples than devices is no reason to refuse."""
    flow = new_flow(
        """
        rule all:
            input: expand("b{i}", i=range(4))
        rule a:
            output: "a{i}"
            group: "sample"
            resources: gpu=1
            shell: "TELL"
        rule b:
            input: "a{i}"
            output: "b{i}"
            group: "sample"
            resources: gpu=1
            shell: "TELL"
        """.replace("TELL", TELL)
    )
    flow.run(cores=2).ok()
    assert all(flow.lines(f"a{i}") for i in range(4))
    assert flow.idle()


def test_a_group_does_not_starve_who_holds_its_cores(new_flow: Callable[..., Flow]) -> None:
    """Jobs that wait for a group's device, on the only cores, get it between two members."""
    flow = new_flow(
        _all("bxyz")
        + _rules(("a", "", 1, "g"), ("b", "a", 1, "g"), ("x", "", 1, "x"), ("y", "", 1, "y"))
        + _rules(("z", "", 1, "z")),
        "sim:1x8000MiB",
    )
    flow.run(cores=2).ok()
    assert flow.idle()


def test_each_attempt_of_a_member_is_what_it_asks_for(new_flow: Callable[..., Flow]) -> None:
    """Memory (of all devices together) and devices grow with the attempt: so does the group's lease."""
    flow = new_flow(
        """
        rule a:
            output: "a"
            group: "g"
            resources: gpu=1, gpu_mem_mb=1000
            shell: "echo $GRN_LEASE $GRN_MEM_MIB > {output}"
        rule b:
            input: "a"
            output: "b"
            group: "g"
            retries: 2
            resources: gpu=lambda w, attempt: min(attempt, 2), gpu_mem_mb=lambda w, attempt: 2000 * attempt
            shell:
                "echo $GRN_LEASE $GRN_MEM_MIB $CUDA_VISIBLE_DEVICES >> tries;"
                " test {resources.gpu_mem_mb} -gt 5000; cp tries {output}"
        """
    )
    flow.run("b").ok()
    ((first, _),) = flow.lines("a")
    tries = flow.lines("b")
    assert [line[1:] for line in tries] == [["2000", "0"], ["2000", "0,1"], ["3000", "0,1"]]
    leases = [line[0] for line in tries]
    assert leases[0] == first
    assert len(set(leases)) == 3
    assert flow.idle()


def test_a_retry_waits_for_who_still_uses_the_smaller_lease(new_flow: Callable[..., Flow]) -> None:
    """Another member runs in it: it keeps what it has, and the larger one is asked for after it."""
    flow = new_flow(
        """
        rule all:
            input: "long", "again"
        rule long:
            output: "long"
            group: "g"
            resources: gpu=1, gpu_mem_mb=1000
            shell: "while ! test -e failed; do sleep 0.05; done; sleep 0.5; date +%s.%N > {output}"
        rule again:
            output: "again"
            group: "g"
            retries: 1
            resources: gpu=1, gpu_mem_mb=lambda w, attempt: 2000 * attempt
            shell:
                "test {resources.gpu_mem_mb} -gt 3000 || (touch failed; exit 1);"
                " date +%s.%N > {output}; echo $GRN_MEM_MIB >> {output}"
        """
    )
    flow.run().ok()
    ((ended,),) = flow.lines("long")
    (began,), (mib,) = flow.lines("again")
    assert float(began) > float(ended)
    assert mib == "4000"
    assert flow.idle()


def test_a_group_whose_rest_can_never_run_gives_its_lease_back(
    new_flow: Callable[..., Flow],
) -> None:
    """What its last member needs has failed for good; the run goes on without a device."""
    flow = new_flow(
        """
        rule first:
            output: "first"
            group: "g"
            resources: gpu=1
            shell: "touch {output}"
        rule bad:
            input: "first"
            output: "bad"
            shell: "exit 1"
        rule between:
            input: "bad"
            output: "between"
            shell: "touch {output}"
        rule last:
            input: "first", "between"
            output: "last"
            group: "g"
            resources: gpu=1
            shell: "touch {output}"
        rule long:
            input: "first"
            output: "long"
            shell: "while ! test -e go; do sleep 0.05; done; touch {output}"
        """
    )
    run = flow.run("--keep-going", "last", "long")
    eventually(lambda: "Error in rule bad" in run.text, what="the failure")
    eventually(flow.idle, what="no lease")
    assert run.process.poll() is None
    flow.write("go", "")
    run.fails()


def test_a_lease_covers_what_is_no_larger() -> None:
    """Each of its sizes counts; one that was learnt says nothing about one that is declared."""
    has = Ask(gpus=2, memory_mib=4000)
    assert covers(has, Ask(gpus=1, memory_mib=4000))
    assert not covers(has, Ask(gpus=3, memory_mib=100))
    assert not covers(has, Ask(gpus=2, memory_mib=4001))
    assert not covers(has, Ask(gpus=1))
    assert not covers(Ask(gpus=1), has)
    assert not covers(Ask(gpus=1, share=30), Ask(gpus=1, share=31))


def test_what_runs_at_once_is_added_up() -> None:
    """Whole devices are counted, declared sizes share one device, and levels take the largest."""
    one, two = Ask(gpus=1), Ask(gpus=2)
    part, share = Ask(gpus=1, memory_mib=1000), Ask(gpus=1, share=30)
    assert at_once([one]) == one
    assert at_once([one, two]).gpus == 3
    assert at_once([part, part]) == Ask(gpus=1, memory_mib=2000)
    assert at_once([share, share]) == Ask(gpus=1, share=60)
    assert at_once([share] * 4).gpus == 4
    assert at_once([one, part]) == Ask(gpus=2)
    assert in_levels([[one, one], [two, one], []]).gpus == 3
    assert in_levels([[part], [part, part]]) == Ask(gpus=1, memory_mib=2000)
    with pytest.raises(UsageError, match="a100 and h100"):
        at_once([Ask(gpus=1, model="h100"), Ask(gpus=1, model="a100")])


def test_parts_of_a_lease_never_add_up_to_more() -> None:
    """A part is taken from what is free, and is there again when it is given back."""
    devices = [{"index": at, "uuid": f"GPU-{at}", "total_mib": 8000} for at in (2, 5)]
    grant = {"devices": devices, "mask": "2,5", "memory_mib": 3000, "fraction": 0.375}
    parts = Parts(Ask(gpus=2, memory_mib=3000), grant)
    small, large = Ask(gpus=1, memory_mib=1000), Ask(gpus=1, memory_mib=3000)
    first, second = parts.take(large), parts.take(small)
    assert first is not None
    assert second is not None
    assert first.positions != second.positions
    assert parts.take(large) is None
    assert parts.message(second, small) == {
        **grant,
        "gpus": 1,
        "devices": [devices[second.positions[0]]],
        "mask": str(devices[second.positions[0]]["index"]),
        "memory_mib": 1000,
        "fraction": 0.125,
    }
    parts.give_back(first)
    assert parts.take(large) is not None


def test_the_end_of_a_service_is_no_failure(new_flow: Callable[..., Flow]) -> None:
    """Snakemake terminates a service that nobody needs any more; jobs after that get devices."""
    flow = new_flow(
        """
        rule late:
            input: "served"
            output: "late"
            resources: gpu_mem_mb=500
            shell: "touch {output}"
        rule serve:
            output: service("service")
            resources: gpu_mem_mb=500
            shell: "touch {output}; sleep 600"
        rule use:
            input: "service"
            output: "served"
            resources: gpu_mem_mb=500
            shell: "touch {output}"
        """
    )
    text = flow.run("late").ok()
    assert "has failed" not in text
    assert text.count("has device") == 2
