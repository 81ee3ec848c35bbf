"""What runs teach: peaks of whole process trees, types that repeat or do not, bad first runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import Diary, line, most_at_once, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]

TRAIN = f"""\
import os, sys
seed = int(sys.argv[sys.argv.index("--seed") + 1])
ends = ["--seconds=0.5"] if seed == 0 else ["--until-file=go"]
job = {words("--memory=2000MiB", "--log=diary")!r}
os.execv(job[0], job + ends)
"""


def profiles(run: GrnRun) -> dict[str, dict[str, Any]]:
    """Return what was learnt by type, and only that."""
    listed = run.env.talker().profiles()
    return {entry["type"]: entry for entry in listed if entry["estimate_mib"] is not None}


def know_t(run: GrnRun, mib: int) -> None:
    """Make the need of type `t` known."""
    run.env.client().profiles("set", type="t", memory_mib=mib)


def jobs_of(stdout: bytes) -> list[dict[str, Any]]:
    """Return the jobs of a `--json` run."""
    jobs: list[dict[str, Any]] = json.loads(stdout)["jobs"]
    return jobs


@pytest.mark.parametrize(
    ("own", "children", "each", "peak"), [(500, 9, 400, 4100), (396, 1, 396, 792)]
)
def test_every_process_of_a_job_counts(
    new_run: NewRun, own: int, children: int, each: int, peak: int
) -> None:
    """The peak is the sum over the job's process tree at one moment."""
    run = new_run()
    tree = (f"--memory={own}MiB", f"--children={children}", f"--child-memory={each}MiB")
    done = run("-q", "--json", "--type=tree", "--", *words(*tree, "--seconds=1.5"))
    assert jobs_of(done.stdout)[0]["peak_mib"] == peak, done.stderr
    assert profiles(run)["tree"]["estimate_mib"] == peak


def test_another_batch_size_is_another_type(new_run: NewRun) -> None:
    """What a small batch was measured at says nothing about large ones, and small ones share."""
    run = new_run("sim:1x16384MiB")
    small, large = Diary(run.path("small")), Diary(run.path("large"))
    with open(run.path("train.sh"), "w", encoding="ascii") as file:
        file.write(
            f'if test "$1" = --maxbatchsize; then set -- {line("--memory=2599MiB", small.option)};\n'
            f'else set -- {line("--memory=13293MiB", large.option)}; fi\nexec "$@" $TIMES\n'
        )
    first = run("-q", "sh train.sh --maxbatchsize 1", environ={"TIMES": "--seconds=0.5"})
    assert first.returncode == 0, first.stderr
    three = run("-q", *["sh train.sh"] * 3, environ={"TIMES": "--seconds=0.5"})
    assert three.returncode == 0, three.stderr
    assert list(large.most_by_device().values()) == [1]
    together = run.start(
        "-q",
        *["sh train.sh --maxbatchsize 1"] * 6,
        environ={"TIMES": f"--until-file={run.path('go')}"},
    )
    assert most_at_once(small.wait_for_holds(7)) == 6
    touch(run.path("go"))
    assert together.wait(PATIENCE_S) == 0
    estimates = {job_type: entry["estimate_mib"] for job_type, entry in profiles(run).items()}
    assert estimates == {"sh train.sh --maxbatchsize 1": 2599, "sh train.sh": 13293}


def test_a_sweep_in_which_no_command_repeats_is_told_how_to_share(new_run: NewRun) -> None:
    """Eight commands of eight types run two at a time on two devices, and the cure is named."""
    run = new_run("sim:2x10000MiB")
    with open(run.path("train.py"), "w", encoding="ascii") as file:
        file.write(TRAIN)
    touch(run.path("go"))
    lines = [f"python3 train.py --date 0105-101010 --seed {seed}" for seed in range(8)]
    done = run(*lines)
    assert done.returncode == 0, done.stderr
    assert max(Diary(run.path("diary")).most_by_device().values()) == 1
    assert b"all 8 commands are of different types" in done.stderr
    assert b"--ignore-arg seed\n" in done.stderr


