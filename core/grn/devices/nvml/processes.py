"""Who holds memory on a device: the driver's three lists of processes, as one.

The lists are asked for with one call each into a buffer that is kept, instead of the binding's two
calls (size, then content): between those processes come and go, and its rows cost more than the
driver's answer. Old drivers have no `_v3`; their `_v2` fills the same records.

Must not: drop a pid because it does not exist here. It may be a process of another namespace.
"""

from __future__ import annotations

import ctypes

from grn.devices.nvml.binding import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NOT_SUPPORTED,
    attempt,
    is_driver_gone,
    is_lost,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["ProcessLists"]

_LISTS: tuple[str, ...] = ("Compute", "Graphics", "MPSCompute")
_VERSIONS = ("_v3", "_v2")
_ROWS = 64
_RETRIES = 3
_MORE_ROWS = 32
_HIGHEST_PID = 1 << 22
"""No Linux has a higher pid. The limit set here (pid_max) is not that of other pid namespaces."""

_NOT_AVAILABLE = (1 << 64) - 1
_SERVER = "nvidia-cuda-mps-server"

Uses = dict[int, int | None]


class ProcessLists:
    """Reads who holds how much on one device."""

    def __init__(self, binding: Any, handle: Any, total: int) -> None:
        self._binding = binding
        self._handle = handle
        self._total = total
        self._calls = {what: self._pointer(what, 0) for what in _LISTS}
        self._version = dict.fromkeys(_LISTS, 0)
        self._room = 0
        self._make_room(_ROWS)
        self._names: dict[int, str] = {}
        self.why_not = ""
        """Why the last `read` returned None."""

    def read(self) -> Uses | None:
        """Return the bytes that each process holds; None if the driver does not say who does.

        A figure is None where the driver has none for that process (WSL2).

        Raises:
            NVMLError: the card or the driver is gone.
        """
        compute = self._list("Compute")
        if compute is None:
            return None
        uses = dict(compute)
        for what in _LISTS[1:]:
            for pid, used in (self._list(what) or {}).items():
                known = uses.get(pid)
                uses[pid] = used if known is None else max(known, used or 0)
        if uses and (
            believable := {pid: used for pid, used in uses.items() if pid <= _HIGHEST_PID}
        ):
            uses = believable
        elif uses:
            self.why_not = f"process list unreadable: of {len(uses)} pids none can be one"
            return None
        return uses

    def servers(self, pids: Iterable[int]) -> list[int]:
        """Return those that hold memory for others (MPS servers)."""
        names = self._names
        self._names = {pid: names[pid] if pid in names else self._name(pid) for pid in pids}
        return [pid for pid, name in self._names.items() if _SERVER in name]

    def _name(self, pid: int) -> str:
        name, code = attempt(self._binding, self._binding.nvmlSystemGetProcessName, pid)
        return "" if code else str(name)

    def _list(self, what: str) -> Uses | None:
        """Read one list; None, and why, if the driver does not give it."""
        code = NOT_SUPPORTED
        tries = 1 + _RETRIES
        while self._calls[what] is not None and tries:
            tries -= 1
            count = ctypes.c_uint(self._room)
            code = self._calls[what](self._handle, ctypes.byref(count), self._buffer)
            if code == 0:
                return self._rows(count.value)
            if code == INSUFFICIENT_SIZE:
                self._make_room(max(count.value, self._room) + _MORE_ROWS)
            elif code != FUNCTION_NOT_FOUND or not self._older(what):
                break
        self._note(what, code)
        return None

    def _make_room(self, rows: int) -> None:
        """Have a buffer for so many rows, and more than that: one driver (535.98) writes larger ones."""
        self._room = rows
        self._buffer = (self._binding.c_nvmlProcessInfo_v2_t * (2 * rows))()

    def _note(self, what: str, code: int) -> None:
        """Keep why there is no list."""
        if is_lost(code) or is_driver_gone(code):
            raise self._binding.NVMLError(code)
        if code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            self._calls[what] = None  # it will be so for as long as this driver runs
            self.why_not = "the driver has no list of processes"
        else:
            self.why_not = f"the driver gives no list of processes (NVML code {code})"

    def _rows(self, count: int) -> Uses:
        uses: Uses = {}
        for row in self._buffer[:count]:
            pid, used = row.pid, row.usedGpuMemory
            # All ones is "not available"; more than the device has was never measured.
            figure = None if used == _NOT_AVAILABLE or used > self._total else used
            known = uses.get(pid)
            if pid == 0 and known is not None and figure is not None:
                uses[0] = known + figure  # several that nobody here can see
            else:
                uses[pid] = figure if known is None else max(known, figure or 0)
        return uses

    def _older(self, what: str) -> bool:
        """Go on with the next older version of a call, if there is one."""
        version = self._version[what] = self._version[what] + 1
        if version < len(_VERSIONS):
            self._calls[what] = self._pointer(what, version)
        return version < len(_VERSIONS) and self._calls[what] is not None

    def _pointer(self, what: str, version: int) -> Any:
        for suffix in _VERSIONS[version:]:
            name = f"nvmlDeviceGet{what}RunningProcesses{suffix}"
            pointer, _ = attempt(self._binding, self._binding._nvmlGetFunctionPointer, name)  # noqa: SLF001 - what the binding itself calls through
            if pointer is not None:
                return pointer
        return None
