"""What the journal keeps of a lease is enough to go on with it."""

from __future__ import annotations

from typing import Any

import pytest

from grn.rules.model import Lease, LeaseState, Owner, Policy
from grn.rules.records import (
    end_record,
    grant_record,
    lease_from_record,
    main_record,
    managed_from_record,
    managed_record,
)
from grn.rules.wire import decode, encode
from tests.rules.acting import Stage


def _written(record: dict[str, object]) -> dict[str, Any]:
    """Take a record the way through the journal's encoding."""
    return decode(encode(record)[4:])


def _lease(**wish: Any) -> Lease:
    stage = Stage(8000, 8000, ram_mib=9000)
    job = stage.ask("train \udcff", label="é", **wish)
    stage.run_until(0)
    assert job.lease is not None
    return job.lease


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"gpus": None},
        {"gpus": 0, "cpus": 2},
        {"gpus": 2, "memory_mib": 1000, "policy": Policy.PACK, "ram_mib": 100, "priority": -3},
        {"whole": True, "session": "abc"},
    ],
    ids=repr,
)
def test_a_lease_survives_its_record(wish: dict[str, Any]) -> None:
    """Everything that the books, the client and the watcher need comes back."""
    lease = _lease(**wish)
    again = lease_from_record(_written(grant_record(lease, alone=False, looked_s=4.0)), 5.0)
    for name in (
        *("id", "number", "uuids", "booked_mib", "state", "threads", "main", "peak_mib"),
        *("granted_s", "started_s", "unwatched"),
    ):
        assert getattr(again, name) == getattr(lease, name), name
    for name in (
        *("type", "label", "owner", "gpus", "memory_mib", "whole", "policy"),
        *("cpus", "ram_mib", "priority", "session", "arrived_s"),
    ):
        assert getattr(again.request, name) == getattr(lease.request, name), name


def test_no_time_lies_ahead() -> None:
    """A machine that was started anew since has a younger clock: nothing began after now."""
    lease = _lease()
    lease.granted_s, lease.started_s = 900.0, 901.0
    again = lease_from_record(_written(grant_record(lease, alone=True, looked_s=902.0)), 5.0)
    assert (again.granted_s, again.started_s) == (5.0, 5.0)
    assert again.unwatched


@pytest.mark.parametrize(
    ("looked_s", "now", "unwatched"),
    [(100.0, 102.0, False), (100.0, 102.1, True), (100.0, 99.9, True), (None, 100.0, True)],
)
def test_who_was_not_looked_at_for_long_may_have_peaked(
    looked_s: float | None,
    now: float,
    unwatched: bool,  # noqa: FBT001
) -> None:
    """Two seconds are between two looks anyway; a record of an older broker does not tell."""
    record = _written(grant_record(_lease(), alone=True, looked_s=100.0)) | {"looked_s": looked_s}
    assert lease_from_record(record, now).unwatched is unwatched


def test_a_record_of_an_older_broker_is_read() -> None:
    """Keys that were added later have a default; unknown ones are left alone."""
    old = {
        "ev": "grant",
        "lease": "x-1",
        "number": 1,
        "type": "job",
        "owner": [1, 2, 3],
        "uuids": ["d0"],
        "booked_mib": 5,
        "state": "running",
        "unknown": {"a": 1},
    }
    lease = lease_from_record(old, 0.0)
    assert lease.request.owner == Owner(1, 2, 3)
    assert lease.request.policy is Policy.SPREAD
    assert (lease.main, lease.threads, lease.peak_mib) == (None, 1, 0)
    assert (lease.granted_s, lease.started_s, lease.unwatched) == (0.0, None, True)


def test_a_change_tells_main_process_and_state() -> None:
    """Who runs the job, and that it drains, outlives the broker."""
    lease = _lease(memory_mib=1000)
    lease.state = LeaseState.DRAINING
    assert lease.main is not None
    assert _written(main_record(lease)) == {
        "ev": "main",
        "lease": "t-1",
        "main": [lease.main.pid, lease.main.start],
        "state": "draining",
        "booked_mib": 1000,
        "started_s": 0.0,
        "orphaned": False,
        "foretold_mib": 0,
    }


def test_an_end_needs_only_a_name() -> None:
    """A lease that has ended is forgotten."""
    assert end_record(_lease()) == {"ev": "end", "lease": "t-1"}


def test_a_torn_off_history_does_not_confuse_a_successor() -> None:
    """Changes and ends of leases that the journal no longer tells of are skipped."""
    stage = Stage(8000)
    stage.machine.restore(
        [
            {"ev": "end", "lease": "x-1"},
            {"ev": "main", "lease": "x-2", "main": [1, 2], "state": "running"},
            {"ev": "something-new", "lease": "x-3"},
        ],
        0.0,
    )
    assert not stage.machine.leases
    stage.machine.check_invariants()


def test_a_lease_on_a_device_that_is_gone_is_kept() -> None:
    """After a restart with fewer devices the lease still ends properly."""
    stage = Stage(8000, 8000)
    stage.ask(gpus=2, memory_mib=1000)
    stage.ask("probe", allowed=frozenset({"GPU-0001"}))
    other = Stage(8000)
    other.machine.restore(stage.machine.snapshot(), 0.0)
    other.look()
    other.machine.check_invariants()
    assert other.free() == 7000


@pytest.mark.parametrize("masks", [(None,), ("",), ("1", None), ("3", "0,2", "GPU-1")], ids=repr)
def test_the_masks_survive_their_record(masks: tuple[str | None, ...]) -> None:
    """A successor opens what its predecessor managed; an older one still finds the first mask."""
    record = _written(managed_record("nvml", masks))
    assert managed_from_record(record) == ("nvml", masks)
    assert (record["spec"], record["mask"]) == ("nvml", masks[0])


@pytest.mark.parametrize("mask", [None, "", "1"])
def test_an_older_record_has_one_mask(mask: str | None) -> None:
    """A broker of an earlier version managed what its own mask named."""
    record = {"ev": "devices", "spec": "nvml", "mask": mask}
    assert managed_from_record(record) == ("nvml", (mask,))
