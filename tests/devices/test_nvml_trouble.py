"""A driver that is slow, stuck or gone: each card is its own trouble, and comes back by itself."""

from __future__ import annotations

import errno
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from grn.devices.base import DeviceReading, ProcessUse
from grn.devices.nvml import link as links
from grn.devices.nvml.nursery import Nursery
from tests.devices.nvml_machine import Cards, opened
from tests.env import PATIENCE_S, eventually, wait_gone
from tests.fakenvml.box import UNKNOWN, VERSION_MISMATCH

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]

LONG_S = 600.0
SOON_S = 1.0
"""A deadline that a busy machine meets and a stuck driver does not."""

NOT_FOUND = 6
SECOND_SLICE = 2
"""The driver's number for it: cards are counted first, then slices."""

MEMORY = "nvmlDeviceGetMemoryInfo"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up early, and start anew soon."""
    monkeypatch.setattr(links, "GIVE_UP_S", 0.5)
    monkeypatch.setattr(links, "FIRST_WAIT_S", 0.02)
    monkeypatch.setattr(links, "LONGEST_WAIT_S", 0.1)


def first_is(state: str) -> Callable[[tuple[DeviceReading, ...]], bool]:
    """Return whether the first card is in a state."""
    return lambda readings: readings[0].state == state


def second_is_ok(readings: tuple[DeviceReading, ...]) -> bool:
    """Whether the second card is well."""
    return readings[1].state == "ok"


def is_late(cards: Cards) -> bool:
    """Ask once; whether nobody waits for the first card any more."""
    cards.ask()
    return not cards.backend.links[0].clean


# -- a stuck card ---------------------------------------------------------------------------------


def test_a_stuck_card_is_stale_and_the_others_are_fresh(new_box: NewBox) -> None:
    """Answers come on time; only the card whose driver call hangs has none."""
    box = new_box("2x10000MiB")
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        box.fail(MEMORY, card=0, delay_s=LONG_S)
        held = box.add_process(1, 500, pid=os.getpid())
        begun = time.monotonic()
        readings = cards.until(first_is("stale"), always=second_is_ok)
        assert readings[1].processes == (ProcessUse(os.getpid(), 500),)
        assert "not answered" in readings[0].reason
        box.remove_process(held)
        assert cards.ask()[1].used_mib == 0
        assert time.monotonic() - begun < PATIENCE_S, "somebody waited for the stuck card"


def test_a_missed_reading_is_repeated_for_a_moment(new_box: NewBox) -> None:
    """One late answer is no reason to stop: the last reading stands for a second."""
    box = new_box(base=70)
    with opened(box, deadline_s=SOON_S, repeat_s=LONG_S) as cards:
        cards.until(first_is("ok"))
        box.fail(MEMORY, delay_s=LONG_S)
        reading = cards.ask()[0]
        assert (reading.state, reading.used_mib) == ("ok", 70)
        assert not cards.backend.links[0].clean


def test_nobody_waits_twice_for_a_stuck_card(new_box: NewBox) -> None:
    """After one missed deadline the card's reading is given at once, without a question."""
    box = new_box()
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        box.fail(MEMORY, delay_s=LONG_S)
        eventually(lambda: is_late(cards))
        quickest = min(timed(cards) for _ in range(20))
        assert quickest < SOON_S / 2


def timed(cards: Cards) -> float:
    """Return how long one answer took."""
    begun = time.monotonic()
    cards.ask()
    return time.monotonic() - begun


def test_a_card_comes_back_with_its_first_clean_reading(new_box: NewBox) -> None:
    """What a missed question brings in the end is not believed; what is read after it is."""
    box = new_box("2x10000MiB")
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        box.fail(MEMORY, card=0, delay_s=LONG_S)
        cards.until(first_is("stale"))
        worker = cards.worker_pids()[0]
        box.add_process(0, 700, pid=os.getpid())
        box.heal()
        readings = cards.until(first_is("ok"), always=second_is_ok)
        assert readings[0].used_mib == 700
        assert cards.worker_pids()[0] == worker, "the same worker goes on"


