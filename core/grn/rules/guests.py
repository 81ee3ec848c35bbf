"""What users of somebody else's broker may see of each other's jobs.

A broker for several users runs as root or a service user; who asks it and is neither is a guest. Who
holds what, and who waits, concerns everybody: users, devices, sizes, times. What a job is, is its
user's own affair: its type and label, in which command lines stand, are hidden from other guests.

Profiles are what all share, so types are named there; whose jobs they are is not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["HIDDEN", "is_anothers", "veiled"]

HIDDEN = "(another user's)"
_NAMES = ("type", "label")


def veiled(told: Any, uid: int) -> Any:
    """Return what is told with the names of other users' jobs hidden from this user.

    A job is a mapping with its user's number under `uid`; what is told is not changed.
    """
    if isinstance(told, dict):
        shown = {
            key: veiled(value, uid) if isinstance(value, (dict, list)) else value
            for key, value in told.items()
        }
        if is_anothers(told, uid):
            shown.update({name: HIDDEN for name in _NAMES if told.get(name)})
        return shown
    return [veiled(each, uid) for each in told] if isinstance(told, list) else told


def is_anothers(job: Mapping[str, Any], uid: int) -> bool:
    """Whether a job is known to be another user's."""
    return job.get("uid", uid) not in (None, uid)
