"""What the checks have at hand: the broker, the driver, programs to start, and the time that is left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

from grn.selftest.driver import NvmlDriver, SilentDriverError, SimulatedDriver
from grn.selftest.jobs import Program
from grn.selftest.verdict import FailedError, SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from grn.selftest.driver import Driver, Look
    from grn.selftest.ground import Ground

__all__ = ["CONTEXT_BOUND_MIB", "EXCLUSIVE", "Bench", "expect", "place"]

CONTEXT_BOUND_MIB = 1024
"""What the driver may take for a process beside what it asked for."""

_RSS_BOUND_MIB = 512
"""With `meter=rss`: the interpreter."""

EXCLUSIVE = (1, 3)
"""The compute modes in which one process has a device."""

_SIZES_MIB = (1024, 256, 64)
_WAIT_S = 20.0
_LIMIT_S = 80.0
_SEEN_WITHIN_S = 15.0
_EVERY_S = 0.05
_END_WITHIN_S = 20.0
_DRIVER_WAKES_WITHIN_S = 30.0
"""Where nothing else has the driver open, initialising it takes seconds a card."""

_ANSWER_WITHIN_S = 10.0
_LEAST_S = 1.0
_T = TypeVar("_T")


class Bench:
    """The state of one selftest. What it starts is ended by `tidy`."""

    def __init__(self, ground: Ground, deadline: float) -> None:
        self.ground = ground
        self._deadline = deadline
        self._programs: list[Program] = []
        self.driver: Driver | None = None
        self.driver_problem = ""
        self.kind = "sim" if ground.simulated else "cuda"
        self.told: dict[str, str | None] = {}
        """What a first job was told: its mask, and the folder of simulated devices."""
        self.cuda = ""
        """The CUDA version of the library that jobs load."""
        self.extra_mib = 0 if self.kind == "sim" else CONTEXT_BOUND_MIB
        if "meter=rss" in ground.spec:
            self.extra_mib = _RSS_BOUND_MIB

    # -- at the start ---------------------------------------------------------------------------

    def meet_driver(self) -> None:
        """Start to ask the driver itself; where it cannot be asked, keep why."""
        try:
            if self.kind == "cuda":
                wakes_s = _DRIVER_WAKES_WITHIN_S if self.ground.private else _ANSWER_WITHIN_S
                self.driver = NvmlDriver(self.ground.environ(), self.at_most(wakes_s))
        except SilentDriverError as error:
            self.driver_problem = str(error)

    def first_job(self) -> None:
        """Run a job that only looks, and remember what it was told.

        Raises:
            SkippedError: there is no CUDA driver for jobs here.
            FailedError: it does not run.
        """
        devices = self.devices()
        if not devices:
            raise SkippedError(self.why_none())
        if not any(device["free_mib"] for device in devices):
            count = "the one device" if len(devices) == 1 else f"any of {len(devices)} devices"
            raise SkippedError(f"no room on {count} that can be given")
        program = self.start("look", memory_mib=1, mib=0)
        said = program.hear("sees", self.patience_s)
        self.told, self.cuda = said["told"], said["cuda"]
        folder = self.told["GRN_SIM_DIR"]
        if "meter=rss" in self.ground.spec:
            self.driver_problem = "the memory of simulated devices is that of processes here"
        elif self.kind == "sim" and folder is not None:
            self.driver = SimulatedDriver(folder)
        program.finish()

    # -- time -----------------------------------------------------------------------------------

    @property
    def left_s(self) -> float:
        """Seconds until the whole selftest must be over."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def patience_s(self) -> float:
        """How long a job may take to be granted and to start."""
        return min(_WAIT_S + _SEEN_WITHIN_S, self.left_s)

    def at_most(self, seconds: float) -> float:
        """Return that, or what is left if it is less."""
        return max(_LEAST_S, min(seconds, self.left_s))

    def until(self, condition: Callable[[], _T], within_s: float = _SEEN_WITHIN_S) -> _T:
        """Ask until the answer is true; return the last answer, whatever it is."""
        deadline = time.monotonic() + min(within_s, self.left_s)
        while True:
            answer = condition()
            if answer or time.monotonic() > deadline:
                return answer
            time.sleep(_EVERY_S)

    # -- devices --------------------------------------------------------------------------------

    def devices(self) -> list[dict[str, Any]]:
        """Return the devices that can be given, as the broker describes them now."""
        return [device for device in self._all_devices() if device["state"] == "ok"]

    def _all_devices(self) -> list[dict[str, Any]]:
        devices: list[dict[str, Any]] = self._status()["devices"]
        return devices

    def _status(self) -> dict[str, Any]:
        return self.ground.status(self.at_most(_ANSWER_WITHIN_S))

    def why_none(self) -> str:
        """Say why no device can be given."""
        devices = self._all_devices()
        reasons = [f"{place(d)} is {d['state']} ({d['reason']})" for d in devices]
        return f"no device can be given now: {'; '.join(reasons) or 'there is none'}"

    def size_on(self, device: dict[str, Any], jobs: int = 1) -> int:
        """Return how many MiB each of so many jobs may take on a device; 0: it is too full."""
        share: int = (device["free_mib"] or 0) // jobs - self.extra_mib
        # No more than a quarter of it, where that can be: others may want some meanwhile.
        modest = [size for size in _SIZES_MIB if 4 * (size + self.extra_mib) <= share]
        return next(iter(modest), _SIZES_MIB[-1] if share >= _SIZES_MIB[-1] else 0)

    def given_alone(self) -> set[str]:
        """Return the devices that have one job at a time: MIG slices, and by compute mode."""
        facts = [] if self.driver is None else self.driver.facts.get("devices", [])
        exclusive = {entry["uuid"] for entry in facts if entry["mode"] in EXCLUSIVE}
        slices = {d["uuid"] for d in self.devices() if d["uuid"].startswith("MIG-")}
        return exclusive | slices

    def roomiest(self, jobs: int = 1, but: Collection[str] = ()) -> tuple[dict[str, Any], int]:
        """Return the device with most room, and the size of a job on it; `but` leaves some out.

        Raises:
            SkippedError: no device has room for so many jobs.
        """
        usable = self.devices()
        devices = [device for device in usable if device["uuid"] not in but]
        if not devices:
            alone = "each device here has one job at a time (a MIG slice, or exclusive mode)"
            raise SkippedError(alone if usable else self.why_none())
        device = max(devices, key=lambda each: each["free_mib"] or 0)
        size = self.size_on(device, jobs)
        if not size:
            needed = jobs * (_SIZES_MIB[-1] + self.extra_mib)
            raise SkippedError(f"{needed} MiB are needed, {device['free_mib']} are free")
        return device, size

    def lease(self, lease: str | None) -> dict[str, Any]:
        """Return what the books say of a lease; {} once it has ended."""
        leases: list[dict[str, Any]] = self._status()["leases"]
        return next((entry for entry in leases if entry["id"] == lease), {})

    def look(self) -> Look | None:
        """Look at what the driver lists; None where it cannot be asked (any more)."""
        if self.driver is None:
            return None
        try:
            return self.driver.look(self.at_most(_ANSWER_WITHIN_S))
        except SilentDriverError as error:
            self.driver.close()
            self.driver, self.driver_problem = None, str(error)
            return None

    # -- jobs -----------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *,
        memory_mib: int,
        mib: int,
        mask: str | None = None,
        gpus: int = 1,
        words: Sequence[str] = (),
    ) -> Program:
        """Start a job that is to hold `mib`, with a share of `memory_mib` on each device."""
        words = words or ("grn.selftest.worker", f"--devices={self.kind}", f"--mib={mib}")
        program = Program(
            self.ground,
            name,
            words,
            memory_mib=memory_mib,
            wait_s=self.at_most(_WAIT_S),
            limit_s=_LIMIT_S,
            left_s=lambda: self.left_s,
            mask=mask,
            gpus=gpus,
        )
        self._programs.append(program)
        return program

    def tidy(self) -> None:
        """End all that was started, all at once."""
        programs, self._programs = self._programs, []
        for program in programs:
            program.terminate()
        deadline = time.monotonic() + self.at_most(_END_WITHIN_S)
        for program in programs:
            program.close(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """End everything."""
        self.tidy()
        if self.driver is not None:
            self.driver.close()


def place(device: dict[str, Any]) -> str:
    """Name a device for people."""
    return f"device {device['index']}"


def expect(condition: object, otherwise: str) -> None:
    """Fail the check unless something holds.

    Raises:
        FailedError: it does not.
    """
    if not condition:
        raise FailedError(otherwise)
