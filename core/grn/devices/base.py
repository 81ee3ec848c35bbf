"""What a device backend is: the words between the broker and whatever knows the devices.

A backend reports; it decides nothing. What it cannot know stays `None` ("unknown"), never 0, and
a fault of one device is a value in that device's reading, never an exception that hides the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Backend",
    "BusyReading",
    "DeviceInfo",
    "DeviceReading",
    "DrivenBackend",
    "HeadroomRule",
    "HealthReading",
    "ProcessUse",
    "State",
]

State = Literal["ok", "lost", "stale"]


class HeadroomRule(NamedTuple):
    """How much of a device is never handed out: a floor or a fraction, whichever is more."""

    floor_mib: int = 0
    fraction: float = 0.0

    def of(self, total_mib: int) -> int:
        """The headroom of a device of this size, in MiB."""
        return max(self.floor_mib, int(total_mib * self.fraction))


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as it was found. `index` is the card's place in bus order, whatever the mask.

    A MIG slice has its card's index and the card's UUID as `parent`; its own UUID is what names it.
    """

    index: int
    uuid: str
    name: str
    total_mib: int
    reserve_mib: int = 0
    parent: str | None = None
    exclusive_process: bool = False
    shares_ram: bool = False
    """Its memory is the host's RAM (GB10, Jetson): one pool with what jobs book of RAM."""
    bus_id: str | None = None
    links: tuple[tuple[str, int], ...] = ()
    """(UUID, distance) of other devices: 0 over NVLink, else NVML's level of what they share."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """What the driver could be asked at start, as (query, answer): `("memory", "v2")`,
    `("process memory", "not supported: …")`. For people; nothing decides by it."""


class ProcessUse(NamedTuple):
    """What one process holds on one device. pid 0: a holder whose pid nobody here can see.

    `server`: it holds memory for clients that are listed beside it (an MPS server).
    """

    pid: int
    mib: int | None
    server: bool = False


class HealthReading(NamedTuple):
    """What a driver says of a device's health. `None`: this device does not say.

    `recovery`: NVML's recovery action, 0 none, 1 reset the GPU, 2 reboot, 3 drain, 4 drain and
    reset.
    """

    remap_pending: bool | None = None
    remap_failed: bool | None = None
    uncorrectable_ecc: int | None = None
    recovery: int | None = None


class BusyReading(NamedTuple):
    """How busy a device is. `None`: its driver does not say.

    `percent`: part of the time in which it computed. `processes`: (pid, percent) of those that did.
    """

    percent: int | None = None
    processes: tuple[tuple[int, int], ...] | None = None


class DeviceReading(NamedTuple):
    """One look at one device. `used_mib` leaves out the driver's reserve.

    `processes=None` means that the driver does not say who holds what, `()` that nobody does.
    """

    uuid: str
    state: State
    reason: str = ""
    used_mib: int | None = None
    processes: tuple[ProcessUse, ...] | None = None
    accounted: tuple[tuple[int, int], ...] = ()
    """(pid, MiB): the largest use that the driver itself recorded of a process, running or over."""
    xids: tuple[int, ...] = ()
    """Error events since the last reading, oldest first."""
    health: HealthReading | None = None
    """`None`: not asked this time."""
    busy: BusyReading | None = None
    """`None`: not looked at this time; some seconds lie between two looks."""


class Backend(Protocol):
    """A source of devices and readings. Held by one broker, called from one thread."""

    spec: str
    """The canonical text that `open_backend` would accept again."""
    meter: str
    """'device': a driver's view of device memory; 'rss': resident memory stands for it."""
    headroom_default: HeadroomRule
    devices: tuple[DeviceInfo, ...]
    """Narrowed by and in the order of the masks that the backend was opened with, the broker's own
    first; those that were found since come after."""
    note: str
    """Why there are no devices, or fewer than the masks named; '' if there is nothing to say."""
    numbers_differ: str
    """Why jobs must be told their devices by UUID, not by number; '' if numbers are certain."""

    def job_env(self) -> dict[str, str]:
        """Return the variables that a job needs to find these devices."""
        ...

    def read(
        self, roots: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> tuple[DeviceReading, ...]:
        """Look at every device once, in the order of `devices`.

        Args:
            roots: lease id -> pids of its live main processes.
            places: lease id -> UUIDs of its devices. Only `meter == 'rss'` needs the two.
        """
        ...

    def unchanged_since_last_read(self) -> bool:
        """Whether no record changed since `read`. It says nothing about processes that died."""
        ...

    def close(self) -> None:
        """Give the devices back, so that another broker can open them."""
        ...


class DrivenBackend(Backend, Protocol):
    """A backend behind a driver that may be slow or stuck: it is asked, and answers later."""

    def ask(self, answer: Callable[[tuple[DeviceReading, ...]], None], *, health: bool) -> None:
        """Look at every device; `answer` is called once from the loop, within half a second.

        It is given a reading of each device, in the order of `devices`. A device that did not
        answer in time is `stale` unless it answered within the last second; it is asked again, and
        returns with its first clean reading, but nobody waits for it until then.

        Args:
            answer: called with the readings; never from within this call.
            health: ask for `HealthReading` too.
        """
        ...
