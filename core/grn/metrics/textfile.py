"""The figures as a file, for node_exporter's textfile collector.

Promises: at its name there is always a whole file, replaced by rename; whoever may list the folder may
read it, as node_exporter runs as somebody else; a temporary file never has a name that it would read,
and none is left behind unless the process is killed in the moment of writing.
"""

from __future__ import annotations

import contextlib
import os

from grn.errors import PathError, UsageError

__all__ = ["SUFFIX", "TextFile"]

SUFFIX = ".prom"
"""node_exporter reads files of this name alone."""

_MODE = 0o644


class TextFile:
    """One file that is written again and again.

    Raises:
        UsageError: node_exporter would not read a file of this name.
        PathError: its folder does not exist.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        folder, name = os.path.split(self.path)
        if not name.endswith(SUFFIX):
            raise UsageError(f"{path}: node_exporter reads files whose name ends in {SUFFIX}")
        if not os.path.isdir(folder):
            raise PathError(
                f"{folder} is no folder: make it, and give node_exporter"
                f" --collector.textfile.directory={folder}"
            )
        self._temporary = os.path.join(folder, f".{name}.{os.getpid()}")

    def write(self, data: bytes) -> None:
        """Put this in its place.

        Raises:
            PathError: it cannot be written; what was there before stays.
        """
        try:
            self._replace(data)
        except OSError as error:
            raise PathError(f"{self.path} cannot be written: {error.strerror}") from error

    def _replace(self, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            number = os.open(self._temporary, flags, _MODE)
            with open(number, "wb") as file:
                os.fchmod(number, _MODE)  # whatever the umask
                file.write(data)
            os.replace(self._temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            raise
