"""What `grn top` draws of fixed states: the frame, its lists, the room they get."""

from __future__ import annotations

from typing import Any

import pytest

from grn.cli.top.frame import Frame, Seen, draw
from grn.cli.top.look import ASCII, FANCY
from grn.cli.top.view import DEVICES, LEASES, RECENT, WAITING, View
from tests.top import states
from tests.top.states import NOW


def drawn(status: dict[str, Any], width: int = 80, height: int | None = 24, **view: Any) -> Frame:
    """Draw a state that was told two seconds ago."""
    seen = Seen(status, NOW - 2, "", {1000: "ada", 1001: "bob"})
    return draw(seen, View(**view), width, height, NOW)


def lines_of(frame: Frame) -> list[str]:
    """Return the lines as text."""
    return [line.plain.rstrip() for line in frame.lines]


def text_of(frame: Frame) -> str:
    """Return the frame as text."""
    return "\n".join(lines_of(frame))


def row_with(frame: Frame, part: str) -> str:
    """Return the one line that has this."""
    (line,) = [line for line in lines_of(frame) if part in line]
    return line


@pytest.mark.parametrize("name", states.ALL)
@pytest.mark.parametrize("width", [20, 40, 80, 137, 250])
@pytest.mark.parametrize("glyphs", [FANCY, ASCII])
def test_it_fits(name: str, width: int, glyphs: Any) -> None:
    """Never a line too long, and on a screen exactly as many as it has."""
    seen = Seen(states.ALL[name], NOW)
    for height in (1, 3, 8, 24, 60, None):
        frame = draw(seen, View(), width, height, NOW, glyphs)
        assert max(line.cell_len for line in frame.lines) <= width
        assert height is None or len(frame.lines) == height
        assert glyphs is FANCY or text_of(frame).isascii()


def test_the_header_counts() -> None:
    """How many devices, leases and waiters there are."""
    assert lines_of(drawn(states.few()))[0].startswith(
        "grn top  3 devices  ·  3 leases  ·  3 waiting"
    )
    assert lines_of(drawn(states.nothing()))[0].startswith("grn top  2 devices  ·  0 leases")


def test_a_lease_and_its_figures() -> None:
    """Where it is, what it holds and was booked, for how long (the clock goes on), whose it is."""
    row = next(line for line in lines_of(drawn(states.few())) if line.startswith("b "))
    assert row.split()[:8] == ["b", "1", "0", "2G", "4G", "2G", "17m", "ada"]
    assert row_with(drawn(states.few()), "draining").split()[3:6] == ["draining", "5G", "4G"]
    assert "probe " in row_with(drawn(states.few()), "probe.py")


def test_users_are_named_only_where_there_are_several() -> None:
    """A column that says the same in each row says nothing."""
    assert "user" in text_of(drawn(states.few()))
    assert "user" not in text_of(drawn(states.many()))


def test_a_waiter_has_its_reason_and_its_expected_start() -> None:
    """Who is first, when it may start (two seconds have passed since it was told), what it wants."""
    frame = drawn(states.few(), 100, 40)
    assert row_with(frame, "big 1 (").split()[:4] == [
        "1",
        "62s",
        "~4m",
        "1\N{MULTIPLICATION SIGN}14G",
    ]
    assert "~" not in row_with(frame, "big 2 (")
    said = text_of(frame)
    assert said.count("14336 MiB on 1 device wanted; device 0: 8 GiB free of 16384") == 1
    assert "1 device alone wanted" in said
    assert said.index("big 2 (") < said.index("1 device alone wanted")


def test_what_is_wished_for() -> None:
    """Whole devices, an unknown need, several devices, none at all."""
    wishes = [
        {"memory_mib": "whole"},
        {"memory_mib": None, "gpus": 2},
        {"gpus": 0},
        {"gpus": None, "memory_mib": None},
    ]
    waiters = [states.waiter(n, **wish) for n, wish in enumerate(wishes, 1)]
    frame = drawn(states.status([states.device(0)], [], waiters))
    wanted = [row_with(frame, f"big {n} (").split()[2] for n in range(1, 5)]
    assert wanted == ["1\N{MULTIPLICATION SIGN}all", "2\N{MULTIPLICATION SIGN}?", "-", "-"]


