"""All that a diagnosis rests on. Nothing here asks anything; unknown is `None`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grn.devices.base import HeadroomRule
from grn.devices.nvml.found import Inventory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn.devices.base import DeviceInfo, DeviceReading

__all__ = [
    "BrokerFacts",
    "DriverFacts",
    "Facts",
    "Holder",
    "MachineFacts",
    "MpsFacts",
    "PlaceFacts",
    "PythonFacts",
    "Seen",
    "StateFacts",
]


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """What an NVIDIA driver says when it is asked without a broker.

    `readings`: by UUID; a device that is missing did not answer in time. `claimed`: UUID -> which
    other broker has it, in words.
    """

    inventory: Inventory
    readings: Mapping[str, DeviceReading] = field(default_factory=dict)
    library: str | None = None
    module_version: str | None = None
    cards_on_bus: int = 0
    claimed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def none(cls) -> DriverFacts:
        """Return the facts of a driver that nobody asked."""
        return cls(Inventory("the driver was not asked"))


@dataclass(frozen=True, slots=True)
class Seen:
    """The devices that a broker started now would manage. `notes`: why some are left out.

    `mask_notes` are those that the device mask of this shell causes.
    """

    spec: str
    devices: tuple[DeviceInfo, ...] = ()
    readings: Mapping[str, DeviceReading] = field(default_factory=dict)
    headroom: HeadroomRule = field(default_factory=HeadroomRule)
    notes: tuple[str, ...] = ()
    mask_notes: tuple[str, ...] = ()
    problem: str = ""
    """Why its description of devices makes no sense."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One process that holds memory on a device; pid 0 is one that nobody here can see."""

    device: str
    pid: int
    mib: int | None
    user: str | None = None
    command: str | None = None
    lease: str | None = None
    server: bool = False


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """Where the broker's socket is, and what keeps one from being made there."""

    path: str = ""
    chosen: str = ""
    problem: str = ""
    is_system: bool = False
    obstacle: str = ""
    free_mib: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What runs at the socket. `problem`: it is there, and cannot be asked."""

    runs: bool = False
    problem: str = ""
    lock_pid: int | None = None
    pid: int | None = None
    user: str | None = None
    release: str = ""
    on_demand: bool = False
    status: Mapping[str, Any] | None = None
    log: str = ""
    log_warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The folder that outlives brokers, and the profiles in it."""

    path: str = ""
    obstacle: str = ""
    free_mib: int | None = None
    free_files: int | None = None
    store_mib: int | None = None
    profiles: int | None = None
    store_problem: str = ""


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """The interpreter and its packages. `versions`: None for one that is not installed."""

    python: str = ""
    package: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    clash: str | None = None
    binding_problem: str = ""
    other_bindings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MpsFacts:
    """CUDA's Multi-Process Service. `answer`: what its daemon said, None if it said nothing."""

    folder: str = ""
    chosen: bool = False
    present: bool = False
    answer: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """CPUs, RAM, limits and namespaces."""

    cpus: int = 1
    affinity: int = 1
    usable_cpus: int = 1
    ram_mib: int | None = None
    usable_ram_mib: int | None = None
    cgroups: str = ""
    first_pid_namespace: bool = True
    wsl: bool = False
    files_soft: int | None = None
    files_hard: int | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything. `failed`: (about, why) of each look that did not succeed."""

    environ: Mapping[str, str] = field(default_factory=dict)
    settings_problem: str = ""
    configuration_problem: str = ""
    """What is wrong with flavors or rules in the user's or the project's file."""
    wanted_devices: str | None = None
    cpu_reserve: int = 2
    ram_reserve_mib: int = 1024
    release: str = ""
    driver: DriverFacts = field(default_factory=DriverFacts.none)
    seen: Seen = Seen("none")
    holders: Sequence[Holder] = ()
    place: PlaceFacts = PlaceFacts()
    broker: BrokerFacts = BrokerFacts()
    state: StateFacts = StateFacts()
    python: PythonFacts = PythonFacts()
    machine: MachineFacts = MachineFacts()
    mps: MpsFacts = MpsFacts()
    failed: Sequence[tuple[str, str]] = ()

    @property
    def uses_driver(self) -> bool:
        """Whether a driver is wanted here: not where simulated devices or none were chosen."""
        return self.wanted_devices in (None, "", "auto", "nvml")
