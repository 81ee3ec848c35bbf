"""How a device becomes a bar."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from grn.cli.top.bars import bar, legend, parts_of
from grn.cli.top.look import ASCII, FANCY, colour_of, letter_of, size, span
from tests.top.states import device, lease


def runs(text: str) -> list[tuple[str, int]]:
    """Return a text's characters and how often each is repeated."""
    return [(char, len(list(group))) for char, group in groupby(text)]


def test_the_parts_are_as_long_as_what_they_stand_for() -> None:
    """Held, booked on top of it, others', free, kept back: 16 GiB in 64 columns, 4 for each GiB."""
    books = device(0, foreign_mib=2048)
    text = bar(books, [lease(1, 0), lease(2, 0, measured_mib=0)], 64, FANCY).plain
    assert runs(text) == [
        ("b", 1), ("█", 7), ("▒", 8), ("c", 1), ("▒", 15), ("▚", 8), ("░", 22), ("╌", 2),
    ]  # fmt: skip


def test_more_than_booked_is_as_long_as_it_is() -> None:
    """A lease counts for what it holds, if that is more than its booking."""
    text = bar(device(0), [lease(1, 0, measured_mib=8192)], 64, FANCY).plain
    assert runs(text)[:3] == [("b", 1), ("█", 31), ("░", 30)]


def test_a_probe_has_the_device_to_itself() -> None:
    """What it does not hold is neither booked in the usual sense nor free."""
    probe = lease(1, 0, state="probe", booked_mib=15872, measured_mib=4096)
    text = bar(device(0), [probe], 64, FANCY).plain
    assert runs(text) == [("b", 1), ("█", 15), (FANCY.probe, 46), ("╌", 2)]


def test_more_than_the_device_has_is_drawn_to_scale() -> None:
    """Figures that do not fit together still fill the bar, and no more."""
    crowd = [lease(1, 0, booked_mib=16384), lease(2, 0, booked_mib=16384)]
    text = bar(device(0), crowd, 40, FANCY)
    assert text.cell_len == 40
    assert "░" not in text.plain


def test_many_small_leases_take_the_room_that_they_have() -> None:
    """A hundred leases of 100 MiB in 40 columns are as long as one of 10000 MiB, to a column."""
    crowd = [lease(n, 0, booked_mib=100, measured_mib=100) for n in range(100)]
    text = bar(device(0), crowd, 40, FANCY).plain
    alone = bar(device(0), [lease(1, 0, booked_mib=10000, measured_mib=10000)], 40, FANCY).plain
    assert text.count("░") == alone.count("░")


def test_a_letter_stands_where_a_lease_begins() -> None:
    """Also where what it holds is too little to be seen."""
    for held in (0, 1, 300):
        text = bar(device(0), [lease(1, 0, measured_mib=held)], 64, FANCY).plain
        assert runs(text)[:2] == [("b", 1), ("▒", 15)]
    assert (
        bar(device(0), [lease(1, 0, booked_mib=256, measured_mib=256)], 64, FANCY).plain[0] == "b"
    )


def test_each_device_shows_what_is_held_there() -> None:
    """A lease on two devices may hold much on one of them and little on the other."""
    uneven = lease(1, 0, 1, measured_mib=4096, measured_each_mib=[4096, 1024])
    lengths = [bar(device(n), [uneven], 64, FANCY).plain.count("█") + 1 for n in (0, 1)]
    assert lengths == [16, 4]
    older = {key: value for key, value in uneven.items() if key != "measured_each_mib"}
    assert bar(device(1), [older], 64, FANCY).plain.count("█") + 1 == 16


@pytest.mark.parametrize("held", [None, 0])
def test_what_nobody_knows_is_not_drawn_as_held(held: int | None) -> None:
    """A device whose driver tells nothing shows bookings."""
    unknown = lease(1, 0, measured_mib=held, measured_each_mib=[held])
    text = bar(device(0, foreign_mib=held), [unknown], 64, FANCY).plain
    assert runs(text)[:2] == [("b", 1), ("▒", 15)]


@pytest.mark.parametrize("width", [0, 1, 2, 7])
@pytest.mark.parametrize("more", [{}, {"total_mib": 0, "capacity_mib": 0}, {"state": "lost"}])
def test_it_is_as_long_as_its_room(width: int, more: dict[str, Any]) -> None:
    """Also where that is next to nothing, or the device has nothing."""
    text = bar(device(0, **more), [lease(1, 0)], width, ASCII)
    assert text.cell_len <= width


def test_parts_fill_the_device() -> None:
    """Nothing of it is left out."""
    parts = parts_of(device(0, foreign_mib=100), [lease(1, 0), lease(2, 0)], FANCY)
    assert sum(part.mib for part in parts) == 16384


def test_a_lease_has_a_letter_and_a_colour_of_its_own() -> None:
    """The same for its whole life; the next one has another one."""
    letters = [letter_of(lease(n)) for n in range(52)]
    assert len(set(letters)) == 52
    assert letter_of(lease(7, 0)) == letter_of(lease(7, 1, state="draining"))
    assert len({colour_of(lease(n)) for n in range(8)}) == 8
    assert letter_of({"id": "odd"})


def test_ascii_bars_are_ascii() -> None:
    """And tell the parts apart as well."""
    text = bar(device(0, foreign_mib=2048), [lease(1, 0)], 64, ASCII).plain
    assert text.isascii()
    assert [char for char, _ in runs(text)] == ["b", "#", "=", "%", ".", "-"]
    assert legend(200, ASCII).plain.isascii()


@pytest.mark.parametrize(
    ("mib", "text"),
    [(None, "?"), (0, "0M"), (870, "870M"), (1024, "1G"), (3328, "3.25G"), (23552, "23G"), (81920, "80G"), (12646, "12.3G"), (1 << 20, "1024G")],
)  # fmt: skip
def test_sizes_are_short(mib: int | None, text: str) -> None:
    """Three digits, and what is not known is no 0."""
    assert size(mib) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (-1, "0s"), (0.4, "0s"), (99, "99s"), (150, "2m"), (5999, "100m"), (6000, "1.7h"), (360000, "4d"), (40000, "11h")],
)  # fmt: skip
def test_times_are_short(seconds: float | None, text: str) -> None:
    """Four columns at most."""
    assert span(seconds) == text
