"""What a driver does not say, or says in another way: WSL2, shared memory, containers, old drivers."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually
from tests.fakenvml.box import NO_FUNCTION, NO_PERMISSION
from tests.reports.scene import (
    FAST,
    box_of,
    device,
    jobs_of,
    learn,
    profile,
    python,
    runner,
    wait_measured,
)
from tests.scenarios.standin import Diary, line, touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.reports.scene import NewEnv

    OtherDriver = Callable[..., str]

PROCESSES = tuple(
    f"nvmlDeviceGet{what}RunningProcesses" for what in ("Compute", "Graphics", "MPSCompute")
)
SECOND, THIRD = (tuple(f"{name}_v{k}" for name in PROCESSES) for k in (2, 3))

ROW = "u32 pid; u64 used; u32 gi, ci; } proc2_t;"
LONG_ROW = "u32 pid; u64 used; u32 gi, ci; u64 protected_; } proc2_t;"
FILLED = "p->gi = gi; p->ci = ci; }"
LONG_FILLED = "p->gi = gi; p->ci = ci; p->protected_ = NA64; }"

LIST = """\
import pynvml as N
N.nvmlInit()
print([p.pid for p in N.nvmlDeviceGetComputeRunningProcesses(N.nvmlDeviceGetHandleByIndex(0))])
"""


def with_driver(env: BrokerEnv, folder: str) -> BrokerEnv:
    """Start a broker that finds another driver."""
    env.environ["LD_LIBRARY_PATH"] = folder
    env.start()
    return env


def numbers_in(value: Any) -> list[int]:
    """Return every whole number in a document."""
    return [int(word) for word in re.findall(r"\d+", json.dumps(value))]


# -- no figure by process: WSL2 ---------------------------------------------------------------------


def test_no_figure_is_never_a_number(new_env: NewEnv) -> None:
    """nvitop#55, nvtop#432, WSL#7162, dask/distributed#5343: N/A was read as 17 179 869 184 GiB.

    Sizes are learnt from the rise of the total while a job is alone, siblings then share by their
    bookings, and nowhere is a number that no card can have.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    box_of(env).set(0, procmem="N/A")
    run = runner(env)
    known = learn(run, 4000)
    assert (known["source"], known["estimate_mib"]) == ("device-delta", 4000)
    diary = Diary(run.path("diary"))
    job = line("--memory=4000MiB", f"--until-file={run.path('go')}", diary.option)
    three = run.start("-q", "--type=t", job, job, job)
    diary.wait_for_holds(2)
    (waiter,) = eventually(lambda: env.status()["waiters"], what="a waiter")
    assert "2000 MiB free of 10000" in waiter["reason"]
    (entry,) = env.status()["devices"]
    figures = {key: value for key, value in entry.items() if key.endswith("_mib")}
    assert max(filter(None, figures.values())) == 10000, figures
    touch(run.path("go"))
    _, said = three.communicate(timeout=PATIENCE_S)
    assert three.returncode == 0, said


