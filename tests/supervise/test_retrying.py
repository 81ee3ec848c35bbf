"""Whether a job that ran out of device memory runs again, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from grn.rules.outcome import MORE, NOTHING, SAME
from grn.supervise.job import Job
from grn.supervise.retrying import following, note_attempt, tried

ALONE = {"memory_mib": "whole", "largest": True, "policy": "spread"}


def a_job(tries: int, **request: Any) -> Job:
    """Return a job that has run so often."""
    job = Job(1, command="c", words=["c"], label="c", request={"type": "c", **request})
    job.tries = tries
    return job


@pytest.mark.parametrize(
    ("tries", "retries", "next_mib", "expected"),
    [
        (1, 0, 1500, None),
        (1, 1, 1500, {"memory_mib": 1500}),
        (2, 1, 1500, None),
        (1, 2, 1500, {"memory_mib": 1500}),
        (2, 2, 2000, ALONE),
        (3, 9, 2000, ALONE),
        (1, 5, None, ALONE),
    ],
)
def test_more_and_more_and_then_alone(
    tries: int, retries: int, next_mib: int | None, expected: dict[str, Any] | None
) -> None:
    """As long as retries are left: larger shares, and in the end the largest device."""
    job = a_job(tries, memory_mib=1000)
    assert following(job, retries=retries, remedy=MORE, next_mib=next_mib) == expected


def test_more_than_the_largest_device_alone_cannot_be_had() -> None:
    """What failed there is not run again."""
    job = a_job(2, **ALONE)
    assert following(job, retries=9, remedy=MORE, next_mib=None) is None


def test_what_others_took_is_asked_for_again() -> None:
    """The request stays as it was, as often as retries are left."""
    assert following(a_job(1), retries=1, remedy=SAME, next_mib=None) == {}
    assert following(a_job(2, **ALONE), retries=2, remedy=SAME, next_mib=None) == {}
    assert following(a_job(2), retries=1, remedy=SAME, next_mib=None) is None


def test_a_failure_that_was_not_about_memory_is_final() -> None:
    """No other device and no other size is tried."""
    assert following(a_job(1), retries=3, remedy=NOTHING, next_mib=1500) is None


def test_all_tries_are_told_in_one_line() -> None:
    """Each with what it was booked, where, and how it ended."""
    job = a_job(0)
    for grant, outcome in (
        ({"memory_mib": 1000, "devices": [{"index": 0}]}, "oom"),
        ({"memory_mib": 4096, "devices": [{"index": 1}, {"index": 2}]}, "oom-suspected"),
        ({"memory_mib": 8192, "devices": [{"index": 3}], "whole": True}, "oom"),
        ({}, "failed"),
    ):
        job.grant, job.outcome = grant, outcome
        note_attempt(job)
    assert tried(job) == (
        "tried 4 times: 1000 MiB on device 0 (oom), 4 GiB on devices 1, 2 (oom-suspected),"
        " 8 GiB alone on device 3 (oom), without a booking (failed)"
    )
