"""Many who want the same cards at the same moment, and what is kept back from all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.env import PATIENCE_S, eventually
from tests.reports.scene import FAST, box_of, device, runner
from tests.scenarios.standin import Diary, touch, words

if TYPE_CHECKING:
    from tests.reports.scene import NewEnv


def test_eight_at_once_never_pick_the_same_card(new_env: NewEnv) -> None:
    """Lightning#16147, FedML#1955, ROCm/container-toolkit#73, netam#113: check, then use.

    Eight commands that start together, each in a process of its own, get the four cards one each;
    the others wait, and no card ever has two.
    """
    env = new_env("nvml:4x10000MiB", **FAST)
    run = runner(env)
    diary = Diary(run.path("diary"))
    job = words("--memory=9000MiB", diary.option, f"--until-file={run.path('go')}")
    commands = [run.start("-q", "--memory=9000MiB", "--", *job) for _ in range(8)]
    held = diary.wait_for_holds(4)
    assert {hold.device for hold in held} == set(box_of(env).uuids)
    eventually(lambda: len(env.status()["waiters"]) == 4, what="four waiters")
    touch(run.path("go"))
    assert [command.wait(PATIENCE_S) for command in commands] == [0] * 8
    assert diary.most_by_device() == dict.fromkeys(box_of(env).uuids, 1)


def test_a_job_that_has_not_allocated_yet_is_not_forgotten(new_env: NewEnv) -> None:
    """Lightning#16147, netam#113: for a minute after its start a job holds nothing on its card.

    What is booked counts from the grant on; a card that looks empty to the driver is not given
    twice.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    diary = Diary(run.path("diary"))
    job = f"{' '.join(words('--memory=6000MiB', diary.option, '--seconds=0.1'))}"
    wait = f"until test -e go; do sleep 0.05; done; exec {job}"
    first = run.start("-q", "--memory=6000MiB", wait)
    eventually(lambda: device(env)["booked_mib"] == 6000, what="the first one is booked")
    second = run.start("-q", "--memory=6000MiB", "--", *words("--memory=6000MiB", diary.option))
    eventually(lambda: env.status()["waiters"], what="the second one waits")
    assert device(env)["measured_mib"] == 0
    assert diary.holds() == []
    touch(run.path("go"))
    assert [first.wait(PATIENCE_S), second.wait(PATIENCE_S)] == [0, 0]
    assert list(diary.most_by_device().values()) == [1]


def test_some_memory_is_never_handed_out(new_env: NewEnv) -> None:
    """WSL#41176: less can be allocated than is reported as free.

    By default two hundredths of a card, and at least 256 MiB, are nobody's; more where it is set. A
    wish for more than the rest is refused with the numbers.
    """
    default = new_env("nvml:1x10000MiB", start=False)
    del default.environ["GRN_HEADROOM"]
    default.start()
    assert device(default)["free_mib"] == 10000 - 256
    more = new_env("nvml:1x10000MiB", headroom="1500MiB")
    assert device(more)["free_mib"] == 8500
    refused = runner(more)("-q", "--memory=9000MiB", "true")
    assert refused.returncode == 125
    assert b"9000" in refused.stderr
    assert b"8500" in refused.stderr


def test_a_display_and_a_game_are_somebody_elses(new_env: NewEnv) -> None:
    """gpustat#117, nvtop#149: only computing processes were counted.

    What draws on a card holds memory as well: it is not handed out, and it is free again with it.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    desktop = env.popen(["sleep", "3600"])
    box_of(env).add_process(0, 2500, pid=desktop.pid, kind="G")
    eventually(lambda: device(env)["foreign_mib"] == 2500, what="memory of the desktop")
    talker = env.talker()
    request = talker.ask("t", memory_mib=8000)
    assert not talker.decided([request])
    desktop.kill()
    desktop.wait()
    talker.granted(request)
