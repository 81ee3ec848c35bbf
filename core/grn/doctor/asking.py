"""Asking another program, for a bounded time, whatever becomes of it."""

from __future__ import annotations

import os
import select
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ask"]

_CHUNK = 1 << 16
_MOST_BYTES = 1 << 20


def ask(
    argv: Sequence[str],
    within_s: float,
    *,
    said: str = "",
    environ: Mapping[str, str] | None = None,
) -> str | None:
    """Return what a program prints, None if it does not end well within this time.

    It is not waited for after that: one that hangs in a driver cannot be killed, and its end of
    the pipe stays open.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - programs of the system, named by our own code
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
    except OSError:
        return None
    until_s = time.monotonic() + within_s
    try:
        _say(process, said)
        text = _read(process, until_s)
        process.wait(max(0.05, until_s - time.monotonic()))
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()  # our child, and not yet waited for: the pid is its own
        return None
    finally:
        _close(process)
    return text if process.returncode == 0 else None


def _say(process: subprocess.Popen[bytes], said: str) -> None:
    assert process.stdin is not None  # noqa: S101 - it was asked for
    os.write(process.stdin.fileno(), said.encode())  # a line: there is always room for it
    process.stdin.close()


def _read(process: subprocess.Popen[bytes], until_s: float) -> str:
    assert process.stdout is not None  # noqa: S101 - it was asked for
    fd, found = process.stdout.fileno(), b""
    while len(found) < _MOST_BYTES:
        ready, _, _ = select.select([fd], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            raise subprocess.TimeoutExpired(process.args, 0.0)
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            break
        found += chunk
    return found.decode("utf-8", "replace")


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None and not stream.closed:
            stream.close()
