"""What `grn doctor` concludes from facts: a table of situations, each with what must be said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from grn.devices.base import DeviceInfo, DeviceReading, HealthReading, ProcessUse
from grn.devices.nvml.found import Card, FoundDevice, Inventory
from grn.doctor.diagnosis import findings
from grn.doctor.facts import (
    BrokerFacts,
    DriverFacts,
    Facts,
    MachineFacts,
    MpsFacts,
    PlaceFacts,
    PythonFacts,
    Seen,
    StateFacts,
)
from grn.doctor.finding import Finding, told
from grn.doctor.holders import lease_of
from grn.rules.health import DeviceHealth

NO_LIBRARY = "no NVIDIA driver: libnvidia-ml.so.1 was not found"
ANSWERS = (("memory", "v2"), ("process memory", "listed"), ("accounting", "on"))


def card(index: int, *answers: tuple[str, str], **more: Any) -> Card:
    """A card of 24 GiB that is one device."""
    uuid = f"GPU-{index}"
    told_of = tuple(dict([*ANSWERS, *answers]).items())
    device = FoundDevice(uuid, "T4", 24576, 0, shares_ram=False, capabilities=told_of)
    return Card(index, uuid=uuid, name="T4", mode=0, devices=(device,), **more)


def machine(*cards: Card, readings: dict[str, DeviceReading] | None = None, **more: Any) -> Facts:
    """A healthy machine with these cards, of which a broker would manage all."""
    devices = [device for each in cards for device in each.devices]
    found = {d.uuid: DeviceReading(d.uuid, "ok", "", 0, ()) for d in devices}
    infos = [DeviceInfo(n, d.uuid, d.name, d.total_mib) for n, d in enumerate(devices)]
    facts = Facts(
        driver=DriverFacts(Inventory("", "570.1", "12.8", cards), found | (readings or {})),
        seen=Seen("nvml" if infos else "none", tuple(infos)),
        place=PlaceFacts("/run/user/1/grn/broker.sock", "in XDG_RUNTIME_DIR", free_mib=10000),
        state=StateFacts("/home/a/.local/state/grn", free_mib=10000, free_files=1000),
        python=PythonFacts("Python 3.11", "/x/grn", {"msgpack": "1.0"}),
        machine=MachineFacts(
            8, 8, 8, 32000, 32000, "cgroup v2", files_soft=1024, files_hard=524288
        ),
    )
    return replace(facts, **more)


def without_driver(**more: Any) -> Facts:
    """A machine without a GPU."""
    return replace(machine(), driver=DriverFacts(Inventory(NO_LIBRARY)), seen=Seen("none"), **more)


def broker(**more: Any) -> BrokerFacts:
    """A broker that runs and manages one device."""
    status: dict[str, Any] = {
        "devices": [{"index": 0, "uuid": "GPU-0", "state": "ok", "reason": ""}],
        "leases": [],
        "waiters": [],
        "warnings": [],
        "broker": {"devices": "nvml", "pid": 77},
    }
    return BrokerFacts(
        runs=True, pid=77, user="ann", release="1.0", status=status | more.pop("status", {}), **more
    )


def erred() -> str:
    """Why a device that erred again and again is kept out."""
    health = DeviceHealth()
    for at_s in (0.0, 100.0, 200.0):
        health.see(at_s, (48,), None)
        health.see(at_s + 70, (), HealthReading())
    return health.reason


ERRED = erred()


def said(facts: Facts, *levels: str) -> list[Finding]:
    """The findings of these levels."""
    return [finding for finding in findings(facts) if finding.level in levels]


def test_a_healthy_machine_has_nothing_to_say() -> None:
    """Neither problems nor notes."""
    assert said(machine(card(0), card(1), broker=broker()), "note", "problem") == []


def test_a_machine_without_a_gpu_has_no_problem() -> None:
    """It is told how to try GRN all the same."""
    (finding,) = said(without_driver(), "note", "problem")
    assert (finding.level, finding.about) == ("note", "driver")
    assert "sim:4x16GiB" in finding.do


@pytest.mark.parametrize(
    ("facts", "about", "words", "do"),
    [
        (without_driver(wanted_devices="nvml"), "driver", "libnvidia-ml", "install the driver"),
        (
            replace(without_driver(), driver=DriverFacts(Inventory(NO_LIBRARY), cards_on_bus=2)),
            "driver",
            "2 NVIDIA cards are on the bus",
            "install the NVIDIA driver",
        ),
        (
            replace(machine(), driver=DriverFacts(Inventory("upgraded: reboot"), library="/l.so")),
            "driver",
            "upgraded",
            "reboot",
        ),
        (machine(), "driver", "lists no card", "--gpus all"),
        (machine(Card(0, "the driver lost it: reset it")), "device", "card 0, the", "reset it"),
        (machine(Card(0, divided=True)), "device", "no slices", "-mig 0"),
        (
            machine(card(0), readings={"GPU-0": DeviceReading("GPU-0", "lost", "gone: reset")}),
            "device",
            "is lost, gone",
            "reset",
        ),
        (
            machine(
                card(0),
                readings={
                    "GPU-0": DeviceReading(
                        "GPU-0", "ok", "", 0, (), health=HealthReading(remap_failed=True)
                    )
                },
            ),
            "device",
            "could not be remapped",
            "replaced",
        ),
        (
            machine(card(0), seen=Seen("nvml", notes=("card 0 is in prohibited compute mode",))),
            "device",
            "none can be given",
            "prohibited",
        ),
        (machine(card(0), seen=Seen("sim:x", problem="'x' is no size")), "device", "no size", ""),
        (
            machine(
                card(0),
                environ={"CUDA_VISIBLE_DEVICES": "0,7"},
                seen=Seen("nvml", mask_notes=("entry 2 is past the last device",)),
            ),
            "mask",
            "entry 2",
            "CUDA_VISIBLE_DEVICES",
        ),
        (machine(card(0), settings_problem="bad.toml: no"), "settings", "bad.toml", "correct it"),
        (
            machine(card(0), configuration_problem="grn.toml:3, [[job]] number 1: no"),
            "configuration",
            "grn.toml:3",
            "correct it",
        ),
        (
            machine(card(0), settings_problem="a.toml: no", configuration_problem="a.toml: no"),
            "settings",
            "a.toml",
            "correct it",
        ),
        (machine(card(0), place=PlaceFacts(problem="a: b")), "socket", "a", "b"),
        (
            machine(card(0), place=PlaceFacts("/p", "x", obstacle="/p is read-only")),
            "socket",
            "read-only",
            "GRN_SOCKET",
        ),
        (machine(card(0), place=PlaceFacts("/p", "x", free_mib=3)), "socket", "3 MiB", "room"),
        (
            machine(card(0), place=PlaceFacts("/run/grn/broker.sock", "x", is_system=True)),
            "broker",
            "for all users",
            "GRN_SOCKET",
        ),
        (
            machine(card(0), broker=broker(status={"devices": []})),
            "broker",
            "manages no device, and the driver shows 1",
            "grn broker reload",
        ),
        (
            machine(
                card(0),
                broker=broker(
                    status={"devices": [{"index": 0, "state": "unhealthy", "reason": ERRED}]}
                ),
            ),
            "broker",
            "error 3 within a day",
            "grn broker reload",
        ),
        (
            machine(card(0), broker=BrokerFacts(problem="does not answer", lock_pid=12)),
            "broker",
            "pid 12 holds its lock",
            "kill -9 12",
        ),
        (
            machine(
                card(0),
                broker=broker(
                    status={"devices": [{"index": 0, "state": "lost", "reason": "x: y"}]}
                ),
            ),
            "broker",
            "device 0 is lost",
            "y",
        ),
        (
            machine(card(0), broker=broker(status={"warnings": ["disk: nothing new is granted"]})),
            "broker",
            "nothing new is granted",
            "",
        ),
        (
            machine(card(0), state=StateFacts("/s", obstacle="/s may not be written")),
            "state",
            "may not be written",
            "GRN_STATE_DIR",
        ),
        (
            machine(card(0), state=StateFacts("/s", store_mib=1, store_problem="bad: move it")),
            "state",
            "bad",
            "move it",
        ),
        (machine(card(0), state=StateFacts("/s", free_files=0)), "state", "no file", "inodes"),
        (
            machine(card(0), python=PythonFacts(clash="old one; cure: pip uninstall old")),
            "python",
            "old one",
            "pip uninstall old",
        ),
        (
            machine(card(0), python=PythonFacts(binding_problem="not ours; cure: pip uninstall x")),
            "python",
            "not ours",
            "pip uninstall x",
        ),
        (
            machine(card(0), mps=MpsFacts("/mps", present=True, problem="does not answer")),
            "mps",
            "does not answer",
            "/mps",
        ),
        (machine(card(0), failed=[("mps", "OSError: x")]), "mps", "OSError: x", ""),
    ],
)
def test_a_problem_is_named_with_its_cure(facts: Facts, about: str, words: str, do: str) -> None:
    """Exactly one problem, about the right thing, with what was found and what to do."""
    (finding,) = said(facts, "problem")
    assert finding.about == about
    assert words in finding.what
    assert do in finding.do


@pytest.mark.parametrize(
    ("facts", "about", "words", "do"),
    [
        (machine(Card(0, "denied", denied=True), card(1)), "device", "not ours", "/dev/nvidia0"),
        (machine(replace(card(0), mode=2)), "device", "prohibited", "-i 0 -c DEFAULT"),
        (machine(replace(card(0), mode=3)), "device", "one process", "-i 0 -c DEFAULT"),
        (
            machine(card(0, ("accounting", "off")), card(1, ("accounting", "off"))),
            "device",
            "off on cards 0, 1",
            "switch it on: sudo nvidia-smi -am 1",
        ),
        (
            machine(card(0, ("accounting", "off"), ("persistence", "off"))),
            "device",
            "off on card 0",
            "sudo nvidia-smi -pm 1 && sudo nvidia-smi -am 1",
        ),
        (
            machine(card(0, ("process memory", "listed, without figures"))),
            "device",
            "no figures for processes on card 0",
            "alone",
        ),
        (
            machine(card(0), environ={"CUDA_VISIBLE_DEVICES": ""}, seen=Seen("nvml")),
            "mask",
            "hides every device",
            "unset",
        ),
        (
            machine(card(0), environ={"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, seen=Seen("nvml")),
            "mask",
            "hides every device",
            "unset",
        ),
        (
            machine(card(0), environ={"CUDA_DEVICE_ORDER": "SLOWEST"}),
            "mask",
            "SLOWEST",
            "unset CUDA_DEVICE_ORDER",
        ),
        (
            machine(card(0), replace(card(1), name="A100"), environ={"CUDA_VISIBLE_DEVICES": "1"}),
            "mask",
            "the cards differ",
            "PCI_BUS_ID",
        ),
        (machine(card(0), environ={"GRN_LEASE": "ab-1"}), "mask", "inside lease ab-1", "outside"),
        (
            machine(card(0), broker=broker(), release="2.0"),
            "broker",
            "GRN 1.0, and this is 2.0",
            "grn broker stop",
        ),
        (
            machine(card(0), broker=broker(), wanted_devices="sim:1x1GiB"),
            "broker",
            "manages 'nvml'",
            "grn broker stop",
        ),
        (
            machine(card(0), broker=broker(status={"warnings": ["strays"]})),
            "broker",
            "strays",
            "",
        ),
        (
            machine(card(0), broker=broker(log="/l", log_warnings=("WARNING a",))),
            "log",
            "WARNING a",
            "/l",
        ),
        (machine(card(0), place=PlaceFacts("/p", "x", free_mib=100)), "socket", "100 MiB", "room"),
        (
            machine(card(0), python=PythonFacts(other_bindings=(("py3nvml", "/x"),))),
            "python",
            "py3nvml is installed in /x",
            "pip uninstall py3nvml",
        ),
        (
            machine(card(0), mps=MpsFacts("/mps", chosen=True)),
            "mps",
            "no daemon is there",
            "unset",
        ),
        (
            machine(card(0), mps=MpsFacts("/mps", present=True, answer="12\n")),
            "mps",
            "other users wait",
            "one user",
        ),
        (
            machine(card(0), machine=MachineFacts(2, 2, 2, 9000, 9000)),
            "cpus",
            "none is left",
            "GRN_CPU_RESERVE",
        ),
        (
            machine(card(0), machine=MachineFacts(8, 8, 8, None, None)),
            "ram",
            "cannot be read",
            "GRN_MACHINE_RAM",
        ),
        (
            machine(card(0), machine=MachineFacts(8, 8, 8, 9000, 1000)),
            "ram",
            "nothing is left",
            "GRN_RAM_RESERVE",
        ),
        (
            machine(
                card(0), machine=MachineFacts(8, 8, 8, 9000, 9000, files_soft=9, files_hard=1024)
            ),
            "files",
            "about 960 clients",
            "hard limit",
        ),
        (
            machine(card(0), machine=MachineFacts(8, 8, 8, 9000, 9000, first_pid_namespace=False)),
            "pids",
            "host's pids",
            "--pid=host",
        ),
        (
            machine(card(0), machine=MachineFacts(8, 8, 8, 9000, 9000, wsl=True)),
            "wsl",
            "WSL2",
            "nothing to do",
        ),
    ],
)
def test_a_note_is_no_problem(facts: Facts, about: str, words: str, do: str) -> None:
    """What is worth knowing is said with what could be done, and does not count as a problem."""
    assert said(facts, "problem") == []
    (finding,) = said(facts, "note")
    assert finding.about == about
    assert words in finding.what
    assert do in finding.do


def test_another_brokers_claim_is_a_problem_only_if_nothing_is_left() -> None:
    """One of two cards is a note; all of them, without a broker of ours, a problem."""
    facts = machine(card(0), card(1))
    some = replace(facts, driver=replace(facts.driver, claimed={"GPU-0": "pid 9"}))
    every = replace(
        facts, driver=replace(facts.driver, claimed={"GPU-0": "pid 9", "GPU-1": "pid 9"})
    )
    assert [finding.level for finding in said(some, "note", "problem")] == ["note"]
    assert [finding.level for finding in said(every, "note", "problem")] == ["problem"] * 2
    assert said(replace(every, broker=broker()), "problem") == []


def test_a_broken_driver_is_no_problem_for_who_simulates() -> None:
    """Where other devices were chosen, it is only worth knowing."""
    broken = DriverFacts(Inventory("upgraded: reboot"), library="/l.so")
    facts = machine(driver=broken, wanted_devices="sim:1x1GiB", seen=Seen("sim:1x1GiB"))
    assert said(facts, "problem") == []
    assert any("upgraded" in finding.what for finding in said(facts, "note"))


def test_limits_of_a_control_group_are_shown_with_their_version() -> None:
    """CPUs and RAM name the machine's, what is usable, and where the limit is from."""
    facts = machine(card(0), machine=MachineFacts(64, 32, 4, 64000, 8192, "cgroup v1"))
    text = "\n".join(finding.what for finding in said(facts, "ok"))
    assert "4 of 64 CPUs can be used, affinity 32, quota of the control group (cgroup v1)" in text
    assert "8 GiB can be used of 62.5 GiB, the limit of the control group (cgroup v1)" in text


