"""The baselines, on examples small enough to do by hand."""

from __future__ import annotations

import pytest

from grn.replay.bounds import bounds_of
from grn.replay.figures import Mix
from grn.replay.policies import Run, run
from grn.replay.world import WorldOptions
from tests.replay.made import DEVICE_MIB, job


def _starts(name: str, *jobs: object, devices: int = 1) -> list[float]:
    run(name, jobs, Run(WorldOptions(devices=devices, device_mib=DEVICE_MIB)))  # type: ignore[arg-type]
    return [each.started_s for each in jobs]  # type: ignore[attr-defined]


def test_fifo_gives_whole_devices_in_order() -> None:
    """Three small jobs on one device run one after the other."""
    assert _starts("fifo", job(0, 0, 10, 1000), job(1, 1, 10, 1000), job(2, 2, 10, 1000)) == [
        0,
        10,
        20,
    ]


def test_fifo_does_not_overtake_and_backfill_does() -> None:
    """A job of two devices waits for both; with backfill the free one is used meanwhile."""

    def jobs() -> tuple[object, ...]:
        return job(0, 0, 100, 1000), job(1, 1, 10, 1000, gpus=2), job(2, 2, 10, 1000)

    assert _starts("fifo", *jobs(), devices=2) == [0, 100, 110]
    assert _starts("fifo-backfill", *jobs(), devices=2) == [0, 100, 2]


def test_who_has_waited_two_hours_is_not_overtaken() -> None:
    """Backfill has an end: later jobs stay behind one that has waited long."""
    long = job(0, 0, 20000, 1000)
    starts = _starts(
        "fifo-backfill", long, job(1, 0, 10, 1000, gpus=2), job(2, 7000, 10, 1000), job(3, 7300, 10, 1000),
        devices=2,
    )  # fmt: skip
    assert starts == [0, 20000, 7000, 20010]


def test_best_fit_takes_the_tightest_device() -> None:
    """The second fits exactly beside the first, so that the fourth finds room on the other device."""
    jobs = [job(0, 0, 100, 6000), job(1, 1, 100, 4000), job(2, 2, 100, 4000), job(3, 3, 100, 6000)]
    assert _starts("best-fit", *jobs, devices=2) == [0, 1, 2, 3]


def test_best_fit_packs_where_spread_does_not() -> None:
    """Best fit keeps a device empty for the large job that comes last."""

    def jobs() -> list[object]:
        return [job(0, 0, 100, 3000), job(1, 1, 100, 3000), job(2, 2, 50, 9000)]

    assert _starts("best-fit", *jobs(), devices=2) == [0, 1, 2]
    assert _starts("spread/declared", *jobs(), devices=2) == [0, 1, 100]


def test_fgd_keeps_what_the_mix_can_use() -> None:
    """Half of all jobs want 5000: 3000 free of 8000 are useless to them, so 5000 stay free elsewhere."""
    jobs = [job(0, 0, 100, 2000), job(1, 0, 100, 5000), job(2, 1, 100, 5000), job(3, 2, 100, 3000)]
    mix = Mix(jobs)
    assert mix.unusable_mib(1999) == 1999
    assert mix.unusable_mib(4000) == pytest.approx(4000 * 0.5)
    assert mix.unusable_mib(5000) == 0
    # 0 goes anywhere; 1 beside it leaves 3000 (loss 1500); 2 takes the other device; 3 fits exactly.
    assert _starts("fgd", *jobs, devices=2) == [0, 0, 1, 2]


def test_the_original_forgets_its_bookings() -> None:
    """Known jobs that come together see the same free memory, and one of them dies of it."""
    known = job(0, 0, 20, 6000)
    first, second = job(1, 100, 50, 6000), job(2, 101, 50, 6000)
    run("grn0", [known, first, second], Run(WorldOptions(devices=1, device_mib=DEVICE_MIB)))
    assert first.ooms == 0
    assert second.ooms >= 1
    assert second.ended_s >= first.ended_s


def test_compute_is_shared() -> None:
    """Two jobs that both want all of a device take twice as long, and the second one's tail is fast."""
    first, second = job(0, 0, 100, 1000, compute=1.0), job(1, 50, 100, 1000, compute=1.0)
    run("best-fit", [first, second], Run(WorldOptions(devices=1, device_mib=DEVICE_MIB)))
    assert first.ended_s == pytest.approx(150)
    assert second.ended_s == pytest.approx(200)


def test_bounds_of_two_jobs() -> None:
    """The shorter goes first on the pool; nobody is faster than its length."""
    jobs = [job(0, 0, 100, 1000, compute=1.0), job(1, 0, 20, 1000, compute=1.0)]
    bounds = bounds_of(jobs, 1)
    assert bounds.jct_mean_s == pytest.approx((20 + 120) / 2)
    assert bounds.makespan_h == pytest.approx(120 / 3600)
    assert bounds_of(jobs, 4).jct_mean_s == pytest.approx(60)
