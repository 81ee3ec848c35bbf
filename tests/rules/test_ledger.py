"""The books: what is set aside stays set aside, and nothing is handed out twice."""

from __future__ import annotations

import pytest

from grn.rules.ledger import Book, Booking, InvariantError, Ledger
from grn.rules.model import Device, DeviceState


def _ledger(*sizes_mib: int, cpus: int = 8, ram_mib: int | None = 1000) -> Ledger:
    devices = [Device(f"d{i}", i, "m", mib) for i, mib in enumerate(sizes_mib)]
    return Ledger(devices, cpus=cpus, ram_mib=ram_mib)


def test_capacity_leaves_out_reserve_and_headroom() -> None:
    """What the driver keeps and what we never hand out are no part of the room."""
    assert Device("d", 0, "m", 10000, reserve_mib=300, headroom_mib=200).capacity_mib == 9500
    assert Device("d", 0, "m", 100, reserve_mib=300).capacity_mib == 0


def test_a_booking_counts_before_anything_is_allocated() -> None:
    """A lease takes its booking off the room from the moment of the grant."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 6000)
    assert ledger.books[0].free_mib == 4000


@pytest.mark.parametrize("readings", [[0], [0, 0, 6000, 0], [5999], [10]])
def test_a_low_reading_never_lowers_a_booking(readings: list[int]) -> None:
    """A job that holds less than it booked keeps its booking."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 6000)
    for mib in readings:
        ledger.measure("a", "d0", mib)
    assert ledger.books[0].free_mib == 4000


def test_a_low_reading_gives_nothing_away() -> None:
    """A job that holds less than it booked counts for its booking."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 3000)
    ledger.measure("a", "d0", 2900)
    ledger.measure("a", "d0", 100)
    assert ledger.books[0].free_mib == 7000


def test_free_is_never_negative() -> None:
    """Jobs that outgrew the device leave no room, not less than none."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 5000)
    ledger.place("b", ("d0",), 5000)
    ledger.measure("a", "d0", 9000)
    ledger.books[0].foreign_mib = 4000
    assert (ledger.books[0].free_mib, ledger.books[0].room_mib) == (0, 6000)
    ledger.check_invariants()
    ledger.books[0].foreign_mib = 12000
    assert (ledger.books[0].free_mib, ledger.books[0].room_mib) == (0, 0)


def test_memory_of_others_is_no_room() -> None:
    """What processes without a lease hold cannot be handed out."""
    ledger = _ledger(10000)
    ledger.books[0].foreign_mib = 3000
    with pytest.raises(InvariantError, match="7001 MiB of 7000 free"):
        ledger.place("a", ("d0",), 7001)
    ledger.place("a", ("d0",), 7000)
    assert ledger.books[0].free_mib == 0


def test_a_refused_placement_leaves_no_trace() -> None:
    """Several devices are booked all or none: a failure on the second leaves the first alone."""
    ledger = _ledger(10000, 500)
    with pytest.raises(InvariantError):
        ledger.place("a", ("d0", "d1"), 6000, cpus=4)
    assert not any(book.bookings for book in ledger.books)
    assert ledger.cpus.booked == 0
    ledger.check_invariants()


@pytest.mark.parametrize(
    ("first_alone", "second_alone"), [(True, False), (False, True), (True, True)]
)
def test_who_must_be_alone_is_alone(*, first_alone: bool, second_alone: bool) -> None:
    """A device leased alone takes nobody else, and whoever must be alone gets no shared device."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 10, alone=first_alone)
    with pytest.raises(InvariantError, match="may not share"):
        ledger.place("b", ("d0",), 10, alone=second_alone)


@pytest.mark.parametrize(("uuids", "mib"), [(("d0", "d0"), 10), (("d0",), -1)])
def test_nonsense_is_not_booked(uuids: tuple[str, ...], mib: int) -> None:
    """The same device twice, or a negative amount, is a defect and not a booking."""
    with pytest.raises(InvariantError):
        _ledger(10000).place("a", uuids, mib)


def test_removal_gives_everything_back() -> None:
    """After the last lease the books are those of an idle machine."""
    ledger = _ledger(10000, 10000)
    ledger.place("a", ("d0", "d1"), 6000, alone=True, cpus=4, ram_mib=100)
    ledger.measure("a", "d1", 9000)
    ledger.remove("a", ("d0", "d1"))
    assert [book.free_mib for book in ledger.books] == [10000, 10000]
    assert [book.alone for book in ledger.books] == [None, None]
    assert (ledger.cpus.booked, ledger.ram.booked) == (0, 0)


def test_rebooking_shrinks_and_lets_others_in() -> None:
    """A probe whose need is known takes that, no more, and is no longer alone."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 10000, alone=True)
    ledger.rebook("a", ("d0",), 3000)
    ledger.place("b", ("d0",), 7000)
    assert ledger.books[0].free_mib == 0