def test_a_mask_is_shown_as_it_is_spelled() -> None:
    """By number or by UUID, and which devices it leaves."""
    facts = machine(card(0), environ={"CUDA_VISIBLE_DEVICES": "GPU-0"})
    assert any("(by UUID) leaves device 0" in finding.what for finding in said(facts, "ok"))


def test_what_to_do_is_taken_out_of_a_message() -> None:
    """Messages that tell both are split where they do; others stay whole."""
    assert told("note", "x", "a; cure: b: c") == Finding("note", "x", "a", "b: c")
    assert told("note", "x", "a: b; c") == Finding("note", "x", "a", "b; c")
    assert told("note", "x", "a", "b") == Finding("note", "x", "a", "b")


@pytest.mark.parametrize(
    ("pid", "ancestors", "marker", "lease"),
    [
        (50, (), "k-9", "k-9"),
        (20, (), None, "k-2"),
        (51, (20, 10), None, "k-2"),
        (52, (10,), None, "k-1"),
        (53, (7,), None, None),
    ],
)
def test_a_holder_belongs_to_the_nearest_lease(
    pid: int, ancestors: tuple[int, ...], marker: str | None, lease: str | None
) -> None:
    """By its marker, else by the first of it and the processes above it that a lease names."""
    leases = [
        {"id": "k-1", "pid": 10, "devices": ["GPU-0"]},
        {"id": "k-2", "pid": 20, "devices": ["GPU-0"]},
        {"id": "k-3", "pid": 20, "devices": ["GPU-1"]},
    ]
    assert lease_of(pid, ancestors, marker, "GPU-0", leases) == lease


def test_process_use_is_shown_with_the_device() -> None:
    """The figure of the driver for the device is in its line."""
    reading = DeviceReading("GPU-0", "ok", "", 3072, (ProcessUse(1, 3072),))
    facts = machine(card(0), readings={"GPU-0": reading})
    assert any("24 GiB, 3 GiB used" in finding.what for finding in said(facts, "ok"))
