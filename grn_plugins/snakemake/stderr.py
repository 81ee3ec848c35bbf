"""A job's stderr, read along: its last words tell whether device memory was what it lacked.

It goes on where it went before, unchanged. A terminal is left alone, since programs behave differently
on one. Where standard output is the same file, both go through one pipe: of two ways the shorter one
would win each time, and the order in which the job wrote would be lost.

Must not: keep a job waiting, or lose what it wrote.
"""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

__all__ = ["Along", "last_of"]

_TAIL_BYTES = 64 * 1024
_CHUNK = 1 << 16
_STDOUT, _STDERR = 1, 2
_REST_WITHIN_S = 0.2


class Along:
    """Reads one process's stderr along. Between `begin` and `started` the process is started."""

    def __init__(self) -> None:
        self._read = self._write = -1
        self._thread: threading.Thread | None = None
        self._tail = b""

    def begin(self, options: dict[str, Any]) -> None:
        """Change the options of a `Popen` so that we read what it writes; if that changes nothing."""
        if options.get("stderr") is not None or os.isatty(_STDERR):
            return
        try:
            same = _is_stderr(options.get("stdout"))
            self._read, self._write = os.pipe()
        except OSError:  # stderr is closed, or no descriptors are left
            return
        options["stderr"] = self._write
        if same:
            options["stdout"] = self._write

    def started(self) -> None:
        """The process has its end of the pipe, or will never have it."""
        if self._write < 0:
            return
        os.close(self._write)
        self._write = -1
        self._thread = threading.Thread(target=self._copy, name="grn-stderr", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        try:
            while data := os.read(self._read, _CHUNK):
                self._tail = (self._tail + data)[-_TAIL_BYTES:]
                _write_all(data)
        except OSError:  # nobody reads our stderr any more: nor do we, so the job meets the error
            pass
        finally:
            os.close(self._read)

    def tail(self) -> bytes:
        """Return its last words, once its main process has ended. What it left behind may go on."""
        if self._thread is not None:
            self._thread.join(_REST_WITHIN_S)
        return self._tail


def _is_stderr(stdout: Any) -> bool:
    if stdout in {subprocess.PIPE, subprocess.DEVNULL}:
        return False
    fd = _STDOUT if stdout is None else stdout if isinstance(stdout, int) else stdout.fileno()
    return os.path.samestat(os.fstat(fd), os.fstat(_STDERR))


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


def last_of(path: str) -> bytes:
    """Return the end of a log file; nothing if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
