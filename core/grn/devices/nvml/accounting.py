"""The largest use of each process as the driver itself recorded it (accounting mode).

The driver sees every spike and remembers processes that are over, so this beats any sampling. It
keeps them in a ring of thousands; only those are asked for that hold memory now, did so at the last
reading, or are new in the ring (they may have come and gone in between).
"""

from __future__ import annotations

import ctypes

from grn.devices.nvml.binding import NOT_SUPPORTED, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Accounting"]

_ON = 1


class Accounting:
    """What a device's driver recorded of processes; nothing where it records nothing."""

    def __init__(self, binding: Any, handle: Any) -> None:
        self._binding = binding
        self._handle = handle
        mode, code = attempt(binding, binding.nvmlDeviceGetAccountingMode, handle)
        self.answer = {0: "on" if mode == _ON else "off", NOT_SUPPORTED: "not supported"}.get(
            code, f"not available (NVML code {code})"
        )
        self._on = code == 0 and mode == _ON
        self._before: frozenset[int] = frozenset()
        self._ring = self._buffer() if self._on else None
        self._seen = b""
        self._known: frozenset[int] = frozenset()
        if self._on:
            self._new_in_ring()  # those that were over before we came

    def read(self, pids: Iterable[int]) -> list[tuple[int, int]]:
        """Return (pid, bytes) of each process that matters now; `pids` hold memory."""
        if not self._on:
            return []
        now = frozenset(pids)
        matter = now | self._before | self._new_in_ring()
        self._before = now
        found: list[tuple[int, int]] = []
        for pid in sorted(matter - {0}):
            stats, _ = attempt(
                self._binding, self._binding.nvmlDeviceGetAccountingStats, self._handle, pid
            )
            if stats is not None and stats.maxMemoryUsage:
                found.append((pid, stats.maxMemoryUsage))
        return found

    def _buffer(self) -> Any:
        size, _ = attempt(
            self._binding, self._binding.nvmlDeviceGetAccountingBufferSize, self._handle
        )
        return (ctypes.c_uint * size)() if size else None

    def _new_in_ring(self) -> frozenset[int]:
        """Return the pids that the ring did not have at the last look; mostly nothing changed."""
        ring = self._ring
        if ring is None:
            return frozenset()
        count = ctypes.c_uint(len(ring))
        call, code = attempt(
            self._binding,
            self._binding._nvmlGetFunctionPointer,  # noqa: SLF001 - its own function makes a list
            "nvmlDeviceGetAccountingPids",
        )
        if code or call(self._handle, ctypes.byref(count), ring):
            return frozenset()
        content = bytes(memoryview(ring)[: count.value])
        if content == self._seen:
            return frozenset()
        self._seen = content
        before, self._known = self._known, frozenset(ring[: count.value])
        return self._known - before
