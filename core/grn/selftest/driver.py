"""What the driver itself lists: devices, memory in use, processes. The broker is not asked.

A driver call may never return, so NVML is asked by a process of its own (`python -m
grn.selftest.driver`): a line of JSON for each line that it reads. Simulated devices are read from
their folder.

Must not: take "no figure" for 0, or wait for a driver longer than it was told to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from grn.devices import simfolder
from grn.selftest.lines import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Look", "NvmlDriver", "SilentDriverError", "SimulatedDriver", "View"]

_ENDS_WITHIN_S = 2.0


class SilentDriverError(Exception):
    """The driver cannot be asked, or does not answer."""


@dataclass(frozen=True, slots=True)
class View:
    """One device as the driver shows it at one moment."""

    uuid: str
    used_mib: int | None
    uses: dict[int, int | None] | None
    """pid -> MiB; None: the driver does not say who holds memory."""
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """All devices by UUID."""

    devices: dict[str, View] = field(default_factory=dict)

    def where(self, pid: int) -> list[str]:
        """Return the devices on which a process is listed."""
        return [view.uuid for view in self.devices.values() if pid in (view.uses or {})]

    def used(self, uuid: str) -> int | None:
        """Return the MiB in use on a device."""
        view = self.devices.get(uuid)
        return None if view is None else view.used_mib


class Driver(Protocol):
    """What can be asked."""

    facts: dict[str, Any]

    def look(self, within_s: float) -> Look:
        """Look at all devices.

        Raises:
            SilentDriverError: it does not answer.
        """
        ...

    def close(self) -> None:
        """End what was started for it."""
        ...


class NvmlDriver:
    """NVIDIA's driver. `facts` has what it says once: versions, and each device's capabilities."""

    def __init__(self, environ: Mapping[str, str], within_s: float) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "grn.selftest.driver"],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
        )
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        self._lines = Lines(self._process.stdout.fileno())
        try:
            self.facts: dict[str, Any] = self._answer(within_s)
        except BaseException:
            self.close()
            raise

    def look(self, within_s: float) -> Look:
        """Look at all devices."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(b"look\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise SilentDriverError("the program that asks it has died") from error
        return Look({row["uuid"]: _view(row) for row in self._answer(within_s)["devices"]})

    def _answer(self, within_s: float) -> dict[str, Any]:
        answer = self._lines.next(within_s)
        if answer is None and self._lines.ended:
            raise SilentDriverError("the program that asks it has died")
        if answer is None:
            raise SilentDriverError(f"it does not answer within {within_s:g} s")
        if "problem" in answer:
            raise SilentDriverError(answer["problem"])
        return answer

    def close(self) -> None:
        """End the process that asks; one that hangs in the driver is left to its fate."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return


def _view(row: Mapping[str, Any]) -> View:
    uses = row["uses"]
    if uses is not None:
        uses = {int(pid): mib for pid, mib in uses.items()}
    return View(row["uuid"], row["used_mib"], uses, row["why_not"])


class SimulatedDriver:
    """Simulated devices, by the folder that jobs are told."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        devices = simfolder.read_devices(folder)
        self.facts: dict[str, Any] = {
            "devices": [{"uuid": d.uuid, "mode": int(d.mode), "capabilities": []} for d in devices]
        }

    def look(self, within_s: float) -> Look:
        """Look at all devices: files, which do not hang."""
        del within_s
        holdings = []
        folder = simfolder.procs_path(self._folder)
        for name in os.listdir(folder):
            if name.startswith("."):
                continue
            try:
                holdings += simfolder.holdings_in(simfolder.read_file(os.path.join(folder, name)))
            except FileNotFoundError:
                continue  # its process has just ended
        current = [holding for holding in holdings if simfolder.is_current(holding)]
        views = {}
        for device in simfolder.read_devices(self._folder):
            uses: dict[int, int | None] = {h.pid: h.mib for h in current if h.key == device.key}
            used = device.base_mib + sum(mib or 0 for mib in uses.values())
            views[device.uuid] = View(device.uuid, used, uses)
        return Look(views)

    def close(self) -> None:
        """Do nothing: nothing was started."""


# -- the process that asks NVML -------------------------------------------------------------------


def _serve() -> int:
    from grn.devices.nvml.binding import import_binding, reason_of  # noqa: PLC0415

    binding, problem = import_binding()
    if binding is None:
        return _tell({"problem": problem})
    try:
        binding.nvmlInit()
        facts, readers = _survey(binding)
        _tell(facts)
        for _ in sys.stdin:
            _tell({"devices": [_row(reader) for reader in readers]})
    except binding.NVMLError as error:
        _tell({"problem": reason_of(error.value, binding)})
    return 0


def _survey(binding: Any) -> tuple[dict[str, Any], list[Any]]:
    """Describe the machine and all devices that can be opened."""
    from grn.devices.nvml.survey import census, survey  # noqa: PLC0415

    facts: dict[str, Any] = {**census(binding), "devices": []}
    readers = []
    for index in range(facts["count"]):
        try:
            told, devices = survey(binding, binding.nvmlDeviceGetHandleByIndex(index))
        except binding.NVMLError:
            continue  # lost, or not ours: the broker says which
        readers += devices
        facts["devices"] += [
            {"uuid": device["uuid"], "mode": told["mode"], "capabilities": device["capabilities"]}
            for device in told["devices"]
        ]
    return facts, readers


def _row(reader: Any) -> dict[str, Any]:
    _, why_not, used_mib, flat, *_ = reader.read()
    uses = None if flat is None else dict(zip(flat[::2], flat[1::2], strict=True))
    return {"uuid": reader.uuid, "used_mib": used_mib, "uses": uses, "why_not": why_not}


def _tell(message: Mapping[str, Any]) -> int:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(_serve())
