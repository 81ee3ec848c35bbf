"""A queue of its own for each test, with a broker on simulated devices."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.queue.lock import owner_of
from grn.queue.places import Places
from grn.queue.view import queue_object
from tests.env import PATIENCE_S, ROOT, eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv

OVER = {"ok", "failed", "oom", "timeout", "cancelled", "lost"}


class QueueEnv:
    """The queue of one test: commands as a user types them, and a look at what came of it."""

    def __init__(self, env: BrokerEnv) -> None:
        self.env = env
        self.folder = os.path.join(env.folder, "work")
        os.mkdir(self.folder)
        self.places = Places(env.environ["GRN_STATE_DIR"])

    def run(
        self, *words: str, status: int = 0, cwd: str | None = None, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `grn queue …`; it must end with `status`."""
        done = subprocess.run(
            [sys.executable, "-m", "grn", "queue", *words],
            cwd=cwd or self.folder,
            env={**self.env.environ, "PYTHONPATH": ROOT, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def add(self, *words: str, **options: Any) -> list[int]:
        """Add jobs; return their numbers."""
        return [int(line) for line in self.run("add", *words, **options).stdout.split()]

    def python(self, code: str, *words: str, options: tuple[str, ...] = ()) -> int:
        """Add a job of a line of Python."""
        return self.add(*options, "--", sys.executable, "-c", code, *words)[0]

    def holder(self, name: str, *options: str) -> int:
        """Add a job that makes a file `<name>.on` and ends once there is `<name>.off`."""
        code = (
            f"import os, time; open({name + '.on'!r}, 'w').close()\n"
            f"while not os.path.exists({name + '.off'!r}): time.sleep(0.02)"
        )
        return self.python(code, options=("--name", name, *options))

    def is_on(self, name: str) -> bool:
        """Whether the job of that name has begun."""
        return os.path.exists(os.path.join(self.folder, f"{name}.on"))

    def wait_on(self, *names: str) -> None:
        """Wait until jobs have begun."""
        for name in names:
            self.eventually(functools.partial(self.is_on, name), f"{name} begins")

    def off(self, *names: str) -> None:
        """Let jobs end."""
        for name in names:
            open(os.path.join(self.folder, f"{name}.off"), "w", encoding="ascii").close()

    def start(self, *words: str) -> int:
        """Start the owner; return its pid."""
        self.run("start", *words)
        pid = self.owner
        assert pid is not None
        return pid

    def drain(self) -> None:
        """Start an owner that ends when all is done: it may have ended by now."""
        self.run("start", "--drain")

    @property
    def owner(self) -> int | None:
        """The owner's pid."""
        return owner_of(self.places)

    def ls(self) -> dict[str, Any]:
        """Return the list as JSON."""
        found = queue_object(self.places, self.env.settings, everything=True)
        seen: dict[str, Any] = json.loads(json.dumps(found))  # as `ls --json` prints it
        return seen

    def jobs(self) -> dict[int, dict[str, Any]]:
        """Return the jobs by number."""
        return {job["id"]: job for job in self.ls()["jobs"]}

    def job(self, number: int) -> dict[str, Any]:
        """Return one job."""
        return self.jobs()[number]

    def states(self) -> dict[str, str]:
        """Return the states of jobs by name."""
        return {job["name"]: job["state"] for job in self.ls()["jobs"]}

    def order(self) -> list[str]:
        """Return the names of those that have not begun, in their order."""
        waiting = [job for job in self.ls()["jobs"] if job["position"] is not None]
        return [job["name"] for job in sorted(waiting, key=lambda job: job["position"])]

    def until(self, number: int, *states: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        self.eventually(
            lambda: self.job(number)["state"] in states, f"job {number} is {' or '.join(states)}"
        )
        return self.job(number)

    def eventually(self, condition: Callable[[], object], what: str) -> None:
        """Wait until something is true; if it does not come to be, show the list."""
        try:
            eventually(condition, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.shown()}") from error

    def ended(self, number: int) -> dict[str, Any]:
        """Wait for the end of a job."""
        return self.until(number, *OVER)

    def log(self, number: int) -> str:
        """Return what a job wrote."""
        return self.run("log", str(number)).stdout

    def shown(self) -> str:
        """Return the list as people see it, and the owner's log."""
        text = self.run("ls", "--all").stdout
        if os.path.exists(self.places.owner_log):
            with open(self.places.owner_log, encoding="utf-8") as file:
                text += file.read()
        return text

    def close(self) -> None:
        """End all that runs."""
        if os.path.exists(self.places.lock):
            pid = self.owner
            self.run("stop", "--now")
            if pid is not None:
                wait_gone(pid)


@pytest.fixture
def queue(new_env: Callable[..., BrokerEnv]) -> Iterator[Callable[..., QueueEnv]]:
    """Return a function that makes a queue and its broker."""
    made: list[QueueEnv] = []

    def make(devices: str = "sim:2x10000MiB", **more: Any) -> QueueEnv:
        made.append(QueueEnv(new_env(devices, **more)))
        return made[-1]

    yield make
    for each in made:
        each.close()
