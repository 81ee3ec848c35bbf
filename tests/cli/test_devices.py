"""`grn devices`: the same objects as in `grn status`, with and without a broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.devices.claim import claim
from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    Grn = Callable[..., subprocess.CompletedProcess[str]]
    Shown = Callable[..., dict[str, Any]]

KEYS = {
    *("index", "uuid", "name", "state"),
    *("total_mib", "free_mib", "booked_mib", "measured_mib", "foreign_mib"),
    *("bus_id", "parent", "capabilities"),
}


@pytest.fixture
def shown(tmp_path: Path, clean_environ: None) -> Shown:
    """Return what `grn devices --json` prints on a machine without a broker."""
    del clean_environ

    def run(box: Box | None, *words: str, **variables: str) -> dict[str, Any]:
        driver = box.environ if box is not None else {}
        done = subprocess.run(
            [sys.executable, "-m", "grn", "devices", "--json", *words],
            env={
                **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
                "HOME": str(tmp_path),
                "GRN_SOCKET": str(tmp_path / "none.sock"),
                **driver,
                **variables,
            },
            capture_output=True,
            check=True,
            text=True,
            timeout=4 * PATIENCE_S,
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["schema"] == 1
        assert all(set(device) >= KEYS for device in answer["devices"])
        assert not (tmp_path / "none.sock").exists()
        return answer

    return run


# -- with a broker --------------------------------------------------------------------------------


@pytest.mark.usefixtures("broker")
def test_a_running_broker_is_asked(grn: Grn) -> None:
    """Its devices are shown as `grn status` shows them, objects and all."""
    status = json.loads(grn("status", "--json").stdout)
    answer = json.loads(grn("devices", "--json").stdout)
    assert answer["devices"] == status["devices"]
    assert answer["warnings"] == status["warnings"]
    assert answer["broker"] == status["broker"]


def test_a_broker_tells_what_its_driver_could_be_asked(
    new_env: Callable[..., BrokerEnv],
) -> None:
    """The capability probe, the bus and the parent of a slice reach the status."""
    env = new_env("nvml:1x24GiB,1x80GiB,mig=1:20GiB")
    assert env.box is not None
    card, part = env.status()["devices"]
    assert dict(card["capabilities"])["memory"] == "v2"
    assert card["bus_id"] == "00000000:01:00.0"
    assert (card["parent"], part["parent"]) == (None, env.box.uuid(1))


@pytest.mark.usefixtures("broker")
def test_devices_that_are_named_are_shown_instead(grn: Grn) -> None:
    """`--devices` asks about those, whatever a broker manages."""
    answer = json.loads(grn("devices", "--json", "--devices", "sim:1x3GiB").stdout)
    assert [device["total_mib"] for device in answer["devices"]] == [3072]
    assert answer["broker"] is None


def test_a_broker_that_hangs_is_said(env: BrokerEnv, grn: Grn) -> None:
    """The devices are shown without it, with a warning that it does not answer."""
    os.kill(env.start(), signal.SIGSTOP)
    try:
        answer = json.loads(grn("devices", "--json").stdout)
    finally:
        os.kill(env.pid, signal.SIGCONT)
    assert len(answer["devices"]) == 2
    assert env.socket in answer["warnings"][0]


# -- without one ----------------------------------------------------------------------------------


def test_no_driver_is_no_devices(shown: Shown) -> None:
    """The reason is a warning."""
    answer = shown(None)
    if answer["devices"]:
        pytest.skip("this machine has NVIDIA cards")
    assert len(answer["warnings"]) == 1


def test_simulated_devices_are_shown_as_described(shown: Shown, tmp_path: Path) -> None:
    """Slices, foreign memory and lost cards are there; the described folder is not made."""
    folder = tmp_path / "sim"
    spec = f"sim:2x16GiB,1x8GiB,mig=1:5GiB+4GiB,foreign=0:1GiB,lost=2,dir={folder}"
    devices = shown(None, GRN_DEVICES=spec)["devices"]
    assert [device["total_mib"] for device in devices] == [16384, 5120, 4096, 8192]
    assert (devices[0]["foreign_mib"], devices[0]["free_mib"]) == (1024, 15360)
    assert devices[3]["state"] == "lost"
    assert devices[1]["parent"] is not None
    assert not folder.exists()


def test_a_slow_driver_that_is_simulated_is_not_waited_for(shown: Shown) -> None:
    """How slow it would be is no reason to wait just to list it."""
    assert len(shown(None, GRN_DEVICES="sim:1x8GiB,slow=100000")["devices"]) == 1


def test_unknown_use_is_not_nothing(shown: Shown) -> None:
    """Without a figure from the driver, free and foreign are unknown."""
    (device,) = shown(None, GRN_DEVICES="sim:1x8GiB,totals=no")["devices"]
    assert (device["free_mib"], device["foreign_mib"]) == (None, None)


def test_a_driver_is_asked_without_a_broker(shown: Shown, new_box: Callable[..., Box]) -> None:
    """Use, capabilities, bus; nothing is booked, and all that is used is others'."""
    box = new_box("2x24GiB")
    box.add_process(0, 18000, pid=os.getpid())
    first, second = shown(box)["devices"]
    assert (first["uuid"], first["foreign_mib"], first["booked_mib"]) == (box.uuid(0), 18000, 0)
    assert second["free_mib"] == 24576 - int(24576 * 0.02)
    assert dict(second["capabilities"])["process memory"] == "listed"


def test_the_mask_narrows(shown: Shown, new_box: Callable[..., Box]) -> None:
    """Devices come in the order of this shell's mask; what is wrong with it is a warning."""
    box = new_box("3x24GiB")
    answer = shown(box, CUDA_VISIBLE_DEVICES="2,0,9")
    assert [device["index"] for device in answer["devices"]] == [2, 0]
    assert "entry 3" in answer["warnings"][0]


def test_what_is_left_out_is_explained(shown: Shown, new_box: Callable[..., Box]) -> None:
    """Prohibited, lost, and another broker's cards each have a warning."""
    box = new_box("4x24GiB,lost=1")
    box.set(0, mode=2)
    claims = claim([box.uuid(2)])
    try:
        answer = shown(box)
    finally:
        claims.close()
    assert [device["index"] for device in answer["devices"]] == [3]
    text = "\n".join(answer["warnings"])
    assert "card 0 is in prohibited compute mode" in text
    assert "card 1 is not managed" in text
    assert f"{box.uuid(2)} is managed by another broker (pid {os.getpid()}" in text


def test_looking_claims_nothing(shown: Shown, new_box: Callable[..., Box]) -> None:
    """A broker can start on the devices afterwards."""
    box = new_box("1x24GiB")
    assert len(shown(box)["devices"]) == 1
    claims = claim(box.uuids)
    try:
        assert claims.held == tuple(box.uuids)
    finally:
        claims.close()


# -- as text --------------------------------------------------------------------------------------


def test_text_is_plain_and_narrow(grn: Grn) -> None:
    """80 columns, no escape sequence, and with -v all that is known of a device."""
    done = grn("devices", "-v", "--devices", "sim:1x16GiB,1x80GiB,mig=1:20GiB")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert "MIG slice of" in done.stdout
    assert "no broker)" in done.stdout


def test_a_bad_description_is_said(grn: Grn) -> None:
    """It is a usage error with what would do."""
    done = grn("devices", "--devices", "sim:16")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'sim:16'" in done.stderr
    assert "4x16GiB" in done.stderr
