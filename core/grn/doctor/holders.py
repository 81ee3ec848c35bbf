"""Who holds memory on which device, with user, command and lease as far as they can be seen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from grn import procs
from grn.devices import simfolder
from grn.devices.base import DeviceReading, ProcessUse
from grn.devices.simspec import parse_spec
from grn.doctor.brokerlook import user_name
from grn.doctor.facts import Holder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


__all__ = ["holders_of", "lease_of", "simulated"]


def holders_of(
    readings: Iterable[DeviceReading], leases: Sequence[Mapping[str, Any]]
) -> tuple[Holder, ...]:
    """Name each process that the driver lists, and the lease that it belongs to."""
    return tuple(
        Holder(
            reading.uuid,
            use.pid,
            use.mib,
            user_name(procs.uid(use.pid)),
            _command(use.pid),
            lease_of(
                use.pid, procs.ancestors(use.pid), procs.marker(use.pid), reading.uuid, leases
            ),
            server=use.server,
        )
        for reading in readings
        for use in sorted(reading.processes or (), key=lambda use: -(use.mib or 0))
    )


def simulated(spec: str, socket_folder: str) -> tuple[DeviceReading, ...]:
    """Return who holds what on the simulated devices of a broker, read from their folder."""
    described = parse_spec(spec)
    if described.meter == "rss":
        return ()
    folder = described.directory or os.path.join(socket_folder, "sim")
    uses: dict[tuple[int, int], list[ProcessUse]] = {}
    records = simfolder.procs_path(folder)
    for name in sorted(os.listdir(records)):
        for holding in _holdings(os.path.join(records, name)):
            uses.setdefault(holding.key, []).append(ProcessUse(holding.pid, holding.mib))
    return tuple(
        DeviceReading(device.uuid, "ok", processes=tuple(uses.get(device.key, ())))
        for device in simfolder.read_devices(folder)
    )


def _holdings(path: str) -> list[simfolder.Holding]:
    if os.path.basename(path).startswith("."):
        return []
    try:
        found = simfolder.holdings_in(simfolder.read_file(path))
    except FileNotFoundError:
        return []  # its process ended between the listing and the look
    return [holding for holding in found if simfolder.is_current(holding)]


def lease_of(
    pid: int,
    ancestors: Sequence[int],
    marker: str | None,
    uuid: str,
    leases: Sequence[Mapping[str, Any]],
) -> str | None:
    """Say which lease a process belongs to: by its marker, else by the pids of it and above it.

    A marker of a lease that the broker does not know (any more) is shown all the same. One process
    may hold several leases: that of the device is meant.
    """
    if marker is not None:
        return marker
    line = [pid, *ancestors]
    ours = [lease for lease in leases if lease["pid"] in line]
    on_it = [lease for lease in ours if uuid in lease["devices"]]
    nearest = sorted(on_it or ours, key=lambda lease: line.index(lease["pid"]))
    return str(nearest[0]["id"]) if nearest else None


def _command(pid: int) -> str | None:
    """Return the command line, of kernel threads and zombies the name."""
    if pid <= 0:
        return None
    words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").strip()
    return os.fsdecode(words or _read(f"/proc/{pid}/comm").strip()) or None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""
