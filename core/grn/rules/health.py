"""Whether a device can be trusted with a new job: error events (Xids) and the driver's figures.

The classes follow NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with
the Xid Catalog"), by the action that it asks for at once: to restart the application is the job's
matter, to ignore it is nobody's. Where the catalogue names the card or its link as the cause all the
same (32 and 80: PCI Express; 92: memory that ages), and for each number that it does not explain or
that is newer than this list, the device is kept back: to be safe.

Promises: a job's own fault never takes a device away; after any other error it gets no new job until
a reading proves it well again, which then needs nobody; a device that errs again and again stays out
until somebody has looked at it, also under the next broker. What the driver does not say is held
against no device.

Must not: know the time (it is an argument), or decide what happens to the jobs that run there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["DeviceHealth", "HealthFigures", "job_fault_xids", "xid_text"]

WAIT_S = 60.0
"""How long after its last error a device is tested again."""

STRIKES = 3
"""So many errors within a day keep a device out until an operator lets it in again."""

_DAY_S = 86400.0

_PROGRAMS = frozenset({8, 11, 13, 25, 31, 43, 45, 69, 137})
_COPY_ENGINES = frozenset({39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)})
_MEDIA_ENGINES = frozenset({60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139})
_CONTAINED = frozenset({94})
_JOB_FAULTS = _PROGRAMS | _COPY_ENGINES | _MEDIA_ENGINES | _CONTAINED
"""To be cured by restarting the program that ran."""

_HARMLESS = frozenset({14, 37, 38, 44, 66, 67, 93, 106, 107, 121, 141})
"""To be ignored: notes of the driver, tests, and errors that were corrected."""

_LOOK_FIRST = frozenset({63, 154})
"""Notes that something was recorded: only the figures tell whether the device can go on."""

_XIDS = {
    8: "the GPU stopped processing",
    11: "a program's invalid command stream",
    13: "a program's error in the graphics engine",
    14: "an error that was injected for a test",
    25: "a program's illegal command stream",
    31: "a program's access to memory that it does not have",
    32: "a command stream that was corrupted, mostly on the PCI Express bus",
    37: "a driver or firmware error",
    38: "a driver or firmware error",
    43: "the GPU stopped processing for a program's fault",
    44: "a fault during a context switch",
    45: "cleaning up after an earlier error",
    46: "the GPU stopped processing and did not come back",
    48: "an uncorrectable memory error",
    54: "the card's power cable is not connected",
    61: "a breakpoint or warning of an internal controller",
    62: "a halt of an internal controller",
    63: "a memory row to be remapped, or a page to be retired, was recorded",
    64: "a memory row to be remapped, or a page to be retired, could not be recorded",
    66: "an illegal access by the driver",
    67: "an illegal access by the driver",
    69: "a program's error in the class of the graphics engine",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    80: "data that was corrupted on its way to the GPU",
    92: "a high rate of corrected memory errors",
    93: "the limit of writes to the card's own store",
    94: "a memory error that was contained to one program",
    95: "a memory error that could not be contained",
    106: "a test message",
    107: "a test message",
    109: "a timeout of a context switch",
    110: "a security fault",
    119: "a timeout of the GPU's system processor",
    120: "an error of the GPU's system processor",
    121: "corrected errors of the link between CPU and GPU",
    136: "a failed training of a link",
    137: "a program's illegal access over NVLink",
    140: "an uncorrectable memory error",
    141: "an error of CUDA's fast path",
    143: "a failed start of the GPU",
    154: "the recovery that the GPU needs has changed",
    156: "a part of the GPU was retired",
    158: "a fatal timeout",
    **dict.fromkeys(_COPY_ENGINES, "an error in a copy engine"),
    **dict.fromkeys(_MEDIA_ENGINES, "an exception in a video or image engine"),
}

_UNKNOWN = "not known to GRN, so taken for an error of the card: see NVIDIA's list of Xid errors"

_RECOVERY = {
    1: "reset the GPU: nvidia-smi --gpu-reset",
    2: "reboot the machine",
    3: "end what uses it over NVLink or PCIe, then reset it",
    4: "end what uses it, then reset it: nvidia-smi --gpu-reset",
    5: "let the IMEX domain recover",
    6: "reset the GPU's bus",
    7: "reboot the machine",
}


class HealthFigures(Protocol):
    """What a driver says of a device's health; `None`: it does not say."""

    @property
    def remap_pending(self) -> bool | None:
        """Whether rows of its memory wait for a reset to be remapped."""

    @property
    def remap_failed(self) -> bool | None:
        """Whether remapping failed."""

    @property
    def uncorrectable_ecc(self) -> int | None:
        """Memory errors that could not be corrected, so far."""

    @property
    def recovery(self) -> int | None:
        """The recovery action that the driver asks for; 0: none."""


def xid_text(code: int) -> str:
    """Return an error event in words, with its number."""
    return f"Xid {code} ({_XIDS.get(code, _UNKNOWN)})"


def job_fault_xids(xids: Iterable[int]) -> tuple[int, ...]:
    """Return those that a job caused by itself."""
    return tuple(code for code in xids if code in _JOB_FAULTS)


