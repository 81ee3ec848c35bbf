"""`grn selftest`, behind a stand-in driver and a stand-in libcuda, honest ones and liars."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import UsageError
from grn.selftest.ground import PREFIX
from tests.cli.hasty import BUDGET_S
from tests.env import PATIENCE_S, ROOT, eventually, wait_gone
from tests.fakecuda.build import build
from tests.fakenvml.build import compiler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

OWN_CHECKS = ["lands", "peak", "share", "kill", "masks", "oom"]

TORCH = """
import types
from grn.selftest.cuda import Cuda

__version__ = "2.9.9"
version = types.SimpleNamespace(cuda={cuda!r})
uint8 = None
cuda = types.SimpleNamespace(synchronize=lambda: None)

class Tensor:
    def __init__(self, size):
        self.held = Cuda()
        self.held.hold(0, {mib} + (size >> 20))

    def fill_(self, value):
        pass

def empty(size, dtype, device):
    {first}
    return Tensor(size)
"""
"""A stand-in for PyTorch, which takes some memory for itself."""


@pytest.fixture(scope="session")
def fakecuda(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a stand-in libcuda, built once per session."""
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler here (cc, gcc or clang) to build the stand-in CUDA driver")
    return build(cc, str(tmp_path_factory.mktemp("fakecuda")))


@pytest.fixture
def machine(new_env: NewEnv, fakecuda: str) -> Callable[..., BrokerEnv]:
    """Return a function that makes a machine with a driver and libcuda; no broker runs."""

    def make(cards: str = "1x16GiB", *, lies: str = "") -> BrokerEnv:
        env = new_env(f"nvml:{cards}", start=False)
        env.environ["LD_LIBRARY_PATH"] = f"{fakecuda}:{env.environ['LD_LIBRARY_PATH']}"
        if lies:
            assert env.box is not None
            env.box.set(0, lies=lies)
        return env

    return make


def start(
    env: BrokerEnv, *words: str, program: str = "grn", **environ: str
) -> subprocess.Popen[str]:
    """Start `grn selftest` with these words, where nothing of ours is on the way."""
    temp = os.path.join(env.folder, "tmp")
    os.makedirs(temp, exist_ok=True)
    pipe = subprocess.PIPE
    return env.popen(
        [sys.executable, "-m", program, "selftest", *words],
        stdout=pipe,
        stderr=pipe,
        text=True,
        cwd=temp,
        env={**env.environ, "TMPDIR": temp, "PYTHONPATH": ROOT, **environ},
    )


