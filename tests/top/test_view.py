"""Keys: from bytes to names, and what they do to the view."""

from __future__ import annotations

import pytest

from grn.cli.top.keys import Keyboard
from grn.cli.top.view import DEVICES, LEASES, PANES, SORTS, View, press

FAR = {LEASES: 100}


def pressed(*keys: str, view: View | None = None) -> View:
    """Press keys one after the other."""
    view = view or View()
    for key in keys:
        view = press(view, key, FAR)
    return view


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"q/", ["q", "/"]),
        (b"\x1b[A\x1bOB\x1b[5~\x1b[6~", ["up", "down", "pageup", "pagedown"]),
        (b"\x1b[H\x1b[4~\t\x1b[Z", ["home", "end", "tab", "backtab"]),
        (b"\r\x7f\x08", ["enter", "backspace", "backspace"]),
        (b"\x1b", ["escape"]),
        (b"\x1bq", ["escape", "q"]),
        (b"\x1b[1;5Cq\x1b[200~x", ["q", "x"]),
        ("é€".encode(), ["é", "€"]),
        (b"\xff\xfe\x00\x01a", ["a"]),
    ],
)
def test_bytes_become_keys(data: bytes, names: list[str]) -> None:
    """Characters, named keys, and nothing for what is not known."""
    assert Keyboard().feed(data) == names


def test_keys_may_come_in_pieces() -> None:
    """A sequence or a character that is cut in two by a slow line is one key."""
    keyboard = Keyboard()
    assert keyboard.feed(b"a\x1b[") == ["a"]
    assert keyboard.feed(b"5") == []
    assert keyboard.feed(b"~b\xc3") == ["pageup", "b"]
    assert keyboard.feed(b"\xa9") == ["é"]


@pytest.mark.parametrize("key", SORTS)
def test_a_key_sorts_and_once_more_turns_round(key: str) -> None:
    """Another order begins the right way round."""
    once = pressed(key, view=View(sort="other", reverse=True))
    assert (once.sort, once.reverse) == (SORTS[key], False)
    assert press(once, key, FAR).reverse
    assert press(once, "r", FAR).reverse


def test_a_filter_is_written_letter_by_letter() -> None:
    """Letters that are keys otherwise are letters there; Enter keeps it."""
    view = pressed("/", "q", "u", "x", "backspace", "é", "up")
    assert view.editing
    assert not view.over
    assert view.filter == "qué"
    view = pressed("enter", view=view)
    assert (view.editing, view.filter) == (False, "qué")
    assert pressed("/", "1", view=view).filter == "qué1"


@pytest.mark.parametrize("keys", [("escape",), ("/", "escape")])
def test_escape_shows_all(keys: tuple[str, ...]) -> None:
    """While the filter is written, and afterwards."""
    view = pressed(*keys, view=View(filter="some", offsets={LEASES: 5}))
    assert (view.filter, view.editing, view.offset(LEASES)) == ("", False, 0)


def test_scrolling_stays_within_the_list() -> None:
    """By lines, by pages, to either end; a list that has become shorter is not scrolled past."""
    assert pressed("down", "down", "j", "k").offset(LEASES) == 2
    assert pressed("up").offset(LEASES) == 0
    assert pressed("pagedown", "pageup", "pagedown").offset(LEASES) == 10
    assert pressed("end").offset(LEASES) == 100
    assert pressed("end", "down", "up").offset(LEASES) == 99
    assert pressed("end", "home").offset(LEASES) == 0
    assert pressed("up", view=View(offsets={LEASES: 500})).offset(LEASES) == 99
    assert pressed("down", view=View(pane=DEVICES)).offset(DEVICES) == 0


def test_tab_goes_round() -> None:
    """Through all lists, and back."""
    assert pressed(*["tab"] * len(PANES)).pane == LEASES
    assert pressed("tab", "backtab").pane == LEASES
    assert {pressed(*["tab"] * n).pane for n in range(4)} == set(PANES)


def test_q_leaves_and_help_is_left_by_any_key() -> None:
    """Unless the key is `q`."""
    assert pressed("q").over
    assert pressed("?").help
    back = pressed("?", "m")
    assert (back.help, back.sort) == (False, View().sort)
    assert pressed("?", "q").over


def test_a_key_that_means_nothing_changes_nothing() -> None:
    """Whatever it is."""
    assert pressed("z", "left", "enter", "backspace", "é") == View()