def test_a_driver_without_any_figure_gives_whole_cards_only(new_env: NewEnv) -> None:
    """nvitop#55, WSL#7162: neither the total nor any process has a figure.

    Unknown is not nothing: nobody shares such a card, and it serves one job after the other.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    box_of(env).set(0, used="N/A", procmem="N/A")
    env.start()
    talker = env.talker()
    first = talker.acquire("t", memory_mib=1000)
    request = talker.ask("t", memory_mib=1000)
    assert not talker.decided([request])
    talker.release(first)
    talker.granted(request)
    assert device(env)["foreign_mib"] in {0, None}


# -- memory that is the host's: GB10 ----------------------------------------------------------------


def test_memory_shared_with_the_host_is_one_pool(new_env: NewEnv) -> None:
    """dra-driver-nvidia-gpu#1073, nvitop#208, gpustat#179, cosmos#180, NeMo-RL#2203: not supported.

    Where a device has no memory of its own it has the host's: jobs run on it, and the RAM that one
    job books is not another one's device memory.
    """
    env = new_env("nvml:1x10000MiB", start=False, ram_reserve="0", machine_ram="600MiB", **FAST)
    box_of(env).set(0, total=None)
    env.start()
    with open("/proc/meminfo", encoding="ascii") as file:
        total_mib = int(file.readline().split()[1]) // 1024
    assert device(env)["total_mib"] == total_mib
    done = runner(env)("--json", "--memory=100MiB", "--", *words("--memory=100MiB", "--seconds=0"))
    assert jobs_of(done)[0]["outcome"] == "ok", done.stderr
    talker = env.talker()
    grant = talker.acquire("t", gpus=None, ram_mib=400)
    request = talker.ask("t", memory_mib=300)
    assert not talker.decided([request])
    talker.release(grant)
    talker.granted(request)


# -- other pid namespaces ---------------------------------------------------------------------------


def test_pids_of_the_host_are_nobodys(new_env: NewEnv) -> None:
    """nvidia-docker#179, #1483, gpustat#117: in a container the driver names pids of the host.

    Nothing is concluded from them: a lone job is measured by the rise of the total, and what it
    holds is not also somebody else's.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    box_of(env).shift_pids(2_000_000)
    env.start()
    known = learn(runner(env), 3000)
    assert (known["source"], known["estimate_mib"]) == ("device-delta", 3000)
    eventually(lambda: device(env)["free_mib"] == 10000, what="all of it is free again")


def test_an_empty_list_in_a_container_hides_no_job(new_env: NewEnv) -> None:
    """nvidia-docker#1460, nvtop#149, container-toolkit#1013: in a container no process is listed.

    The total rises all the same while a lone job runs: that is its size.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    box_of(env).hide_pids()
    env.start()
    run = runner(env)
    end = f"--until-file={run.path('end')}"
    job = run.start("-q", "--type=t", "--", *words("--memory=3000MiB", end))
    entry = eventually(
        lambda: (d := device(env))["measured_mib"] + d["foreign_mib"] and d, what="a rise is seen"
    )
    touch(run.path("end"))
    assert job.wait(PATIENCE_S) == 0
    assert (entry["measured_mib"], entry["foreign_mib"]) == (3000, 0)
    assert profile(env, "t")["source"] == "device-delta"


def test_pids_of_the_host_come_with_advice(new_env: NewEnv) -> None:
    """nvidia-docker#179, container-toolkit#1013: what to do about it was found in threads only."""
    env = new_env("nvml:1x10000MiB", **FAST)
    box_of(env).add_process(0, 1000, pid=2_000_000)
    (warning,) = eventually(lambda: env.status()["warnings"], what="a warning")
    assert "2000000" in warning
    assert "--pid=host" in warning
    assert device(env)["free_mib"] == 9000


# -- old and odd drivers ----------------------------------------------------------------------------


@pytest.mark.parametrize("keeps", [(), SECOND], ids=["no list at all", "lists of version 2"])
def test_a_driver_without_the_calls_of_today(
    new_env: NewEnv, other_driver: OtherDriver, keeps: tuple[str, ...]
) -> None:
    """pynvml#43, k8s-device-plugin#331, nvitop#29, gpustat#107: symbols that are not there.

    What is missing is asked for in its older form; without any, sizes come from the total.
    """
    missing = {*THIRD, *SECOND, *PROCESSES, "nvmlDeviceGetMemoryInfo_v2"} - {*keeps}
    folder = other_driver(without=tuple(missing))
    env = with_driver(new_env("nvml:1x10000MiB", start=False, **FAST), folder)
    run = runner(env)
    assert b"NVMLError_FunctionNotFound" in run("--gpus=none", "--", *python(LIST)).stderr
    known = learn(run, 3000)
    source = "sampled" if keeps else "device-delta"
    assert (known["source"], known["estimate_mib"]) == (source, 3000)


