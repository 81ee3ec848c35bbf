"""Error events (Xid) of a card.

Asked for at each reading with a time-out of 0: the driver keeps them until then, so nothing is lost,
and a thread of its own would only tell sooner what is acted on with the next reading anyway.
"""

from __future__ import annotations

from grn.devices.nvml.binding import NOT_SUPPORTED, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Events"]

_AT_ONCE = 32
_ANY = 0xFFFFFFFF


class Events:
    """The events of one card since the last look."""

    def __init__(self, binding: Any, card: Any) -> None:
        self._binding = binding
        self._set, code = attempt(binding, binding.nvmlEventSetCreate)
        if code == 0:
            wanted = binding.nvmlEventTypeXidCriticalError
            _, code = attempt(binding, binding.nvmlDeviceRegisterEvents, card, wanted, self._set)
        if code:
            self._set = None
        self.answer = {0: "Xid", NOT_SUPPORTED: "not supported"}.get(
            code, f"not available (NVML code {code})"
        )

    def take(self) -> list[tuple[int, int | None, int | None]]:
        """Return (Xid, GPU instance, compute instance) of each; None: it concerns the whole card."""
        found: list[tuple[int, int | None, int | None]] = []
        while self._set is not None and len(found) < _AT_ONCE:
            event, code = attempt(self._binding, self._binding.nvmlEventSetWait_v2, self._set, 0)
            if code:
                break  # a time-out: no more of them
            instance = [event.gpuInstanceId, event.computeInstanceId]
            gpu, compute = (None if number == _ANY else number for number in instance)
            found.append((int(event.eventData), gpu, compute))
        return found
