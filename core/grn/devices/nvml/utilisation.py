"""How busy a device is, where its driver tells."""

from __future__ import annotations

from grn.devices.nvml.binding import NOT_SUPPORTED, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Utilisation"]


class Utilisation:
    """Reads the share of time in which any kernel ran on one device (`nvmlDeviceGetUtilizationRates`)."""

    def __init__(self, binding: Any, handle: Any) -> None:
        self._binding = binding
        self._handle = handle
        self._told = True

    def read(self) -> int | None:
        """Return percent; `None` if the driver does not say, as for slices.

        Raises:
            NVMLError: the card or the driver is gone.
        """
        if not self._told:
            return None
        binding = self._binding
        rates, code = attempt(binding, binding.nvmlDeviceGetUtilizationRates, self._handle)
        if code == NOT_SUPPORTED:
            self._told = False  # it never will be: not worth a call each time
        return None if rates is None else int(rates.gpu)
