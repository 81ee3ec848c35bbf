"""The cards and the devices they are: usable or not, what their driver can tell, whose they are. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, problem, told
from grn.rules.health import DeviceHealth
from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from grn.devices.base import DeviceReading
    from grn.devices.nvml.found import Card, FoundDevice
    from grn.doctor.facts import Facts

__all__ = ["choice", "findings"]

_ABOUT = "device"
_SAYS_NOT = (
    "where a driver does not say what a process holds, a job type is measured by the rise of"
)


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what is true of each card and its devices, then what is true of several."""
    cards = facts.driver.inventory.cards
    for card in cards:
        yield from _card(card)
        for device in card.devices:
            yield from _device(card, device, facts)
    yield from _processes(cards)
    yield from _accounting(cards)


def _card(card: Card) -> Iterator[Finding]:
    name = f"card {card.index}"
    if card.denied:
        yield note(
            _ABOUT,
            f"{name} is not ours: {card.problem}",
            f"if it should be: permission to /dev/nvidia{card.index} (group, cgroup, --gpus)",
        )
    elif card.problem:
        yield told("problem", _ABOUT, f"{name}, {card.problem}", "look at `dmesg` for an Xid")
    elif card.divided and not card.devices:
        yield problem(
            _ABOUT,
            f"{name} has MIG on and no slices: there is nothing of it to give to a job",
            f"make slices (sudo nvidia-smi mig -i {card.index} -cgi PROFILE -C), or turn MIG off"
            f" (sudo nvidia-smi -i {card.index} -mig 0)",
        )
    elif card.prohibited:
        yield note(_ABOUT, f"{name} is in prohibited compute mode", _default_mode(card))
    elif card.exclusive:
        yield note(
            _ABOUT,
            f"{name} is in exclusive compute mode: one process at a time, so one lease",
            f"if jobs should share it: {_default_mode(card)}",
        )


def _default_mode(card: Card) -> str:
    return f"sudo nvidia-smi -i {card.index} -c DEFAULT"


def _device(card: Card, device: FoundDevice, facts: Facts) -> Iterator[Finding]:
    name = _name(card, device)
    reading = facts.driver.readings.get(device.uuid)
    claimed = facts.driver.claimed.get(device.uuid)
    if device.total_mib <= 0:
        yield problem(_ABOUT, f"{name} does not tell its memory", "look at `nvidia-smi -q`")
        return
    if reading is None:
        yield problem(_ABOUT, f"{name} was found, and then did not answer", "look at `dmesg`")
    elif reading.state != "ok":
        yield told("problem", _ABOUT, f"{name} is {reading.state}, {reading.reason}")
    else:
        yield _healthy_or_not(name, device, reading)
    if device.shares_ram:
        yield note(_ABOUT, f"{name} shares the host's RAM: both are booked from one pool")
    if claimed is not None:
        yield _taken(name, claimed, facts)


def _name(card: Card, device: FoundDevice) -> str:
    return f"{card.index} {device.name} ({device.uuid})"


def _healthy_or_not(name: str, device: FoundDevice, reading: DeviceReading) -> Finding:
    health = DeviceHealth()
    health.see(0.0, (), reading.health)
    if not health.usable:
        return told("problem", _ABOUT, f"{name} is not well, {health.reason}")
    used = "use unknown" if reading.used_mib is None else f"{format_mib(reading.used_mib)} used"
    told_of = [f"{query} {answer}" for query, answer in device.capabilities if query in _SHOWN]
    return ok(_ABOUT, "; ".join([f"{name}: {format_mib(device.total_mib)}, {used}", *told_of]))


_SHOWN = ("memory", "process memory", "accounting", "MIG")


def _taken(name: str, claimed: str, facts: Facts) -> Finding:
    text = f"{name} is managed by another broker ({claimed})"
    do = "set GRN_SOCKET to that broker's socket, or ask its user to stop it"
    ours = [device for card in facts.driver.inventory.cards for device in card.devices]
    if facts.broker.runs or any(d.uuid not in facts.driver.claimed for d in ours):
        return note(_ABOUT, text, do)
    return problem(_ABOUT, text, do)


def _processes(cards: Iterable[Card]) -> Iterator[Finding]:
    """Name devices whose driver does not say who holds what."""
    silent = _with(cards, "process memory", lambda answer: answer != "listed")
    if silent:
        yield note(
            _ABOUT,
            f"no figures for processes on {_cards(silent)} ({silent[0][1]})",
            f"{_SAYS_NOT} the device's total while it is alone there; nothing needs to be done",
        )


def _accounting(cards: Iterable[Card]) -> Iterator[Finding]:
    off = _with(cards, "accounting", lambda answer: answer == "off")
    if not off:
        return
    lost = _with(cards, "persistence", lambda answer: answer == "off")
    first = "sudo nvidia-smi -pm 1 && " if lost else ""
    yield note(
        _ABOUT,
        f"accounting mode is off on {_cards(off)}: peaks are sampled, and a spike of less than"
        " 0.1 s may go unseen",
        f"an administrator can switch it on: {first}sudo nvidia-smi -am 1",
    )


def _with(cards: Iterable[Card], query: str, fits: Callable[[str], bool]) -> list[tuple[int, str]]:
    """Return (card, answer) of each card on which a device's answer to a query fits."""
    found: dict[int, str] = {}
    for card in cards:
        for device in card.devices:
            answer = dict(device.capabilities).get(query)
            if answer is not None and fits(answer):
                found.setdefault(card.index, answer)
    return list(found.items())


def _cards(found: Iterable[tuple[int, str]]) -> str:
    numbers = [str(index) for index, _ in found]
    return f"card{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"


def choice(facts: Facts) -> Iterator[Finding]:
    """Say what a broker would manage, where that is not simply what the driver shows."""
    seen = facts.seen
    if seen.problem:
        yield told("problem", _ABOUT, seen.problem)
    elif seen.spec.startswith("sim:"):
        for info in seen.devices:
            yield ok(_ABOUT, f"{info.index} {info.name} ({info.uuid}): simulated")
    elif seen.spec == "nvml" and not (seen.devices or _explained(facts)):
        yield problem(_ABOUT, "of all cards none can be given to a job", "; ".join(seen.notes))
    elif seen.spec == "none" and facts.wanted_devices == "none":
        yield ok(_ABOUT, "none, as chosen: jobs share CPUs and RAM only")
    for text in seen.notes if seen.spec.startswith("sim:") else ():
        yield note(_ABOUT, text)


def _explained(facts: Facts) -> bool:
    """Whether a problem of its own says why no device is left."""
    cards = facts.driver.inventory.cards
    broken = any(card.problem or (card.divided and not card.devices) for card in cards)
    return broken or "CUDA_VISIBLE_DEVICES" in facts.environ or bool(facts.driver.claimed)
