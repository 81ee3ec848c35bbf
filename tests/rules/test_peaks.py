"""Which figure of a run is its peak, and under which name."""

from __future__ import annotations

from typing import Any

import pytest

from grn.rules.model import Lease, LeaseState, Owner, Request
from grn.rules.peaks import Peak, peak_of


def _lease(*, together: bool = False, **known: Any) -> Lease:
    lease = _Lease(
        id="t-1",
        number=1,
        request=Request(1, "job", Owner(1, 1)),
        uuids=("GPU-0000",),
        booked_mib=5000,
        state=LeaseState.RUNNING,
        granted_s=0.0,
        threads=1,
        **known,
    )
    lease.together = together
    return lease


class _Lease(Lease):
    """A lease that takes attributes which `Lease` has no slot for."""


@pytest.mark.parametrize(
    ("known", "peak"),
    [
        ({}, None),
        ({"samples": 3}, None),
        ({"peak_mib": 3000, "samples": 1}, Peak(3000, "sampled")),
        ({"peak_mib": 3000, "samples": 1, "by_delta": True}, Peak(3000, "device-delta")),
        ({"reported_mib": 2000}, Peak(2000, "in-process")),
        ({"reported_mib": 4000, "peak_mib": 3000, "samples": 1}, Peak(4000, "in-process")),
        ({"reported_mib": 3000, "peak_mib": 3000, "samples": 1}, Peak(3000, "in-process")),
        ({"accounted_mib": 1000}, Peak(1000, "accounting")),
        ({"accounted_mib": 3000, "peak_mib": 2000, "samples": 1}, Peak(3000, "accounting")),
        ({"accounted_mib": 3000, "reported_mib": 2000}, Peak(3000, "accounting")),
    ],
)
def test_the_best_known_figure_counts(known: dict[str, Any], peak: Peak | None) -> None:
    """Accounting before a report, a report before samples, samples before a device's rise."""
    assert peak_of(_lease(**known)) == peak


@pytest.mark.parametrize("better", ["accounted_mib", "reported_mib"])
@pytest.mark.parametrize("by_delta", [False, True])
def test_memory_that_was_seen_is_never_hidden(better: str, *, by_delta: bool) -> None:
    """A smaller figure of a better source does not lower what samples saw, and lends no name."""
    lease = _lease(**{better: 2000}, peak_mib=3000, samples=1, by_delta=by_delta)
    assert peak_of(lease) == Peak(3000, "device-delta" if by_delta else "sampled")


def test_maxima_of_processes_that_were_there_together_are_only_a_bound() -> None:
    """They need not coincide, so what was seen at one moment counts; alone they are better than 0."""
    known = {"accounted_mib": 9000, "peak_mib": 5000, "samples": 4}
    assert peak_of(_lease(together=True, **known)) == Peak(5000, "sampled")
    assert peak_of(_lease(together=True, **known, reported_mib=6000)) == Peak(6000, "in-process")
    assert peak_of(_lease(together=True, accounted_mib=9000)) == Peak(9000, "accounting")


def test_a_report_does_not_outrank_accounting() -> None:
    """What a job says of itself is not added to what the driver recorded."""
    assert peak_of(_lease(accounted_mib=3000, reported_mib=3500)) == Peak(3000, "accounting")


def test_a_run_that_went_astray_has_no_peak() -> None:
    """Use of a device that was not given leaves neither 0 nor a part of the need."""
    assert peak_of(_lease(peak_mib=3000, samples=9, strays=("GPU-0001",))) is None
