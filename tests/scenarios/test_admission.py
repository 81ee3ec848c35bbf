"""Who gets a device and who waits, with real commands that hold simulated memory."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from grn.devices import simfolder
from tests.env import PATIENCE_S, eventually
from tests.scenarios.standin import Diary, line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.supervise.grnrun import GrnRun

    NewRun = Callable[..., GrnRun]


def know(run: GrnRun, job_type: str, mib: int) -> None:
    """Make the need of a type known."""
    run.env.client().profiles("set", type=job_type, memory_mib=mib)


@pytest.mark.parametrize("boot_s", [0, 0.7])
def test_memory_that_appears_late_is_set_aside_all_the_same(new_run: NewRun, boot_s: float) -> None:
    """Eight commands of more than half a device, on two: however long they load, none dies."""
    run = new_run("sim:2x16GiB")
    diary = Diary(run.path("diary"))
    know(run, "t", 9000)
    job = line("--memory=9000MiB", f"--start-delay={boot_s}", "--seconds=0.1", diary.option)
    done = run("-q", "--type=t", *[job] * 8)
    assert done.returncode == 0, done.stderr
    assert sorted(diary.most_by_device().values()) == [1, 1]
    assert len(diary.holds()) == 8


def test_what_is_learnt_on_the_way_is_set_aside_too(new_run: NewRun) -> None:
    """The same with a type that nobody has run before, each command started by itself."""
    run = new_run("sim:2x16GiB")
    diary = Diary(run.path("diary"))
    job = words("--memory=9000MiB", "--start-delay=0.2", "--seconds=0.2", diary.option)
    started = [run.start("-q", "--", *job) for _ in range(6)]
    assert [process.wait(2 * PATIENCE_S) for process in started] == [0] * 6
    assert max(diary.most_by_device().values()) == 1


def test_memory_of_others_is_waited_for_with_numbers(new_run: NewRun) -> None:
    """Too large is refused with both sizes; what others hold keeps a command out until it is free."""
    run = new_run("sim:2x48GiB", sample_slow=0.1)
    simfolder.add_foreign(run.env.sim_dir, 1, 18432, "other")
    refused = run("-q", "--memory=82GiB", "--", "touch", "never")
    assert refused.returncode == 125
    assert b"83968 MiB" in refused.stderr
    assert b"49152 MiB" in refused.stderr
    assert run.env.status()["waiters"] == []
    job = words("--memory=40GiB", f"--until-file={run.path('go')}", "--print-env", "GRN_DEVICES")
    first = run.start("-q", "--memory=40GiB", "--", *job)
    (lease,) = eventually(lambda: run.env.status()["leases"], what="the first lease")
    devices = {device["uuid"]: device for device in run.env.status()["devices"]}
    assert devices[lease["devices"][0]]["index"] == 0
    third = run.start("--memory=40GiB", "--", *job)
    (waiter,) = eventually(lambda: run.env.status()["waiters"], what="a waiter")
    for part in ("40960", "device 1: 30720 MiB free of 49152, 18432 used by others", "device 0: "):
        assert part in waiter["reason"]
    assert third.stderr is not None
    said = third.stderr.readline()
    simfolder.remove_foreign(run.env.sim_dir, "other")
    freed_s = time.monotonic()
    eventually(lambda: len(run.env.status()["leases"]) == 2, what="the second lease")
    assert time.monotonic() - freed_s < 6
    touch(run.path("go"))
    assert first.wait(PATIENCE_S) == 0
    assert third.wait(PATIENCE_S) == 0
    assert b"waiting: 40960 MiB on 1 device wanted" in said
    assert b"18432 used by others" in said


def test_one_device_serves_either_policy_to_the_last_mib(new_run: NewRun) -> None:
    """On a machine with one device a known type starts, by either policy, also as an exact fit."""
    run = new_run()
    know(run, "t", 10000)
    for policy in ("spread", "pack"):
        done = run(
            "-q",
            "--type=t",
            f"--policy={policy}",
            "--wait=20",
            "--",
            *words("--memory=10000MiB", "--seconds=0"),
        )
        assert done.returncode == 0, done.stderr


def test_pack_fills_up_and_goes_on_to_an_emptier_device(new_run: NewRun) -> None:
    """Pack takes the fullest device that fits, the emptiest if no other does; spread the emptiest."""
    run = new_run("sim:1x8GiB,1x80GiB,1x8GiB")
    simfolder.add_foreign(run.env.sim_dir, 0, 6 * 1024, "a")
    simfolder.add_foreign(run.env.sim_dir, 1, 5 * 1024, "b")
    mask = ("-q", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    for wish, policy, device in [
        ("2GiB", "pack", b"0\n"),
        ("4GiB", "pack", b"2\n"),
        ("10GiB", "pack", b"1\n"),
        ("10GiB", "spread", b"1\n"),
        ("1GiB", "spread", b"1\n"),
    ]:
        done = run(f"--memory={wish}", f"--policy={policy}", "--wait=20", *mask)
        assert done.stdout == device, (wish, policy, done.stderr)


def test_many_small_commands_by_both_policies(new_run: NewRun) -> None:
    """Of 128 small commands the packed ones share one device, the others level out the rest."""
    run = new_run("sim:4x8000MiB")
    for policy in ("pack", "spread"):
        know(run, policy, 100)
    diary = Diary(run.path("diary"))
    job = line("--memory=100MiB", f"--until-file={run.path('go')}", diary.option)
    with open(run.path("jobs.txt"), "w", encoding="ascii") as file:
        file.write(f"{job}\n" * 64)
    wanted = [("-q", f"--policy={policy}", f"--type={policy}") for policy in ("pack", "spread")]
    started = [run.start("--json", *options, "--file=jobs.txt") for options in wanted]
    eventually(lambda: len(run.env.status()["leases"]) == 128, what="128 leases")
    on: dict[str, Counter[str]] = defaultdict(Counter)
    for lease in run.env.status()["leases"]:
        on[lease["type"]][lease["devices"][0]] += 1
    assert len(on["pack"]) == 1
    counts = [
        on["spread"][d["uuid"]] for d in run.env.status()["devices"] if d["uuid"] not in on["pack"]
    ]
    assert max(counts) - min(counts) <= 1
    diary.wait_for_holds(128)
    touch(run.path("go"))
    for process in started:
        out, _ = process.communicate(timeout=2 * PATIENCE_S)
        assert process.returncode == 0
        assert [job["exit_code"] for job in json.loads(out)["jobs"]] == [0] * 64


def test_a_lost_device_is_left_out_until_it_is_back(new_run: NewRun) -> None:
    """Commands go to the other device meanwhile, status says which is lost, and it heals by itself."""
    run = new_run("sim:2x8000MiB", sample_slow=0.1)
    mask = ("-q", "--memory=whole", "--wait=20", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert run(*mask).stdout == b"0\n"
    simfolder.set_device(run.env.sim_dir, 0, state="lost")
    assert run(*mask).stdout == b"1\n"
    states = [device["state"] for device in run.env.status()["devices"]]
    assert states == ["lost", "ok"]
    waiting = run.start("-q", "--gpus=2", "--memory=whole", "--", "touch", "both")
    (waiter,) = eventually(lambda: run.env.status()["waiters"], what="a waiter")
    assert "device 0: lost" in waiter["reason"]
    simfolder.set_device(run.env.sim_dir, 0, state=None)
    assert waiting.wait(PATIENCE_S) == 0
    assert os.path.exists(run.path("both"))


def test_a_known_type_does_not_wait_behind_unknown_ones(new_run: NewRun) -> None:
    """Fifty that wait to be measured slow down nobody whose need is known and who has room."""
    run = new_run("sim:2x8000MiB")
    know(run, "warm", 1000)
    talker = run.env.talker()
    probe = talker.acquire("new")
    waiting = talker.ask_many(50, "new")
    assert not talker.decided(waiting)
    begun_s = time.monotonic()
    for _ in range(10):
        done = run("-q", "--type=warm", "--wait=20", "--", "true")
        assert done.returncode == 0, done.stderr
    assert time.monotonic() - begun_s < PATIENCE_S
    assert not talker.decided(waiting)
    talker.release(probe, exit_code=1)


def test_one_who_leaves_the_queue_changes_nothing_for_others(new_run: NewRun) -> None:
    """Interrupted while it waits to be measured, a command takes nobody's turn and blocks nobody."""
    run = new_run()
    wait = f"while ! test -e {run.path('go')}; do sleep 0.05; done; exit 1"
    first = run.start("-q", "--type=t", wait)
    eventually(lambda: run.env.status()["leases"], what="the first run")
    second = run.start("-q", "--type=t", "touch second")
    eventually(lambda: run.env.status()["waiters"], what="a waiter")
    third = run.start("-q", "--type=t", "touch third; exit 1")
    eventually(lambda: len(run.env.status()["waiters"]) == 2, what="two waiters")
    second.send_signal(2)
    assert second.wait(PATIENCE_S) == -2
    eventually(lambda: len(run.env.status()["waiters"]) == 1, what="one waiter")
    assert not os.path.exists(run.path("third"))
    touch(run.path("go"))
    assert [first.wait(PATIENCE_S), third.wait(PATIENCE_S)] == [1, 1]
    assert run("-q", "--type=t", "--wait=20", "--", "true").returncode == 0
    assert not os.path.exists(run.path("second"))


@pytest.mark.parametrize("driver", ["procs=no", "procs=no,totals=no"])
def test_where_the_driver_does_not_say_who_holds_what_nobody_shares(
    new_run: NewRun, driver: str
) -> None:
    """Ten commands of one type, whose need cannot be seen, run one per device and all end well."""
    run = new_run(f"sim:2x8000MiB,{driver}")
    diary = Diary(run.path("diary"))
    job = line("--memory=5000MiB", "--seconds=0.1", diary.option)
    done = run("-q", "--type=t", *[job] * 10)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert sorted(diary.most_by_device().values()) == [1, 1]
