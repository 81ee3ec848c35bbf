"""Where the files of a queue are."""

from __future__ import annotations

import os

from grn import paths
from grn.errors import PathError
from grn.queue.changes import touch

__all__ = ["Places"]


class Places:
    """Where the files of a queue are, below the folder of what outlives a broker."""

    def __init__(self, state_dir: str) -> None:
        self.folder = os.path.join(state_dir, "queue")
        self.database = os.path.join(self.folder, "queue.sqlite")
        self.changes = os.path.join(self.folder, "changes")
        self.lock = os.path.join(self.folder, "owner.lock")
        self.logs = os.path.join(self.folder, "logs")
        self.owner_log = os.path.join(self.folder, "owner.log")

    def prepare(self) -> None:
        """Make the folders, private.

        Raises:
            PathError: they cannot be made, or are somebody else's; or their name is no UTF-8, and
                the list could not hold where a log is.
        """
        try:
            self.folder.encode()
        except UnicodeEncodeError as error:
            raise PathError(
                f"the queue's folder {self.folder!r} is not named in UTF-8: set GRN_STATE_DIR to one"
                " that is"
            ) from error
        paths.private_dir(self.folder)
        paths.private_dir(self.logs)
        if not os.path.exists(self.changes):
            touch(self.changes)

    def log_of(self, job: int, attempt: int) -> str:
        """Return where the output of a job goes."""
        again = f".{attempt}" if attempt > 1 else ""
        return os.path.join(self.logs, f"{job}{again}.log")
