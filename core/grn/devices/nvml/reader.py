"""One card and its slices as a worker reads them."""

from __future__ import annotations

import time

from grn.devices.nvml.accounting import Accounting
from grn.devices.nvml.binding import INVALID_ARGUMENT, NOT_FOUND, UNKNOWN, is_lost
from grn.devices.nvml.events import Events
from grn.devices.nvml.health import health_of
from grn.devices.nvml.memory import DeviceMemory
from grn.devices.nvml.processes import ProcessLists
from grn.devices.nvml.utilisation import Utilisation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["CardReader", "DeviceReader"]

_USE_EVERY_S = 5.0
"""The driver samples a process a few times a second and keeps some seconds of it."""

_SLICE_GONE = frozenset({INVALID_ARGUMENT, NOT_FOUND, UNKNOWN})


class DeviceReader:
    """One thing that a job can be given: a card that is not divided, or a slice."""

    def __init__(
        self, binding: Any, handle: Any, uuid: str, instance: tuple[int, int] | None = None
    ) -> None:
        self._binding = binding
        self.uuid = uuid
        self.instance = instance
        """Of a slice: its GPU instance and compute instance."""
        self.memory = DeviceMemory(binding, handle, is_slice=instance is not None)
        self.processes = ProcessLists(binding, handle, self.memory.total)
        self.accounting = Accounting(binding, handle)
        self.utilisation = Utilisation(binding, handle, is_slice=instance is not None)

    def read(self) -> list[Any]:
        """Return state, reason, MiB used, [pid, MiB, ...], servers, accounted, Xids.

        Raises:
            NVMLError: the card or the driver is gone.
        """
        try:
            used = self.memory.used()
        except self._binding.NVMLError as error:
            if self.instance is None or not (is_lost(error.value) or error.value in _SLICE_GONE):
                raise
            return ["lost", "the driver does not know this slice any more", None, None, [], [], []]
        uses = self.processes.read()
        if uses is None:
            reason, flat, servers = self.processes.why_not, None, []
        else:
            reason, servers = "", self.processes.servers(uses)
            flat = [number for pid, held in uses.items() for number in (pid, _mib(held))]
        accounted = [
            number for pid, most in self.accounting.read(uses or ()) for number in (pid, _mib(most))
        ]
        return ["ok", reason, _mib(used), flat, servers, accounted, []]


class CardReader:
    """All that one worker reads: a card's devices, its events and its health."""

    def __init__(self, binding: Any, card: Any, devices: Sequence[DeviceReader]) -> None:
        self._binding = binding
        self._card = card
        self._devices = devices
        self.events = Events(binding, card)
        self._use_s = -_USE_EVERY_S

    def read(self, *, health: bool) -> dict[str, Any]:
        """Return a row for each device, the card's health if it is asked for, now and then its use.

        Raises:
            NVMLError: the card or the driver is gone.
        """
        rows = [device.read() for device in self._devices]
        for xid, gpu, compute in self.events.take():
            instance = (gpu, compute)
            of_slice = any(device.instance == instance for device in self._devices)
            for row, device in zip(rows, self._devices, strict=True):
                if not of_slice or device.instance == instance:
                    row[-1].append(xid)
        answer: dict[str, Any] = {"rows": rows}
        if health:
            answer["health"] = health_of(self._binding, self._card)
        now = time.monotonic()
        if now - self._use_s >= _USE_EVERY_S:
            self._use_s = now
            answer["busy"] = [device.utilisation.read() for device in self._devices]
        return answer


def _mib(number: int | None) -> int | None:
    """Round up to whole MiB: what is held is never told smaller than it is."""
    return None if number is None else -(-number >> 20)