class DeviceHealth:
    """The health of one device, from when its first event or figure was seen."""

    def __init__(self) -> None:
        self._cause = ""
        """The error for which it is kept back; '': none."""
        self._last_error_s = 0.0
        self._strikes: list[float] = []
        self._stays_out = False
        self._look = ""
        """What was recorded of which no figure has been seen since; '': nothing."""
        self._looked_for_s = 0.0
        self._complaints: tuple[str, ...] = ()
        """What the last figures complained of."""
        self._ecc: int | None = None

    @property
    def usable(self) -> bool:
        """Whether it may get a new job."""
        return not self.reason

    @property
    def state(self) -> str:
        """'ok' or 'unhealthy', for people."""
        return "ok" if self.usable else "unhealthy"

    @property
    def reason(self) -> str:
        """Why it gets no new job and what would change that; '' if it does."""
        parts = [self._kept_back()] if self._cause else []
        parts += [f"{self._look}: no new jobs until its health was read"] if self._look else []
        return "; ".join([*parts, *self._complaints])

    def _kept_back(self) -> str:
        if self._stays_out:
            return (
                f"{self._cause}: error {len(self._strikes)} within a day, so it stays out: reset "
                "the GPU and then `grn broker reload`, or reboot the machine"
            )
        return (
            f"{self._cause}: no new jobs until it reads clean {WAIT_S:g} s after its last error "
            f"(error {len(self._strikes)} of {STRIKES} within a day)"
        )

    def see(
        self,
        now: float,
        xids: Iterable[int],
        health: HealthFigures | None,
        *,
        read_well: bool = True,
    ) -> list[str]:
        """Take a reading in; return what should be said aloud.

        Args:
            now: the time of the reading, in seconds.
            xids: error events since the last reading, oldest first.
            health: the figures; `None` if they were not asked for.
            read_well: whether the device and its memory could be read, too. If not, the figures
                prove nothing.
        """
        before = self.reason
        said: list[str] = []
        for code in dict.fromkeys(xids):
            if code in _JOB_FAULTS:
                said.append(f"{xid_text(code)}: a job's own fault; the device stays in use")
            elif code in _HARMLESS:
                said.append(f"{xid_text(code)}: to be ignored; the device stays in use")
            elif code in _LOOK_FIRST:
                self._look, self._looked_for_s = xid_text(code), now
            else:
                self._strike(xid_text(code), now)
        if health is not None and read_well:
            self._take(health, now)
        after = self.reason
        if after and after != before:
            said.append(after)
        elif before and not after:
            said.append("its health reads clean: back in use")
        return said

    def operator(self) -> None:
        """Let it in again: somebody has looked at it. What the figures say still counts."""
        self._cause = self._look = ""
        self._strikes = []
        self._stays_out = False

    def kept(self) -> Mapping[str, object] | None:
        """Return what the next broker must know of it; `None`: nothing is held against it."""
        if not self._strikes:
            return None
        return {
            "cause": self._cause,
            "last_error_s": self._last_error_s,
            "strikes": list(self._strikes),
            "stays_out": self._stays_out,
        }

    @classmethod
    def restored(cls, record: Mapping[str, Any], now: float) -> DeviceHealth:
        """Take over what another broker of the same boot kept, so that its clock is ours."""
        health = cls()
        health._cause = str(record["cause"])
        health._last_error_s = min(now, float(record["last_error_s"]))
        health._strikes = [min(now, float(then)) for then in record["strikes"]]
        health._stays_out = bool(record["stays_out"])
        return health

    def _strike(self, cause: str, now: float) -> None:
        """Keep it back; errors in a row are one, named by the first, and each begins the wait anew."""
        self._last_error_s = now
        if self._cause:
            return
        self._cause = cause
        self._strikes = [*(then for then in self._strikes if now - then < _DAY_S), now]
        self._stays_out = len(self._strikes) >= STRIKES

    def _take(self, health: HealthFigures, now: float) -> None:
        ecc, known = health.uncorrectable_ecc, self._ecc
        if ecc is not None:
            self._ecc = ecc
            if known is not None and ecc > known:
                self._strike(f"uncorrectable memory errors grew from {known} to {ecc}", now)
        self._complaints = _complaints(health)
        if now > self._looked_for_s:  # figures read together with the event may be older
            self._look = ""
        rested = now - self._last_error_s >= WAIT_S
        if rested and not self._stays_out and not self._complaints:
            self._cause = ""


def _complaints(health: HealthFigures) -> tuple[str, ...]:
    found = []
    if health.remap_failed:
        found.append("a row of its memory could not be remapped: the GPU should be replaced")
    if health.remap_pending:
        found.append(
            "rows of its memory wait to be remapped: end its jobs and reset the GPU "
            "(nvidia-smi --gpu-reset), or reboot the machine"
        )
    if health.recovery:
        what = _RECOVERY.get(health.recovery, "see NVIDIA's documentation")
        found.append(f"the driver asks for recovery action {health.recovery}: {what}")
    return tuple(found)
