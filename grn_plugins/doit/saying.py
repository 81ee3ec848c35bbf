"""Words of ours to the person at the terminal, which no task may find in its own output.

They go to the real standard error, each of them once, and not at all where doit was told to be quiet
(verbosity 0). doit's own streams may be a report, or another task's record.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["say"]

_said: set[str] = set()
_lock = threading.Lock()


def say(text: str, err: Any) -> None:
    """Write a line unless it was written before; `err` is what doit gave the action to write to."""
    stream = sys.__stderr__
    if err is None or stream is None:
        return
    with _lock:
        if text in _said:
            return
        _said.add(text)
    try:
        stream.write(f"grn: {text}\n")
        stream.flush()
    except (OSError, ValueError):  # closed, or nobody reads: words are not worth a task
        pass