def test_a_sweep_with_irrelevant_arguments_is_measured_once(new_run: NewRun) -> None:
    """With seed and date declared irrelevant one command is measured, then seven run at once."""
    run = new_run("sim:2x10000MiB")
    with open(run.path("train.py"), "w", encoding="ascii") as file:
        file.write(TRAIN)
    lines = [f"python3 train.py --date 0105-10101{seed} --seed {seed}" for seed in range(8)]
    sweep = run.start("--ignore-arg=seed", "--ignore-arg=date", *lines)
    diary = Diary(run.path("diary"))
    assert most_at_once(diary.wait_for_holds(8)) == 7
    touch(run.path("go"))
    _, said = sweep.communicate(timeout=PATIENCE_S)
    assert sweep.returncode == 0
    assert b"different types" not in said
    assert list(profiles(run)) == ["python3 train.py"]


def test_a_type_is_the_same_alone_among_several_and_after_the_dashes(new_run: NewRun) -> None:
    """What one form of call teaches, the others know."""
    run = new_run(sample_slow=0.05)
    text = line("--memory=1000MiB", "--seconds=0.5")
    done = run("-q", "--json", text)
    assert done.returncode == 0, done.stderr
    seen = {job["type"] for job in jobs_of(done.stdout)}
    seen |= {job["type"] for job in jobs_of(run("-q", "--json", text, text).stdout)}
    exact = run("-q", "--json", "--", *words("--memory=1000MiB", "--seconds=0.5"))
    seen |= {job["type"] for job in jobs_of(exact.stdout)}
    assert len(seen) == 1
    (entry,) = profiles(run).values()
    assert (entry["runs"], entry["estimate_mib"]) == (4, 1000)


def test_first_runs_that_fail_lock_nothing(new_run: NewRun) -> None:
    """After four types failed on four devices a fifth starts at once, and no size was learnt."""
    run = new_run("sim:4x10000MiB")
    fails = ("--memory=3000MiB", "--seconds=0.3", "--exit-code=1")
    bad = run("-q", *[line(*fails, f"--start-delay=0.0{n}") for n in range(1, 5)])
    assert bad.returncode == 1
    assert [device["free_mib"] for device in run.env.status()["devices"]] == [10000] * 4
    assert run("-q", "--wait=20", "--", "true").returncode == 0
    assert profiles(run) == {}


def test_a_type_that_always_fails_gets_all_its_turns(new_run: NewRun) -> None:
    """Twenty failing runs of a type end with their own status; it is said once, and nothing stays."""
    run = new_run("sim:4x10000MiB")
    done = run("--json", *["sleep 0.05; exit 1"] * 20)
    assert done.returncode == 1
    assert [job["exit_code"] for job in jobs_of(done.stdout)] == [1] * 20
    assert done.stderr.count(b"has never succeeded") == 1
    status = run.env.status()
    assert status["leases"] == status["waiters"] == []
    assert profiles(run) == {}


def test_a_failed_run_teaches_no_size(new_run: NewRun) -> None:
    """A status other than 0 reaches the shell, and what was measured so far is no profile."""
    run = new_run()
    job = words("--memory=3000MiB", "--seconds=0.4", "--exit-code=3")
    done = run("-q", "--json", "--type=t", "--", *job)
    assert done.returncode == 3
    (entry,) = jobs_of(done.stdout)
    assert (entry["outcome"], entry["peak_mib"]) == ("failed", 3000)
    assert profiles(run) == {}


def test_commands_that_touch_no_device_all_run(new_run: NewRun) -> None:
    """Five that never use their device, on four: all end with 0, are told why once, learn nothing."""
    run = new_run("sim:4x10000MiB")
    done = run("--type=cpu", *["sleep 0.4"] * 5)
    assert done.returncode == 0
    assert done.stderr.count(b"never used its device") == 1
    assert b"5 of 5 ok" in done.stderr
    assert profiles(run) == {}


