"""Attempts: as many as the rule says, each in a lease of its size, and why one has failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.snakemake.conftest import job

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.snakemake.conftest import Flow

GROWING = """
    rule {kind}:
        output: "{kind}.out"
        retries: 2
        resources: gpu=1, gpu_mem_mb=lambda wildcards, attempt: attempt * 1000
        {extra}
    """
DIARY = "echo {resources.gpu_mem_mb} $GRN_MEM_MIB $GRN_LEASE >> DIARY; exit 3"
KINDS = {
    "by_shell": f'shell: "{DIARY}"',
    "by_shadow": f'shadow: "minimal"\n        shell: "{DIARY}"',
    "by_run": """run:
            import os
            with open("DIARY", "a") as file:
                wish = resources.gpu_mem_mb
                print(wish, os.environ["GRN_MEM_MIB"], os.environ["GRN_LEASE"], file=file)
            raise ValueError("again")""",
}


def test_as_many_executions_as_the_rule_says(new_flow: Callable[..., Flow]) -> None:
    """Three executions with growing wishes are three leases of those sizes, whatever the kind."""
    flow = new_flow("", "sim:4x10000MiB")
    text = "".join(
        GROWING.format(kind=kind, extra=extra.replace("DIARY", str(flow.folder / f"{kind}.log")))
        for kind, extra in KINDS.items()
    )
    flow.write("Snakefile", text)
    flow.run(*(f"{kind}.out" for kind in KINDS), "--keep-going", cores=3).fails()
    for kind in KINDS:
        entries = flow.lines(f"{kind}.log")
        assert [entry[:2] for entry in entries] == [[mib, mib] for mib in ("1000", "2000", "3000")]
        assert len({entry[2] for entry in entries}) == 3, "each attempt has its own lease"
    assert flow.idle()


def test_retries_of_the_command_line_count_once(new_flow: Callable[..., Flow]) -> None:
    """`--retries` and a rule without retries of its own."""
    flow = new_flow(
        """
        rule train:
            output: "out"
            resources: gpu=1, gpu_mem_mb=500
            run:
                open("runs", "a").write("x\\n")
                raise ValueError("again")
        """
    )
    flow.run("--retries", "1").fails()
    assert len(flow.lines("runs")) == 2


@pytest.mark.parametrize("logged", [True, False], ids=["log-file", "stderr"])
def test_out_of_memory_is_told_from_other_failures(
    new_flow: Callable[..., Flow], *, logged: bool
) -> None:
    """The log says which job lacked device memory, with numbers and what comes of it."""
    flow = new_flow(
        """
        rule big:
            output: "big"
            LOG
            resources: gpu=1, gpu_mem_mb=2000
            shell: "BIG 2> {log}"
        rule learnt:
            output: "learnt"
            resources: gpu=1
            shell: "BIG"
        rule broken:
            output: "broken"
            resources: gpu=1, gpu_mem_mb=500
            shell: "exit 3"
        """.replace("LOG", 'log: "big.log"' if logged else "")
        .replace("2> {log}", "2> {log}" if logged else "")
        .replace("BIG", job("--memory=5000MiB", "--seconds=1")),
        "sim:2x4000MiB",
    )
    text = flow.run("big", "broken", "--keep-going").fails()
    (line,) = [line for line in text.splitlines() if "ran out of device memory" in line]
    assert "big (job" in line
    assert "1.95 GiB booked" in line or "2000 MiB booked" in line
    assert "attempt * 2000" in line
    (line,) = [line for line in text.splitlines() if "not for want of device memory" in line]
    assert "broken (job" in line
    assert "exit 3" in line


def test_an_explicit_wish_wins_over_what_was_learnt(new_flow: Callable[..., Flow]) -> None:
    """A declared size is what is booked; what the job really took is learnt all the same."""
    flow = new_flow(
        """
        rule train:
            output: "out/{size}"
            resources: gpu=1, gpu_mem_mb=lambda wildcards: int(wildcards.size) or None
            shell: "echo $GRN_MEM_MIB >> booked; HOLD; touch {output}"
        """.replace("HOLD", job("--memory=1000MiB", "--seconds=0.5")),
        "sim:1x8000MiB",
    )
    flow.run("out/3000").ok()
    (profile,) = flow.env.client().profiles()
    assert (profile["peak_mib"], profile["runs"]) == (1000, 1)
    runs = [flow.run("out/0", "--nolock"), flow.run("out/2500", "--nolock")]
    assert all(run.ok() for run in runs)
    assert sorted(flow.lines("booked")) == [["1000"], ["2500"], ["3000"]]
