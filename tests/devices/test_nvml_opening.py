"""Opening NVIDIA cards: what is found, what is not, and that nothing outlives the broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from grn.devices import canonical_spec, open_backend
from grn.devices.claim import claim
from grn.devices.none import NoneBackend
from grn.devices.nvml import backend as backends
from grn.devices.nvml import nursery as nurseries
from grn.devices.nvml.backend import NvmlBackend
from grn.devices.nvml.opening import inventory
from grn.errors import BrokerUnavailable
from tests.devices.nvml_machine import environment, opened
from tests.env import ROOT, eventually, wait_gone
from tests.fakenvml.box import NO_PERMISSION, UNKNOWN, VERSION_MISMATCH

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grn.devices.base import Backend
    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]

LONG_S = 600.0


def try_open(box: Box, spec: str, **more: str) -> Backend:
    """Open devices in a box's environment, and close them."""
    with environment({**box.environ, **more}):
        backend = open_backend(spec, mask=None, state_dir=box.folder)
        backend.close()
        return backend


def why_none(box: Box, **more: str) -> str:
    """Return why 'auto' finds no devices, after checking that 'nvml' refuses for that reason."""
    found = try_open(box, "auto", **more)
    assert isinstance(found, NoneBackend)
    with pytest.raises(BrokerUnavailable) as refused:
        try_open(box, "nvml", **more)
    reason = found.note.removeprefix("no devices: ").partition("; GRN_DEVICES=")[0]
    assert reason in refused.value.message
    return reason


# -- which devices --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["auto", "", "nvml"])
def test_cards_are_found(new_box: NewBox, spec: str) -> None:
    """Where there is a driver, its cards are what 'auto' means."""
    box = new_box("2x10000MiB")
    with opened(box, spec=spec) as cards:
        assert [info.uuid for info in cards.backend.devices] == box.uuids
        assert cards.states() == ["ok", "ok"]


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [("", "auto"), (" auto ", "auto"), ("none", "none"), ("nvml", "nvml")],
)
def test_a_text_for_devices_has_one_form(spec: str, canonical: str) -> None:
    """Two spellings of one wish are equal."""
    assert canonical_spec(spec) == canonical


def test_a_mask_narrows_and_orders(new_box: NewBox) -> None:
    """Readings come in the order of the devices, which is the mask's; other cards have no worker."""
    box = new_box("3x10000MiB")
    box.add_process(2, 300)
    with opened(box, mask="2,0") as cards:
        assert [info.index for info in cards.backend.devices] == [2, 0]
        readings = cards.ask()
        assert [r.uuid for r in readings] == [box.uuids[2], box.uuids[0]]
        assert [r.used_mib for r in readings] == [300, 0]
        assert len(cards.worker_pids()) == 2


def test_a_mask_of_slices(new_box: NewBox) -> None:
    """Two slices of one card in the mask's order, without the rest of the machine."""
    box = new_box("1x40GiB,1x80GiB,mig=1:20GiB+10GiB+5GiB")
    wanted = [box.uuid(1, 2), box.uuid(1, 0)]
    with opened(box, mask=",".join(wanted)) as cards:
        assert [reading.uuid for reading in cards.ask()] == wanted
        assert cards.states() == ["ok", "ok"]


def test_a_mask_that_hides_all_leaves_a_broker_without_devices(new_box: NewBox) -> None:
    """It answers, and says why there are none."""
    with opened(new_box(), mask="") as cards:
        assert cards.backend.devices == ()
        assert "hides every device" in cards.backend.note
        assert cards.ask() == ()


def test_a_card_that_is_not_ours_is_skipped(new_box: NewBox) -> None:
    """The driver counts cards that this user may not open."""
    box = new_box("2x10000MiB")
    box.fail("nvmlDeviceGetHandleByIndex", code=NO_PERMISSION, card=0)
    with opened(box) as cards:
        assert [(i.uuid, i.index) for i in cards.backend.devices] == [(box.uuids[1], 0)]
        assert "card 0 is not ours" in cards.backend.note


