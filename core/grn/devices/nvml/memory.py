"""How much of a device is used, by the best figure that its driver has."""

from __future__ import annotations

from grn.devices.nvml.binding import FUNCTION_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["DeviceMemory"]

_MEMINFO = "/proc/meminfo"
_VERSION_MISMATCH, _NO_DATA = 25, 21
_NO_FIGURE = frozenset(
    {NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, _VERSION_MISMATCH, _NO_DATA}
)


class DeviceMemory:
    """The memory of a card or a slice: its size, found once, and how much is used.

    `kind`: v2 tells the driver's reserve apart, v1 counts it as used, 'shared' is the host's RAM
    (GB10, Jetson: the driver has no figure of its own), 'hidden' is none of them.
    """

    def __init__(self, binding: Any, handle: Any, *, is_slice: bool) -> None:
        self._binding = binding
        self._handle = handle
        self.total = self.reserved = 0
        self.kind = "hidden"
        codes = [self._try("v2")]
        if codes[0]:
            codes.append(self._try("v1"))
        if not is_slice and codes[-1] == NOT_SUPPORTED and NO_PERMISSION not in codes:
            self.kind = "shared"
            self.total, _ = _host_memory()
        self.answer = {
            "v2": "v2",
            "v1": "v1: what the driver keeps for itself counts as used",
            "shared": "not supported: the device uses the host's RAM",
            "hidden": f"not available (NVML code {codes[-1]})",
        }[self.kind]

    def _try(self, kind: str) -> int:
        """Ask for the size in one version; return the code."""
        info, code = attempt(self._binding, self._ask, kind)
        if code and code not in _NO_FIGURE:
            raise self._binding.NVMLError(code)
        if info is not None and info.total:
            self.kind, self.total = kind, info.total
            self.reserved = info.reserved if kind == "v2" else 0
            return 0
        return code or NOT_SUPPORTED  # a size of 0 was seen where memory is the host's

    def _ask(self, kind: str) -> Any:
        version = self._binding.nvmlMemory_v2 if kind == "v2" else None
        return self._binding.nvmlDeviceGetMemoryInfo(self._handle, version=version)

    def used(self) -> int | None:
        """Return the bytes in use, without the driver's reserve where that is known.

        Raises:
            NVMLError: whatever is more than "no figure".
        """
        if self.kind == "shared":
            total, available = _host_memory()
            return total - available
        if self.kind == "hidden":
            return None
        try:
            used: int = self._ask(self.kind).used
        except self._binding.NVMLError as error:
            if error.value in _NO_FIGURE:
                return None
            raise
        return used if used <= self.total else None  # all ones: "not available"


def _host_memory() -> tuple[int, int]:
    """Return the bytes of RAM there are, and those that can be had."""
    with open(_MEMINFO, encoding="ascii") as file:
        words = [line.split() for line in file]
    figures = {word[0]: int(word[1]) << 10 for word in words if len(word) > 1}
    return figures["MemTotal:"], figures["MemAvailable:"]
