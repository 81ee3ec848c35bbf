"""What is known of a job type on a device model, and what to book for its next run.

The estimate is the largest of the last 20 peaks plus a margin. Device memory is a cliff: a job that
dies of it loses hours, so a maximum beats a quantile, and the window forgets a model that shrank.
After an out-of-memory the next try gets more; a peak above the estimate counts at once, while the
job still runs. Only a successful job makes a profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

__all__ = [
    "ALONE_AFTER_OOMS",
    "FAILURES_SAID",
    "OTHER_MODEL_FACTOR",
    "PROVISIONAL_FACTOR",
    "WINDOW",
    "Margin",
    "Profile",
    "bumped",
    "has_cycles",
    "is_preallocation",
]

WINDOW = 20
ALONE_AFTER_OOMS = 3
FAILURES_SAID = 3
PROVISIONAL_FACTOR = 1.5
OTHER_MODEL_FACTOR = 1.1
"""Kernels and contexts differ between models: a peak from another one gets a tenth on top."""

_OOM_FACTOR = 1.3
_OOM_STEP_MIB = 512
_SIMILAR = 0.05
_DIP = 0.10
_CYCLES = 3
_PREALLOCATED_SHARE = 0.70


@dataclass(frozen=True, slots=True)
class Margin:
    """What is booked on top of a peak: the larger of a share of it and a fixed amount."""

    share: float = 0.05
    floor_mib: int = 256

    def on(self, peak_mib: int) -> int:
        """Return the peak with its margin, MiB."""
        return peak_mib + max(ceil(peak_mib * self.share), self.floor_mib)


def bumped(booking_mib: int) -> int:
    """Return what to book after a run with this booking died of out-of-memory."""
    return max(ceil(booking_mib * _OOM_FACTOR), booking_mib + _OOM_STEP_MIB)


@dataclass(slots=True)
class Profile:
    """What is known of one job type on one device model. All amounts in MiB per device."""

    type: str
    device_model: str
    peaks: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    source: str | None = None
    runs: int = 0
    unmeasured: int = 0
    failures: int = 0
    """Failed runs since the last success."""
    ooms: int = 0
    """Out-of-memory ends since the last success."""
    set_mib: int | None = None
    """What a person said it needs; a larger peak outranks it."""
    provisional_mib: int | None = None
    raised_mib: int = 0
    """The largest peak of a run that has not (yet) succeeded: raises, never makes a profile."""
    raised_age: int = 0
    bump_mib: int | None = None

    @property
    def known(self) -> bool:
        """Whether later runs can share a device by what was learnt."""
        return bool(self.peaks) or self.set_mib is not None or self.provisional_mib is not None

    @property
    def peak_mib(self) -> int | None:
        """The largest peak in the window, whatever its source; `None` if nothing was measured."""
        peaks = [*self.peaks, self.set_mib or 0, self.raised_mib if self.known else 0]
        return max(peaks) or None

    @property
    def state(self) -> str:
        """`unmeasured`, `provisional` or `settled`."""
        if self.peaks or self.set_mib is not None:
            return "settled"
        return "provisional" if self.provisional_mib is not None else "unmeasured"

    def estimate_mib(self, margin: Margin) -> int | None:
        """Return what to book for the next run; `None` while the type is unknown."""
        if not self.known:
            return None
        candidates = [self.set_mib or 0, self.bump_mib or 0]
        measured = max([*self.peaks, self.raised_mib])
        if measured > (self.set_mib or 0):
            candidates.append(margin.on(measured))
        if not self.peaks and self.provisional_mib is not None:
            candidates.append(margin.on(ceil(self.provisional_mib * PROVISIONAL_FACTOR)))
        return max(candidates)

    def succeeded(self, peak_mib: int | None, ran_s: float, source: str) -> None:
        """Learn from a successful run; `peak_mib=None`: it was over before it could be measured."""
        self._ended("ok", ran_s)
        self.failures = self.ooms = 0
        self.bump_mib = None
        if peak_mib is None:
            self.unmeasured += 1
            return
        self.runs += 1
        self.peaks = [*self.peaks, peak_mib][-WINDOW:]
        self.source = source
        self.provisional_mib = None
        self.raised_age += 1
        if peak_mib >= self.raised_mib or self.raised_age >= WINDOW:
            self.raised_mib = self.raised_age = 0

    def failed(self, outcome: str, ran_s: float, *, oom_at_mib: int | None = None) -> None:
        """Learn from a run that failed: nothing about its need, unless it died of memory.

        `oom_at_mib` is the booking that was too small, if that is what it died of.
        """
        self._ended(outcome, ran_s)
        self.failures += 1
        if oom_at_mib is not None:
            self.ooms += 1
            self.bump_mib = max(self.bump_mib or 0, bumped(oom_at_mib))

    def cancelled(self, ran_s: float) -> None:
        """Note a run that somebody stopped: neither a success nor a failure."""
        self._ended("cancelled", ran_s)

    def withdraw_provisional(self) -> None:
        """Forget what a probe suggested that did not end well."""
        self.provisional_mib = None

    def outgrown(self, peak_mib: int) -> bool:
        """Note the peak of a running job; tell whether it changed the estimate."""
        if peak_mib <= (self.peak_mib or 0):
            return False
        self.raised_mib, self.raised_age = peak_mib, 0
        return True

    def _ended(self, outcome: str, ran_s: float) -> None:
        self.outcomes = [*self.outcomes, outcome][-WINDOW:]
        if outcome == "ok":
            self.durations_s = [*self.durations_s, round(ran_s, 3)][-WINDOW:]


def has_cycles(series: list[tuple[float, int]]) -> bool:
    """Tell whether memory rose three times to about its maximum with dips between.

    A training loop that frees between epochs looks like this; its next cycle will look the same.
    """
    top = max((mib for _, mib in series), default=0)
    if top == 0:
        return False
    cycles, risen = 0, False
    for _, mib in series:
        if not risen and mib >= top * (1 - _SIMILAR):
            cycles, risen = cycles + 1, True
        elif risen and mib <= top * (1 - _DIP):
            risen = False
    return cycles >= _CYCLES


def is_preallocation(series: list[tuple[float, int]], total_mib: int) -> bool:
    """Tell whether the first non-zero reading took 70 % of the device and nothing changed since."""
    held = [mib for _, mib in series if mib > 0]
    if len(held) < _CYCLES or total_mib <= 0:
        return False
    return held[0] >= total_mib * _PREALLOCATED_SHARE and min(held) >= held[0] * (1 - _SIMILAR)
