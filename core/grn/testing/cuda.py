"""A simulated CUDA: what a program sees of simulated devices, and the memory that it takes.

Promises: devices are visible exactly as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER say; all takers
together never hold more than a device has, since a taker looks and books under one file lock; the
errors read like those of the real thing, so that whoever searches a job's output finds them.

With `meter=rss` memory is taken for real, in RAM, and no record is written. Where the card's record
says `acct=1`, the largest use of each process stays on record after its end, as in a driver's
accounting.
"""

from __future__ import annotations

import fcntl
import os

from grn import procs
from grn.devices import simfolder
from grn.devices.simfolder import MODES, Holding, SimDevice
from grn.errors import PathError
from grn.rules.mask import mask_style, parse_mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CudaError", "OutOfMemory", "SimulatedCuda", "visible_devices"]

_GIB_IN_MIB = 1024


class CudaError(RuntimeError):
    """A simulated program fails; the text is what a framework would print."""


class OutOfMemory(CudaError):  # noqa: N818 - torch calls it OutOfMemoryError; the text says so
    """The device is full."""


def visible_devices(devices: list[SimDevice], environ: Mapping[str, str]) -> list[SimDevice]:
    """Return what CUDA would list: `cuda:0` first.

    A number names a card (its first slice, where it is divided), a UUID any card or slice.
    """
    ordered = list(devices)
    if environ.get("CUDA_DEVICE_ORDER", "FASTEST_FIRST") != "PCI_BUS_ID":
        # The real driver promises only that the first is the fastest; a test wants one order.
        ordered.sort(key=lambda device: -device.speed)
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None or mask_style(mask) == "index":
        ordered = [device for device in ordered if device.slice <= 0]
    chosen = parse_mask(mask, [device.uuid for device in ordered])
    return [ordered[position] for position in chosen.indices]


