"""Profiles while no broker runs: the same actions, on the store's file itself.

A broker that was started on demand leaves when it has been idle; what it learnt is still there to be
looked at and corrected. Promises: the answers have the form of a broker's; looking makes no file.
Must not: be used while a broker runs, which has the profiles in memory and would not notice.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from grn.broker.store import FILE_NAME, ProfileStore
from grn.errors import UsageError
from grn.rules.estimate import Margin
from grn.rules.knowing import knowledge
from grn.rules.profiles import ProfileBook, readable, to_record
from grn.rules.report import profiles_report

if TYPE_CHECKING:
    from types import TracebackType

    from grn.rules.estimate import Profile
    from grn.settings import Settings

__all__ = ["StoredProfiles"]


class StoredProfiles:
    """Stands in for a client, for `profiles` only."""

    def __init__(self, settings: Settings) -> None:
        path = os.path.join(settings.state_dir, FILE_NAME)
        self._path = path
        self._store = ProfileStore(path) if os.path.exists(path) else None
        self._book = ProfileBook(Margin(*settings.margin_rule), limit=settings.max_types)
        if self._store:
            kept = readable(self._store.load(settings.max_types), self._store.cannot_read)
            self._book.load(reversed(kept.values()))

    def profiles(
        self,
        action: str = "list",
        *,
        type: str | None = None,  # noqa: A002 - the name it has on the wire
        device_model: str | None = None,
        memory_mib: int = 0,
    ) -> list[dict[str, Any]]:
        """List, `show`, `set` or `forget`, as `Client.profiles` does."""
        if action == "set" and type is not None:
            self._set(type, device_model, memory_mib)
        elif action == "forget":
            self._forget(type, device_model)
        return profiles_report(self._known(type), self._book.margin, device_model)

    def knowledge(self, job_type: str) -> list[dict[str, Any]]:
        """Explain what was learnt of a type, as a broker does."""
        return knowledge(self._book, job_type)

    def _known(self, job_type: str | None) -> list[Profile]:
        return self._book.of_type(job_type) if job_type else self._book.all()

    def _set(self, job_type: str, model: str | None, mib: int) -> None:
        models = {model} if model else {profile.device_model for profile in self._book.all()}
        if not models:
            raise UsageError(
                "no broker runs that could be asked for its devices: name one with --device-model"
            )
        for name in models:
            self._book.of(job_type, name).set_mib = mib
        self._store = self._store or ProfileStore(self._path)
        self._store.put_many(
            {(job_type, p.device_model): to_record(p) for p in self._book.of_type(job_type)}
        )

    def _forget(self, job_type: str | None, model: str | None) -> None:
        names = {profile.type for profile in self._known(job_type)}
        if self._store:
            names |= {name for name, _ in self._store.unreadable if job_type in (None, name)}
        for name in names:
            self._book.forget(name, model)
            if self._store:
                self._store.delete(name, model)

    def __enter__(self) -> StoredProfiles:  # noqa: PYI034 - as `Client` has it
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._store:
            self._store.close()
