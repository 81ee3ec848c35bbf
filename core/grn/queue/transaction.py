"""One transaction on the list of jobs."""

from __future__ import annotations

import sqlite3

from grn.queue.changes import touch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.errors import GrnError
    from grn.queue.places import Places

__all__ = ["Transaction"]


class Transaction:
    """One transaction: kept whole when the block ends well, else not at all."""

    def __init__(
        self, db: sqlite3.Connection, places: Places, unusable: Callable[[sqlite3.Error], GrnError]
    ) -> None:
        self._db = db
        self._places = places
        self._unusable = unusable

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        return self._db

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            try:
                self._db.execute("COMMIT")
            except sqlite3.Error as problem:
                self._roll_back()
                raise self._unusable(problem) from problem
            try:
                touch(self._places.changes)
            except OSError:  # the change is on disk; only the news of it is lost
                return
            return
        self._roll_back()
        if isinstance(error, sqlite3.Error):
            raise self._unusable(error) from error

    def _roll_back(self) -> None:
        if self._db.in_transaction:  # it may have been rolled back by itself
            self._db.execute("ROLLBACK")
