"""`grn run --explain`: what would be asked of the broker, and what the command would be told.

Promises: nothing is run and no broker is needed; the shares shown are examples and say so.
"""

from __future__ import annotations

from grn.hostcpu import usable_cpus
from grn.mps import pipe_folder
from grn.mps.daemon import ask, find
from grn.rules.environment import derive, explain_lines
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.cli.wishes import Wishes
    from grn.settings import Settings
    from grn.supervise.job import Job

__all__ = ["explain"]

_EXAMPLE_TOTAL_MIB = 16384


def explain(
    jobs: Sequence[Job], wishes: Wishes, settings: Settings, environ: Mapping[str, str]
) -> str:
    """Return the text: each command with its request, then the environment of an example."""
    lines: list[str] = []
    for job, wish in zip(jobs, wishes.made, strict=True):
        lines += [f"command {job.number}: {job.command}"]
        lines += [f"  {origin}" for origin in wish.origins]
        lines += [f"  type: {job.type}", f"  asks for: {_wish(job.request, settings)}"]
    lines += [f"not read: {text}" for text in wishes.passed_over]
    grant = _example(jobs[0].request, usable_cpus(reserve=0))
    if grant["devices"]:
        lines += ["", _enforcement(grant, jobs[0].request, environ)]
    lines += ["", _premise(grant), ""]
    lines += explain_lines(derive(grant, environ, jobs[0].explicit))
    return "\n".join([*lines, ""])


def _wish(request: Mapping[str, Any], settings: Settings) -> str:
    gpus = request["gpus"]
    if not gpus:
        device = "no device" if gpus is None else "no device, and none to be seen"
    else:
        device = f"{gpus} device{'s' if gpus > 1 else ''}, {_memory(request['memory_mib'])}"
        device += f", policy {request['policy'] or settings.policy}"
    parts = [device]
    if request["cpus"] is not None:
        parts.append(f"{request['cpus']} CPUs")
    if request["ram_mib"] is not None:
        parts.append(f"{format_mib(request['ram_mib'])} of main memory")
    if request.get("affinity"):
        parts.append("cores of its own")
    if request.get("compute"):
        parts.append(f"{request['compute']} % of each device's multiprocessors")
    if request.get("processes"):
        parts.append(f"{request['processes']} processes that use a device")
    if request["priority"]:
        parts.append(f"priority {request['priority']}")
    return ", ".join(parts)


def _memory(wish: int | str | None) -> str:
    if wish is None:
        return "memory as learnt (the first run has the device alone and is measured)"
    return "the whole of it" if isinstance(wish, str) else f"{format_mib(wish)} on each"


def _enforcement(
    grant: dict[str, Any], request: Mapping[str, Any], environ: Mapping[str, str]
) -> str:
    """Say what would hold the command to its share, after asking the daemon that could."""
    folder = pipe_folder(environ)
    if find(folder) is None or not ask(folder, environ):
        return f"limits: cooperative (no MPS daemon answers at {folder})"
    alone = grant["probe"] or request["memory_mib"] == "whole"
    if alone and not request.get("compute"):
        return f"limits: none while it is alone (an MPS daemon answers at {folder})"
    grant["mps"] = folder
    return f"limits: by the MPS daemon that answers at {folder}"


def _example(request: Mapping[str, Any], cores: int) -> dict[str, Any]:
    """Make up the grant that a broker with 16 GiB devices might give."""
    gpus = request["gpus"]
    wish = request["memory_mib"]
    booked = min(wish, _EXAMPLE_TOTAL_MIB) if isinstance(wish, int) else _EXAMPLE_TOTAL_MIB
    devices = [
        {
            "uuid": f"GPU-example-{index}",
            "index": index,
            "model": "example",
            "total_mib": _EXAMPLE_TOTAL_MIB,
            "booked_mib": booked,
        }
        for index in range(gpus or 0)
    ]
    return {
        "lease": "example-1",
        "gpus": gpus,
        "mask": None if gpus is None else ",".join(str(device["index"]) for device in devices),
        "devices": devices,
        "memory_mib": booked if devices else None,
        "fraction": booked / _EXAMPLE_TOTAL_MIB if devices else None,
        "threads": request["cpus"] or cores,
        "cpus": request["cpus"],
        "probe": bool(devices) and wish is None,
        "compute": request.get("compute"),
        "processes": request.get("processes"),
        "extra": {},
    }


def _premise(grant: Mapping[str, Any]) -> str:
    if not grant["devices"]:
        return "environment of the command, if it had all usable cores:"
    numbers = ", ".join(str(device["index"]) for device in grant["devices"])
    return (
        f"environment of the command, if it were given device {numbers} of an example machine with"
        f" {format_mib(_EXAMPLE_TOTAL_MIB)} on each, and all usable cores:"
    )
