"""Watching processes while descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from grn import procs
from grn.broker import watch
from grn.rules.model import Owner

if TYPE_CHECKING:
    import pytest


def test_one_descriptor_for_a_process_however_often_it_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ask while none can be had; later one look serves both, and nothing is left behind."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    start = procs.start_time(child.pid)
    assert start is not None
    failures = [errno.EMFILE, errno.EMFILE]
    opened: list[int] = []
    really_open = os.pidfd_open

    def pidfd_open(pid: int) -> int:
        if failures:
            raise OSError(failures.pop(), "no")
        opened.append(really_open(pid))
        return opened[-1]

    monkeypatch.setattr(watch.os, "pidfd_open", pidfd_open)
    monkeypatch.setattr(watch, "_LOOK_AGAIN_S", 0.01)

    async def scene() -> list[str]:
        looked, over = asyncio.Event(), asyncio.Event()
        looks: list[tuple[int, int]] = []

        class Watched(watch.Watcher):
            def _open(self, key: tuple[int, int]) -> None:
                super()._open(key)
                looks.append(key)
                if len(looks) == 4:  # two that failed, and both once more
                    looked.set()

        watcher = Watched(asyncio.get_running_loop())
        gone: list[str] = []
        watcher.watch(Owner(child.pid, start), lambda: gone.append("first"))
        watcher.watch(Owner(child.pid, start), lambda: (gone.append("second"), over.set())[1])
        await asyncio.wait_for(looked.wait(), 30)
        assert child.stdin is not None
        child.stdin.close()
        await asyncio.wait_for(over.wait(), 30)
        watcher.close()
        return gone

    assert asyncio.run(scene()) == ["first", "second"]
    assert len(opened) == 1
    child.wait()
