"""Cards that are divided (MIG), exclusive, or shared through a server (MPS)."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.env import PATIENCE_S, eventually
from tests.reports.scene import FAST, box_of, device, given, jobs_of, runner, wait_measured
from tests.scenarios.standin import Diary, line, most_at_once, touch, words

if TYPE_CHECKING:
    from tests.reports.scene import NewEnv

MPS_SERVER = "/usr/bin/nvidia-cuda-mps-server"


def test_slices_are_found_over_holes_and_named_by_uuid(new_env: NewEnv) -> None:
    """ray#12413, ray#32778, vllm#6582: slices were not seen, or could not be used by number.

    Every slice is a device, whatever holes their numbers have; a job gets one by its whole UUID,
    and never the card that is divided.
    """
    env = new_env("nvml:1x80GiB,1x8GiB,mig=0:20GiB+10GiB", start=False, **FAST)
    box = box_of(env)
    box.set(0, 1, index=5)
    env.start()
    slices = {box.uuid(0, 0), box.uuid(0, 1)}
    assert {entry["uuid"] for entry in env.status()["devices"]} == slices | {box.uuid(1)}
    run = runner(env)
    go = f"--until-file={run.path('go')}"
    diary = Diary(run.path("diary"))
    both = [line("--memory=9GiB", go, diary.option, "--print-env", "CUDA_VISIBLE_DEVICES")] * 2
    two = run.start("-q", "--memory=9GiB", "--policy=pack", both[0])
    diary.wait_for_holds(1)
    other = run.start("-q", "--memory=15GiB", both[1])
    held = {hold.device for hold in diary.wait_for_holds(2)}
    assert held == slices
    touch(run.path("go"))
    told = {job.communicate(timeout=PATIENCE_S)[0].decode().strip() for job in (two, other)}
    assert told == {f"CUDA_VISIBLE_DEVICES={uuid}" for uuid in slices}


def test_who_wants_two_slices_is_told_that_a_process_sees_one(new_env: NewEnv) -> None:
    """ray#12413, vllm#6582: CUDA shows a process the first slice of its mask, and no other."""
    run = runner(new_env("nvml:1x80GiB,mig=0:20GiB+20GiB"))
    done = run("--gpus=2", "--memory=1GiB", "true")
    assert b"MIG" in done.stderr


def test_a_number_never_means_a_slice(new_env: NewEnv) -> None:
    """ray#32778, vllm#6582: beside a divided card CUDA counts differently from everybody else.

    Where numbers are not certain even a whole card is told by its UUID.
    """
    env = new_env("nvml:1x40GiB,1x8GiB,mig=0:20GiB")
    grant = env.talker().acquire("t", memory_mib=1000, policy="pack")
    assert given(grant) == [box_of(env).uuid(1)]
    assert grant["mask"] == box_of(env).uuid(1)


def test_an_exclusive_card_serves_one_process_after_the_other(new_env: NewEnv) -> None:
    """pytorch#3871, timm#1033, DIGITS#2005, openmmtools#768: a second process finds all cards busy.

    Small jobs on such a card run one at a time, and none of them meets another.
    """
    env = new_env("nvml:1x10000MiB,mode=exclusive", **FAST)
    run = runner(env)
    diary = Diary(run.path("diary"))
    job = line("--memory=1000MiB", "--seconds=0.1", diary.option)
    done = run("--json", "--memory=1000MiB", job, job, job)
    assert [entry["outcome"] for entry in jobs_of(done)] == ["ok"] * 3, done.stderr
    assert most_at_once(diary.holds()) == 1


def test_a_busy_card_is_no_full_card(new_env: NewEnv) -> None:
    """k8s-device-plugin#1118: "busy or unavailable" was taken for a lack of memory.

    The job has failed, for that reason: it does not run again with more memory, and the next job of
    its type is not booked more.
    """
    env = new_env("nvml:1x10000MiB,mode=exclusive", **FAST)
    run = runner(env)
    env.client().profiles("set", type="t", memory_mib=1000)
    env.foreign(0, 300)
    eventually(lambda: device(env)["foreign_mib"] == 300, what="somebody else's process")
    done = run("--json", "--type=t", "--retries-on-oom=3", "--", *words("--memory=1000MiB"))
    assert b"busy or unavailable" in done.stderr
    assert b"no matter of memory" in done.stderr
    assert [entry["outcome"] for entry in jobs_of(done)] == ["failed"]
    (known,) = env.talker().profiles()
    assert known["estimate_mib"] == 1000


def test_memory_through_a_sharing_server_counts_once(new_env: NewEnv) -> None:
    """k8s-device-plugin#720, nos#52: what is seen of a client of MPS.

    It is listed twice and holds its memory once; the server's own share is nobody's job's.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    box_of(env).set(0, mps=1)
    argv = [MPS_SERVER, "-c", "import sys; sys.stdin.read()"]
    server = env.popen(argv, executable=sys.executable, stdin=subprocess.PIPE)
    box_of(env).add_process(0, 30, pid=server.pid)
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=3000)
    job = env.job(talker, grant, "--memory=3000MiB")
    wait_measured(env, 3000)
    entry = device(env)
    assert (entry["foreign_mib"], entry["free_mib"]) == (30, 6970)
    assert job.finish() == 0
    assert talker.release(grant)["peak_mib"] == 3000


def test_a_server_that_shows_no_clients_hides_nothing_twice(new_env: NewEnv) -> None:
    """nos#52, nvidia-docker#1593: an old MPS server is listed alone, with its clients' memory.

    What the leases of the card are booked at is not counted again as somebody else's.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    argv = [MPS_SERVER, "-c", "import sys; sys.stdin.read()"]
    server = env.popen(argv, executable=sys.executable, stdin=subprocess.PIPE)
    talker = env.talker()
    talker.acquire("t", memory_mib=3000)
    talker.acquire("t", memory_mib=2000)
    box_of(env).add_process(0, 4500, pid=server.pid)
    talker.acquire("t", memory_mib=5000)
    assert device(env)["free_mib"] == 0


def test_trouble_of_the_sharing_server_is_no_lack_of_memory(new_env: NewEnv) -> None:
    """k8s-device-plugin#720, #764, nvidia-docker#1593: the server died, or takes no more clients.

    The errors 805 to 809 are failures, and 810, by which it ends a client at its limit, is memory.
    """
    run = runner(new_env("nvml:1x10000MiB"))
    lines = [f"echo 'CUDA error: {number}' >&2; exit 1" for number in range(805, 811)]
    done = run("--json", "--memory=1GiB", *lines)
    assert [entry["outcome"] for entry in jobs_of(done)] == ["failed"] * 5 + ["oom"]