def test_a_card_that_is_lost_from_the_start_costs_no_other_one(new_box: NewBox) -> None:
    """The rest is managed, and the note names it."""
    box = new_box("2x10000MiB,lost=0")
    with opened(box) as cards:
        assert [info.uuid for info in cards.backend.devices] == [box.uuids[1]]
        assert "card 0 is not managed" in cards.backend.note


def test_a_card_that_hangs_from_the_start_costs_no_other_one(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each card is asked by a process of its own, so the others are found in time."""
    monkeypatch.setattr(backends.open_nvml, "__kwdefaults__", {"within_s": 6.0})
    box = new_box("2x10000MiB")
    box.fail("nvmlDeviceGetUUID", card=0, delay_s=LONG_S)
    with opened(box) as cards:
        assert [info.uuid for info in cards.backend.devices] == [box.uuids[1]]
        assert "did not answer" in cards.backend.note


# -- other brokers --------------------------------------------------------------------------------


def test_a_device_of_another_broker_is_left_to_it(new_box: NewBox) -> None:
    """It is not managed twice; the note names who has it."""
    box = new_box("2x10000MiB")
    taken = claim([box.uuids[0]])
    try:
        with opened(box) as cards:
            assert [info.uuid for info in cards.backend.devices] == [box.uuids[1]]
            assert f"pid {os.getpid()}" in cards.backend.note
    finally:
        taken.close()


def test_two_brokers_cannot_have_the_same_cards(new_box: NewBox) -> None:
    """The second one is told who has them and what to do; after the first it gets them."""
    box = new_box()
    with opened(box), pytest.raises(BrokerUnavailable, match=r"pid \d+.*use that one") as refused:
        try_open(box, "auto")
    assert "/run/grn" in refused.value.message
    assert try_open(box, "auto").devices


# -- no devices -----------------------------------------------------------------------------------


def test_without_the_library_nothing_is_started(new_box: NewBox) -> None:
    """A machine without an NVIDIA driver pays nothing for having none."""
    reason = why_none(new_box(), LD_LIBRARY_PATH="")
    assert "libnvidia-ml.so.1 was not found" in reason


def test_without_the_library_where_nobody_can_be_certain(
    new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the linker keeps no list, it is asked; the answer is the same."""
    monkeypatch.setattr(nurseries, "_LINKER_CACHE", "/nonexistent")
    reason = why_none(new_box(), LD_LIBRARY_PATH="")
    assert "libnvidia-ml.so.1 was not found" in reason


def test_the_library_of_wsl_is_found(new_box: NewBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sits in a folder that the linker does not know."""
    box = new_box()
    monkeypatch.setattr(nurseries, "_WSL", box.library)
    assert [info.uuid for info in try_open(box, "auto", LD_LIBRARY_PATH="").devices] == box.uuids


def test_a_driver_that_is_not_loaded(new_box: NewBox) -> None:
    """The library alone is not enough."""
    box = new_box()
    box.remove_driver()
    assert "not loaded" in why_none(box)


@pytest.mark.parametrize(
    ("code", "words"),
    [(VERSION_MISMATCH, "reboot or reload the nvidia module"), (UNKNOWN, "unknown error")],
)
def test_a_driver_that_cannot_be_initialised(new_box: NewBox, code: int, words: str) -> None:
    """The reason is in plain words and names the cure."""
    box = new_box()
    box.fail("nvmlInit", code=code)
    assert words in why_none(box)


def test_a_driver_that_hangs(new_box: NewBox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker starts without devices rather than not at all."""
    monkeypatch.setattr(backends.open_nvml, "__kwdefaults__", {"within_s": 4.0})
    box = new_box()
    box.fail("nvmlInit", delay_s=LONG_S)
    found = try_open(box, "auto")
    assert found.spec == "none"
    assert "did not answer within 4 s" in found.note


@pytest.mark.parametrize("culprit", ["nvidia_ml_py3-7.352.0", "pynvml-8.0.4"])
def test_another_package_in_the_place_of_the_binding(
    new_box: NewBox, tmp_path: Path, culprit: str
) -> None:
    """Its name and the cure are told."""
    (tmp_path / "pynvml.py").write_text("def nvmlInit(): pass\n", encoding="ascii")
    (tmp_path / f"{culprit}.dist-info").mkdir()
    reason = why_none(new_box(), PYTHONPATH=str(tmp_path))
    name = culprit.partition("-")[0].replace("_", "-")
    assert f"pip uninstall {name}," in reason
    assert "--force-reinstall nvidia-ml-py" in reason


def test_no_binding_at_all(new_box: NewBox, tmp_path: Path) -> None:
    """A module that cannot be imported is named."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('broken')\n", encoding="ascii")
    assert "nvidia-ml-py cannot be imported (broken)" in why_none(
        new_box(), PYTHONPATH=str(tmp_path)
    )


# -- the inventory --------------------------------------------------------------------------------


def test_the_inventory_lists_all_cards(new_box: NewBox) -> None:
    """Also those that no broker would manage, each with what keeps it from it."""
    box = new_box("4x10000MiB,mig=2:5000MiB,mode=3:prohibited")
    box.fail("nvmlDeviceGetHandleByIndex", code=NO_PERMISSION, card=0)
    with environment(box.environ):
        found = inventory()
    assert (found.problem, found.driver, found.cuda) == ("", "570.124.06", "12.8")
    assert [card.index for card in found.cards] == [0, 1, 2, 3]
    denied, plain, divided, prohibited = found.cards
    assert denied.denied
    assert denied.problem
    assert plain.uuid == box.uuid(1)
    assert divided.divided
    assert [part.uuid for part in divided.devices] == [box.uuid(2, 0)]
    assert prohibited.prohibited


def test_the_inventory_says_why_it_is_empty(new_box: NewBox) -> None:
    """No driver is an answer, not an error."""
    box = new_box()
    box.remove_driver()
    with environment(box.environ):
        found = inventory()
    assert "not loaded" in found.problem
    assert found.cards == ()


# -- the end --------------------------------------------------------------------------------------

BROKER = """
import asyncio, sys
from grn.devices import open_backend

async def main():
    backend = open_backend("nvml", mask=None, state_dir=sys.argv[1])
    answer = asyncio.get_running_loop().create_future()
    backend.ask(answer.set_result, health=False)
    await answer
    numbers = [link.worker.number for link in backend.links]
    while not all(pids := [backend.nursery.pids[number] for number in numbers]):
        await asyncio.sleep(0.01)
        backend.nursery.heard()
    print(backend.nursery.zygote_pid, *pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_helpers_die_with_a_broker_that_is_killed(new_box: NewBox) -> None:
    """Nothing prepares for SIGKILL, and nothing is left: no zygote, no worker."""
    box = new_box("2x10000MiB")
    broker = subprocess.Popen(
        [sys.executable, "-c", BROKER, box.folder],
        env={**os.environ, **box.environ},
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert broker.stdout is not None
        helpers = [int(word) for word in broker.stdout.readline().split()]
        assert len(helpers) == 3, "a zygote and a worker for each card"
    finally:
        broker.send_signal(signal.SIGKILL)
        broker.communicate()
    for pid in helpers:
        wait_gone(pid)


def test_a_stop_of_the_whole_group_is_for_the_broker(new_box: NewBox) -> None:
    """A Ctrl-C or a service's stop reaches the helpers too; they end when the broker says so."""
    with opened(new_box()) as cards:
        cards.ask()
        helpers = [cards.backend.nursery.zygote_pid, *cards.worker_pids()]
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            for pid in helpers:
                os.kill(pid, number)
        assert cards.states() == ["ok"]
        assert [cards.backend.nursery.zygote_pid, *cards.worker_pids()] == helpers


def test_what_is_left_out_has_no_worker(new_box: NewBox) -> None:
    """Workers of cards that the mask hides end when the broker has chosen."""
    box = new_box("3x10000MiB")
    with opened(box, mask="1") as cards:
        assert isinstance(cards.backend, NvmlBackend)

        def only_one_is_left() -> bool:
            cards.backend.nursery.heard()
            return list(cards.backend.nursery.pids.values()) == cards.worker_pids()

        eventually(only_one_is_left)