def selftest(env: BrokerEnv, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end; it leaves no file behind."""
    process = start(env, *words, **environ)
    out, said = process.communicate(timeout=200)
    assert os.listdir(os.path.join(env.folder, "tmp")) == []
    return subprocess.CompletedProcess(words, process.returncode, out, said)


def checks(env: BrokerEnv, *words: str, **environ: str) -> dict[str, dict[str, Any]]:
    """Run it; return its checks by name."""
    done = selftest(env, "--json", *words, **environ)
    found = json.loads(done.stdout)
    return {check["name"]: check for check in found["checks"]}


def only(name: str, env: BrokerEnv, **environ: str) -> dict[str, Any]:
    """Run one check; return how it ended."""
    return checks(env, f"--only={name}", **environ)[name]


def test_all_is_well_on_honest_cards(machine: Callable[..., BrokerEnv]) -> None:
    """Two cards, the second the faster: every check of ours is ok, and the status is 0."""
    env = machine("2x16GiB,order=fastest:1,0")
    done = selftest(env, "--json", *(f"--only={name}" for name in OWN_CHECKS))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert [(check["name"], check["state"]) for check in found["checks"]] == [
        (name, "ok") for name in OWN_CHECKS
    ]
    by_name = {check["name"]: check["numbers"] for check in found["checks"]}
    assert by_name["peak"]["context_mib"] == 300
    assert by_name["masks"] == {"devices": 2, "spellings": ["UUIDs", "numbers"]}
    assert found["versions"]["driver"] == "570.124.06"
    assert (found["schema"], found["verdict"], found["broker"]["private"]) == (1, "ok", True)
    # Nothing of the user's was touched, not even made.
    assert not os.path.exists(env.socket)
    assert not os.path.exists(env.environ["GRN_STATE_DIR"])


@pytest.mark.parametrize(
    ("lie", "check", "words"),
    [
        ("elsewhere", "lands", "booked was device 0, and the driver lists the job's process"),
        ("order", "masks", "CUDA shows device 0, device 1; expected was device 1, device 0"),
        ("keep", "kill", "the driver lists its process"),
        ("twice", "peak", "context 1324 MiB, at most 1024 expected"),
        ("endless", "oom", "device 0 has 16384 MiB and gave 17408 MiB"),
    ],
)
def test_a_fault_of_the_machine_fails_its_check(
    machine: Callable[..., BrokerEnv], lie: str, check: str, words: str
) -> None:
    """What is not as promised is told in words and numbers."""
    result = only(check, machine("2x16GiB,order=fastest:1,0", lies=lie))
    assert result["state"] == "failed", result
    assert words in result["text"]


def test_a_failed_check_does_not_keep_others_from_being_made(
    machine: Callable[..., BrokerEnv],
) -> None:
    """One fails, the next is made; the status is 1, and so says the last line."""
    done = selftest(machine(lies="endless"), "--only=oom", "--only=masks")
    assert done.returncode == 1, done.stdout
    assert "in the order of the mask ... ok" in done.stdout
    assert "1 ok, 1 failed, 0 skipped" in done.stdout.splitlines()[-1]


def test_pids_of_another_namespace_are_no_failure(machine: Callable[..., BrokerEnv]) -> None:
    """In a container the driver names no process of ours: the memory in use tells."""
    env = machine()
    assert env.box is not None
    env.box.hide_pids()
    result = only("lands", env)
    assert result["state"] == "ok", result
    assert "memory in use rose by" in result["text"]


def test_slices_are_tested_one_job_each(machine: Callable[..., BrokerEnv]) -> None:
    """MIG slices are found by UUID; that they are not shared is no failure."""
    found = checks(
        machine("1x80GiB,mig=0:20GiB+20GiB"), "--only=lands", "--only=share", "--only=masks"
    )
    states = {name: check["state"] for name, check in found.items()}
    assert states == {"lands": "ok", "share": "skipped", "masks": "ok"}, found


def test_simulated_devices_pass(env: BrokerEnv) -> None:
    """On simulated devices the same checks are made with simulated programs."""
    found = checks(env, "--devices=sim:2x8GiB")
    assert [name for name, check in found.items() if check["state"] == "ok"] == OWN_CHECKS
    assert found["peak"]["numbers"]["context_mib"] == 0


def test_without_a_device_it_says_what_was_found(env: BrokerEnv) -> None:
    """No device is no pass: the status is 125, with the reason and what to ask next."""
    done = selftest(env, "--devices=none")
    assert (done.returncode, done.stdout) == (125, "")
    assert "no device to test: no devices: devices none was chosen" in done.stderr
    assert "grn doctor" in done.stderr


def test_without_libcuda_nothing_is_claimed(new_env: NewEnv) -> None:
    """A driver without libcuda: all is skipped with the reason, and the status is 125."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        env = new_env("nvml:1x16GiB", start=False)
    else:
        pytest.skip("this machine has a libcuda")
    done = selftest(env, "--only=lands", "--only=oom")
    assert done.returncode == 125, done.stdout
    assert done.stdout.count("skipped: libcuda.so.1 cannot be loaded") == 2


def test_a_running_broker_is_tested_and_left_as_it_was(
    machine: Callable[..., BrokerEnv],
) -> None:
    """Who has the devices keeps them: the jobs go through that broker, which then forgets them."""
    env = machine()
    env.start()
    with env.client() as client:
        client.profiles("set", type="mine", device_model="Simulated 16 GiB", memory_mib=700)
        done = selftest(env, "--json", "--only=peak", "--only=oom")
        assert done.returncode == 0, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert not found["broker"]["private"]
        assert f"the one that runs (pid {env.pid})" in done.stderr
        types = {entry["type"] for entry in client.profiles()}
    assert "mine" in types
    assert not [name for name in types if name.startswith(PREFIX)]


def test_inside_a_job_it_refuses(env: BrokerEnv) -> None:
    """A job has its share already, and what would be tested is not what is promised."""
    done = selftest(env, GRN_LEASE="a-1")
    assert (done.returncode, done.stdout) == (UsageError.exit_status, "")
    assert "runs inside a job" in done.stderr


def write_torch(env: BrokerEnv, *, cuda: str | None = "12.8", first: str = "pass") -> str:
    """Write a stand-in for PyTorch; return the folder for PYTHONPATH."""
    folder = os.path.join(env.folder, "site")
    os.mkdir(folder)
    with open(os.path.join(folder, "torch.py"), "w", encoding="utf-8") as file:
        file.write(TORCH.format(cuda=cuda, mib=100, first=first))
    return folder


def test_a_framework_is_measured(machine: Callable[..., BrokerEnv]) -> None:
    """Its allocation, its own needs and the context, with its version."""
    env = machine()
    result = only("torch", env, PYTHONPATH=write_torch(env))
    assert result["state"] == "ok", result
    assert result["numbers"]["besides_mib"] == 400
    assert result["text"].startswith("PyTorch 2.9.9: 912 MiB measured for 512 MiB")


def test_a_framework_without_cuda_is_skipped(machine: Callable[..., BrokerEnv]) -> None:
    """A build for the CPU is no failure of GRN."""
    env = machine()
    result = only("torch", env, PYTHONPATH=write_torch(env, cuda=None))
    assert result["state"] == "skipped", result
    assert "built without CUDA" in result["text"]


def test_the_report_tells_nothing_of_the_user(
    machine: Callable[..., BrokerEnv], tmp_path: Path
) -> None:
    """Paths in errors lose the home; the file has what was printed."""
    env = machine()
    home = os.path.join(env.folder, "home-of-alice")
    first = f"raise OSError('{home}/lib/x.so: bad; see /home/bob/y and /data/alice/z')"
    site = write_torch(env, first=first)
    report = str(tmp_path / "report.txt")
    words = ("--only=torch", f"--report={report}")
    done = selftest(env, *words, PYTHONPATH=site, HOME=home, USER="alice")
    assert done.returncode == 1, done.stdout + done.stderr
    with open(report, encoding="utf-8") as file:
        assert file.read() == done.stdout
    assert "OSError: ~/lib/x.so: bad; see ~/y and /data/<user>/z" in done.stdout
    assert "alice" not in done.stdout
    assert "bob" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_half_way_it_leaves_nothing(
    machine: Callable[..., BrokerEnv], number: signal.Signals
) -> None:
    """Its jobs, its broker and its folder go with it."""
    env = machine()
    process = start(env, "--only=peak")
    assert env.box is not None
    folder = env.box.procs
    eventually(lambda: any(n.startswith("cuda-") for n in os.listdir(folder)), what="a job")
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode != 0
    wait_gone(process.pid)
    assert os.listdir(os.path.join(env.folder, "tmp")) == []
    # That no process is left is looked at when the environment closes.


# -- what hangs -----------------------------------------------------------------------------------


def own_broker(env: BrokerEnv) -> int:
    """Return the broker that a selftest has started for itself; 0 if there is none."""
    folder = os.path.join(env.folder, "tmp").encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if b"broker" in words and any(word.startswith(b"--socket=" + folder) for word in words):
            return int(name)
    return 0


def started_in(env: BrokerEnv) -> list[int]:
    """Return the processes that have this environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                found += [int(name)] if env.marker.encode() in file.read() else []
        except OSError:  # it has ended, or is not ours
            continue
    return found


def test_a_stuck_driver_is_named_as_such(machine: Callable[..., BrokerEnv]) -> None:
    """Not "no room": the device and the reason for which it cannot be given; nothing was checked."""
    env = machine()
    assert env.box is not None
    env.start()
    env.box.fail(delay_s=3600)
    eventually(lambda: env.status()["devices"][0]["state"] == "stale", what="it is stale")
    done = selftest(env, "--only=lands", "--only=masks")
    assert done.returncode == 125, done.stdout
    why = (
        r"skipped: no device can be given now: device 0 is stale \(the driver (has|did) not answer"
    )
    assert len(re.findall(why, done.stdout)) == 2, done.stdout
    assert "the driver was not asked: it does not answer within 10 s" in done.stdout


def test_a_lost_device_is_named_as_such(machine: Callable[..., BrokerEnv]) -> None:
    """The state and the driver's reason stand where the check's result would."""
    env = machine()
    assert env.box is not None
    env.start()
    env.lose(0)
    eventually(lambda: env.status()["devices"][0]["state"] == "lost", what="it is lost")
    done = selftest(env, "--only=lands")
    assert done.returncode == 125, done.stdout
    assert "device 0 is lost (the driver lost the GPU" in done.stdout


def test_a_broker_that_hangs_does_not_hold_it_up(machine: Callable[..., BrokerEnv]) -> None:
    """It ends in its time, says that the broker hangs, and ends that broker, which is its own."""
    env = machine()
    begun_s = time.monotonic()
    process = start(env, program="tests.cli.hasty")
    assert env.box is not None
    folder = env.box.procs
    eventually(lambda: any(n.startswith("cuda-") for n in os.listdir(folder)), what="a job")
    broker = eventually(lambda: own_broker(env), what="the broker that it has started for its jobs")
    os.kill(broker, signal.SIGSTOP)
    out, said = process.communicate(timeout=4 * BUDGET_S)
    assert time.monotonic() - begun_s < BUDGET_S + 5, "it took longer than it may"
    assert process.returncode in {0, 1}, out + said  # 0 if it was done but for the end
    assert "has not answered" in out, out + said
    wait_gone(broker)
    # Those who were killed with it, and by the kernel, take a moment to go.
    eventually(lambda: not started_in(env), what="nothing of it is left")
    assert os.listdir(os.path.join(env.folder, "tmp")) == []


def test_its_broker_leaves_by_itself_when_it_was_killed(env: BrokerEnv) -> None:
    """Whoever kills a selftest leaves no broker behind: it has nothing to do, and so it leaves."""
    process = start(env, "--devices=sim:1x8GiB", "--only=peak")
    broker = eventually(lambda: own_broker(env), what="a broker of its own")
    process.kill()
    process.wait(PATIENCE_S)
    wait_gone(broker)
    eventually(lambda: not started_in(env), what="nothing of it is left")
