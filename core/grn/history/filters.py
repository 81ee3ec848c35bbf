"""Which records of the history are wanted, and the SQL for it.

Promises: nothing that a user wrote becomes part of a statement; a name without wildcards is taken
as it is, so that a type that holds some itself can be named too.
Must not: open a file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import translate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Filters", "as_kept", "literal_prefix", "matcher"]

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Filters:
    """What records must have; `None` is anything.

    Attributes:
        type: a name, or a glob (`*`, `?`, `[abc]`).
        label: the same, of the label.
        uid: who asked.
        engine: through what it asked (run, doit, …).
        outcome: how it ended; `running` for what has not.
        devices: UUIDs, of which it had one at least.
        since: it had not ended by this moment, seconds since 1970.
        until: it had begun by this moment.
    """

    type: str | None = None
    label: str | None = None
    uid: int | None = None
    engine: str | None = None
    outcome: str | None = None
    devices: tuple[str, ...] | None = None
    since: float | None = None
    until: float | None = None

    def without_type(self) -> Filters:
        """Return the same filters, for any type."""
        return replace(self, type=None)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return what tells whether a name is the pattern, or matches it as a glob. Case counts."""
    matches = re.compile(translate(pattern)).match
    return lambda name: name == pattern or matches(name) is not None


def as_kept(name: str) -> str:
    """Return a name as the history has it: bytes of it that are no UTF-8 are written out."""
    return name.encode(errors="backslashreplace").decode()


def literal_prefix(pattern: str) -> str:
    """Return what all names that match begin with; the whole pattern if it has no wildcard."""
    wild = _WILD.search(pattern)
    return pattern if wild is None else pattern[: wild.start()]
