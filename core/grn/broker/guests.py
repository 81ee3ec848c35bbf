"""Guests of a broker that serves several users: how much of it they may take, and what they see.

Must not: concern the broker's own user, or root.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

from grn.errors import LeaseError
from grn.rules.guests import is_anothers, veiled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grn.broker.connection import Connection

__all__ = ["Guests"]

_SHARE = 4
"""The part of the broker's descriptors that one guest's connections may take."""


class Guests:
    """Knows who is a guest. `private`: guests do not see what others' jobs are."""

    def __init__(self, own_uid: int, *, private: bool = True) -> None:
        self.own_uid = own_uid
        self.private = private

    def is_guest(self, uid: int) -> bool:
        """Whether this is neither root nor the broker's own user."""
        return uid not in (0, self.own_uid)

    def too_many(self, connections: Iterable[Connection], uid: int) -> tuple[str, bool]:
        """Say that a user has connections enough, the new one not counted; "" if not.

        With it comes whether there is not even room to hear the new one out, and to tell it so.
        """
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not self.is_guest(uid) or limit == resource.RLIM_INFINITY:
            return "", False
        most = limit // _SHARE
        held = sum(connection.uid == uid for connection in connections)
        if held < most:
            return "", False
        why = f"user {uid} has {held} connections to this broker already, which serves others too"
        return why, held >= most + most // 2

    def veils(self, uid: int) -> int | None:
        """Return the user from whom others' names are hidden; `None`: nothing is hidden."""
        return uid if self.private and self.is_guest(uid) else None

    def shown(self, told: Any, uid: int) -> Any:
        """Return what a user may see of what is told."""
        viewer = self.veils(uid)
        return told if viewer is None else veiled(told, viewer)

    def explained(self, told: dict[str, Any], uid: int) -> Any:
        """Return what a user may see of an explanation.

        Raises:
            LeaseError: it is of another user's job.
        """
        viewer = self.veils(uid)
        if viewer is None:
            return told
        job = told.get("job") or told.get("ended") or {}
        if is_anothers(job, viewer):
            raise LeaseError(
                f"{told['subject']} is a job of user {job['uid']}: only they may see it"
            )
        return veiled(told, viewer)
