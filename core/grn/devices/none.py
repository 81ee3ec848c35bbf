"""The backend of a machine without devices: jobs still get CPUs, RAM and a place in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.devices.base import DeviceInfo, DeviceReading, HeadroomRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NoneBackend"]


class NoneBackend:
    """No devices, and a note that says why."""

    def __init__(self, note: str) -> None:
        self.spec = "none"
        self.meter = "device"
        self.headroom_default = HeadroomRule()
        self.devices: tuple[DeviceInfo, ...] = ()
        self.note = note
        self.numbers_differ = ""

    def job_env(self) -> dict[str, str]:
        """Return nothing: there is nothing to find."""
        return {}

    def read(
        self,
        roots: Mapping[str, Sequence[int]],  # noqa: ARG002 - the signature of every backend
        places: Mapping[str, Sequence[str]],  # noqa: ARG002 - the same
    ) -> tuple[DeviceReading, ...]:
        """Return no readings."""
        return ()

    def unchanged_since_last_read(self) -> bool:
        """Return True: nothing cannot change."""
        return True

    def close(self) -> None:
        """Do nothing: nothing is held."""
