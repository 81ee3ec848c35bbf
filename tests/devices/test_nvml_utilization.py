"""How busy a card says it is, and with whose work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from grn.devices.base import BusyReading
from grn.devices.nvml.utilization import Utilization
from tests.devices.nvml_machine import opened
from tests.env import eventually
from tests.fakenvml.box import NOT_SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]


def test_it_is_told_with_the_first_look(new_box: NewBox) -> None:
    """Of the card, and of each process that the driver has samples of; then some seconds not."""
    box = new_box("2x10000MiB", util=75)
    box.add_process(0, 300, pid=os.getpid(), sm=40)
    box.add_process(0, 300, pid=1)
    with opened(box) as cards:
        first, second = (reading.busy for reading in cards.ask())
        assert first == BusyReading(75, ((os.getpid(), 40),))
        assert second == BusyReading(75, None)
        assert [reading.busy for reading in cards.ask()] == [None, None]


@pytest.mark.parametrize(
    ("call", "busy"),
    [
        ("nvmlDeviceGetUtilizationRates", BusyReading(None, ((os.getpid(), 40),))),
        ("nvmlDeviceGetProcessUtilization", BusyReading(75, None)),
    ],
)
def test_a_card_that_does_not_tell(new_box: NewBox, call: str, busy: BusyReading) -> None:
    """What it does not say is unknown, not 0, and it is read like any other one."""
    box = new_box(util=75)
    box.add_process(0, 300, pid=os.getpid(), sm=40)
    box.fail(call, code=NOT_SUPPORTED)
    with opened(box) as cards:
        (reading,) = cards.ask()
    assert (reading.state, reading.busy) == ("ok", busy)


def test_a_slice_has_no_figures(new_box: NewBox) -> None:
    """The driver knows them of whole cards."""
    with opened(new_box("1x40GiB,mig=0:20GiB+10GiB")) as cards:
        assert [reading.busy for reading in cards.ask()] == [BusyReading(), BusyReading()]


class _Samples:
    """A binding whose driver hands out these samples."""

    class NVMLError(Exception):
        """Never raised here."""

    def __init__(self, *samples: tuple[int, int, int]) -> None:
        self.asked: list[int] = []
        self._samples = samples

    def nvmlDeviceGetUtilizationRates(self, handle: object) -> Any:  # noqa: N802 - NVML's name
        """Claim what no card can be."""
        del handle
        return type("Rates", (), {"gpu": 4_294_967_295})

    def nvmlDeviceGetProcessUtilization(self, handle: object, since: int) -> list[Any]:  # noqa: N802
        """Return them all."""
        del handle
        self.asked.append(since)
        names = ("pid", "timeStamp", "smUtil")
        return [type("Sample", (), dict(zip(names, x, strict=True))) for x in self._samples]


def test_samples_are_averaged_and_asked_for_once() -> None:
    """Of each process those since the look before; a share above the whole is a driver's defect."""
    binding = _Samples((7, 100, 20), (7, 300, 41), (8, 200, 90), (8, 250, 4_000_000_000))
    use = Utilization(binding, object(), is_slice=False)
    assert use.read() == [None, [7, 30, 8, 90]]
    use.read()
    assert binding.asked == [0, 300]


def test_the_broker_tells_it(new_env: Callable[..., BrokerEnv]) -> None:
    """`grn status --json` has it of devices and leases, `grn metrics` as ratios."""
    env = new_env("nvml:1x10000MiB", start=False)
    assert env.box is not None
    env.box.set(0, util=75)
    env.start()
    talker = env.talker()
    assert env.status()["devices"][0]["utilization"] is None, "nobody looks while it is idle"
    grant = talker.acquire("train", memory_mib=1000)
    job = env.job(talker, grant, "--memory=500MiB")
    job.wait_holding()
    status = eventually(
        lambda: (found := env.status())["devices"][0]["utilization"] is not None and found,
        what="a look at the card's use",
    )
    assert status["devices"][0]["utilization"] == 75
    assert status["leases"][0]["utilization"] in (None, 0), "the driver has no sample of it"
    done = subprocess.run(
        [sys.executable, "-m", "grn", "status", "--json"],
        env=env.environ,
        capture_output=True,
        check=True,
    )
    assert "utilization" in json.loads(done.stdout)["leases"][0]
    job.finish()
