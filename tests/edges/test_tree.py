"""Which processes are a job's: by number and start, since numbers come back."""

from __future__ import annotations

import subprocess
import sys

from grn.supervise.tree import Census, Owner


def _child() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


def test_what_was_there_before_is_no_jobs() -> None:
    """Until it has ended: whoever has its number then is looked at anew."""
    mine, other = _child(), _child()
    try:
        census = Census([other.pid])
        job = Owner(mine.pid, None)
        assert set(census.take([job], heir=job, everywhere=False)[job]) == {mine.pid}
        began = census._apart[other.pid]
        assert began is not None
        census._apart[other.pid] = began - 1  # as if another one had had the number
        both = {mine.pid: job, other.pid: Owner(other.pid, None)}
        found = census.take(list(both.values()), heir=None, everywhere=False)
        assert {pid for owner in both.values() for pid in found[owner]} == set(both)
        assert other.pid not in census._apart
    finally:
        for child in (mine, other):
            child.communicate(b"\n")