def test_recent_ends() -> None:
    """How long ago, the outcome, the peak; what is not known is no 0."""
    frame = drawn(states.few(), 80, 40)
    assert row_with(frame, " oom ").split()[:5] == ["60s", "1", "oom", "0", "-"]
    assert row_with(frame, " ok ").split()[:5] == ["2m", "2", "ok", "0", "2.93G"]


def test_failures_have_their_code_and_signal() -> None:
    """`failed 3`, `killed 9`, and what is only suspected with a question mark."""
    ends = [
        states.ended(1, outcome="failed", exit_code=3),
        states.ended(2, outcome="killed", exit_code=None, signal=9),
        states.ended(3, outcome="oom-suspected"),
    ]
    said = text_of(drawn(states.status([], [], [], ends)))
    for how in ("failed 3", "killed 9", "oom?"):
        assert how in said


def test_how_busy_they_are_where_the_driver_tells() -> None:
    """A percentage for devices and leases; nothing for what it does not tell of."""
    books = states.status(
        [states.device(0, utilization=83), states.device(1, utilization=None)],
        [states.lease(1, 0, utilization=0), states.lease(2, 1, utilization=None)],
    )
    said = lines_of(drawn(books))
    assert said[1].endswith(" 83%")
    assert said[2].endswith("free of 16G")
    assert [line.split()[7] for line in said if line.startswith("b ")] == ["0%"]
    assert "busy" not in text_of(drawn(states.few()))


def test_what_nobody_can_use_is_told_with_those_who_wait() -> None:
    """How much and why, if it is anything."""
    books = {**states.few(), "lost": {"probe": 12288, "fragmentation": 0, "head": 512}}
    assert "waiting 3, meanwhile unused: 12G (probe), 512M (head)" in text_of(drawn(books))


def test_warnings_are_there() -> None:
    """At the top, and with too many the rest is counted."""
    assert "! lease ab12cd-9 uses device 1" in text_of(drawn(states.few()))
    crowd = states.status([], warnings=[f"warning {n}" for n in range(9)])
    assert "! and 6 more: grn status" in text_of(drawn(crowd))
    assert "warning 8" in text_of(drawn(crowd, height=None))


def test_a_lost_device_says_why() -> None:
    """In its bar, or beside it while a lease is still there."""
    assert "lost: fell off the bus" in row_with(drawn(states.few()), "fell off")
    books = states.status(
        [states.device(0, state="lost", reason="fell off the bus", leases=1)], [states.lease(1, 0)]
    )
    said = text_of(drawn(books))
    assert "! device 0 is lost: fell off the bus" in said
    assert "b███" in said


def test_orders() -> None:
    """By memory, time, device, name, user; either way round; the title says which."""
    books = states.status(
        [states.device(0), states.device(1)],
        [
            states.lease(1, 1, booked_mib=100, measured_mib=50, label="zebra", uid=1001),
            states.lease(2, 0, booked_mib=900, measured_mib=50, label="apple", uid=1000),
            states.lease(3, 1, booked_mib=100, measured_mib=1500, label="mango", uid=1001),
        ],
    )

    def order(**view: Any) -> str:
        said = text_of(drawn(books, **view))
        names = sorted(("zebra", "apple", "mango"), key=lambda name: said.index(f"{name} ("))
        return "".join(name[0] for name in names)

    assert order() == "maz"
    assert order(reverse=True) == "zam"
    assert order(sort="memory") == "maz"
    assert order(sort="device") == "amz"
    assert order(sort="name") == "amz"
    assert order(sort="user") == "amz"
    assert "by memory, reversed" in text_of(drawn(books, sort="memory", reverse=True))
    assert "oldest first" in text_of(drawn(books, reverse=True))


