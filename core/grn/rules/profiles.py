"""All profiles of one broker, by job type and device model, within a stated limit."""

from __future__ import annotations

from dataclasses import fields
from itertools import islice
from math import ceil, exp, log
from typing import TYPE_CHECKING, Any

from grn.rules.estimate import WINDOW, Margin, Profile
from grn.rules.peaks import SAMPLED, Peak
from grn.rules.records import RecordError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

__all__ = ["ProfileBook", "from_record", "merge", "readable", "to_record"]

_Key = tuple[str, str]
_LOOKED_AT = 256
_SHORTEST_S = 0.001
_OF_A_LEASE = "provisional_mib"
"""Stands for as long as the lease that foretold it, with which the journal keeps it."""

_FIELDS = frozenset(f.name for f in fields(Profile)) - {"type", "device_model", _OF_A_LEASE}
_PEAK_FIELDS = len(Peak._fields)


def to_record(profile: Profile) -> dict[str, Any]:
    """Turn a profile into what the store keeps: plain values by field name."""
    record = {name: getattr(profile, name) for name in _FIELDS}
    record["window"] = [tuple(peak) for peak in profile.window]
    return record


def from_record(job_type: str, model: str, record: Mapping[str, Any]) -> Profile:
    """Rebuild a profile; fields that a newer version added are left out.

    Raises:
        RecordError: a field is not of its kind.
    """
    known = {key: value for key, value in record.items() if key in _FIELDS and key != "window"}
    for key, value in known.items():
        if not _KINDS[key](value):
            raise RecordError(f"{key}: {value!r}")
    return Profile(job_type, model, window=_window(record), **known)


def _window(record: Mapping[str, Any]) -> list[Peak]:
    """Read the peaks; an older version kept numbers, and one source for all of them."""
    if "window" not in record:
        source, peaks = record.get("source") or SAMPLED, record.get("peaks") or []
        entries: Any = [(x, source) for x in peaks] if isinstance(peaks, list | tuple) else peaks
    else:
        entries = record["window"]
    if not isinstance(entries, list | tuple) or not all(map(_is_peak, entries)):
        raise RecordError(f"window: {entries!r}")
    return [Peak(*entry[:_PEAK_FIELDS]) for entry in entries]


def _is_peak(entry: object) -> bool:
    if not isinstance(entry, list | tuple) or not entry:
        return False
    mib, source, at, censored = [*entry, *Peak(0)[len(entry) :]][:_PEAK_FIELDS]
    return _is_count(mib) and type(source) is str and _is_time(at) and type(censored) is bool


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_size(value: object) -> bool:
    return value is None or _is_count(value)


def _is_time(value: object) -> bool:
    return value is None or type(value) in (int, float)


