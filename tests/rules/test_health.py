"""Which errors take a device away, for how long, and what brings it back."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.health import STRIKES, DeviceHealth, job_fault_xids, xid_text

DAY_S = 86400.0


class Figures(NamedTuple):
    """What a driver says; nothing is wrong by default."""

    remap_pending: bool | None = False
    remap_failed: bool | None = False
    uncorrectable_ecc: int | None = 0
    recovery: int | None = 0


CLEAN = Figures()
SILENT = Figures(None, None, None, None)


def struck(*xids: int, at_s: float = 0.0) -> DeviceHealth:
    """Return a device that was well and then had these errors."""
    health = DeviceHealth()
    health.see(at_s - 10, (), CLEAN)
    health.see(at_s, xids, None)
    return health


def test_a_device_of_which_nothing_is_known_is_usable() -> None:
    """No event and no figure is held against it, nor is a driver that does not say."""
    health = DeviceHealth()
    assert (health.usable, health.reason, health.state) == (True, "", "ok")
    assert health.see(0, (), None) == health.see(1, (), SILENT) == []
    assert health.usable


@pytest.mark.parametrize("code", [8, 11, 13, 25, 31, 39, 43, 45, 68, 69, 77, 83, 94, 130, 137])
def test_a_jobs_fault_keeps_the_device(code: int) -> None:
    """What a program did wrong is said, with its number, and the device goes on."""
    health = DeviceHealth()
    (line,) = health.see(0, (code,), None)
    assert f"Xid {code} " in line
    assert "job's own fault" in line
    assert health.usable


@pytest.mark.parametrize("code", [14, 37, 44, 66, 106, 121])
def test_what_the_catalogue_asks_to_ignore_keeps_the_device(code: int) -> None:
    """It is said, blamed on nobody, and the device goes on."""
    health = DeviceHealth()
    (line,) = health.see(0, (code,), None)
    assert f"Xid {code} " in line
    assert "ignored" in line
    assert health.usable
    assert job_fault_xids((code,)) == ()


@pytest.mark.parametrize(
    "code", [32, 46, 48, 62, 64, 74, 79, 80, 92, 95, 109, 110, 119, 120, 136, 140, 143, 158, 777]
)
def test_another_error_takes_the_device_away(code: int) -> None:
    """Hardware errors, and those that nobody knows, keep new jobs away, and say why and how long."""
    health = DeviceHealth()
    (line,) = health.see(0, (code,), None)
    assert line == health.reason
    assert f"Xid {code} " in line
    assert "60 s" in line
    assert (health.usable, health.state) == (False, "unhealthy")


@pytest.mark.parametrize("figures", [CLEAN, SILENT])
def test_a_clean_reading_after_the_wait_brings_it_back(figures: Figures) -> None:
    """Sixty seconds after the last error a clean reading is enough, and it is said."""
    health = struck(79)
    assert health.see(59.9, (), figures) == []
    assert not health.usable
    (line,) = health.see(60, (), figures)
    assert "back in use" in line
    assert health.usable


def test_time_alone_brings_nothing_back() -> None:
    """Without a reading of its health it stays away, however long."""
    health = struck(79)
    health.see(DAY_S, (), None)
    assert not health.usable


def test_a_device_that_cannot_be_read_proves_nothing() -> None:
    """Figures of a device whose memory could not be read are no proof."""
    health = struck(79)
    health.see(100, (), CLEAN, read_well=False)
    assert not health.usable
    health.see(101, (), CLEAN)
    assert health.usable


def test_a_reading_that_complains_does_not_bring_it_back() -> None:
    """After the wait the figures must be clean too."""
    health = struck(48)
    health.see(61, (), Figures(remap_pending=True))
    assert "Xid 48 " in health.reason
    assert "remapped" in health.reason
    health.see(62, (), CLEAN)
    assert health.usable


def test_each_error_begins_the_wait_anew() -> None:
    """Errors in a row count as one, named by the first; the wait begins with the last."""
    health = struck(48)
    assert health.see(50, (95, 48), None) == []
    health.see(70, (), CLEAN)
    assert not health.usable
    assert "Xid 48 " in health.reason
    assert f"error 1 of {STRIKES}" in health.reason
    health.see(110, (), CLEAN)
    assert health.usable


def test_the_third_error_needs_an_operator() -> None:
    """After three strikes no reading brings it back; an operator does."""
    health = DeviceHealth()
    for strike in range(STRIKES):
        assert health.usable
        health.see(strike * 100.0, (79,), None)
        health.see(strike * 100.0 + 70, (), CLEAN)
    assert not health.usable
    assert "stays out" in health.reason
    assert "grn broker reload" in health.reason
    health.operator()
    assert health.usable


def test_after_the_operator_the_count_begins_anew() -> None:
    """The next error is the first again."""
    health = DeviceHealth()
    for strike in range(STRIKES):
        health.see(strike * 100.0, (79,), None)
        health.see(strike * 100.0 + 70, (), CLEAN)
    health.operator()
    health.see(1000, (79,), None)
    health.see(1060, (), CLEAN)
    assert health.usable


def test_the_next_broker_keeps_it_out() -> None:
    """What is held against a device is handed on, with its clock: the wait and the strikes go on."""
    health = struck(48, at_s=100)
    record = health.kept()
    assert record is not None
    taken_over = DeviceHealth.restored(record, 130)
    assert taken_over.reason == health.reason
    taken_over.see(159, (), CLEAN)
    assert not taken_over.usable
    taken_over.see(160, (), CLEAN)
    assert taken_over.usable
    for at_s in (1000, 2000):
        taken_over = DeviceHealth.restored(taken_over.kept() or {}, at_s)
        taken_over.see(at_s, (79,), None)
        taken_over.see(at_s + 70, (), CLEAN)
    assert "stays out" in taken_over.reason


def test_of_a_device_that_never_erred_nothing_is_kept() -> None:
    """Neither a job's fault nor a figure is anything to hand on; what an operator cleared is gone."""
    health = DeviceHealth()
    health.see(0, (31, 63), Figures(remap_pending=True))
    assert health.kept() is None
    health.see(1, (48,), None)
    assert health.kept() is not None
    health.operator()
    assert health.kept() is None