def test_a_driver_too_old_for_health_and_events(new_env: NewEnv, other_driver: OtherDriver) -> None:
    """pynvml#43, gpustat#107: one missing function must not take the others with it."""
    folder = other_driver(
        without=(
            "nvmlDeviceGetRemappedRows",
            "nvmlDeviceGetFieldValues",
            "nvmlDeviceGetTotalEccErrors",
            "nvmlEventSetCreate",
            "nvmlDeviceGetAccountingMode",
            "nvmlDeviceGetMigMode",
            "nvmlDeviceGetComputeMode",
        )
    )
    env = with_driver(new_env("nvml:1x10000MiB", start=False, **FAST), folder)
    assert learn(runner(env), 3000)["source"] == "sampled"
    assert device(env)["state"] == "ok"


def test_a_driver_with_longer_rows(new_env: NewEnv, other_driver: OtherDriver) -> None:
    """nvitop#88, nvitop#181: one driver (535.98) lists processes in longer rows, "PID out of range".

    Rows that cannot be true are not believed: no such pid is ever named, and what they hid is still
    not given to anybody else.
    """
    folder = other_driver(changed={ROW: LONG_ROW, FILLED: LONG_FILLED})
    env = with_driver(new_env("nvml:1x10000MiB", start=False, **FAST), folder)
    run = runner(env)
    assert learn(run, 2000)["estimate_mib"] == 2000
    talker = env.talker()
    grants = [talker.acquire("t", memory_mib=2000) for _ in range(2)]
    jobs = [env.job(talker, grant, "--memory=2000MiB") for grant in grants]
    for job in jobs:
        job.wait_holding()
    entry = eventually(lambda: (d := device(env))["measured_mib"] and d, what="a look at both")
    assert entry["free_mib"] <= 6000
    assert b"4294967295" in run("--gpus=none", "--", *python(LIST)).stdout, "what others read"
    assert 0xFFFFFFFF not in numbers_in(env.status())
    for job, grant in zip(jobs, grants, strict=True):
        assert job.finish() == 0
        talker.release(grant)
    eventually(lambda: device(env)["free_mib"] == 10000, what="all of it is free again")
    assert profile(env, "t")["estimate_mib"] == 2000


@pytest.mark.parametrize("culprit", ["nvidia_ml_py3-7.352.0", "py3nvml-0.2.7", "pynvml-8.0.4"])
def test_another_package_in_the_place_of_the_binding(new_env: NewEnv, culprit: str) -> None:
    """nvitop#1, nvitop#23: three other packages install a module `pynvml`, one over the other.

    The broker does not start on cards that it would misread; the culprit and the cure are named,
    and commands that want no device run.
    """
    env = new_env("nvml:1x10000MiB", start=False)
    run = runner(env)
    with open(run.path("pynvml.py"), "w", encoding="ascii") as file:
        file.write("def nvmlInit(): pass\n")
    (run.folder / f"{culprit}.dist-info").mkdir()
    env.environ |= {"PYTHONPATH": str(run.folder), "GRN_DEVICES": "auto"}
    env.start()
    name = culprit.partition("-")[0].replace("_", "-")
    refused = run("-q", "--memory=1GiB", "true")
    assert refused.returncode == 125
    said = " ".join([*env.status()["warnings"], refused.stderr.decode()])
    assert f"pip uninstall {name}," in said
    assert "--force-reinstall nvidia-ml-py" in said
    assert run("-q", "--gpus=0", "exit 3").returncode == 3


def test_a_figure_that_one_may_not_read(new_env: NewEnv) -> None:
    """gpustat#107, nvidia-docker#1460: no permission, or no function, for one question of many.

    A list that only root may read leaves the total, and the total leaves whole cards.
    """
    env = new_env("nvml:1x10000MiB", start=False, **FAST)
    box_of(env).fail("nvmlDeviceGetComputeRunningProcesses", code=NO_PERMISSION)
    box_of(env).fail("nvmlDeviceGetMPSComputeRunningProcesses", code=NO_FUNCTION)
    env.start()
    run = runner(env)
    assert learn(run, 3000)["source"] == "device-delta"
    wait_measured(env, 0)