def _all(kinds: tuple[type, ...]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(type(each) in kinds for each in value)


_KINDS: dict[str, Callable[[Any], bool]] = {
    "durations_s": _all((int, float)),
    "outcomes": _all((str,)),
    "runs": _is_count,
    "first_at": _is_time,
    "last_at": _is_time,
    "quantiles_mib": _all((int,)),
    "busy_percent": _all((int,)),
    "preallocated": lambda value: type(value) is bool,
    "unmeasured": _is_count,
    "failures": _is_count,
    "ooms": _is_count,
    "set_mib": _is_size,
    "raised_mib": _is_count,
    "raised_source": lambda value: type(value) is str,
    "raised_age": _is_count,
    "bump_mib": _is_size,
}
"""What each field of a record may be; `window` is read by itself."""


def readable(
    records: Mapping[tuple[str, str], Mapping[str, Any]], skip: Callable[[tuple[str, str]], object]
) -> dict[tuple[str, str], Profile]:
    """Rebuild many profiles; `skip` is called with the key of each that is not understood."""
    found: dict[tuple[str, str], Profile] = {}
    for key, record in records.items():
        try:
            found[key] = from_record(*key, record)
        except RecordError:
            skip(key)
    return found


def merge(mine: Profile, theirs: Profile) -> None:
    """Add to a profile what another broker has learnt of the same type on the same model.

    The larger need counts wherever the two differ. A run is known by its end and its peak, so those
    that both know of are there once.
    """
    known = {(peak.at, peak.mib): peak for peak in (*theirs.window, *mine.window)}
    ordered = sorted(known.values(), key=lambda peak: peak.at or 0.0)
    largest = max(ordered, default=None, key=lambda peak: peak.mib)
    mine.window = ordered[-WINDOW:]
    if largest is not None and largest not in mine.window:
        theirs.raised_mib = max(theirs.raised_mib, largest.mib)
    mine.runs = max(mine.runs, theirs.runs, len(mine.window))
    mine.unmeasured = max(mine.unmeasured, theirs.unmeasured)
    mine.ooms = max(mine.ooms, theirs.ooms)
    mine.failures = max(mine.failures, theirs.failures)
    mine.first_at = min(
        (x for x in (mine.first_at, theirs.first_at) if x is not None), default=None
    )
    mine.last_at = max((x for x in (mine.last_at, theirs.last_at) if x is not None), default=None)
    mine.set_mib = max(mine.set_mib or 0, theirs.set_mib or 0) or None
    mine.bump_mib = max(mine.bump_mib or 0, theirs.bump_mib or 0) or None
    mine.preallocated |= theirs.preallocated
    mine.quantiles_mib = mine.quantiles_mib or theirs.quantiles_mib
    if theirs.raised_mib > mine.raised_mib:
        mine.raised_mib, mine.raised_source = theirs.raised_mib, theirs.raised_source
        mine.raised_age = theirs.raised_age


class ProfileBook:
    """Profiles in memory, the least recently used types dropped beyond `limit`.

    `recall` is asked for a type that is not in memory: a store behind this book may know it. Which
    types are asked for decides what is in memory, so a broker starts without reading all.
    """

    def __init__(
        self,
        margin: Margin,
        *,
        limit: int = 5000,
        recall: Callable[[str], Iterable[Profile]] | None = None,
    ) -> None:
        self.margin = margin
        self.lends = False
        """Whether an unknown type may go by what similar ones need; see `priors`."""
        self.limit = limit
        self.recall = recall
        self._by_type: dict[str, dict[str, Profile]] = {}
        self._told: dict[str, set[str]] = {}
        self._estimates: dict[_Key, int] = {}
        self._run_times: dict[_Key, list[float]] = {}
        self.touched: set[str] = set()
        """Types of which something may have changed; whoever keeps anything by type empties it."""

    def __len__(self) -> int:
        return sum(len(models) for models in self._by_type.values())

    def _of_type(self, job_type: str) -> dict[str, Profile]:
        models = self._by_type.get(job_type)
        if models is None:
            recalled = self.recall(job_type) if self.recall is not None else ()
            models = self._by_type[job_type] = {p.device_model: p for p in recalled}
            self._trim()
        return models

    def load(self, profiles: Iterable[Profile]) -> None:
        """Take in what a store kept, oldest first."""
        for profile in profiles:
            self._touch(profile.type, profile.device_model)
            self._by_type.setdefault(profile.type, {})[profile.device_model] = profile
        self._trim()

    def of(self, job_type: str, model: str) -> Profile:
        """Return the profile under this key, made empty if there is none.

        This is for whoever writes to it, at once: what was reckoned from it is reckoned anew.
        """
        models = self._by_type.pop(job_type, None)
        if models is None:
            models = self._of_type(job_type)
        self._by_type[job_type] = models  # most recently used last
        self._touch(job_type, model)
        profile = models.get(model)
        if profile is None:
            profile = models[model] = Profile(job_type, model)
        return profile

    def _touch(self, job_type: str, model: str) -> None:
        self.touched.add(job_type)
        key = (job_type, model)
        self._estimates.pop(key, None)
        self._run_times.pop(key, None)

    def find(self, job_type: str, model: str) -> Profile | None:
        """Return the profile under this key, if there is one."""
        return self._of_type(job_type).get(model)

    def of_type(self, job_type: str) -> list[Profile]:
        """List what is known of a type, by device model."""
        return list(self._of_type(job_type).values())

    def types(self) -> Iterable[str]:
        """List the types in memory."""
        return self._by_type.keys()

    def all(self) -> list[Profile]:
        """List what is in memory."""
        return [profile for models in self._by_type.values() for profile in models.values()]

    def forget(self, job_type: str, model: str | None = None) -> int:
        """Drop what is known of a type (on one model); return how many profiles that were."""
        models = self._of_type(job_type)
        gone = [name for name in models if model is None or name == model]
        for name in gone:
            del models[name]
            self._touch(job_type, name)
        if not models:
            self._told.pop(job_type, None)
        return len(gone)

    def estimate_mib(self, job_type: str, model: str, *, factor: float) -> int | None:
        """Return what to book on this model; what another model taught gets `factor` on top."""
        models = self._of_type(job_type)
        if not models:
            return None
        own = models.get(model)
        found = own.estimate_mib(self.margin) if own is not None else None
        if own is not None and found is not None:
            if not own.ooms:
                self._estimates[job_type, model] = found
            return found
        others = [p.estimate_mib(self.margin) for p in models.values() if p.known]
        known = [mib for mib in others if mib is not None]
        return ceil(max(known) * factor) if known else None

    def settled_mib(self, job_type: str, model: str) -> int | None:
        """Return the estimate if it is at hand, from this very model, and was never too small."""
        return self._estimates.get((job_type, model))

    def peak_mib(self, job_type: str, model: str) -> int | None:
        """Return the most that a run of the type was seen to hold on this model, if it is known.

        Runs that have not ended count, too.
        """
        profile = self.find(job_type, model)
        if profile is None or not profile.known:
            return None
        raised, foretold = profile.raised_mib, profile.provisional_mib or 0
        return max([raised, foretold, *profile.peaks]) or None

    def busy_percent(self, job_type: str) -> int | None:
        """Return how busy runs of the type keep a device, on whichever model; `None`: not known."""
        most: float | None = None
        for profile in self._of_type(job_type).values():
            if profile.busy_percent:
                busy = sum(profile.busy_percent) / len(profile.busy_percent)
                most = busy if most is None else max(most, busy)
        return None if most is None else round(most)

    def run_times_s(self, job_type: str, model: str) -> Sequence[float]:
        """List how long the last runs took that ended well on this model, the shortest first."""
        ordered = self._run_times.get((job_type, model))
        if ordered is None:
            profile = self.find(job_type, model)
            if profile is None:
                return ()
            ordered = self._run_times[job_type, model] = sorted(profile.durations_s)
        return ordered

    def ooms(self, job_type: str, model: str) -> int:
        """Return how often in a row the type died of memory on this model."""
        profile = self.find(job_type, model)
        return profile.ooms if profile is not None else 0

    def runs_unmeasured(self, job_type: str) -> bool:
        """Whether runs succeeded that could not be measured: nothing to wait for, then."""
        return any(profile.unmeasured for profile in self._of_type(job_type).values())

    def failures(self, job_type: str) -> int:
        """Return how many runs of the type failed since its last success."""
        return max((p.failures for p in self._of_type(job_type).values()), default=0)

    def succeeded_ever(self, job_type: str) -> bool:
        """Whether any run of the type is known to have succeeded."""
        return any(p.runs or p.unmeasured for p in self._of_type(job_type).values())

    def expected_s(self, job_type: str) -> float | None:
        """Return how long a run of the type typically takes, of those that ended well.

        That is their geometric mean: one run of a day among minutes does not make all long.
        """
        ran = [s for profile in self._of_type(job_type).values() for s in profile.durations_s]
        return exp(sum(log(max(s, _SHORTEST_S)) for s in ran) / len(ran)) if ran else None

    def tell_once(self, job_type: str, what: str) -> bool:
        """Return `True` the first time that this is to be said of a type."""
        told = self._told.setdefault(job_type, set())
        if what in told:
            return False
        told.add(what)
        return True

    def _trim(self) -> None:
        while len(self._by_type) > self.limit:
            gone = self._least_worth()
            for name in self._by_type.pop(gone):
                self._touch(gone, name)
            self._told.pop(gone, None)

    def _least_worth(self) -> str:
        """Choose an old type about which nothing is known, else the oldest.

        A sweep whose commands never repeat must not push out what was learnt.
        """
        others = min(_LOOKED_AT, len(self._by_type) - 1)  # the newest has had no chance to be known
        for job_type in islice(self._by_type, others):
            if not any(profile.known for profile in self._by_type[job_type].values()):
                return job_type
        return next(iter(self._by_type))
