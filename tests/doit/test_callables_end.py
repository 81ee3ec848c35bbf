"""Python actions whose doit is interrupted, terminated or killed: nothing of them is left."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("doit")

from grn import procs
from tests.doit.dodofolder import RUNNERS
from tests.doit.project import Project
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

SLEEPS = """
    import os
    import signal
    import subprocess
    import time

    STUBBORN = os.environ.get("STUBBORN")


    def sleeps():
        if STUBBORN:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with open("begun", "w") as file:
            file.write(str(os.getpid()))
        try:
            while True:
                time.sleep(100)
        except KeyboardInterrupt:
            with open("interrupted", "w"):
                raise


    @grn_task(memory="1GiB", grace=1 if STUBBORN else 20, isolate="fork" if os.environ["ISOLATE"] == "fork" else True)
    def task_one():
        return {"actions": [sleeps]}
"""


def _alive(marker: str) -> list[str]:
    sign, found = f"RUN={marker}".encode(), []
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        start = procs.start_time(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                ours = sign in file.read().split(b"\0")
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
        if ours and procs.is_alive(pid, start):
            found.append(f"{pid} {words}")
    return found


class Case:
    """One doit run that is ended from outside."""

    def __init__(self, env: BrokerEnv, folder: Path, runner: str, **environ: str) -> None:
        self.name = folder.name
        self.project = Project(env, folder)
        self.project.dodo(SLEEPS)
        environ["RUN"] = self.name
        self.doit = self.project.start(*RUNNERS[runner], environ=environ, start_new_session=True)

    def wait_begun(self) -> None:
        """Wait until its callable runs."""
        eventually(
            lambda: self.doit.poll() is not None or self._begun(), what=f"{self.name} begins"
        )
        assert self.doit.poll() is None, self.doit.communicate()

    def _begun(self) -> bool:
        path = self.project.folder / "begun"
        return path.exists() and bool(path.read_text())

    def gone(self) -> bool:
        """Assert that nothing of it lives."""
        assert _alive(self.name) == []
        return True


def _run(
    new_env: Any, tmp_path: Path, isolate: str, runners: tuple[str, ...], stubborn: str
) -> None:
    env = new_env("sim:1x80000MiB")
    ends: dict[str, Callable[[int], None]] = {
        "int": lambda pid: os.kill(pid, signal.SIGINT),
        "key": lambda pid: os.killpg(pid, signal.SIGINT),
        "term": lambda pid: os.kill(pid, signal.SIGTERM),
        "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    }
    cases = {
        (runner, end): Case(
            env, tmp_path / f"{runner}-{end}", runner, ISOLATE=isolate, STUBBORN=stubborn
        )
        for runner in runners
        for end in ends
    }
    for case in cases.values():
        case.wait_begun()
    for (_, end), case in cases.items():
        ends[end](case.doit.pid)
    for (runner, end), case in cases.items():
        eventually(case.gone, what=f"nothing is left of {runner} {end}")
        assert case.doit.wait() != 0
        interrupted = (case.project.folder / "interrupted").exists()
        assert interrupted or stubborn or end in {"term", "kill"} or runner == "process", (
            runner,
            end,
        )
    eventually(lambda: not env.status()["leases"], what="all leases are given back")


@pytest.mark.parametrize("stubborn", ["", "1"], ids=["willing", "stubborn"])
def test_nothing_is_left_of_a_fresh_process(
    new_env: Callable[..., BrokerEnv], tmp_path: Path, stubborn: str
) -> None:
    """However doit ends, in whichever runner; an interrupt reaches the callable as KeyboardInterrupt."""
    _run(new_env, tmp_path, "fresh", tuple(RUNNERS), stubborn)


@pytest.mark.parametrize("stubborn", ["", "1"], ids=["willing", "stubborn"])
def test_nothing_is_left_of_a_copy(
    new_env: Callable[..., BrokerEnv], tmp_path: Path, stubborn: str
) -> None:
    """The same of a copy of doit's process."""
    _run(new_env, tmp_path, "fork", ("serial", "process"), stubborn)
