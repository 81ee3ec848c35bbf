"""What a lease's measurements teach: peaks, outcomes, provisional profiles, and what to say.

Called by the machine for each look at the devices and for each end of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.errors import UsageError
from grn.rules import events as ev
from grn.rules.curve import (
    LEAST_READINGS,
    has_cycles,
    is_large,
    is_preallocation,
    quantiles,
    remember,
)
from grn.rules.estimate import FAILURES_SAID, bumped
from grn.rules.interference import learnt_busy
from grn.rules.model import LeaseState
from grn.rules.outcome import MORE, NOTHING, OK, classify, crowded_out, remedy
from grn.rules.peaks import least_peak_of, peak_of

if TYPE_CHECKING:
    from grn.rules.estimate import Profile
    from grn.rules.ledger import Book, Ledger
    from grn.rules.model import Device, End, Lease
    from grn.rules.nested import NestedBook
    from grn.rules.peaks import Peak
    from grn.rules.profiles import ProfileBook

__all__ = ["Learning"]

_OF_A_PROBE = 600
"""Readings kept of a probe: a minute at the fast pace, thinned out beyond."""

_OF_OTHERS = 120
"""Changes kept of any other lease: there may be many, and only their quantiles are asked for."""


class Learning:
    """Turns measurements of leases into profiles."""

    def __init__(
        self, ledger: Ledger, profiles: ProfileBook, provisional_after_s: float, nested: NestedBook
    ) -> None:
        self._ledger = ledger
        self._profiles = profiles
        self._provisional_after_s = provisional_after_s
        self._nested = nested

    # -- while it runs --------------------------------------------------------------------------

    def sampled(self, lease: Lease, now: float) -> list[ev.Effect]:
        """Take in what the lease's processes hold now; the books already know it."""
        if not lease.uuids or lease.unseen:
            return []
        if len(lease.uuids) == 1:
            held = self._measured(lease, lease.uuids[0])
        else:
            held = max([self._measured(lease, uuid) for uuid in lease.uuids])
        if lease.started_s is not None or held:
            lease.samples += 1
        new_peak = held > lease.peak_mib
        if new_peak:
            lease.peak_mib = held
        probe = lease.state is LeaseState.PROBE
        limit = _OF_A_PROBE if probe else _OF_OTHERS
        remember(lease.history, now, held, limit=limit, changes_only=not probe)
        if probe:
            return self._maybe_provisional(lease, now)
        return self._maybe_outgrown(lease) if new_peak else []

    def left_behind(self, lease: Lease) -> list[ev.Effect]:
        """Take in what the processes of a lease that drains hold: its job's peak may be theirs."""
        if lease.unseen or lease.strays:
            return []
        held = max((self._measured(lease, uuid) for uuid in lease.uuids), default=0)
        if held <= lease.peak_mib:
            return []
        lease.peak_mib, lease.samples = held, lease.samples + 1
        peak = peak_of(lease)
        if lease.outcome != OK or peak is None:
            return self._maybe_outgrown(lease)
        profile = self._profile(lease)
        if not profile.held_on(peak.mib, peak.source, lease.ended_at):
            return []
        return [ev.Learnt(lease.type, profile.device_model)]

    def reported(self, lease: Lease, mib: int) -> list[ev.Effect]:
        """Take in what a process of the lease reports as its peak.

        Raises:
            UsageError: if no device of the lease has so much.
        """
        largest = max((device.total_mib for device in self._devices(lease)), default=0)
        if mib > largest:
            raise UsageError(
                f"a peak of {mib} MiB was reported for lease {lease.id}, whose largest device has"
                f" {largest} MiB: is that a number of bytes?"
            )
        lease.reported_mib = max(lease.reported_mib, mib)
        self._ledger.told(lease.id, lease.uuids, mib)
        return [] if lease.state is LeaseState.PROBE else self._maybe_outgrown(lease)

    def _devices(self, lease: Lease) -> list[Device]:
        books = self._ledger.by_uuid
        return [books[uuid].device for uuid in lease.uuids if uuid in books]

    def _measured(self, lease: Lease, uuid: str) -> int:
        book = self._ledger.by_uuid.get(uuid)
        return book.bookings[lease.id].measured_mib if book is not None else 0

    def _maybe_provisional(self, lease: Lease, now: float) -> list[ev.Effect]:
        """Let siblings start beside a long first run once its memory has settled."""
        known, seen = peak_of(lease), lease.peak_mib
        if known is None or not seen or self._nested.used(lease.id):
            return []  # what was promised inside it stays booked
        # A lease of a former broker may have peaked before the first reading kept here.
        since = next((at for at, mib in lease.history if mib == seen), lease.history[0][0])
        if now - since < self._provisional_after_s and not has_cycles(lease.history):
            return []
        profile = self._profile(lease)
        profile.provisional_mib = peak = known.mib
        lease.foretold_mib = peak
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
        booked = lease.booked_mib
        if max(lease.peak_mib, lease.accounted_mib, lease.reported_mib) <= booked:
            return []  # whichever of them is its peak
        peak = least_peak_of(lease)
        if peak is None or peak.mib <= booked:
            return []
        profile = self._profile(lease)
        effects: list[ev.Effect] = []
        if not lease.outgrown:
            lease.outgrown = True
            text = (
                f"outgrown lease={lease.id} type={lease.type!r}"
                f" holds_mib={peak.mib} booked_mib={booked}"
            )
            effects.append(ev.Said("warning", text))
        if profile.known and profile.outgrown(peak.mib, peak.source):
            effects.append(ev.Learnt(lease.type, profile.device_model))
        return effects

    # -- when it ends ---------------------------------------------------------------------------

    @staticmethod
    def outcome(lease: Lease, end: End) -> str:
        """Name how a job ended, by what its client saw and what its devices showed."""
        return classify(
            exit_code=end.exit_code,
            signal=end.signal,
            said_oom=end.said_oom,
            said=end.said,
            stopped_by_us=end.stopped,
            peak_mib=lease.peak_mib if lease.samples else None,
            booked_mib=lease.booked_mib if lease.uuids else None,
            device_nearly_full=lease.device_nearly_full,
        )

    def ended(
        self,
        lease: Lease,
        outcome: str,
        now: float,
        *,
        said_oom: bool = False,
        cure: str = NOTHING,
        at: float | None = None,
    ) -> tuple[list[str], list[ev.Effect]]:
        """Learn from an end; return what to tell the client, and effects.

        Args:
            lease: what has ended.
            outcome: how.
            now: when, on the clock of the rules.
            said_oom: the job's words told of an out-of-memory, also if it survived it.
            cure: what a retry needs, see `cure`.
            at: when, in seconds since 1970, to be shown with what was learnt.
        """
        if not lease.uuids:
            return [], []
        profile = self._profile(lease)
        began = lease.started_s if lease.started_s is not None else lease.granted_s
        ran_s = max(0.0, now - began)
        if outcome == "ok":
            peak = peak_of(lease)
            mib, source = (peak.mib, peak.source) if peak is not None else (None, "")
            profile.succeeded(mib, ran_s, source, at=at, censored=said_oom)
            busy = learnt_busy(lease)
            if busy is not None:
                profile.kept_busy(busy)
            return self._succeeded(lease, profile, peak, now)
        if outcome in ("cancelled", "lost"):
            profile.cancelled(ran_s)
            self._withdraw_foretold(lease, profile)
            return [], []
        return self._failed(lease, profile, outcome, ran_s, too_small=cure == MORE)

    def foretold_before(self, lease: Lease) -> None:
        """Let a lease of a former broker foretell what it foretold then: no store keeps that."""
        profile = self._profile(lease)
        if not profile.window:
            profile.provisional_mib = max(profile.provisional_mib or 0, lease.foretold_mib)

    def _withdraw_foretold(self, lease: Lease, profile: Profile) -> None:
        if lease.foretold_mib and not profile.window:
            profile.withdraw_provisional()

    def _succeeded(
        self, lease: Lease, profile: Profile, peak: Peak | None, now: float
    ) -> tuple[list[str], list[ev.Effect]]:
        notes = self._strayed(lease)
        if notes:
            self._withdraw_foretold(lease, profile)
        elif peak is None:
            notes += self._why_unmeasured(lease)
        else:
            if lease.peak_mib:
                profile.quantiles_mib = quantiles(lease.history, now, top_mib=lease.peak_mib)
            notes += self._note_preallocation(lease, profile, peak)
        # Nothing measured is nothing to keep: a sweep whose commands never repeat would fill
        # the store with empty profiles.
        kept = peak is not None or profile.known
        learnt: list[ev.Effect] = [ev.Learnt(lease.type, profile.device_model)] if kept else []
        return notes, learnt

    def _why_unmeasured(self, lease: Lease) -> list[str]:
        """Say why nothing was learnt, once of a type."""
        known = any(each.known for each in self._profiles.of_type(lease.type))
        if known or not self._profiles.tell_once(lease.type, "unmeasured"):
            return []
        if lease.unwatched:
            why = "was not watched all the time, its broker died as it ran"
        elif lease.had_gap or lease.unread_since is not None:
            why = "could not be measured, its device did not answer for a while"
        elif lease.unseen:
            why = "cannot be measured, the driver does not say what a process holds"
        else:
            why = "never used its device" if lease.samples else "ended before it could be measured"
        alone = "" if lease.request.memory_mib else ", so its runs get devices alone"
        return [f"type {lease.type!r} {why}: nothing learnt{alone}"]

    def _strayed(self, lease: Lease) -> list[str]:
        """Name the devices of a run that used others than it was given."""
        if not lease.strays:
            return []
        leased, used = self._named(lease.uuids), self._named(lease.strays)
        text = (
            f"type {lease.type!r} was given {leased} and used {used}: its peak is not learnt. Does the"
            " job choose a device itself, or set CUDA_VISIBLE_DEVICES?"
        )
        return [text]

    def _named(self, uuids: tuple[str, ...]) -> str:
        books = self._ledger.by_uuid
        names = [f"{books[u].device.index} ({u})" if u in books else u for u in uuids]
        return f"device{'s' if len(names) > 1 else ''} {', '.join(names)}"

    def _note_preallocation(self, lease: Lease, profile: Profile, peak: Peak) -> list[str]:
        """Flag a peak that looks like a framework's habit; say so once."""
        if len(lease.history) < LEAST_READINGS and not profile.preallocated:
            return []  # not enough was seen to tell
        total = min((device.total_mib for device in self._devices(lease)), default=0)
        flagged = is_preallocation(lease.history, total)
        profile.preallocated = flagged or (profile.preallocated and is_large(peak.mib, total))
        if not flagged or not self._profiles.tell_once(lease.type, "preallocation"):
            return []
        text = (
            f"type {lease.type!r} took {peak.mib} MiB of {total} at once and kept it: this looks like"
            " preallocation, not like need. With JAX set XLA_PYTHON_CLIENT_PREALLOCATE=false, with"
            " TensorFlow TF_FORCE_GPU_ALLOW_GROWTH=true, and forget the type (`grn profiles forget`)"
        )
        return [text]

    def _failed(
        self, lease: Lease, profile: Profile, outcome: str, ran_s: float, *, too_small: bool
    ) -> tuple[list[str], list[ev.Effect]]:
        profile.failed(outcome, ran_s, oom_at_mib=lease.booked_mib if too_small else None)
        self._withdraw_foretold(lease, profile)
        notes = self._strayed(lease)
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

    def cure(self, lease: Lease, outcome: str, said: str) -> str:
        """Tell what a retry of a job that ended so would need, see `outcome.remedy`.

        A run that used devices which it was not given ran out of memory there: more of its own
        would not have helped.
        """
        if lease.strays or not lease.uuids:
            return NOTHING
        bookings = [book.bookings[lease.id] for book in self._books(lease)]
        left = min((b.left_mib for b in bookings if b.left_mib is not None), default=None)
        return remedy(
            outcome,
            device_nearly_full=lease.device_nearly_full,
            said=said,
            filled_by_others=crowded_out(left_mib=left, booked_mib=lease.booked_mib),
        )

    def retry(self, lease: Lease, cure: str, notes: list[str]) -> tuple[str, int | None]:
        """Return what a retry needs, and what it should declare; `None`: leave that to GRN.

        A run that had the largest device for itself would only die again: `notes` gets that.
        """
        if cure != MORE:
            return cure, None
        more, allowed = bumped(lease.booked_mib), lease.request.allowed
        largest = max(
            (
                book.device.capacity_mib
                for book in self._ledger.books
                if allowed is None or book.device.uuid in allowed
            ),
            default=0,
        )
        had = [b.device.capacity_mib for b in self._books(lease) if b.alone == lease.id]
        if len(had) == len(lease.uuids) and min(had) >= largest:
            notes.append(
                f"type {lease.type!r} ran out of device memory with {min(had)} MiB for itself, and no"
                " device here has more"
            )
            return NOTHING, None
        return MORE, more if more <= largest else None

    def _books(self, lease: Lease) -> list[Book]:
        by_uuid = self._ledger.by_uuid
        return [by_uuid[uuid] for uuid in lease.uuids if uuid in by_uuid]

    def _profile(self, lease: Lease) -> Profile:
        book = self._ledger.by_uuid.get(lease.uuids[0])
        return self._profiles.of(lease.type, book.device.model if book else "unknown")
