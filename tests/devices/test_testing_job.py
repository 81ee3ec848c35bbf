"""The stand-in job, as a real process on a simulated machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn.devices import simfolder
from grn.testing.joboptions import timeline
from tests.devices.machines import PATIENCE_S, used, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from grn.devices.simulated import SimulatedBackend
    from tests.devices.machines import Jobs, OpenSim

UUID = "GPU-51d00000-0000-4000-8000-00000000000"


def records(backend: SimulatedBackend) -> list[str]:
    """Return the names of what is written down as held."""
    names = os.listdir(simfolder.procs_path(backend.directory))
    return [name for name in names if not name.startswith(".")]


def test_a_job_holds_its_memory_until_it_ends(sim: OpenSim, jobs: Jobs) -> None:
    """What it takes shows at once, and is gone with it."""
    backend = sim("sim:2x16GiB")
    job = jobs.holding(backend, "--memory", "3GiB", "--device", "1")
    (_, second) = backend.read({}, {})
    assert [(use.pid, use.mib) for use in second.processes or ()] == [(job.pid, 3072)]
    jobs.let_go()
    assert job.wait() == 0
    assert records(backend) == []


def test_a_full_card_is_an_error_of_torch(sim: OpenSim, jobs: Jobs) -> None:
    """The message has the words and figures that people and tools look for."""
    backend = sim("sim:1x16GiB,reserve=1GiB,foreign=0:14GiB")
    status, _, err = jobs.run(backend, "--memory", "2GiB")
    assert status == 1
    assert err.strip() == (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 15.00 GiB of which 1.00 GiB is free."
    )
    assert records(backend) == ["foreign-spec0"]


def test_growth_that_does_not_fit_fails_when_it_is_due(sim: OpenSim, jobs: Jobs) -> None:
    """The plan's first step is held; only the rest is asked for."""
    backend = sim("sim:1x1000")
    status, _, err = jobs.run(backend, "--plan", "0:600 0.05:1200")
    assert status == 1
    assert "Tried to allocate 600.00 MiB." in err
    assert "of which 400.00 MiB is free" in err


