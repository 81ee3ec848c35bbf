"""Profiles between the rules and their store: kept soon after they change, recalled when asked for.

Off the path from release to grant: what changed is written a moment later, many in one transaction.
If that fails the broker grants nothing new until it works, since what is learnt would be lost.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from grn.errors import JournalError, UsageError
from grn.rules.messages import number, text
from grn.rules.profiles import from_record, merge, readable, to_record
from grn.rules.records import RecordError
from grn.rules.report import profiles_report

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from grn.broker.store import ProfileStore
    from grn.rules.estimate import Profile
    from grn.rules.profiles import ProfileBook

__all__ = ["ProfileKeeper"]

_KEEP_AFTER_S = 0.2
_PRUNE_EVERY = 500
log = logging.getLogger("grn.broker")


class ProfileKeeper:
    """Holds a profile book and its store together.

    Args:
        loop: of the broker.
        book: what the rules use; types that are not in it are recalled from the store.
        store: where profiles outlive the broker.
        max_types: how many types the store keeps.
        models: of the broker's devices: what is set of a type is set for each.
        failed: called with the reason when changed profiles could not be written.
        kept: called when they were.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        book: ProfileBook,
        store: ProfileStore,
        *,
        max_types: int,
        models: Sequence[str],
        failed: Callable[[JournalError], None],
        kept: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._book = book
        self._store = store
        self._max_types = max_types
        self.models = models
        self._failed = failed
        self._kept = kept
        self._unkept: dict[tuple[str, str], Profile] = {}
        self._kept_since_prune = _PRUNE_EVERY
        self._timer: asyncio.TimerHandle | None = None
        book.recall = self._recall

    @property
    def problem(self) -> str:
        """What is wrong with the store, in words for people; '' if nothing."""
        return self._store.problem

    @property
    def lags(self) -> bool:
        """Whether something was learnt that is in memory only."""
        return bool(self._unkept)

    def learnt(self, job_type: str, model: str) -> None:
        """Keep a changed profile soon."""
        book = (
            self._book
        )  # `of` is for who writes: whatever rests on the profile would be reckoned anew
        self._unkept[(job_type, model)] = book.find(job_type, model) or book.of(job_type, model)
        if self._timer is None:
            self._timer = self._loop.call_later(_KEEP_AFTER_S, self.keep)

    def keep(self) -> None:
        """Write changed profiles to their store; say so if that fails."""
        self._timer = None
        error = self.write()
        if error is not None:
            self._failed(error)
        else:
            self._kept()

    def write(self) -> JournalError | None:
        """Write changed profiles to their store; return why that failed, or `None`."""
        if not self._unkept:
            return None
        self._kept_since_prune += len(self._unkept)
        try:
            self._store.put_many({k: to_record(p) for k, p in self._unkept.items()}, self._merged)
            if self._kept_since_prune > _PRUNE_EVERY:
                self._store.prune(self._max_types)
                self._kept_since_prune = 0
        except JournalError as error:
            return error
        self._unkept.clear()
        return None

    def _merged(self, key: tuple[str, str], theirs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Take in what another broker with the same store has learnt of a type meanwhile."""
        profile = self._unkept[key]
        try:
            merge(profile, from_record(*key, theirs))
        except RecordError:
            return to_record(profile)  # what is not understood is not kept
        if self._book.find(*key) is profile:
            self._book.of(*key)  # what was reckoned from it is reckoned anew
        return to_record(profile)

    def edit(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """List, set or forget profiles, as a client asks; return the profiles it asks about.

        Raises:
            UsageError: an unknown action, a size that is missing, a type that is not known.
        """
        action = text(message, "action", "list")
        job_type, model = text(message, "type") or None, text(message, "device_model") or None
        if action == "set":
            mib = number(message, "memory_mib")
            if job_type is None or not mib:
                raise UsageError("set needs a type and a size")
            for name in [model] if model else self.models:
                self._book.of(job_type, name).set_mib = mib
                self.learnt(job_type, name)
        elif action == "forget":
            self._forget(job_type, model)
        elif action not in ("list", "show"):
            raise UsageError(f"profiles: {action!r} is not list, show, set or forget")
        self.keep()
        found = self._book.of_type(job_type) if job_type else self._all()
        return profiles_report(found, self._book.margin, model)

    def _forget(self, job_type: str | None, model: str | None) -> None:
        known = {p.type for p in self._all()} | {name for name, _ in self._store.unreadable}
        for name in [job_type] if job_type else sorted(known):
            forgotten = self._book.forget(name, model) + self._store.delete(name, model)
            if job_type and not forgotten:
                raise UsageError(f"no profile of type {name!r}")
            for key in [k for k in self._unkept if k[0] == name and model in (None, k[1])]:
                del self._unkept[key]

    def _recall(self, job_type: str) -> list[Profile]:
        """Find what the store knows of a type of which nothing is in memory."""
        try:
            found = self._store.of_type(job_type)
        except JournalError as error:
            log.warning("profile-not-read type=%r reason=%r", job_type, str(error))
            found = {}
        profiles = readable(found, self._store.cannot_read)
        profiles.update((key, p) for key, p in self._unkept.items() if key[0] == job_type)
        return list(profiles.values())

    def _all(self) -> list[Profile]:
        """List the profiles in the store and those that memory has beside them."""
        kept = self._store.load(self._max_types)
        everything = readable(kept, self._store.cannot_read)
        present = {(p.type, p.device_model): p for p in self._book.all()}
        return list({**everything, **present}.values())

    def close(self) -> None:
        """Let go of the store's file."""
        self._store.close()
