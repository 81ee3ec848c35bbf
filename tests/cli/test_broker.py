"""`grn broker` and `grn status` against a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.settings import known_flags

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Grn = Callable[..., subprocess.CompletedProcess[str]]


def test_status_never_starts_a_broker(env: BrokerEnv, grn: Grn) -> None:
    """Without a broker `grn status` says so, ends with 125, prints nothing on stdout, starts none."""
    for words in (["status"], ["status", "--json"]):
        done = grn(*words)
        assert (done.returncode, done.stdout) == (125, "")
        assert "no broker" in done.stderr
        assert env.socket in done.stderr
    assert not os.path.exists(env.socket)


@pytest.mark.usefixtures("broker")
def test_status_json_has_the_promised_keys(grn: Grn) -> None:
    """`--json` is one object of schema 1 with devices, leases, waiters and warnings."""
    status = json.loads(grn("status", "--json").stdout)
    assert status["schema"] == 1
    assert [device["total_mib"] for device in status["devices"]] == [8192, 8192]
    keys = "index uuid name state total_mib free_mib booked_mib measured_mib foreign_mib"
    assert set(keys.split()) <= set(status["devices"][0])
    assert (status["leases"], status["waiters"]) == ([], [])
    assert isinstance(status["warnings"], list)


@pytest.mark.usefixtures("broker")
def test_status_text_shows_each_device(grn: Grn) -> None:
    """The text names every device and says that nothing runs."""
    done = grn("status")
    assert done.stdout.count("Simulated 8 GiB") == 2
    assert "No job runs or waits." in done.stdout
    assert "\x1b" not in done.stdout


def test_a_broker_that_hangs_is_not_taken_for_none(env: BrokerEnv, grn: Grn) -> None:
    """`stop` and `profiles` say that something does not answer, and end with 125."""
    env.start()
    os.kill(env.pid, signal.SIGSTOP)
    try:
        for words in (["broker", "stop"], ["profiles"]):
            done = grn(*words)
            assert (done.returncode, done.stdout) == (125, "")
            assert "not within" in done.stderr
    finally:
        os.kill(env.pid, signal.SIGCONT)


def test_a_full_disk_under_the_output_is_one_line(env: BrokerEnv) -> None:
    """No traceback where what is printed cannot be kept."""
    env.start()
    with open("/dev/full", "wb") as full:
        process = env.popen(
            [sys.executable, "-m", "grn", "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=env.environ,
        )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.count(b"\n")) == (125, 1)
    assert b"No space left" in err


def test_stop_waits_until_the_broker_has_left(env: BrokerEnv, grn: Grn) -> None:
    """`grn broker stop` ends with 0 once the broker leaves, which itself ends with 0."""
    env.start()
    assert grn("broker", "stop").returncode == 0
    assert not os.path.exists(env.socket)
    broker, env.broker = env.broker, None
    assert broker is not None
    assert broker.wait(30) == 0


def test_stop_without_a_broker_is_no_error(grn: Grn) -> None:
    """What is to be stopped and does not run is stopped."""
    done = grn("broker", "stop")
    assert done.returncode == 0
    assert "none runs" in done.stderr


def test_interrupt_ends_the_broker_in_order(env: BrokerEnv) -> None:
    """Ctrl-C on a broker in the foreground is its orderly end."""
    env.start()
    assert env.stop(signal.SIGINT) == 0
    assert not os.path.exists(env.socket)


@pytest.mark.usefixtures("broker")
def test_a_second_broker_is_refused(grn: Grn) -> None:
    """A second broker on the same socket does not start: one line, status 125."""
    done = grn("broker", "--devices=sim:1x1GiB")
    assert done.returncode == 125
    assert "Traceback" not in done.stderr


def test_every_setting_is_an_option(grn: Grn) -> None:
    """`grn broker --help` lists each setting, and not what only our own clients use."""
    text = grn("broker", "--help").stdout
    assert all(flag in text for flag, _metavar, _help in known_flags())
    assert "--ready-fd" not in text


@pytest.mark.parametrize("words", [["--devices=sim:0x"], ["--policy=best"], ["--no-such"], ["go"]])
def test_bad_settings_are_usage_errors(env: BrokerEnv, grn: Grn, words: list[str]) -> None:
    """A bad value or option ends with 2 before anything is started."""
    done = grn("broker", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not os.path.exists(env.socket)