@pytest.mark.parametrize(
    ("environ", "indices"),
    [
        ({}, [1, 2, 0]),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, [1, 2, 0]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0, 1, 2]),
        ({"CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [2, 0]),
        ({"CUDA_VISIBLE_DEVICES": f"{UUID}2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, [0]),
    ],
)
def test_masks_mean_what_they_mean_to_cuda(
    sim: OpenSim, jobs: Jobs, environ: dict[str, str], indices: list[int]
) -> None:
    """Numbers follow the device order, UUIDs do not, a bad entry ends the list."""
    backend = sim("sim:1x8113,1x12189,1x12200,order=fastest:1,2,0")
    status, out, _ = jobs.run(backend, "--print-devices", "--seconds", "0", **environ)
    assert status == 0
    assert [f"index={index}" for index in indices] == [line.split()[1] for line in out.splitlines()]


@pytest.mark.parametrize("mask", ["", "-1", "5", "0,0", "NoDevFiles"])
def test_no_visible_device_is_an_error(sim: OpenSim, jobs: Jobs, mask: str) -> None:
    """A job that wants memory fails as a framework would."""
    status, _, err = jobs.run(sim("sim:2x8GiB"), "--memory", "1GiB", CUDA_VISIBLE_DEVICES=mask)
    assert (status, err.strip()) == (1, "RuntimeError: No CUDA GPUs are available")


def test_without_a_machine_the_cure_is_named() -> None:
    """Started by hand, outside GRN, the job says what is missing."""
    environ = {name: text for name, text in os.environ.items() if name != "GRN_SIM_DIR"}
    words = [sys.executable, "-m", "grn.testing.job", "--memory", "1GiB"]
    job = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert job.returncode == 1
    assert "No CUDA GPUs are available (GRN_SIM_DIR is not set" in job.stderr


def test_a_job_without_memory_needs_no_device(sim: OpenSim, jobs: Jobs) -> None:
    """It ends with its own exit code."""
    words = ("--seconds", "0", "--exit-code", "7")
    assert jobs.run(sim("sim:1x8GiB"), *words, CUDA_VISIBLE_DEVICES="")[0] == 7


def test_a_device_that_is_not_there(sim: OpenSim, jobs: Jobs) -> None:
    """cuda:K counts visible devices only."""
    words = ("--memory", "1GiB", "--device", "1")
    status, _, err = jobs.run(sim("sim:2x8GiB"), *words, CUDA_VISIBLE_DEVICES="1")
    assert (status, "invalid device ordinal" in err) == (1, True)


def test_all_devices_can_be_used(sim: OpenSim, jobs: Jobs) -> None:
    """A job of several devices holds its memory on each."""
    backend = sim("sim:3x8GiB")
    jobs.holding(backend, "--memory", "1GiB", "--device", "all", CUDA_VISIBLE_DEVICES="2,0")
    assert used(backend) == [1024, 0, 1024]


def test_a_slice_is_a_device(sim: OpenSim, jobs: Jobs) -> None:
    """Memory of a slice is the slice's, and so is its limit."""
    backend = sim("sim:1x80GiB,mig=0:20GiB+40GiB")
    mask = backend.devices[1].uuid
    jobs.holding(backend, "--memory", "30GiB", CUDA_VISIBLE_DEVICES=mask)
    assert used(backend) == [0, 30720]
    status, _, err = jobs.run(backend, "--memory", "30GiB", CUDA_VISIBLE_DEVICES=mask)
    assert (status, "total capacity of 40.00 GiB" in err) == (1, True)


def test_children_hold_their_own_memory(sim: OpenSim, jobs: Jobs) -> None:
    """Every process pays for itself: the sum is over the tree."""
    backend = sim("sim:1x10000")
    words = ("--memory", "500", "--children", "3", "--child-memory", "400")
    job = jobs.holding(backend, *words)
    (reading,) = backend.read({}, {})
    assert sorted(use.mib or 0 for use in reading.processes or ()) == [400, 400, 400, 500]
    jobs.let_go()
    assert job.wait() == 0
    assert used(backend) == [0]


def test_a_child_that_does_not_fit_fails_the_job(sim: OpenSim, jobs: Jobs) -> None:
    """The whole job ends with status 1, and nothing is held."""
    backend = sim("sim:1x1000")
    words = ("--children", "3", "--child-memory", "400", "--seconds", "0.2")
    status, _, err = jobs.run(backend, *words)
    assert status == 1
    assert err.count("CUDA out of memory") == 1
    assert records(backend) == []


def test_a_killed_job_holds_nothing_and_its_children_go_on(sim: OpenSim, jobs: Jobs) -> None:
    """SIGKILL leaves no memory of the dead, and the orphans keep theirs."""
    backend = sim("sim:1x10000")
    words = ("--memory", "4000", "--children", "2", "--child-memory", "102")
    job = jobs.holding(backend, *words)
    job.kill()
    wait_until(lambda: used(backend) == [204])
    jobs.let_go()
    wait_until(lambda: used(backend) == [0])


def test_a_stopped_job_dies_of_the_signal_and_leaves_no_record(sim: OpenSim, jobs: Jobs) -> None:
    """SIGTERM and SIGINT end it as they end any program, after its memory is given back."""
    backend = sim("sim:1x10000")
    for signum in (signal.SIGTERM, signal.SIGINT):
        job = jobs.holding(backend, "--memory", "4000")
        job.send_signal(signum)
        assert job.wait() == -signum
        assert records(backend) == []


def test_ctrl_c_can_leave_workers_that_hold_memory(sim: OpenSim, jobs: Jobs) -> None:
    """The group gets SIGINT, the parent dies, the workers ignore it."""
    backend = sim("sim:1x10000")
    words = ("--memory", "4000", "--children", "2", "--child-memory", "102")
    job = jobs.holding(backend, *words, "--child-ignore-sigint")
    os.killpg(job.pid, signal.SIGINT)
    assert job.wait() == -signal.SIGINT
    assert used(backend) == [204]


def test_sigint_can_be_ignored(sim: OpenSim, jobs: Jobs) -> None:
    """A stubborn job needs a harder signal."""
    job = jobs.holding(sim("sim:1x10000"), "--memory", "1", "--ignore-sigint")
    job.send_signal(signal.SIGINT)
    jobs.let_go()
    assert job.wait() == 0


@pytest.mark.parametrize(
    ("environ", "mib"),
    [
        ({}, 7500),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"}, 5000),
        ({"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, 100),
        ({"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, 100),
    ],
)
def test_preallocation_takes_a_share_unless_told_not_to(
    sim: OpenSim, jobs: Jobs, environ: dict[str, str], mib: int
) -> None:
    """As JAX and TensorFlow take most of the card at once."""
    backend = sim("sim:1x10000")
    jobs.holding(backend, "--memory", "100", "--preallocate", "0.75", **environ)
    assert used(backend) == [mib]


def test_exclusive_mode_lets_one_process_in(sim: OpenSim, jobs: Jobs) -> None:
    """The second one is turned away, however small, and the first goes on."""
    backend = sim("sim:1x8000,mode=exclusive")
    jobs.holding(backend, "--memory", "100")
    status, _, err = jobs.run(backend, "--memory", "1")
    assert status == 1
    assert "CUDA error: all CUDA-capable devices are busy or unavailable" in err
    assert used(backend) == [100]


def test_a_lost_card_fails_its_job(sim: OpenSim, jobs: Jobs) -> None:
    """Also when it is lost after the job has begun."""
    backend = sim("sim:1x8000")
    simfolder.set_device(backend.directory, 0, state="lost")
    status, _, err = jobs.run(backend, "--memory", "1")
    assert (status, "GPU is lost" in err) == (1, True)


def test_parallel_starters_never_take_more_than_the_card_has(
    sim: OpenSim, jobs: Jobs, tmp_path: Path
) -> None:
    """Of eight that start together exactly those that fit succeed."""
    backend = sim("sim:1x16GiB,foreign=0:1GiB")
    simfolder.set_device(backend.directory, 0, base=1024)
    log, go = tmp_path / "log", tmp_path / "go"
    words = ("--memory", "3GiB", "--until-file", str(go), "--log", str(log))
    started = [jobs.start(backend, *words) for _ in range(8)]
    wait_until(
        lambda: (
            log.exists() and log.read_text().count("hold") + log.read_text().count("failed") == 8
        )
    )
    assert used(backend) == [2048 + 4 * 3072]
    go.touch()
    assert sorted(job.wait() for job in started) == [0] * 4 + [1] * 4


RIVAL = """
import os
from grn.testing.cuda import OutOfMemory, SimulatedCuda
cuda, wins, clashes = SimulatedCuda(os.environ), 0, 0
while wins < 100:
    try:
        cuda.hold(0, 600)
    except OutOfMemory:
        continue
    wins += 1
    clashes += sum(other.mib for other in cuda._others(cuda.device(0))) > 400
    cuda.hold(0, 0)
cuda.release()
print(clashes)
"""


def test_looking_and_taking_are_one_step(sim: OpenSim) -> None:
    """Four rivals for one place: never do two hold it at once."""
    backend = sim("sim:1x1000")
    environ = {**os.environ, **backend.job_env()}
    rivals = [
        subprocess.Popen([sys.executable, "-c", RIVAL], env=environ, stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    assert [rival.communicate(timeout=PATIENCE_S)[0] for rival in rivals] == [b"0\n"] * 4


def test_a_daemon_stays_behind_and_holds_nothing(sim: OpenSim, jobs: Jobs, tmp_path: Path) -> None:
    """It lives in a session of its own, carries the lease's mark and keeps no pipe open."""
    log = tmp_path / "log"
    backend = sim("sim:1x8000")
    words = ("--memory", "100", "--seconds", "0", "--detached-child", "3600", "--log", str(log))
    status, _, _ = jobs.run(backend, *words, GRN_LEASE="mark")
    pid = int(log.read_text().partition("child=")[2].split()[0])
    try:
        assert status == 0
        assert procs.marker(pid) == "mark"
        wait_until(lambda: os.getsid(pid) == pid)
        assert used(backend) == [0]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_variables_are_printed(sim: OpenSim, jobs: Jobs) -> None:
    """So that a test can see what a job was told."""
    words = ("--seconds", "0", "--print-env", "CUDA_VISIBLE_DEVICES", "NOT_SET_HERE")
    _, out, _ = jobs.run(sim("sim:1x8GiB"), *words, CUDA_VISIBLE_DEVICES="0")
    assert out.splitlines() == ["CUDA_VISIBLE_DEVICES=0", "NOT_SET_HERE=<unset>"]


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", "much"),
        ("--plan", "0"),
        ("--spike", "1:2"),
        ("--seconds", "-1"),
        ("--preallocate", "2"),
        ("--device", "first"),
    ],
)
def test_a_wrong_option_is_a_usage_error(sim: OpenSim, jobs: Jobs, words: tuple[str, str]) -> None:
    """Status 2, with the text that was not understood."""
    status, _, err = jobs.run(sim("sim:1x8GiB"), *words)
    assert status == 2
    assert words[1] in err


def test_spikes_stand_on_top_of_the_plan() -> None:
    """Each change of the total is one step."""
    steps = timeline([(0.0, 100), (2.0, 300)], [(1.0, 50, 0.5), (1.9, 10, 0.2)])
    assert steps == [(0.0, 100), (1.0, 150), (1.5, 100), (1.9, 110), (2.0, 310), (2.1, 300)]


def test_it_starts_light() -> None:
    """Tests start hundreds of these: nothing heavy is imported."""
    code = (
        "import sys, grn.testing.job\n"
        "heavy = {'typing', 'dataclasses', 'asyncio', 'subprocess', 'shutil', 'inspect', 'logging'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    words = [sys.executable, "-S", "-c", code]
    environ = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert (
        subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
        == "[]\n"
    )


def test_devices_can_be_changed_from_a_shell(sim: OpenSim) -> None:
    """Foreign memory comes and goes, and a card can be lost, by one command each."""
    backend = sim("sim:2x24GiB")
    base = [sys.executable, "-m", "grn.testing.devices", "--dir", backend.directory]
    subprocess.run([*base, "foreign", "1", "18GiB"], check=True)
    assert used(backend) == [0, 18432]
    subprocess.run([*base, "free"], check=True)
    subprocess.run([*base, "set", "0", "state=lost"], check=True)
    assert used(backend) == [None, 0]
    wrong = subprocess.run(
        [*base, "foreign", "1", "much"], capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, "much" in wrong.stderr) == (2, True)
