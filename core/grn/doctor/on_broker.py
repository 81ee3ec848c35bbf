"""The broker, its socket, its settings and its books. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, problem, told
from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from grn.doctor.facts import Facts

__all__ = ["findings"]

_ABOUT = "broker"
_LEAST_MIB, _LITTLE_MIB = 16, 512
_LOOK_AGAIN = "grn broker reload has it look again; one that should manage none was started with --devices none"
_ASK = "look at `dmesg` and `nvidia-smi -q`"
_NOTHING_GRANTED = "nothing new is granted"
_MOST_WARNINGS = 20
"""A finding each up to here; the rest is counted."""


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what is true of settings, socket, broker, its books, and the state folder."""
    if facts.settings_problem:
        yield problem("settings", facts.settings_problem, "correct it; until then no command works")
    if facts.configuration_problem not in ("", facts.settings_problem):
        do = "correct it; until then `grn run` here and requests that name a flavor are refused"
        yield problem("configuration", facts.configuration_problem, do)
    yield from _place(facts)
    yield from _runs(facts)
    if facts.broker.status is not None:
        yield from _books(facts, facts.broker.status)
    yield from _log(facts)
    yield from _state(facts)


def _place(facts: Facts) -> Iterator[Finding]:
    place = facts.place
    if place.problem:
        yield told("problem", "socket", place.problem, "set GRN_SOCKET to a path of your own")
        return
    yield ok("socket", f"{place.path} ({place.chosen})")
    if facts.broker.runs:
        yield from _room("socket", "the journal beside the socket", place.free_mib)
    elif place.obstacle:
        yield problem(
            "socket", place.obstacle, "set GRN_SOCKET to a path in a folder where you may write"
        )
    else:
        yield from _room("socket", "the journal beside the socket", place.free_mib)


def _room(about: str, what: str, free_mib: int | None) -> Iterator[Finding]:
    if free_mib is None or free_mib >= _LITTLE_MIB:
        return
    text = f"{format_mib(free_mib)} of disk free for {what}"
    if free_mib < _LEAST_MIB:
        yield problem(about, text, "make room: without it nothing new is granted")
    else:
        yield note(about, text, "make room before it runs out")


def _runs(facts: Facts) -> Iterator[Finding]:
    broker, place = facts.broker, facts.place
    if broker.problem:
        yield _silent(broker.problem, broker.lock_pid)
    elif not broker.runs and place.is_system:
        yield problem(
            _ABOUT,
            "this machine has a broker for all users, and it does not run",
            "have its owner start it (grn broker), or set GRN_SOCKET for one of your own",
        )
    elif not broker.runs:
        yield ok(_ABOUT, "none runs; `grn run` starts one")
    else:
        kind = "on demand" if broker.on_demand else "by hand or by a service"
        yield ok(
            _ABOUT,
            f"pid {broker.pid} of {broker.user}, GRN {broker.release}, started {kind}",
        )
        yield from _other_release(facts)


def _silent(said: str, pid: int | None) -> Finding:
    if pid is None:
        do = "end what listens there, or set GRN_SOCKET to another path"
        return told("problem", _ABOUT, said, do)
    return problem(
        _ABOUT,
        f"{said} (pid {pid} holds its lock)",
        f"if it hangs, end it (kill -9 {pid}): jobs go on, and the next broker takes them over",
    )


def _other_release(facts: Facts) -> Iterator[Finding]:
    if facts.broker.release and facts.release and facts.broker.release != facts.release:
        yield note(
            _ABOUT,
            f"it is GRN {facts.broker.release}, and this is {facts.release}",
            "grn broker stop; jobs go on, and the next `grn run` starts the new one",
        )


def _books(facts: Facts, status: Mapping[str, Any]) -> Iterator[Finding]:
    devices, leases, waiters = status["devices"], status["leases"], status["waiters"]
    managed = status.get("broker", {}).get("devices")
    yield ok(
        _ABOUT,
        f"manages {managed}: {len(devices)} devices, {len(leases)} leases, {len(waiters)} waiting",
    )
    if facts.wanted_devices is not None and facts.wanted_devices not in (managed, "auto"):
        yield note(
            _ABOUT,
            f"devices {facts.wanted_devices!r} are configured here, and it manages {managed!r}",
            "grn broker stop; jobs go on, and the next `grn run` starts one with yours",
        )
    ready = sum(len(card.devices) for card in facts.driver.inventory.cards)
    if not devices and ready and facts.uses_driver:
        yield problem(
            _ABOUT,
            f"it manages no device, and the driver shows {ready}: it was started before the driver,"
            " or under a mask that hides them",
            _LOOK_AGAIN,
        )
    for device in devices:
        if device["state"] != "ok":
            text = f"device {device['index']} is {device['state']}, {device.get('reason', '')}"
            if _erred(device):
                yield problem(_ABOUT, text, f"{_ASK}; once it was seen to, grn broker reload")
            else:
                yield told("problem", _ABOUT, text, _ASK)
    yield from _warnings(status["warnings"])


def _erred(device: Mapping[str, Any]) -> bool:
    """Whether errors keep the device out, which an operator may end, and not the driver's figures."""
    return device["state"] == "unhealthy" and "within a day" in device.get("reason", "")


def _warnings(warnings: list[str]) -> Iterator[Finding]:
    for text in warnings[:_MOST_WARNINGS]:
        yield Finding("problem" if _NOTHING_GRANTED in text else "note", _ABOUT, text)
    if len(warnings) > _MOST_WARNINGS:
        more = len(warnings) - _MOST_WARNINGS
        yield note(_ABOUT, f"it has {more} more warnings", "grn status shows all")


def _log(facts: Facts) -> Iterator[Finding]:
    broker = facts.broker
    if broker.log_warnings:
        yield note(
            "log",
            "last warnings: " + " | ".join(broker.log_warnings),
            f"the whole log: {broker.log}",
        )


def _state(facts: Facts) -> Iterator[Finding]:
    state = facts.state
    if state.obstacle:
        yield problem("state", state.obstacle, "set GRN_STATE_DIR to a folder where you may write")
    if state.store_problem:
        yield told("problem", "state", state.store_problem)
    elif not state.obstacle or state.store_mib is not None:
        yield ok("state", f"{state.path}: {_profiles(facts)}")
    yield from _room("state", "profiles", state.free_mib)
    if state.free_files is not None and state.free_files < 1:
        yield problem("state", f"no file can be made any more in {state.path}", "free some inodes")


def _profiles(facts: Facts) -> str:
    state = facts.state
    if state.store_mib is None:
        return "no profiles yet"
    count = "some" if state.profiles is None else str(state.profiles)
    return f"profiles: {count}, {format_mib(state.store_mib)}"
