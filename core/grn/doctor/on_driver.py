"""The driver: found or not, which version, and whether its parts fit together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, problem, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.doctor.facts import Facts

__all__ = ["findings"]

_ABOUT = "driver"
_SIMULATE = "to try GRN without a GPU: --devices sim:4x16GiB or GRN_DEVICES=sim:4x16GiB"


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what is true of the driver."""
    driver = facts.driver
    found = driver.inventory
    if found.problem and driver.library is None and driver.module_version is None:
        yield _absent(facts)
    elif found.problem and found.problem == facts.python.binding_problem:
        yield note(_ABOUT, "not asked, for lack of its binding (see python)")
        yield from _versions(facts)
    elif found.problem:
        yield told("problem", _ABOUT, found.problem, "ask `nvidia-smi`, look at `dmesg`")
        yield from _versions(facts)
    else:
        yield ok(_ABOUT, _told_of_itself(facts))
        if not found.cards:
            yield problem(
                _ABOUT,
                "it lists no card",
                "look at `nvidia-smi -L` and `dmesg`; a container needs --gpus all",
            )


def _absent(facts: Facts) -> Finding:
    """No trace of a driver: that is how most machines are, unless something here wants one."""
    cards = facts.driver.cards_on_bus
    if cards:
        return problem(
            _ABOUT,
            f"{cards} NVIDIA card{'s are' if cards > 1 else ' is'} on the bus, but there is no"
            f" driver: {facts.driver.inventory.problem.removeprefix('no NVIDIA driver: ')}",
            "install the NVIDIA driver; a container needs --gpus all",
        )
    if facts.wanted_devices == "nvml":
        do = "install the driver, or name other devices (--devices, GRN_DEVICES)"
        return problem(_ABOUT, facts.driver.inventory.problem, do)
    if not facts.uses_driver:
        return ok(_ABOUT, f"{facts.driver.inventory.problem}; {facts.wanted_devices} needs none")
    return note(_ABOUT, facts.driver.inventory.problem, _SIMULATE)


def _versions(facts: Facts) -> Iterator[Finding]:
    """Give the numbers that explain a driver which does not answer."""
    parts = []
    if facts.driver.library is not None:
        parts.append(f"library {facts.driver.library}")
    if facts.driver.module_version is not None:
        parts.append(f"kernel module {facts.driver.module_version}")
    if parts:
        yield note(_ABOUT, ", ".join(parts))


def _told_of_itself(facts: Facts) -> str:
    found = facts.driver.inventory
    parts = [f"NVIDIA {found.driver or 'driver of unknown version'}"]
    if found.cuda:
        parts.append(f"CUDA {found.cuda}")
    parts.append(f"{len(found.cards)} card{'' if len(found.cards) == 1 else 's'}")
    if facts.driver.library is not None:
        parts.append(facts.driver.library)
    return ", ".join(parts)