def test_the_filter_is_for_all_lists() -> None:
    """What does not have it in its names is not there, and the titles say so."""
    said = text_of(drawn(states.few(), filter="BIG 2"))
    assert "waiting 1 of 3" in said
    assert "big 1" not in said
    assert "seed" not in said
    said = text_of(drawn(states.few(), filter="bob"))
    assert "leases 1 of 3" in said
    assert "seed 2" in said
    assert "probe.py" in text_of(drawn(states.few(), filter="ab12cd-3"))


def test_a_filter_that_finds_nothing_is_still_seen() -> None:
    """Otherwise an empty screen would look like an idle machine."""
    assert "/ 'nothing'" in lines_of(drawn(states.few(), filter="nothing"))[-1]
    assert "'nothing'" in text_of(drawn(states.few(), height=None, filter="nothing"))


def test_hundreds_share_the_screen() -> None:
    """Each list has some of its rows, and no line is wasted."""
    frame = drawn(states.many(), 80, 40)
    said = lines_of(frame)
    for title in ("leases 320", "waiting 300", "ended 50"):
        assert any(title in line for line in said)
    assert "" not in said
    assert frame.most[LEASES] > 300 - 24


def test_scrolling_shows_the_rest() -> None:
    """Each list has its own place; beyond its end is its end."""
    assert "seed 319 (" in text_of(drawn(states.many()))
    scrolled = drawn(states.many(), offsets={LEASES: 100})
    assert "seed 219 (" in text_of(scrolled)
    assert "seed 319 (" not in text_of(scrolled)
    assert "101-" in text_of(scrolled)
    end = drawn(states.many(), offsets={LEASES: 10**6, WAITING: 10**6, RECENT: 10**6})
    for last in ("seed 0 (", "big 299", "seed 50 ("):
        assert last in text_of(end)


def test_the_list_in_use_gets_more_room() -> None:
    """Tab is worth something on a small screen."""
    rooms = {pane: drawn(states.many(), pane=pane).most for pane in (LEASES, WAITING, DEVICES)}
    assert rooms[WAITING][WAITING] < rooms[LEASES][WAITING]
    assert rooms[LEASES][LEASES] < rooms[WAITING][LEASES]
    small = text_of(drawn(states.many(), height=9, pane=WAITING))
    assert "big 0" in small


def test_a_page_has_all_of_it() -> None:
    """Without a height nothing is left out, and there are no keys."""
    said = text_of(drawn(states.many(), height=None))
    assert all(f"seed {n} (" in said for n in range(320))
    assert all(f"reason {n} of" in said for n in range(300))
    assert "filter" not in said
    assert "No job runs or waits." in text_of(drawn(states.nothing(), height=None))


def test_a_broker_that_is_gone_is_said() -> None:
    """What was last seen stays, under a line that says that it is old."""
    seen = Seen(states.few(), NOW, "the broker has left at 12:00:00; waiting for the next one")
    frame = draw(seen, View(), 80, 24, NOW)
    assert "the broker has left" in lines_of(frame)[0]
    assert "seed 1 (" in text_of(frame)


def test_names_cannot_write_to_the_terminal() -> None:
    """Escape sequences in names and reasons are shown, not sent."""
    evil = "\x1b[2J\x1b]0;x\x07\n\r"
    books = states.status(
        [states.device(0, name=evil), states.device(1, state="lost", reason=evil)],
        [states.lease(1, 0, label=evil, type=evil, engine=evil)],
        [states.waiter(1, label=evil, reason=evil)],
        [states.ended(1, label=evil)],
        [evil],
    )
    for height in (24, None):
        for line in drawn(books, 120, height).lines:
            assert line.plain.isprintable()


def test_help() -> None:
    """All keys are explained."""
    said = text_of(drawn(states.few(), help=True))
    for part in ("m t d n u", "/", "Tab", "q"):
        assert f"{part}  " in said