def test_events_of_a_missed_reading_are_not_lost(new_box: NewBox) -> None:
    """An Xid that came with an answer for which nobody waited comes with the next reading."""
    box = new_box()
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        box.fail(MEMORY, delay_s=LONG_S)
        cards.until(first_is("stale"))
        box.xid(0, 31)
        box.heal()
        assert cards.until(lambda readings: readings[0].xids)[0].xids == (31,)


def test_a_worker_that_stays_stuck_is_replaced(new_box: NewBox, impatient: None) -> None:
    """It is killed in the end, and a fresh one asks, again and again, until the card answers."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        stuck = cards.worker_pids()[0]
        box.fail(MEMORY, card=0, delay_s=LONG_S)
        cards.until(lambda _: cards.worker_pids()[0] not in (0, stuck), always=second_is_ok)
        wait_gone(stuck)
        box.heal()
        cards.until(first_is("ok"), always=second_is_ok)


def test_no_more_workers_are_lost_to_a_card_than_make_sense(
    new_box: NewBox, impatient: None
) -> None:
    """A driver that lets go of nobody is not given one process after the other."""
    del impatient
    box = new_box()
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        link = cards.backend.links[0]
        undead = range(1000, 1000 + links.MOST_UNDEAD)
        link._undead.update(undead)
        cards.backend.nursery.pids.update(dict.fromkeys(undead, 1))
        os.kill(cards.worker_pids()[0], signal.SIGKILL)
        cards.until(lambda readings: "hang in the driver" in readings[0].reason)
        for number in undead:
            del cards.backend.nursery.pids[number]
        cards.until(first_is("ok"))


def test_a_card_is_asked_again_once_its_killed_workers_have_ended(
    new_box: NewBox, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That they have is heard also while no new one may be forked: the count goes down by itself."""
    del impatient
    monkeypatch.setattr(links, "MOST_UNDEAD", 1)
    box = new_box("2x10000MiB")
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        link = cards.backend.links[0]
        worker = link.worker
        box.fail(MEMORY, card=0, delay_s=LONG_S)
        cards.until(lambda _: link.worker is not worker, always=second_is_ok)
        cards.until(first_is("stale"), always=second_is_ok)
        box.heal()
        cards.until(lambda readings: link.clean and readings[0].state == "ok", second_is_ok)


# -- workers and the zygote -----------------------------------------------------------------------


def test_a_killed_worker_is_replaced(new_box: NewBox, impatient: None) -> None:
    """Its card is asked by another one; the other cards notice nothing."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        before = cards.worker_pids()
        os.kill(before[0], signal.SIGKILL)
        cards.until(lambda _: cards.worker_pids()[0] not in (0, before[0]), always=second_is_ok)
        cards.until(first_is("ok"), always=second_is_ok)
        assert cards.worker_pids()[1] == before[1]


def test_a_killed_zygote_is_replaced_with_all_its_workers(new_box: NewBox, impatient: None) -> None:
    """The loss of all helpers at once is got over without a restart of the broker."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        before = cards.worker_pids()
        os.kill(cards.backend.nursery.zygote_pid, signal.SIGKILL)
        for pid in before:
            wait_gone(pid)
        cards.until(lambda _: all(p not in (0, *before) for p in cards.worker_pids()))
        cards.until(lambda readings: {r.state for r in readings} == {"ok"})


def test_closing_ends_all_helpers(new_box: NewBox) -> None:
    """Nothing is left of a backend that was closed, stuck workers included."""
    box = new_box("2x10000MiB")
    with opened(box, deadline_s=SOON_S) as cards:
        cards.ask()
        helpers = [cards.backend.nursery.zygote_pid, *cards.worker_pids()]
        box.fail(MEMORY, card=0, delay_s=LONG_S)
        eventually(lambda: is_late(cards))
    for pid in helpers:
        wait_gone(pid)


def test_questions_at_the_same_moment_share_a_look(new_box: NewBox) -> None:
    """Each of them is answered with what was read after it was asked."""
    box = new_box()
    with opened(box) as cards:
        cards.ask()
        box.add_process(0, 700, pid=os.getpid())
        answers = cards.ask_together(5)
        assert [readings[0].used_mib for readings in answers] == [700] * 5


# -- lost cards -----------------------------------------------------------------------------------


