"""joblib's workers are processes like others: each asks for itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.python.conftest import Scripts

pytest.importorskip("joblib")

WORKERS = """
import grn, json, os, sys
from joblib import Parallel, delayed
from tests.python.bodies import holders, told

def in_block(folder):
    with grn.lease(memory="whole") as lease:
        lease.apply()
        return meet(folder)

@grn.job(memory="whole")
def decorated(folder):
    return meet(folder)

def meet(folder):
    holders(folder, 3)  # all three hold their leases now
    return told()["GRN_LEASE"], told()["CUDA_VISIBLE_DEVICES"], os.getpid()

if __name__ == "__main__":
    work = {"block": in_block, "job": decorated}[sys.argv[1]]
    os.mkdir(sys.argv[1])
    folder = os.path.abspath(sys.argv[1])
    print(json.dumps(Parallel(n_jobs=3)(delayed(work)(folder) for _ in range(3))))
"""


@pytest.mark.parametrize("work", ["block", "job"])
def test_each_worker_has_a_lease_of_its_own(scripts: Callable[..., Scripts], work: str) -> None:
    """Three at once, on three devices, with nothing changed for joblib; nothing is left behind."""
    made = scripts("sim:3x8000MiB")
    done = made.run(WORKERS, work, PYTHONWARNINGS="ignore")
    leases, masks, pids = zip(*json.loads(done.stdout), strict=True)
    assert sorted(masks) == ["0", "1", "2"]
    assert len(set(leases)) == len(set(pids)) == 3
    status = made.env.status()
    assert not status["leases"]
    assert not status["waiters"]
