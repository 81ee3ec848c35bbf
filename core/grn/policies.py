"""Policies of others, by entry point: `[project.entry-points."grn.policies"]`, `name = "module:function"`.

The function is called by the broker with each device that has room (`grn.rules.policy.Room`) and
returns a number; the devices with the least are taken. It must be quick and change nothing.

Must not: import `importlib.metadata` for a name of our own (10 ms on a job's way to its request).
"""

from __future__ import annotations

from grn.errors import UsageError
from grn.rules.policyname import ALIASES, NAMES, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "checked", "entry_point", "offered"]

GROUP = "grn.policies"


def checked(name: str, *, what: str = "policy ") -> str:
    """Return the name of a policy in the form in which the broker knows it.

    Args:
        name: one of ours, one of its aliases, or that of an entry point.
        what: how the setting is called, for the message.

    Raises:
        UsageError: there is no such policy.
    """
    known = canonical(name)
    if known in NAMES or entry_point(known) is not None:
        return known
    aliases = ", ".join(ALIASES)
    raise UsageError(
        f"{what}{name!r} is not one of: {', '.join(NAMES)} (or {aliases}), and no installed package"
        f" has an entry point of that name in the group {GROUP}"
    )


def entry_point(name: str) -> EntryPoint | None:
    """Return the entry point of this name, if an installed package has one."""
    return offered().get(name)


def offered() -> dict[str, EntryPoint]:
    """Return what installed packages bring, by name; where two bring one name, the first found."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - see above

    return {found.name: found for found in reversed(tuple(entry_points(group=GROUP)))}
