"""What is known of a job type on a device model, and what to book for its next run.

The estimate is the largest of the last 20 peaks plus a margin. Device memory is a cliff: a job that
dies of it loses hours, so a maximum beats a quantile, and the window forgets a model that shrank.
After an out-of-memory the next try gets more; a peak above the estimate counts at once, while the
job still runs. Only a successful job makes a profile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from grn.rules.peaks import SAMPLED, SOURCES, Peak

__all__ = [
    "ALONE_AFTER_OOMS",
    "FAILURES_SAID",
    "OTHER_MODEL_FACTOR",
    "PROVISIONAL_FACTOR",
    "WINDOW",
    "Margin",
    "Profile",
    "bumped",
]

WINDOW = 20
ALONE_AFTER_OOMS = 3
FAILURES_SAID = 3
PROVISIONAL_FACTOR = 1.5
OTHER_MODEL_FACTOR = 1.1
"""Kernels and contexts differ between models: a peak from another one gets a tenth on top."""

_OOM_FACTOR = 1.3
_OOM_STEP_MIB = 512
_DIFFERS = 1.3


class Margin(NamedTuple):
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
    window: list[Peak] = field(default_factory=list)
    """Peaks of the last successful runs, oldest first."""
    durations_s: list[float] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)
    runs: int = 0
    first_at: float | None = None
    last_at: float | None = None
    """When measured runs ended, in seconds since 1970."""
    quantiles_mib: list[int] = field(default_factory=list)
    """Of the last run whose memory was followed: the most it held during 0, 10 ... 100 % of it."""
    busy_percent: list[int] = field(default_factory=list)
    """How busy the last runs kept a device, where a driver told while they were alone there."""
    preallocated: bool = False
    """The last measured run took most of its device at once and kept it."""
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
    raised_source: str = SAMPLED
    raised_age: int = 0
    bump_mib: int | None = None

    @property
    def peaks(self) -> list[int]:
        """The window in MiB."""
        return [peak.mib for peak in self.window]

    @property
    def known(self) -> bool:
        """Whether later runs can share a device by what was learnt."""
        return bool(self.window) or self.set_mib is not None or self.provisional_mib is not None

    @property
    def peak_mib(self) -> int | None:
        """The largest peak in the window, whatever its source; `None` if nothing was measured."""
        peaks = [*self.peaks, self.set_mib or 0, self.raised_mib if self.known else 0]
        return max(peaks) or None

    @property
    def source(self) -> str | None:
        """How the largest peak is known; `None` if nothing was measured."""
        best = max(self.window, key=_weight, default=None)
        if best is None or self.raised_mib > best.mib:
            return self.raised_source if self.raised_mib and self.known else None
        return best.source

    @property
    def differs(self) -> float | None:
        """How many times the median the largest peak is, where that looks like two sizes."""
        peaks = sorted(self.peaks)
        middle = len(peaks) // 2
        median = (peaks[middle] + peaks[~middle]) / 2 if peaks else 0
        ratio = peaks[-1] / median if median else 0.0
        return ratio if ratio > _DIFFERS else None

    @property
    def state(self) -> str:
        """`unmeasured`, `provisional` or `settled`."""
        if self.window or self.set_mib is not None:
            return "settled"
        return "provisional" if self.provisional_mib is not None else "unmeasured"

    def estimate_mib(self, margin: Margin) -> int | None:
        """Return what to book for the next run; `None` while the type is unknown."""
        if not self.window and not self.known:
            return None
        stated = self.set_mib or 0
        measured = max([self.raised_mib, *[peak.mib for peak in self.window]])
        found = max(stated, self.bump_mib or 0, margin.on(measured) if measured > stated else 0)
        if not self.window and self.provisional_mib is not None:
            found = max(found, margin.on(ceil(self.provisional_mib * PROVISIONAL_FACTOR)))
        return found

    def succeeded(
        self,
        peak_mib: int | None,
        ran_s: float,
        source: str,
        *,
        at: float | None = None,
        censored: bool = False,
    ) -> None:
        """Learn from a successful run.

        Args:
            peak_mib: `None` if it was over before it could be measured.
            ran_s: how long it ran.
            source: how the peak is known.
            at: when it ended, in seconds since 1970.
            censored: it met an out-of-memory and went on with less. Such a peak raises, and never
                lowers: it moves no window, ages nothing, and ends no raise after an out-of-memory.

        Nor does a run of which nothing was measured: it went well with what it was given.
        """
        self._ended("ok", ran_s)
        self.failures = self.ooms = 0
        if peak_mib is None:
            self.unmeasured += 1
            return
        if not censored:
            self.bump_mib = None
        self.runs += 1
        self.provisional_mib = None
        self.first_at, self.last_at = self.first_at or at, at or self.last_at
        if not censored or peak_mib > max(self.peaks, default=0):
            self.window = [*self.window, Peak(peak_mib, source, at, censored)][-WINDOW:]
        self.raised_age += not censored
        if peak_mib >= self.raised_mib or self.raised_age >= WINDOW:
            self.raised_mib = self.raised_age = 0

    def kept_busy(self, percent: int) -> None:
        """Note how busy a run that ended well kept its devices."""
        self.busy_percent = [*self.busy_percent, percent][-WINDOW:]

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

    def outgrown(self, peak_mib: int, source: str = SAMPLED) -> bool:
        """Note the peak of a running job; tell whether it changed the estimate."""
        if peak_mib <= (self.peak_mib or 0):
            return False
        self.raised_mib, self.raised_source, self.raised_age = peak_mib, source, 0
        return True

    def held_on(self, peak_mib: int, source: str, at: float | None) -> bool:
        """Note that what the run that ended well at `at` left behind held so much; tell of a change.

        It is a peak of that run, as if it had been seen before the end.
        """
        last = self.window[-1] if self.window else None
        if last is None:
            self.unmeasured = max(0, self.unmeasured - 1)
            self.window = [Peak(peak_mib, source, at)]
            self.runs += 1
            self.provisional_mib = None
            self.first_at, self.last_at = self.first_at or at, at or self.last_at
            return True
        if at is None or last.at != at:  # others have ended since
            return self.outgrown(peak_mib, source)
        if peak_mib <= last.mib:
            return False
        self.window[-1] = last._replace(mib=peak_mib, source=source)
        return True

    def _ended(self, outcome: str, ran_s: float) -> None:
        self.outcomes = [*self.outcomes, outcome][-WINDOW:]
        if outcome == "ok":
            self.durations_s = [*self.durations_s, round(ran_s, 3)][-WINDOW:]


def _weight(peak: Peak) -> tuple[int, int]:
    """Order peaks by size, those of one size by how well they are known."""
    rank = SOURCES.index(peak.source) if peak.source in SOURCES else len(SOURCES)
    return peak.mib, -rank
