"""What a lease's measurements teach: peaks, outcomes, provisional profiles, and what to say.

Called by the machine for each look at the devices and for each end of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules import events as ev
from grn.rules.estimate import FAILURES_SAID, bumped, has_cycles, is_preallocation
from grn.rules.model import LeaseState
from grn.rules.outcome import OOM, OOM_SUSPECTED

if TYPE_CHECKING:
    from grn.rules.estimate import Profile
    from grn.rules.ledger import Ledger
    from grn.rules.model import Lease
    from grn.rules.profiles import ProfileBook

__all__ = ["Learning"]

_HISTORY = 600
"""Readings kept of a probe: a minute at the fast pace, thinned out beyond."""


class Learning:
    """Turns measurements of leases into profiles."""

    def __init__(self, ledger: Ledger, profiles: ProfileBook, provisional_after_s: float) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._provisional_after_s = provisional_after_s

    # -- while it runs --------------------------------------------------------------------------

    def sampled(self, lease: Lease, now: float) -> list[ev.Effect]:
        """Take in what the lease's processes hold now; the books already know it."""
        if not lease.uuids or lease.unseen:
            return []
        held = max(self._measured(lease, uuid) for uuid in lease.uuids)
        if lease.started_s is not None or held:
            lease.samples += 1
        new_peak = held > lease.peak_mib
        lease.peak_mib = max(lease.peak_mib, held)
        if lease.state is LeaseState.PROBE:
            self._remember(lease, now, held)
            return self._maybe_provisional(lease, now)
        return self._maybe_outgrown(lease) if new_peak and held > lease.booked_mib else []

    def _measured(self, lease: Lease, uuid: str) -> int:
        book = self._ledger.by_uuid.get(uuid)
        return book.bookings[lease.id].measured_mib if book is not None else 0

    @staticmethod
    def _remember(lease: Lease, now: float, held: int) -> None:
        if len(lease.history) >= _HISTORY:
            top = max(lease.history, key=lambda entry: entry[1])
            lease.history = [e for i, e in enumerate(lease.history) if i % 2 == 0 or e is top]
        lease.history.append((now, held))

    def _maybe_provisional(self, lease: Lease, now: float) -> list[ev.Effect]:
        """Let siblings start beside a long first run once its memory has settled."""
        peak = lease.peak_mib
        if not peak:
            return []
        # A lease that a former broker left may have peaked before the first reading kept here.
        since = next((at for at, mib in lease.history if mib == peak), lease.history[0][0])
        if now - since < self._provisional_after_s and not has_cycles(lease.history):
            return []
        profile = self._profile(lease)
        profile.provisional_mib = peak
        lease.foretold = True
        booking = min(profile.estimate_mib(self._profiles.margin) or peak, lease.booked_mib)
        lease.state = LeaseState.RUNNING
        lease.booked_mib = booking
        self._ledger.rebook(lease.id, lease.uuids, booking)
        text = (
            f"provisional type={lease.type!r} peak_mib={peak} booked_mib={booking} lease={lease.id}"
        )
        return [ev.Said("info", text), ev.Learnt(lease.type, profile.device_model)]

    def _maybe_outgrown(self, lease: Lease) -> list[ev.Effect]:
        """Count a peak above the booking at once, for this lease and for later ones."""
        profile = self._profile(lease)
        effects: list[ev.Effect] = []
        if not lease.outgrown:
            lease.outgrown = True
            text = (
                f"outgrown lease={lease.id} type={lease.type!r}"
                f" holds_mib={lease.peak_mib} booked_mib={lease.booked_mib}"
            )
            effects.append(ev.Said("warning", text))
        if profile.known and profile.outgrown(lease.peak_mib):
            effects.append(ev.Learnt(lease.type, profile.device_model))
        return effects

    # -- when it ends ---------------------------------------------------------------------------

    def ended(self, lease: Lease, outcome: str, now: float) -> tuple[list[str], list[ev.Effect]]:
        """Learn from an end; return what to tell the client, and effects."""
        if not lease.uuids:
            return [], []
        profile = self._profile(lease)
        began = lease.started_s if lease.started_s is not None else lease.granted_s
        ran_s = max(0.0, now - began)
        if outcome == "ok":
            return self._succeeded(lease, profile, ran_s)
        if outcome in ("cancelled", "lost"):
            profile.cancelled(ran_s)
            if lease.foretold and not profile.peaks:
                profile.withdraw_provisional()
            return [], []
        return self._failed(lease, profile, outcome, ran_s)

    def _succeeded(
        self, lease: Lease, profile: Profile, ran_s: float
    ) -> tuple[list[str], list[ev.Effect]]:
        peak = lease.peak_mib if lease.samples and lease.peak_mib else None
        profile.succeeded(peak, ran_s, "sampled")
        notes: list[str] = []
        known = any(each.known for each in self._profiles.of_type(lease.type))
        if peak is None and not known and self._profiles.tell_once(lease.type, "unmeasured"):
            notes.append(self._unmeasured(lease))
        if peak is not None and self._is_preallocated(lease):
            notes.append(
                f"type {lease.type!r} took {peak} MiB at once and kept it: this looks like"
                " preallocation, not like need"
            )
        # Nothing measured is nothing to keep: a sweep whose commands never repeat would fill
        # the store with empty profiles.
        kept = peak is not None or profile.known
        learnt: list[ev.Effect] = [ev.Learnt(lease.type, profile.device_model)] if kept else []
        return notes, learnt

    @staticmethod
    def _unmeasured(lease: Lease) -> str:
        if lease.unseen:
            why = "cannot be measured, the driver does not say what a process holds"
        else:
            why = "never used its device" if lease.samples else "ended before it could be measured"
        alone = "" if lease.request.memory_mib else ", so its runs get devices alone"
        return f"type {lease.type!r} {why}: nothing learnt{alone}"

    def _is_preallocated(self, lease: Lease) -> bool:
        totals = [b.device.total_mib for u in lease.uuids if (b := self._ledger.by_uuid.get(u))]
        return any(is_preallocation(lease.history, total) for total in totals)

    def _failed(
        self, lease: Lease, profile: Profile, outcome: str, ran_s: float
    ) -> tuple[list[str], list[ev.Effect]]:
        profile.failed(
            outcome, ran_s, oom_at_mib=lease.booked_mib if self.of_memory(lease, outcome) else None
        )
        if lease.foretold and not profile.peaks:
            profile.withdraw_provisional()
        notes: list[str] = []
        effects: list[ev.Effect] = []
        never = not self._profiles.succeeded_ever(lease.type)
        if profile.failures == FAILURES_SAID and never:
            notes.append(
                f"type {lease.type!r} failed {FAILURES_SAID} times and has never succeeded:"
                " nothing learnt, its runs go one at a time"
            )
            effects.append(ev.Said("warning", f"never-succeeded type={lease.type!r}"))
        if profile.known:
            effects.append(ev.Learnt(lease.type, profile.device_model))
        return notes, effects

    @staticmethod
    def of_memory(lease: Lease, outcome: str) -> bool:
        """Whether the run is treated as an out-of-memory.

        A job that failed near its booking is only suspected: with a tight margin each failure of a
        known type looks like that. It counts only if the device was full too.
        """
        return outcome == OOM or (outcome == OOM_SUSPECTED and lease.device_nearly_full)

    def next_mib(self, lease: Lease, outcome: str) -> int | None:
        """Return what a retry should declare after it died of memory; `None`: leave it to GRN."""
        if not self.of_memory(lease, outcome) or not lease.uuids:
            return None
        more = bumped(lease.booked_mib)
        largest = max((book.device.capacity_mib for book in self._ledger.books), default=0)
        return more if more <= largest else None

    def _profile(self, lease: Lease) -> Profile:
        book = self._ledger.by_uuid.get(lease.uuids[0])
        return self._profiles.of(lease.type, book.device.model if book else "unknown")