class SimulatedCuda:
    """The devices that one process sees, and what it holds on them."""

    def __init__(self, environ: Mapping[str, str], *, busy: int | None = None) -> None:
        self._busy = busy
        self._directory = environ.get("GRN_SIM_DIR", "")
        if not self._directory:
            raise CudaError(
                "RuntimeError: No CUDA GPUs are available (GRN_SIM_DIR is not set: "
                "start this under GRN with --devices sim:4x16GiB)"
            )
        try:
            self.devices = visible_devices(simfolder.read_devices(self._directory), environ)
            self._real = "meter=rss" in simfolder.read_spec(self._directory).split(",")
        except (PathError, OSError) as exc:
            raise CudaError(f"RuntimeError: No CUDA GPUs are available ({exc})") from exc
        if not self.devices:
            raise CudaError("RuntimeError: No CUDA GPUs are available")
        self._accounts = any(_keeps_accounts(self._directory, d.index) for d in self.devices)
        self._become_this_process()

    def after_fork(self) -> None:
        """Forget the parent's memory: in the child nothing is held yet."""
        self._become_this_process()

    def _become_this_process(self) -> None:
        self._process = os.getpid()
        self._pid = _pid_in_proc()
        self._start = procs.start_time(self._pid)
        self._held: dict[int, int] = {}
        self._most: dict[int, int] = {}
        self._ballast: dict[int, bytearray] = {}
        name = f"{self._pid}-{self._start}"
        self._path = os.path.join(simfolder.procs_path(self._directory), name)

    def device(self, ordinal: int) -> SimDevice:
        """Return what a program calls `cuda:<ordinal>`."""
        if ordinal >= len(self.devices):
            raise CudaError("RuntimeError: CUDA error: invalid device ordinal")
        return self.devices[ordinal]

    def hold(self, ordinal: int, mib: int) -> None:
        """Hold `mib` on a device from now on, in place of what was held there.

        Raises:
            OutOfMemory: the device has no room for it; what was held before is still held.
            CudaError: there is no such device, or it does not let this process in.
        """
        device = self.device(ordinal)
        with open(os.path.join(simfolder.procs_path(self._directory), ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            device = self._look_again(device)
            others = self._others(device)
            _check_mode(device, others)
            self._check_room(ordinal, device, others, mib)
            if self._real:
                self._take_ram(ordinal, mib)
            self._held[ordinal] = mib
            self._most[ordinal] = max(mib, self._most.get(ordinal, 0))
            if not self._real:
                self._write()

    def release(self) -> None:
        """Give everything back; for the end of the process."""
        self._held = {}
        self._ballast = {}
        if self._process != os.getpid():
            return
        if self._accounts and self._most:
            self._write()
        else:
            simfolder.discard(self._path)

    def _look_again(self, device: SimDevice) -> SimDevice:
        """Read the card as it is now: base memory and faults can be changed at any time."""
        for found in simfolder.read_card(self._directory, device.index):
            if found.key == device.key and found.state != "lost":
                return found
        raise CudaError("RuntimeError: CUDA error: GPU is lost")

    def _others(self, device: SimDevice) -> list[Holding]:
        """Return what everybody else holds on the device now."""
        folder = simfolder.procs_path(self._directory)
        found: list[Holding] = []
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if name.startswith(".") or path == self._path:
                continue
            try:
                held = simfolder.holdings_in(simfolder.read_file(path))
            except FileNotFoundError:
                continue  # its process has just ended
            except (ValueError, KeyError) as exc:
                raise CudaError(f"RuntimeError: {path} makes no sense: {exc!r}") from exc
            found += [h for h in held if h.key == device.key and simfolder.is_current(h)]
        return found

    def _check_room(self, ordinal: int, device: SimDevice, others: list[Holding], mib: int) -> None:
        mine = self._held.get(ordinal, 0)
        taken = device.base_mib + sum(holding.mib or 0 for holding in others)
        if device.used_mib is not None:
            taken = max(taken, device.used_mib - mine)
        if mib > mine and mib > device.capacity_mib - taken:
            free = max(0, device.capacity_mib - taken - mine)
            raise _out_of_memory(ordinal, device, mib - mine, free)

    def _take_ram(self, ordinal: int, mib: int) -> None:
        self._ballast.pop(ordinal, None)
        # bytearray clears what it gets, so every page is really there.
        self._ballast[ordinal] = bytearray(mib << 20)

    def _write(self) -> None:
        lines = [
            Holding(
                self.devices[ordinal].key, self._pid, mib, self._start, live=True, busy=self._busy
            ).record()
            for ordinal, mib in self._held.items()
        ]
        if self._accounts:
            lines += [self._account(ordinal, mib) for ordinal, mib in self._most.items()]
        simfolder.write_file(self._path, "".join(lines))

    def _account(self, ordinal: int, mib: int) -> str:
        device = self.devices[ordinal]
        keys: dict[str, object] = {"gpu": device.index, "pid": self._pid, "maxmem": f"{mib}M"}
        if device.slice != simfolder.WHOLE:
            keys |= {"gi": device.slice + 1, "ci": 0}
        return simfolder.render("acct", keys)


def _pid_in_proc() -> int:
    """Return this process's pid as `/proc` has it: a driver too knows nothing of inner namespaces."""
    try:
        return int(os.readlink("/proc/self"))
    except (OSError, ValueError):  # it is not visible there
        return os.getpid()


def _keeps_accounts(directory: str, index: int) -> bool:
    records = simfolder.records_in(simfolder.read_file(simfolder.card_path(directory, index)))
    return any(kind == "gpu" and keys.get("acct") == "1" for kind, keys in records)


def _check_mode(device: SimDevice, others: list[Holding]) -> None:
    if device.mode == MODES["prohibited"] or (device.mode == MODES["exclusive"] and others):
        raise CudaError(
            "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable"
        )


def _out_of_memory(ordinal: int, device: SimDevice, asked: int, free: int) -> OutOfMemory:
    return OutOfMemory(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_torch_size(asked)}. "
        f"GPU {ordinal} has a total capacity of {_torch_size(device.capacity_mib)} "
        f"of which {_torch_size(free)} is free."
    )


def _torch_size(mib: int) -> str:
    return f"{mib:.2f} MiB" if mib < _GIB_IN_MIB else f"{mib / _GIB_IN_MIB:.2f} GiB"
