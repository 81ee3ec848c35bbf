"""How busy a device is, and with whose work, as far as the driver tells.

The driver keeps some seconds of samples of each process. Those since the look before are averaged; a
share above 100 % is one of its defects, and no figure.
"""

from __future__ import annotations

from grn.devices.nvml.binding import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Utilization"]

_WHOLE = 100


class Utilization:
    """Of one device. The driver knows it of whole cards; a slice has none."""

    def __init__(self, binding: Any, handle: Any, *, is_slice: bool) -> None:
        self._binding = binding
        self._handle = handle
        self._is_slice = is_slice
        self._seen_us = 0

    def read(self) -> list[Any]:
        """Return percent and [pid, percent, ...]; `None` instead of either that nobody can tell.

        Raises:
            NVMLError: the card or the driver is gone.
        """
        if self._is_slice:
            return [None, None]
        binding = self._binding
        rates, _ = attempt(binding, binding.nvmlDeviceGetUtilizationRates, self._handle)
        percent = None if rates is None or rates.gpu > _WHOLE else int(rates.gpu)
        return [percent, self._processes()]

    def _processes(self) -> list[int] | None:
        """Return pids and percents of those that computed lately; none did is nothing to tell."""
        ask = self._binding.nvmlDeviceGetProcessUtilization
        samples, _ = attempt(self._binding, ask, self._handle, self._seen_us)
        if samples is None:
            return None
        shares: dict[int, list[int]] = {}
        for sample in samples:
            self._seen_us = max(self._seen_us, sample.timeStamp)
            if sample.smUtil <= _WHOLE:
                shares.setdefault(int(sample.pid), []).append(int(sample.smUtil))
        return [
            number
            for pid, found in shares.items()
            for number in (pid, round(sum(found) / len(found)))
        ]
