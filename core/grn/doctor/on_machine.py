"""The machine around the devices: CPUs and RAM, limits, namespaces, MPS. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, problem
from grn.rules.units import format_mib

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.doctor.facts import Facts

__all__ = ["findings"]

_FILES_ENOUGH = 4096
"""A waiting client is a descriptor of the broker."""


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what is true of the machine."""
    yield from _cpus(facts)
    yield from _ram(facts)
    yield from _files(facts)
    yield from _namespaces(facts)
    yield from _mps(facts)


def _cpus(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    parts = [f"{machine.usable_cpus} of {machine.cpus} CPUs can be used"]
    if machine.affinity < machine.cpus:
        parts.append(f"affinity {machine.affinity}")
    if machine.usable_cpus < machine.affinity:
        parts.append(f"quota of the control group ({machine.cgroups})")
    text = ", ".join(parts)
    for_jobs = machine.usable_cpus - facts.cpu_reserve
    if for_jobs < 1:
        yield note(
            "cpus",
            f"{text}; less the reserve of {facts.cpu_reserve} none is left, so jobs share one",
            "GRN_CPU_RESERVE=0 gives them all, GRN_MACHINE_CPUS sets the number",
        )
    else:
        yield ok("cpus", f"{text}; {for_jobs} for jobs")


def _ram(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.usable_ram_mib is None:
        yield note(
            "ram", "how much there is cannot be read: it is not booked", "set GRN_MACHINE_RAM"
        )
        return
    text = f"{format_mib(machine.usable_ram_mib)} can be used"
    if machine.ram_mib is not None and machine.usable_ram_mib < machine.ram_mib:
        text += (
            f" of {format_mib(machine.ram_mib)}, the limit of the control group ({machine.cgroups})"
        )
    for_jobs = machine.usable_ram_mib - facts.ram_reserve_mib
    if for_jobs <= 0:
        yield note(
            "ram",
            f"{text}; less the reserve of {format_mib(facts.ram_reserve_mib)} nothing is left",
            "a smaller GRN_RAM_RESERVE, or a larger limit",
        )
    else:
        yield ok("ram", f"{text}; {format_mib(for_jobs)} for jobs")


def _files(facts: Facts) -> Iterator[Finding]:
    soft, hard = facts.machine.files_soft, facts.machine.files_hard
    text = f"{_limit(soft)} open files, at most {_limit(hard)}"
    if hard is not None and hard < _FILES_ENOUGH:
        yield note(
            "files",
            f"{text}: a broker can serve about {max(0, hard - 64)} clients at once",
            "raise the hard limit (limits.conf, LimitNOFILE=)",
        )
    else:
        yield ok("files", text)


def _limit(number: int | None) -> str:
    return "unlimited" if number is None else str(number)


def _namespaces(facts: Facts) -> Iterator[Finding]:
    machine = facts.machine
    if machine.wsl:
        yield note(
            "wsl",
            "this is WSL2: its driver has no memory figures for processes",
            "nothing to do: a job type is measured by the rise of the device's total while alone",
        )
    if machine.first_pid_namespace:
        return
    text = "this is a pid namespace of its own (a container)"
    if facts.driver.inventory.cards:
        yield note(
            "pids",
            f"{text}: the driver names processes by the host's pids, so a job type is measured by"
            " the rise of the device's total while alone",
            "run the container with --pid=host, or the broker on the host",
        )
    else:
        yield ok("pids", text)


def _mps(facts: Facts) -> Iterator[Finding]:
    mps = facts.mps
    if mps.problem:
        yield problem("mps", mps.problem, _restart(mps.folder))
    elif mps.answer is not None:
        yield ok("mps", f"its daemon answers in {mps.folder}, {_servers(mps.answer)}")
        yield note(
            "mps",
            "programs of one user share a server, those of other users wait until it has none;"
            " one program's fault can end all of them",
            "count on it only where one user runs jobs",
        )
    elif mps.chosen:
        yield note(
            "mps",
            f"CUDA_MPS_PIPE_DIRECTORY is {mps.folder}, and no daemon is there: programs run without"
            " MPS and its limits, and do not say so",
            "nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY",
        )


def _servers(answer: str) -> str:
    pids = [word for word in answer.split() if word.isdigit()]
    return f"server pid {', '.join(pids)}" if pids else "no server runs just now"


def _restart(folder: str) -> str:
    return (
        f"CUDA programs may hang: end the daemon (CUDA_MPS_PIPE_DIRECTORY={folder}; echo quit |"
        " nvidia-cuda-mps-control), or unset the variable"
    )