def test_rebooking_never_books_more() -> None:
    """What was learnt cannot raise a booking beyond what was granted."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 3000)
    ledger.rebook("a", ("d0",), 5000)
    assert ledger.books[0].booked_mib == 3000


def test_what_a_job_held_beyond_its_booking_is_kept_while_it_runs() -> None:
    """It gave memory back between two steps, and the next step wants it again."""
    ledger = _ledger(10000)
    book = ledger.books[0]
    ledger.place("a", ("d0",), 3000)
    ledger.measure("a", "d0", 6000)
    ledger.measure("a", "d0", 1000)
    assert (book.free_mib, book.measured_mib) == (4000, 1000)
    ledger.drain("a", ("d0",), runs_on=True)
    assert book.free_mib == 4000
    ledger.drain("a", ("d0",), runs_on=False)
    assert book.free_mib == 7000
    ledger.measure("a", "d0", 5000)
    ledger.measure("a", "d0", 4000)
    assert book.free_mib == 6000
    ledger.check_invariants()


def test_a_rise_of_the_total_may_be_a_guest_who_passes_by() -> None:
    """Where nobody says who holds what, what has gone again is not kept for the lease."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 3000)
    ledger.books[0].bookings["a"].by_delta = True
    ledger.measure("a", "d0", 6000)
    ledger.measure("a", "d0", 1000)
    assert ledger.books[0].free_mib == 7000


def test_what_a_job_says_to_have_held_counts_at_once() -> None:
    """A report of a peak is a peak: also where no look has seen it."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 3000)
    ledger.told("a", ("d0", "gone"), 2000)
    assert ledger.books[0].free_mib == 7000
    ledger.told("a", ("d0",), 8000)
    ledger.told("a", ("d0",), 7000)
    assert ledger.books[0].free_mib == 2000
    ledger.check_invariants()


def test_cpus_and_ram_are_counted_beside_devices() -> None:
    """A wish fits while the sum stays within the total; an exact fit is a fit."""
    ledger = _ledger(10000, cpus=4, ram_mib=1000)
    ledger.place("a", (), 0, cpus=3, ram_mib=1000)
    assert ledger.cpus.fits(1)
    assert not ledger.cpus.fits(2)
    assert not ledger.ram.fits(1)
    ledger.drain("a", (), runs_on=False)
    assert ledger.cpus.fits(4)
    ledger.remove("a", ())
    ledger.check_invariants()


def test_unknown_ram_is_unaccounted() -> None:
    """Where the RAM is unknown nobody waits for it and nobody is refused for it."""
    pool = _ledger(10000, ram_mib=None).ram
    assert pool.fits(1 << 40)
    assert pool.possible(1 << 40)


def test_no_wish_always_fits() -> None:
    """A request that declares no CPUs books none and is never held up for them."""
    ledger = _ledger(10000, cpus=1)
    ledger.place("a", (), 0, cpus=1)
    assert ledger.cpus.fits(None)
    assert ledger.cpus.fits(0)


def test_a_former_brokers_booking_holds_even_where_it_no_longer_fits() -> None:
    """A lease that lives on is booked again; a device that is gone is left out."""
    ledger = _ledger(10000)
    ledger.books[0].foreign_mib = 9000
    ledger.restore("a", ("d0", "gone"), 6000, alone=False, cpus=2, ram_mib=0, compute=0)
    assert ledger.books[0].free_mib == 0
    ledger.check_invariants()
    ledger.remove("a", ("d0", "gone"))
    ledger.check_invariants()
    assert ledger.books[0].booked_mib == 0


def test_a_device_listed_twice_is_a_defect() -> None:
    """One device has one page."""
    device = Device("d0", 0, "m", 1000)
    with pytest.raises(InvariantError, match="twice"):
        Ledger([device, device], cpus=1, ram_mib=None)


def test_broken_books_are_noticed() -> None:
    """The check recomputes every sum and finds what does not add up."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 6000)
    ledger.books[0].committed_mib -= 1
    with pytest.raises(InvariantError, match="cached sum"):
        ledger.check_invariants()
    ledger.books[0].committed_mib += 1
    ledger.books[0].alone = "b"
    with pytest.raises(InvariantError, match="not alone"):
        ledger.check_invariants()
    ledger.books[0].alone = None
    ledger.check_invariants()


@pytest.mark.parametrize("negative", ["booked_mib", "measured_mib"])
def test_a_negative_booking_is_noticed(negative: str) -> None:
    """Whichever of the two it is."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 6000)
    setattr(ledger.books[0].bookings["a"], negative, -1)
    with pytest.raises(InvariantError, match="a negative booking"):
        ledger.check_invariants()


@pytest.mark.parametrize("negative", ["free_mib", "foreign_mib"])
def test_negative_room_is_noticed(negative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two it is: what is free, or what others hold."""
    ledger = _ledger(10000)
    ledger.check_invariants()
    if negative == "free_mib":
        monkeypatch.setattr(Book, "free_mib", -1)
    else:
        ledger.books[0].foreign_mib = -1
    with pytest.raises(InvariantError, match="negative room"):
        ledger.check_invariants()


