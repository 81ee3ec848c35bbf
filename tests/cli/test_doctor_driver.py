"""`grn doctor` on drivers and cards of all kinds, whatever is broken there."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from grn.clashes import clashing_bindings, clashing_package
from grn.devices.claim import claim
from grn.doctor.driverlook import look
from tests.cli.patient import LONG_S, Machine
from tests.devices.nvml_machine import environment
from tests.env import PATIENCE_S
from tests.fakenvml.box import VERSION_MISMATCH, Box

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    NewBox = Callable[..., Box]


# -- the driver -----------------------------------------------------------------------------------


def test_a_driver_is_described(machine: Machine, new_box: NewBox) -> None:
    """Version, CUDA, library, each card, and who holds what, with user and command."""
    box = new_box("2x24GiB")
    box.add_process(0, 18000, pid=os.getpid())
    report = machine.report(box=box)
    assert report.status == 0
    text = report.text("ok", about="driver")
    assert "570.124.06, CUDA 12.8, 2 cards" in text
    assert box.library in text
    assert box.uuid(1) in report.text("ok", about="device")
    (holder,) = report.answer["holders"]
    assert (holder["device"], holder["pid"], holder["mib"]) == (box.uuid(0), os.getpid(), 18000)
    assert (holder["lease"], bool(holder["user"]), bool(holder["command"])) == (None, True, True)


def test_a_mismatch_after_an_upgrade(machine: Machine, new_box: NewBox) -> None:
    """The library does not fit the kernel module: a problem with its cure."""
    box = new_box()
    box.fail("nvmlInit", code=VERSION_MISMATCH)
    assert "reboot" in machine.report(box=box).text("problem", about="driver")


def test_a_driver_that_is_not_loaded(machine: Machine, new_box: NewBox) -> None:
    """The library alone is a problem, with its cure."""
    box = new_box()
    box.remove_driver()
    assert "modprobe" in machine.report(box=box).text("problem", about="driver")


def test_a_driver_that_hangs_is_said_and_not_waited_for(machine: Machine, new_box: NewBox) -> None:
    """The command ends, though the driver would not answer for ten minutes."""
    box = new_box()
    box.fail("nvmlInit", delay_s=LONG_S)
    started_s = time.monotonic()
    report = machine.report(box=box)
    assert time.monotonic() - started_s < LONG_S / 2
    assert "did not answer" in report.text("problem", about="driver")


def test_a_card_that_hangs_later_costs_only_itself(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found, and then did not answer: the other one has a reading."""
    monkeypatch.setattr("grn.doctor.driverlook.ANSWER_WITHIN_S", 4.0)
    box = new_box("2x24GiB")
    box.fail("nvmlDeviceGetRemappedRows", card=0, delay_s=LONG_S)
    with environment(box.environ):
        found = look(within_s=PATIENCE_S)
    assert list(found.readings) == [box.uuid(1)]


def test_prohibited_and_lost_cards(machine: Machine, new_box: NewBox) -> None:
    """One is a note with the command that cures it, the other a problem."""
    box = new_box("3x24GiB,lost=1")
    box.set(0, mode=2)
    report = machine.report(box=box)
    assert "card 0 is in prohibited compute mode" in report.text("note", about="device")
    assert "nvidia-smi -i 0 -c DEFAULT" in report.text("note", about="device")
    assert "card 1" in report.text("problem", about="device")


def test_the_claim_of_another_broker(machine: Machine, new_box: NewBox) -> None:
    """Who has the card is named; with it all cards are gone, so it is a problem."""
    box = new_box("1x24GiB")
    claims = claim(box.uuids)
    try:
        report = machine.report(box=box)
    finally:
        claims.close()
    text = report.text("problem", about="device")
    assert f"pid {os.getpid()}" in text
    assert "GRN_SOCKET" in text


def test_a_clashing_binding_is_named(machine: Machine, new_box: NewBox, tmp_path: Path) -> None:
    """A `pynvml` that is not the right one, and the package that brought it."""
    (tmp_path / "pynvml.py").write_text("old = True\n")
    (tmp_path / "nvidia_ml_py3-7.352.0.dist-info").mkdir()
    before = os.environ.get("PYTHONPATH")
    path = f"{tmp_path}:{before}" if before else str(tmp_path)
    report = machine.report(box=new_box(), PYTHONPATH=path)
    text = report.text("problem", about="python")
    assert str(tmp_path / "pynvml.py") in text
    assert "pip uninstall nvidia-ml-py3" in text


def test_packages_that_clash_are_found_by_their_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older negotiator and three bindings; the newer `pynvml` brings no module of its own."""
    names = (
        "gpu_resource_negotiator-0.1.dist-info",
        "nvidia_ml_py3-7.352.0.dist-info",
        "py3nvml-0.2.7.egg-info",
        "pynvml-11.5.0.dist-info",
    )
    for name in names:
        (tmp_path / name).mkdir()
    newer = tmp_path / "newer"
    (newer / "pynvml-13.0.1.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(newer), str(tmp_path / "x.zip")])
    assert "pip uninstall gpu-resource-negotiator" in (clashing_package() or "")
    assert clashing_bindings() == [
        (name, str(tmp_path)) for name in sorted(("nvidia-ml-py3", "py3nvml", "pynvml"))
    ]
