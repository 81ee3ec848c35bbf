"""What came of one run of an action's inner action.

Must not: import doit, or know how the action was run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from doit.exceptions import BaseFail

    from grn.grants import Ending

__all__ = ["Ran"]


class Ran(NamedTuple):
    """How an inner action ended: for doit, and for the broker."""

    failure: BaseFail | None
    """What doit is told; `None` for success."""
    ending: Ending
    """How its lease is given back: `exit_code`, `signal`, `said`, `said_oom`, `stopped`."""