def test_more_ram_than_there_is_is_noticed() -> None:
    """However it came into the books: what this broker booked must fit."""
    ledger = _ledger(10000, ram_mib=8000)
    ledger.place("a", ("d0",), 0, ram_mib=8000)
    ledger.check_invariants()
    ledger.place("b", ("d0",), 0, ram_mib=1)
    with pytest.raises(InvariantError, match="8001 of 8000 MiB of RAM"):
        ledger.check_invariants()


def test_what_a_former_broker_booked_may_exceed_what_there_is_now() -> None:
    """Under other settings there are fewer CPUs; what is booked anew must fit, and is checked."""
    ledger = _ledger(10000, cpus=4)
    ledger.restore("old", ("d0",), 0, alone=False, cpus=6, ram_mib=2000, compute=90)
    ledger.restore("older", ("d0",), 0, alone=False, cpus=0, ram_mib=0, compute=20)
    ledger.check_invariants()
    ledger.place("new", ("d0",), 0, cpus=4)
    ledger.check_invariants()
    ledger.place("more", ("d0",), 0, cpus=1)
    with pytest.raises(InvariantError, match="11 of 4 CPUs"):
        ledger.check_invariants()


def test_where_a_record_is_missing_nobody_is_said_to_be_alone() -> None:
    """A lease that was alone and has company in a damaged journal shares its device from then on."""
    for order in (("a", "b"), ("b", "a")):
        ledger = _ledger(10000)
        for lease in order:
            ledger.restore(lease, ("d0",), 100, alone=lease == "a", cpus=0, ram_mib=0, compute=0)
        assert ledger.books[0].alone is None
        ledger.check_invariants()


def test_looking_past_a_lease_leaves_another_one_alone() -> None:
    """Without one lease its device is open; that of another one is not."""
    ledger = _ledger(10000, 10000)
    ledger.place("a", ("d0",), 5000, alone=True)
    ledger.place("b", ("d1",), 5000, alone=True)
    with ledger.without(["a"]):
        assert [book.alone for book in ledger.books] == [None, "b"]
        assert [book.free_mib for book in ledger.books] == [10000, 5000]
    assert [book.alone for book in ledger.books] == ["a", "b"]
    assert [book.free_mib for book in ledger.books] == [5000, 5000]
    ledger.check_invariants()
    assert [booking.had_company for book in ledger.books for booking in book.bookings.values()] == [
        False,
        False,
    ]


def test_of_what_was_never_looked_at_nothing_is_claimed() -> None:
    """A new page and a new booking: no figures, no strangers, nothing that was restored or unseen."""
    ledger = _ledger(10000)
    assert ledger.books == [
        Book(
            Device("d0", 0, "m", 10000),
            0,
            DeviceState.OK,
            reason="",
            foreign_mib=0,
            baseline_mib=0,
            strangers=(),
            hides_processes=False,
            usage_known=True,
            committed_mib=0,
            bookings={},
            utilisation=None,
            alone=None,
            ram=None,
        )
    ]
    ledger.place("a", ("d0",), 4000)
    assert ledger.books[0].bookings == {
        "a": Booking(
            4000,
            measured_mib=0,
            compute=0,
            restored=False,
            unseen=False,
            by_delta=False,
            left_mib=None,
            had_company=False,
            utilisation=None,
            most_mib=0,
            ended=False,
        )
    }


def test_a_copy_of_the_books_lives_its_own_life() -> None:
    """What is placed, removed or measured in it changes nothing here."""
    ledger = _ledger(10000)
    ledger.place("a", ("d0",), 4000, cpus=2, ram_mib=100)
    twin = ledger.copied()
    assert twin.books == ledger.books
    assert (twin.cpus, twin.ram) == (ledger.cpus, ledger.ram)
    twin.place("b", ("d0",), 5000, cpus=1)
    twin.remove("a", ("d0",))
    assert list(twin.books[0].bookings) == ["b"]
    assert list(ledger.books[0].bookings) == ["a"]
    assert (ledger.cpus.booked, ledger.ram.booked) == (2, 100)
    assert (twin.cpus.booked, twin.ram.booked) == (1, 0)
    ledger.check_invariants()
    twin.check_invariants()


def test_a_lost_device_is_told_of_the_machine() -> None:
    """One of them is enough."""
    ledger = _ledger(10000, 10000)
    assert ledger.lost is False
    ledger.books[1].state = DeviceState.LOST
    assert ledger.lost is True
