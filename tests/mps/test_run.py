"""Jobs beside an MPS daemon: what they are told, and that they run without one all the same."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import eventually
from tests.mps.fakedaemon import FakeDaemon, install_tool
from tests.supervise.grnrun import GrnRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
COMPUTE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
FOLDER = "CUDA_MPS_PIPE_DIRECTORY"
SHARE = ("-q", "--memory=2000MiB", "--compute=30", "--processes=2")


class Place:
    """A broker that looks for a daemon in one folder, and daemons there."""

    def __init__(self, new_env: Callable[..., BrokerEnv], tmp_path: Path) -> None:
        self.folder = tmp_path / "mps"
        self.env = new_env("sim:2x8000MiB", start=False)
        self.run = GrnRun(self.env, tmp_path)
        # For the broker alone: jobs and their users know nothing of it.
        path = install_tool(tmp_path)
        self._for_broker = {**self.env.environ, "PATH": path, FOLDER: str(self.folder)}
        self._daemons: list[FakeDaemon] = []

    def broker(self) -> None:
        """Start the broker."""
        self.env.start(env=self._for_broker)

    def daemon(self, **options: Any) -> FakeDaemon:
        """Start a daemon."""
        self._daemons.append(FakeDaemon(self.folder, **options))
        return self._daemons[-1]

    def told(self, *args: str, **environ: str) -> dict[str, str]:
        """Run a job; return its environment."""
        code = "import os; print('\\0'.join(f'{k}={v}' for k, v in os.environ.items()))"
        done = self.run(*args, "--", sys.executable, "-c", code, environ=environ)
        assert done.returncode == 0, done.stderr
        return dict(text.split("=", 1) for text in done.stdout.decode().strip().split("\0"))

    def close(self) -> None:
        """End the daemons."""
        self.run.close()
        for daemon in self._daemons:
            daemon.kill()


@pytest.fixture
def place(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[Place]:
    """Return a place without a daemon, whose broker does not run yet."""
    made = Place(new_env, tmp_path)
    yield made
    made.close()


def test_a_daemon_that_answers_holds_jobs_to_their_shares(place: Place) -> None:
    """Memory and multiprocessors of each process follow the lease; the smaller value wins."""
    place.daemon()
    place.broker()
    told = place.told(*SHARE)
    assert (told[MEMORY], told[COMPUTE]) == ("0=1000M", "15")
    assert told[FOLDER] == str(place.folder)
    assert place.told(*SHARE, **{MEMORY: "0=10M", COMPUTE: "99"})[MEMORY] == "0=10M"


def test_a_daemon_of_which_nothing_can_be_had_changes_nothing(place: Place) -> None:
    """One that hangs is waited for once, at the start, and nothing is pretended."""
    place.daemon(hangs=True)
    place.broker()
    told = place.told(*SHARE)
    assert not {MEMORY, COMPUTE, FOLDER} & set(told)


def test_daemons_come_and_go_while_the_broker_serves(place: Place) -> None:
    """A new one is found while requests come in, and a dead one is believed no longer."""
    place.broker()
    assert MEMORY not in place.told(*SHARE)
    daemon = place.daemon()
    eventually(lambda: place.told(*SHARE).get(MEMORY) == "0=1000M")
    daemon.kill()
    eventually(lambda: MEMORY not in place.told(*SHARE))
    place.daemon()
    eventually(lambda: place.told(*SHARE).get(MEMORY) == "0=1000M")


def test_a_daemon_that_numbers_devices_itself_is_told_them_by_name(place: Place) -> None:
    """Behind a mask of its own an index would mean another device."""
    place.daemon(CUDA_VISIBLE_DEVICES="1,0")
    place.broker()
    told = place.told(*SHARE)
    assert told["CUDA_VISIBLE_DEVICES"] == told["GRN_DEVICES"]


@pytest.mark.parametrize("answers", [True, False])
def test_status_says_what_holds_a_lease(place: Place, answers: bool) -> None:  # noqa: FBT001
    """Whether a limit is enforced or a matter of trust is no secret."""
    if answers:
        place.daemon()
    place.broker()
    talker = place.env.talker()
    grant = talker.acquire(memory_mib=2000, compute=30, processes=2)
    assert grant["enforced_by"] == ("mps" if answers else "cooperative")
    (lease,) = place.env.status()["leases"]
    assert (lease["enforced_by"], lease["compute"]) == (grant["enforced_by"], 30)
    assert place.env.status()["devices"][0]["compute_booked"] == 30
    place.env.kill()
    place.broker()
    (lease,) = place.env.status()["leases"]
    assert (lease["enforced_by"], lease["compute"]) == (grant["enforced_by"], 30)


def test_the_explanation_asks_the_daemon(place: Place) -> None:
    """`--explain` says what would hold the command to its share, and shows the limits."""
    here = {FOLDER: str(place.folder), "PATH": place._for_broker["PATH"]}
    said = place.run("--explain", *SHARE, "--", "true", environ=here).stdout.decode()
    assert "limits: cooperative (no MPS daemon answers" in said
    assert MEMORY not in said
    place.daemon()
    said = place.run("--explain", *SHARE, "--", "true", environ=here).stdout.decode()
    assert f"limits: by the MPS daemon that answers at {place.folder}" in said
    rows = {line.split()[0]: line.split()[1] for line in said.splitlines() if "MPS_" in line}
    assert (rows[MEMORY], rows[COMPUTE]) == ("0=1000M", "15")
    first = place.run("--explain", "--", "true", environ=here).stdout.decode()
    assert "limits: none while it is alone" in first
    assert os.path.exists(place.env.socket) is False
