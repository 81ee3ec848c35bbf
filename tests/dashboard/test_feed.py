"""The feed: everyone open gets each message, the slow are cut off, nobody looks on for nobody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grn.dashboard.feed import MOST_PAGES, Feed, FullError

if TYPE_CHECKING:
    import asyncio


class Observers:
    """Stands in for the broker's, and notes who looks on."""

    def __init__(self) -> None:
        self.looking: list[Any] = []

    def listen(self, inside: Any, every_s: float) -> None:
        """Note that somebody looks on."""
        assert every_s > 0
        self.looking.append(inside)

    def gone(self, inside: Any) -> None:
        """Note that he does not any more."""
        self.looking.remove(inside)


def _feed() -> tuple[Feed, Observers]:
    observers = Observers()
    return Feed(observers), observers  # type: ignore[arg-type]  # of which it uses two methods


def test_it_looks_on_only_while_a_page_is_open() -> None:
    """The first page begins it, the last one ends it."""
    feed, observers = _feed()
    first, second = feed.join(), feed.join()
    assert observers.looking == [feed]
    feed.leave(first)
    assert observers.looking == [feed]
    feed.leave(second)
    assert observers.looking == []


def test_a_page_that_comes_later_gets_the_last_state_at_once() -> None:
    """States are sent when something changes; who comes between two does not wait for the next."""
    feed, _ = _feed()
    feed.join()
    feed.changed({"warnings": ["one"]})
    body = feed.join().get_nowait()
    assert body is not None
    assert body.startswith(b"event: status\n")
    assert b'"warnings":["one"]' in body


def test_only_what_is_drawn_is_sent() -> None:
    """Of the events, those that a page draws go out, in one message."""
    feed, _ = _feed()
    page = feed.join()
    feed.happened([{"event": "queued"}])
    feed.happened([{"event": "granted", "lease": "a"}, {"event": "started"}, {"event": "ended"}])
    body = page.get_nowait()
    assert body is not None
    told = json.loads(body.decode().partition("data: ")[2])
    assert [event["event"] for event in told["events"]] == ["granted", "ended"]
    assert page.empty()


def test_a_page_that_does_not_read_is_cut_off_alone() -> None:
    """Its queue is bounded; then it is told the end, and the others go on."""
    feed, observers = _feed()
    slow, quick = feed.join(), feed.join()
    for number in range(1000):
        feed.changed({"warnings": [f"no. {number}"]})
        while not quick.empty():
            last = quick.get_nowait()
    assert last is not None
    assert b"no. 999" in last
    assert slow.get_nowait() is None
    assert slow.empty()
    feed.leave(slow)  # as its handler does in the end
    assert observers.looking == [feed]


def test_pages_are_bounded() -> None:
    """So many and no more; one that closes makes room."""
    feed, _ = _feed()
    pages = [feed.join() for _ in range(MOST_PAGES)]
    with pytest.raises(FullError):
        feed.join()
    feed.leave(pages[0])
    feed.join()


def test_the_end_reaches_every_page() -> None:
    """When the broker leaves, each page's connection ends, and no new one begins."""
    feed, observers = _feed()
    pages: list[asyncio.Queue[bytes | None]] = [feed.join() for _ in range(3)]
    feed.close()
    assert [page.get_nowait() for page in pages] == [None] * 3
    assert observers.looking == []
    with pytest.raises(FullError):
        feed.join()


def test_of_a_state_only_what_is_drawn_is_sent() -> None:
    """Of leases, waiters and devices the page gets what it shows; what is unknown is null."""
    feed, _ = _feed()
    page = feed.join()
    feed.changed(
        {"leases": [{"id": "a-1", "cores": [1, 2], "booked_mib": 5}], "broker": {"pid": 1}}
    )
    body = page.get_nowait()
    assert body is not None
    told = json.loads(body.decode().partition("data: ")[2])
    assert told["leases"][0]["id"] == "a-1"
    assert told["leases"][0]["peak_mib"] is None
    assert "cores" not in told["leases"][0]
    assert "broker" not in told
    assert told["waiters"] == []
