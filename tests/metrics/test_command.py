"""`grn metrics`: printed once, as a file, and as a file that is kept up to date."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.parser import text_string_to_metric_families

from grn.broker.observers import EVENTS_KEPT
from grn.errors import PathError
from grn.metrics.textfile import TextFile
from grn.watching import Watch
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

    Run = Callable[..., subprocess.CompletedProcess[str]]
    Start = Callable[..., subprocess.Popen[str]]


def figures(text: str) -> dict[str, float]:
    """Sum each figure up over its labels; a text that was cut short is no text."""
    assert text.endswith("\n")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def of(path: Path) -> dict[str, float]:
    """Read a file's figures; none while it is not there."""
    return figures(path.read_text(encoding="utf-8")) if path.exists() else {}


# -- once -----------------------------------------------------------------------------------------


def test_printed_once(env: BrokerEnv, metrics: Run) -> None:
    """The state, and all that happened since the broker's start."""
    talker = env.talker()
    talker.release(talker.acquire("train", memory_mib=100))
    talker.acquire("train", memory_mib=8192)
    talker.status()
    done = metrics()
    assert (done.returncode, done.stderr) == (0, "")
    told = figures(done.stdout)
    assert told["grn_broker_up"] == 1
    assert told["grn_device_memory_booked_bytes"] == 8 << 30
    assert (told["grn_grants_total"], told["grn_ends_total"]) == (2, 1)
    assert told["grn_broker_latency_seconds_count"] == 2


def test_what_is_forgotten_is_not_counted(env: BrokerEnv, metrics: Run) -> None:
    """A counter of the last thousand events would fall: none is told, and why is said."""
    talker = env.talker()
    for ticket in talker.ask_many(EVENTS_KEPT // 2 + 1, "train", memory_mib=10, gpus=9):
        talker.next(ticket)
    for ticket in talker.ask_many(EVENTS_KEPT // 2 + 1, "train", memory_mib=10, gpus=9):
        talker.next(ticket)
    done = metrics()
    assert done.returncode == 0
    assert "nothing is counted here" in done.stderr
    told = figures(done.stdout)
    assert told["grn_broker_up"] == 1
    assert not [name for name in told if name.endswith(("_total", "_count"))]


def test_without_a_broker(env: BrokerEnv, metrics: Run, tmp_path: Path) -> None:
    """It is an error, and a file says that there is none: an old state would be a lie."""
    env.stop()
    assert metrics().returncode == 125
    path = tmp_path / "grn.prom"
    assert metrics("--textfile", str(path)).returncode == 0
    assert of(path) == {"grn_broker_up": 0.0}
    assert env.broker is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--textfile", "grn.txt"], "whose name ends in .prom"),
        (["--every", "5"], "--every needs --textfile"),
        (["--every", "0", "--textfile", "a.prom"], "not between 0.1 and 3600"),
        (["--textfile", "/nowhere/a.prom"], "/nowhere is no folder"),
    ],
)
def test_what_makes_no_sense(metrics: Run, words: list[str], said: str) -> None:
    """It is said before anything is done."""
    done = metrics(*words)
    assert done.returncode != 0
    assert said in done.stderr


def test_without_the_library(env: BrokerEnv) -> None:
    """The error says what to install."""
    hide = "import sys; sys.modules['prometheus_client'] = None"
    code = f"{hide}; from grn.cli.main import main; sys.exit(main(['metrics']))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'grn-plugins[metrics]'" in done.stderr


# -- as a file ------------------------------------------------------------------------------------


def test_a_file_that_node_exporter_can_read(metrics: Run, tmp_path: Path) -> None:
    """It may be read by everybody, whatever the umask, and nothing lies beside it."""
    path = tmp_path / "grn.prom"
    before = os.umask(0o077)
    try:
        assert metrics("--textfile", str(path)).returncode == 0
    finally:
        os.umask(before)
    assert of(path)["grn_broker_up"] == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".grn.prom")]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    """What was there stays, no half of a new one is left, and the error names the file."""
    path = tmp_path / "grn.prom"
    path.mkdir()
    with pytest.raises(PathError, match=r"grn\.prom cannot be written"):
        TextFile(str(path)).write(b"x 1\n")
    assert os.listdir(tmp_path) == ["grn.prom"]


def test_it_follows_what_happens(env: BrokerEnv, following: Start, tmp_path: Path) -> None:
    """Leases come and go in the file; what is read is whole at any moment."""
    path = tmp_path / "grn.prom"
    following(str(path))
    eventually(lambda: of(path).get("grn_broker_up"), what="a first text")
    talker = env.talker()
    grant = talker.acquire("train", memory_mib=100)
    eventually(lambda: of(path).get("grn_lease_memory_booked_bytes"), what="the lease")
    talker.release(grant)
    eventually(lambda: "grn_lease_memory_booked_bytes" not in of(path), what="its end")
    eventually(lambda: of(path).get("grn_ends_total") == 1, what="the end, counted")
    assert of(path)["grn_grants_total"] == 1


def test_sigterm_leaves_a_whole_file(env: BrokerEnv, following: Start, tmp_path: Path) -> None:
    """With what happened up to the end; status 0; nothing beside it."""
    path = tmp_path / "grn.prom"
    process = following(str(path), every=3600)
    eventually(lambda: of(path).get("grn_broker_up"), what="a first text")
    before = of(path)
    talker = env.talker()
    talker.acquire("train", memory_mib=100)
    with Watch(env.socket, since=0) as watch:  # who watches beside it was told: so was it
        while (told := watch.next(PATIENCE_S)) is not None and told[1]["event"] != "granted":
            pass
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    assert "grn_grants_total" not in before
    assert of(path)["grn_grants_total"] == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".grn.prom")]


def test_ctrl_c_ends_it_as_other_programs(env: BrokerEnv, following: Start, tmp_path: Path) -> None:
    """By its signal, after a last text."""
    del env
    path = tmp_path / "grn.prom"
    process = following(str(path), every=3600)
    eventually(lambda: of(path).get("grn_broker_up"), what="a first text")
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == -signal.SIGINT
    assert of(path)["grn_broker_up"] == 1


def test_a_broker_that_comes_back(env: BrokerEnv, following: Start, tmp_path: Path) -> None:
    """While it is away the file says so; counters go on."""
    path = tmp_path / "grn.prom"
    following(str(path))
    eventually(lambda: of(path).get("grn_broker_up"), what="a first text")
    talker = env.talker()
    talker.release(talker.acquire("train", memory_mib=100))
    eventually(lambda: of(path).get("grn_ends_total") == 1, what="a first end")
    env.kill()
    eventually(lambda: of(path).get("grn_broker_up") == 0, what="that it is away")
    assert of(path)["grn_ends_total"] == 1
    assert "grn_device_leases" not in of(path)
    env.start()
    eventually(lambda: of(path).get("grn_broker_up") == 1, what="that it is back")
    talker = env.talker()
    talker.release(talker.acquire("train", memory_mib=100))
    eventually(lambda: of(path).get("grn_ends_total") == 2, what="a second end")