def test_a_lost_card_costs_no_other_one(new_box: NewBox, impatient: None) -> None:
    """It is lost, with a reason; the others go on; it comes back when it is found again."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        box.lose(0)
        lost = cards.until(first_is("lost"), always=second_is_ok)
        assert "lost the GPU" in lost[0].reason
        for _ in range(20):
            assert cards.states() == ["lost", "ok"], "a lost card stays lost"
        box.find(0)
        cards.until(first_is("ok"), always=second_is_ok)


def test_a_card_that_answers_nothing_sensible_is_lost(new_box: NewBox, impatient: None) -> None:
    """An unknown error that a fresh start does not cure is the card's."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        box.fail(card=0, code=UNKNOWN)
        cards.until(first_is("lost"), always=second_is_ok)
        box.heal()
        cards.until(first_is("ok"), always=second_is_ok)


def test_a_slice_that_is_removed_is_lost_alone(new_box: NewBox) -> None:
    """The other slices of its card are read on."""
    box = new_box("1x40GiB,mig=0:20GiB+10GiB")
    with opened(box) as cards:
        assert cards.states() == ["ok", "ok"]
        box.fail(card=SECOND_SLICE, code=NOT_FOUND)
        readings = cards.until(lambda readings: readings[1].state == "lost")
        assert readings[0].state == "ok"
        assert "slice" in readings[1].reason


# -- no driver ------------------------------------------------------------------------------------


def test_a_driver_that_goes_and_comes_back(new_box: NewBox, impatient: None) -> None:
    """Meanwhile its cards are stale, not lost: nothing is known of them."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        box.remove_driver()
        readings = cards.until(lambda readings: {r.state for r in readings} == {"stale"})
        assert "not loaded" in readings[0].reason
        box.restore_driver()
        cards.until(lambda readings: {r.state for r in readings} == {"ok"})


def test_handles_that_become_worthless(new_box: NewBox, impatient: None) -> None:
    """Unknown errors on all cards, which a fresh start cures, lose no card."""
    del impatient
    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        before = cards.worker_pids()
        box.reload_driver()
        cards.until(
            lambda _: not set(before) & set(cards.worker_pids()),
            always=lambda readings: "lost" not in {r.state for r in readings},
        )
        cards.until(lambda readings: {r.state for r in readings} == {"ok"})


def test_an_upgraded_driver_says_what_to_do(new_box: NewBox, impatient: None) -> None:
    """The library is newer than the module: the cure is in the reason."""
    del impatient
    box = new_box()
    with opened(box) as cards:
        cards.ask()
        box.fail("nvmlInit", code=VERSION_MISMATCH)
        box.reload_driver()
        readings = cards.until(lambda readings: "upgraded" in readings[0].reason)
        assert readings[0].state == "stale"
        assert "reboot or reload the nvidia module" in readings[0].reason
        box.heal()
        cards.until(first_is("ok"))


def test_an_answer_is_due_within_half_a_second() -> None:
    """What a release and a status wait for at most, and how long a reading stands, are promises."""
    assert links.DEADLINE_S < 0.5
    assert links.DEADLINE_S < links.REPEAT_S <= 1.0
    assert links.GIVE_UP_S == 10.0
    assert (links.FIRST_WAIT_S, links.LONGEST_WAIT_S) == (1.0, 60.0)


def test_a_card_heals_after_no_worker_could_be_started(
    new_box: NewBox, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again and again; meanwhile the card is stale, and the others go on."""
    del impatient
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    box = new_box("2x10000MiB")
    with opened(box) as cards:
        cards.ask()
        first = cards.worker_pids()[0]
        with monkeypatch.context() as patch:
            patch.setattr("grn.devices.nvml.nursery.socket.socketpair", refuse)
            os.kill(first, signal.SIGKILL)
            cards.until(
                lambda readings: len(tries) > 2 and readings[0].state == "stale",
                always=second_is_ok,
            )
        cards.until(first_is("ok"), always=second_is_ok)


def test_out_of_descriptors_no_worker_is_forked_and_nothing_breaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is said, so that it is tried again later."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("grn.devices.nvml.nursery.socket.socketpair", refuse)
    assert Nursery().fork({}) is None
