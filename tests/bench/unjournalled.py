"""`grn broker`, but nothing is written to the journal: what the bookings alone cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from grn.broker.journal import Journal
from grn.cli.broker import main

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__: list[str] = []


def _write_nothing(self: Journal, records: Iterable[Mapping[str, Any]]) -> None:
    del self, records


if __name__ == "__main__":
    Journal.append = _write_nothing  # type: ignore[method-assign]  # that is this module's purpose
    sys.exit(main(sys.argv[1:]))