def test_an_operator_cannot_talk_figures_away() -> None:
    """What the driver still complains of keeps the device out."""
    health = DeviceHealth()
    health.see(0, (79,), Figures(remap_failed=True))
    health.operator()
    assert not health.usable
    assert "replaced" in health.reason


def test_errors_of_another_day_are_forgotten() -> None:
    """A device that errs once a day never needs an operator."""
    health = DeviceHealth()
    for day in range(10):
        health.see(day * DAY_S, (79,), None)
        assert not health.usable
        health.see(day * DAY_S + 60, (), CLEAN)
        assert health.usable


@pytest.mark.parametrize("code", [63, 154])
def test_a_recorded_note_asks_for_a_look(code: int) -> None:
    """Until its figures were read after it, no new job; clean ones let it go on, without a wait."""
    health = DeviceHealth()
    (line,) = health.see(0, (code,), CLEAN)
    assert f"Xid {code} " in line
    assert not health.usable
    health.see(1, (), CLEAN)
    assert health.usable


def test_a_row_that_waits_to_be_remapped_keeps_jobs_away() -> None:
    """After the note the figures decide, until a reset has settled them."""
    health = struck(63)
    health.see(1, (), Figures(remap_pending=True))
    assert "--gpu-reset" in health.reason
    health.see(1000, (), None)
    assert not health.usable
    health.see(1001, (), CLEAN)
    assert health.usable


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (Figures(remap_pending=True), "wait to be remapped"),
        (Figures(remap_failed=True), "could not be remapped"),
        (Figures(recovery=1), "recovery action 1: reset the GPU"),
        (Figures(recovery=2), "recovery action 2: reboot"),
        (Figures(recovery=99), "recovery action 99"),
    ],
)
def test_bad_figures_keep_jobs_away_without_an_event(figures: Figures, words: str) -> None:
    """The driver's own complaint is enough; it is said once, and what is to be done with it."""
    health = DeviceHealth()
    (line,) = health.see(0, (), figures)
    assert words in line
    assert not health.usable
    assert health.see(30, (), figures) == []
    assert health.see(60, (), CLEAN) != []
    assert health.usable


def test_errors_that_were_there_before_are_no_fault() -> None:
    """Only growth counts: the first count of uncorrectable errors says nothing."""
    health = DeviceHealth()
    assert health.see(0, (), Figures(uncorrectable_ecc=7)) == []
    assert health.see(30, (), Figures(uncorrectable_ecc=7)) == []
    assert health.see(60, (), Figures(uncorrectable_ecc=0)) == []
    assert health.usable


def test_growing_uncorrectable_errors_take_the_device_away() -> None:
    """Growth is an error like any other: a minute without more of it is needed."""
    health = DeviceHealth()
    health.see(0, (), Figures(uncorrectable_ecc=7))
    (line,) = health.see(30, (), Figures(uncorrectable_ecc=9))
    assert "grew from 7 to 9" in line
    health.see(89, (), Figures(uncorrectable_ecc=9))
    assert not health.usable
    health.see(90, (), Figures(uncorrectable_ecc=9))
    assert health.usable


def test_a_pause_in_the_count_hides_no_growth() -> None:
    """A reading without the count does not forget the last one."""
    health = DeviceHealth()
    health.see(0, (), Figures(uncorrectable_ecc=1))
    health.see(30, (), SILENT)
    health.see(60, (), Figures(uncorrectable_ecc=2))
    assert not health.usable


def test_only_what_a_job_did_is_blamed_on_it() -> None:
    """Of several events those are picked that a program causes, in their order."""
    assert job_fault_xids((79, 31, 63, 13, 777)) == (31, 13)


def test_an_error_is_told_in_words_and_by_number() -> None:
    """Known ones are explained; of others the number is told and where to look."""
    assert xid_text(79) == "Xid 79 (the GPU has fallen off the bus)"
    assert "Xid 777 (not known to GRN, so taken for an error of the card" in xid_text(777)


events = st.tuples(
    st.floats(0, 50),
    st.lists(st.sampled_from([13, 31, 48, 63, 79, 777]), max_size=2),
    st.none()
    | st.builds(Figures, st.booleans(), st.booleans(), st.integers(0, 3), st.integers(0, 1)),
)


@given(st.lists(events, max_size=30))
def test_whatever_happens_there_is_a_reason_or_the_device_is_usable(
    story: list[tuple[float, list[int], Figures | None]],
) -> None:
    """Usable and a reason exclude each other, each change is said, and a cure exists."""
    health, now = DeviceHealth(), 0.0
    for pause, xids, figures in story:
        before, now = health.usable, now + pause
        said = health.see(now, xids, figures)
        assert health.usable == (not health.reason) == (health.state == "ok")
        assert said or health.usable == before
    health.operator()
    health.see(now + 61, (), CLEAN._replace(uncorrectable_ecc=None))
    assert health.usable
