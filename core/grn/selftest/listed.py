"""Whether the driver has a job's process where it should be, as far as it says who holds memory.

A driver may have no list of processes, or one in which a process goes by the pid of another
namespace (in a container) or by none. Then the memory in use must tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.selftest.bench import place
from grn.selftest.verdict import FailedError

if TYPE_CHECKING:
    from grn.selftest.bench import Bench
    from grn.selftest.driver import Look

__all__ = ["confirm"]


def confirm(
    bench: Bench, before: Look | None, device: dict[str, Any], pid: int, mib: int
) -> tuple[str, dict[str, Any]]:
    """Say how the driver shows a process that holds `mib` on a device; `before` is from before it.

    Raises:
        FailedError: it shows it elsewhere, or nothing of it.
    """
    uuid = device["uuid"]
    bench.until(lambda: _shows(bench.look(), before, uuid, pid, mib))
    look = bench.look()
    if look is None or before is None:
        return f"{mib} MiB (the driver was not asked: {bench.driver_problem})", {"size_mib": mib}
    listed = look.where(pid)
    if listed == [uuid]:
        held = (look.devices[uuid].uses or {})[pid]
        figure = "no figure" if held is None else f"{held} MiB"
        return f"listed with {figure}", {"size_mib": mib, "listed_mib": held}
    if listed:
        raise FailedError(
            f"booked was {place(device)}, and the driver lists the job's process {pid} on"
            f" {_places(bench, listed)}"
        )
    rose = _rise(look, before, uuid)
    if rose is None:
        return f"{mib} MiB (the driver has no figures here)", {"size_mib": mib}
    if rose < mib:
        raise FailedError(
            f"the driver lists the job's process {pid} on no device, and the memory in use on"
            f" {place(device)} rose by {rose} MiB when it took {mib}"
        )
    why = look.devices[uuid].why_not or "its list has not this pid: a container of its own?"
    return f"memory in use rose by {rose} MiB ({why})", {"size_mib": mib, "rose_mib": rose}


def _shows(look: Look | None, before: Look | None, uuid: str, pid: int, mib: int) -> bool:
    """Whether there is something to judge by."""
    if look is None or before is None or look.where(pid):
        return True
    rose = _rise(look, before, uuid)
    return rose is None or rose >= mib


def _rise(look: Look, before: Look, uuid: str) -> int | None:
    now, then = look.used(uuid), before.used(uuid)
    return None if now is None or then is None else now - then


def _places(bench: Bench, uuids: list[str]) -> str:
    known = {device["uuid"]: place(device) for device in bench.devices()}
    return ", ".join(known.get(uuid, uuid) for uuid in uuids)