def test_a_first_run_does_not_preallocate(new_run: NewRun) -> None:
    """While it is measured, a program that would take most of the card takes what it needs."""
    run = new_run()
    job = words("--memory=2000MiB", "--preallocate=0.75", "--seconds=0.5")
    done = run("-q", "--json", "--type=jax", "--", *job)
    assert jobs_of(done.stdout)[0]["peak_mib"] == 2000, done.stderr
    assert profiles(run)["jax"]["estimate_mib"] == 2000


def test_who_insists_on_preallocation_is_told(new_run: NewRun) -> None:
    """The user's own switch is kept, and a peak that looks like preallocation is named so."""
    run = new_run()
    job = words("--memory=2000MiB", "--preallocate=0.75", "--seconds=0.8")
    insist = {"XLA_PYTHON_CLIENT_PREALLOCATE": "true", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    done = run("--json", "--type=jax", "--", *job, environ=insist)
    assert jobs_of(done.stdout)[0]["peak_mib"] == 7500, done.stderr
    for name, value in insist.items():
        assert done.stderr.count(f"{name}={value}".encode()) == 1
    assert b"this looks like preallocation" in done.stderr


def test_declared_memory_needs_no_measuring(new_run: NewRun) -> None:
    """With --memory the first runs of unknown types share a device at once."""
    run = new_run()
    wait = f"while ! test -e {run.path('go')}; do sleep 0.05; done"
    three = run.start("-q", "--memory=3GiB", *[f": {n}; {wait}" for n in range(3)])
    eventually(lambda: len(run.env.status()["leases"]) == 3, what="three leases")
    touch(run.path("go"))
    assert three.wait(PATIENCE_S) == 0


def test_a_long_first_run_lets_its_siblings_start(new_run: NewRun) -> None:
    """Once a first run's memory rests, others of its type start beside it, with a wider margin."""
    run = new_run(provisional_after=0.5)
    job = line("--memory=2000MiB", f"--until-file={run.path('go')}")
    three = run.start("-q", "--type=t", *[job] * 3)
    leases = eventually(
        lambda: len(leases := run.env.status()["leases"]) == 3 and leases, what="three leases"
    )
    assert {lease["state"] for lease in leases} == {"running"}
    assert profiles(run)["t"]["state"] == "provisional"
    touch(run.path("go"))
    assert three.wait(PATIENCE_S) == 0
    settled = profiles(run)["t"]
    assert (settled["state"], settled["estimate_mib"]) == ("settled", 2000)


def test_out_of_memory_is_tried_again_with_more(new_run: NewRun) -> None:
    """A command that dies of a full device runs again, each time with more, until there is room."""
    run = new_run("sim:1x10000MiB")
    know_t(run, 3000)
    go = f"--until-file={run.path('go')}"
    neighbour = run.start("-q", "--memory=6000MiB", "--", *words("--memory=6000MiB", go))
    eventually(lambda: run.env.status()["devices"][0]["measured_mib"] == 6000, what="a neighbour")
    grows = words("--plan=0:3000MiB 0.1:5000MiB", "--seconds=0.5")
    again = run.start("--json", "--type=t", "--retries-on-oom=3", "--", *grows)
    eventually(lambda: "5070 MiB" in _reasons(run), what="a try that has no room beside it")
    touch(run.path("go"))
    out, said = again.communicate(timeout=PATIENCE_S)
    (job,) = jobs_of(out)
    assert (again.returncode, job["outcome"], job["tries"]) == (0, "ok", 3), said
    assert said.count(b"out of device memory; running it again (with ") == 2
    assert said.count(b"CUDA out of memory") == 2
    assert neighbour.wait(PATIENCE_S) == 0


def _reasons(run: GrnRun) -> str:
    return " ".join(waiter["reason"] for waiter in run.env.status()["waiters"])


def test_a_short_run_of_a_known_type_needs_no_word(new_run: NewRun) -> None:
    """Over before it could be measured, it changes nothing that is known, and nothing is said."""
    run = new_run()
    know_t(run, 1000)
    done = run("--type=t", "--", "true")
    assert (done.returncode, done.stderr) == (0, b"")
    assert profiles(run)["t"]["estimate_mib"] == 1000
