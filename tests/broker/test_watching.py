"""To watch a broker: events as they happen, from a number on, and the state of the books."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from grn.errors import BrokerGone, UsageError
from grn.watching import Watch
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]
    NewWatch = Callable[..., Watch]


@pytest.fixture
def env(new_env: NewEnv) -> BrokerEnv:
    """A broker with two devices."""
    return new_env("sim:2x10000MiB")


@pytest.fixture
def watch(env: BrokerEnv) -> Iterator[NewWatch]:
    """Watch the broker of this environment; closed at the end."""
    made: list[Watch] = []

    def make(**options: Any) -> Watch:
        made.append(Watch(env.socket, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def told(watch: Watch, until: str) -> list[dict[str, Any]]:
    """Return the events up to the first of this name."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["event"] != until:
        heard = watch.next(PATIENCE_S)
        assert heard is not None, f"no {until!r} after {[event['event'] for event in found]}"
        kind, what = heard
        if kind == "event":
            found.append(what)
    return found


def statuses(watch: Watch, within_s: float) -> list[dict[str, Any]]:
    """Return the states that are pushed until none came for so long."""
    found: list[dict[str, Any]] = []
    while (heard := watch.next(within_s)) is not None:
        if heard[0] == "status":
            found.append(heard[1])
    return found


def shown(watch: Watch, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Wait for a state of which this is true."""
    while True:
        heard = watch.next(PATIENCE_S)
        assert heard is not None, "no such state"
        if heard[0] == "status" and condition(heard[1]):
            return heard[1]


def _read_on(watch: Watch) -> None:
    while watch.next(PATIENCE_S) is not None:
        continue


def test_a_lease_is_told_of_as_it_lives(env: BrokerEnv, watch: NewWatch):
    """From the grant to the end each event comes by itself, numbered and dated."""
    watching = watch()
    talker = env.talker()
    grant = talker.acquire("train", memory_mib=3000, label="mine", engine="run")
    job = env.job(talker, grant, "--memory", "1000MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["measured_mib"] == 1000)
    job.finish()
    talker.release(grant, cpu_s=1.5, rss_mib=64)
    events = told(watching, "freed")
    names = ["granted", "started", "learnt", "ended", "freed"]
    assert [event["event"] for event in events] == names
    assert [event["seq"] for event in events] == list(range(watching.seq + 1, watching.seq + 6))
    assert all(event["schema"] == 1 for event in events)
    assert all(abs(event["at"] - time.time()) < PATIENCE_S for event in events)
    granted, started, learnt, ended, _ = events
    assert (learnt["type"], learnt["estimate_mib"]) == ("train", 1000)
    assert (granted["lease"], granted["engine"]) == (grant["lease"], "run")
    assert started["pid"] == job.pid
    assert (ended["peak_mib"], ended["source"]) == (1000, "sampled")
    assert (ended["cpu_s"], ended["rss_mib"]) == (1.5, 64)


def test_what_waits_and_is_withdrawn_is_told_of(env: BrokerEnv, watch: NewWatch):
    """A reader learns why a request waits, and that it has left."""
    watching = watch()
    talker = env.talker()
    talker.acquire(memory_mib="whole", gpus=2)
    waits = talker.ask("later", memory_mib=100)
    talker.next(waits)
    talker.tell("cancel", id=waits)
    events = told(watching, "cancelled")
    assert "device 0" in next(e for e in events if e["event"] == "queued")["reason"]
    assert events[-1]["type"] == "later"


def test_a_refusal_is_told_of(env: BrokerEnv, watch: NewWatch):
    """With its code and its numbers."""
    watching = watch()
    talker = env.talker()
    talker.final(talker.ask("huge", memory_mib=20000))
    (refused,) = told(watching, "refused")
    assert refused["code"] == "impossible"
    assert "20000 MiB" in refused["message"]


def test_a_lost_device_is_told_of(env: BrokerEnv, watch: NewWatch):
    """Its state and the reason, once, and again when it is back."""
    watching = watch()
    talker = env.talker()
    talker.acquire(memory_mib=100)
    env.lose(1)
    event = told(watching, "device")[-1]
    assert (event["index"], event["state"]) == (1, "lost")
    assert "fell off the bus" in event["reason"]
    env.find(1)
    assert told(watching, "device")[-1]["state"] == "ok"


def test_who_comes_back_hears_what_was_missed(env: BrokerEnv, watch: NewWatch):
    """`since` gives all events after a number, in order, and nothing twice."""
    talker = env.talker()
    first = watch(since=0)
    talker.release(talker.acquire("a", memory_mib=100))
    before = told(first, "freed")
    talker.release(talker.acquire("b", memory_mib=100))
    again = watch(since=before[-1]["seq"])
    assert again.missed == 0
    events = told(again, "freed")
    assert [event["seq"] for event in events] == [before[-1]["seq"] + n for n in (1, 2, 3)]
    assert events[0]["type"] == "b"


def test_what_is_not_known_any_more_is_a_gap(env: BrokerEnv, watch: NewWatch):
    """Of more than a thousand events the last thousand are kept; how many are missing is said."""
    talker = env.talker()
    for _ in range(400):  # each is three events
        talker.release(talker.acquire(memory_mib=100))
    watching = watch(since=5)
    kept = [watching.next(PATIENCE_S) for _ in range(1001)]
    events = [each[1] for each in kept if each is not None]
    assert events[0]["event"] == "gap"
    assert events[0]["missed"] == watching.missed == watching.seq - 1000 - 5
    assert [event["seq"] for event in events[1:]] == list(
        range(watching.seq - 999, watching.seq + 1)
    )


def test_a_number_of_another_broker_is_a_gap_of_unknown_size(env: BrokerEnv, watch: NewWatch):
    """Numbers begin anew with each broker: all that this one knows is told."""
    watching = watch(since=10**6)
    assert watching.missed is None
    events = told(watching, "broker")
    assert [event["event"] for event in events] == ["gap", "broker"]
    assert events[0]["missed"] is None
    assert watching.broker["pid"] == env.pid == events[1]["pid"]


def test_the_state_of_the_books_is_pushed_when_it_changes(env: BrokerEnv, watch: NewWatch):
    """At once, then when something has changed, and never while nothing does."""
    watching = watch(events=False, status_every_s=0.1)
    assert shown(watching, lambda status: "leases" in status)["leases"] == []
    talker = env.talker()
    grant = talker.acquire("seen", memory_mib=100, engine="run")
    status = shown(watching, lambda status: bool(status["leases"]))
    assert status["leases"][0]["id"] == grant["lease"]
    assert status["leases"][0]["engine"] == "run"
    statuses(watching, 0.5)
    assert statuses(watching, 1.0) == []
    talker.release(grant)
    status = shown(watching, lambda status: not status["leases"])
    assert [ended["lease"] for ended in status["recent"]] == [grant["lease"]]


def test_states_are_pushed_as_seldom_as_asked(env: BrokerEnv, watch: NewWatch):
    """However much happens, the next state comes when it is due, and shows the last of it."""
    watching = watch(events=False, status_every_s=3600.0)
    talker = env.talker()
    for _ in range(20):
        talker.release(talker.acquire(memory_mib=100))
    assert len(statuses(watching, 1.0)) == 1


def test_a_state_of_many_pages_comes_whole(env: BrokerEnv, watch: NewWatch):
    """A frame is bounded, a queue is not: pages are put together."""
    talker = env.talker()
    talker.acquire(memory_mib="whole", gpus=2)
    label = "x" * 30_000
    for number in talker.ask_many(100, memory_mib="whole", label=label):
        talker.next(number)
    status = shown(watch(events=False, status_every_s=3600.0), lambda status: "leases" in status)
    assert len(status["waiters"]) == 100
    assert {waiter["label"] for waiter in status["waiters"]} == {label}


def test_recent_ends_are_in_the_status(env: BrokerEnv):
    """The last fifty, the newest last, also for who only asks."""
    talker = env.talker()
    grants = [talker.acquire(memory_mib=100) for _ in range(60)]
    for grant in grants:
        talker.release(grant)
    recent = [ended["lease"] for ended in talker.status()["recent"]]
    assert recent == [grant["lease"] for grant in grants[-50:]]


def test_what_is_lost_is_in_the_status_while_somebody_waits(env: BrokerEnv):
    """A probe's device that another job waits for is lost but for what the probe uses."""
    talker = env.talker()
    assert "lost" not in talker.status()
    talker.acquire("unknown", gpus=2)
    talker.next(talker.ask("next", memory_mib=100))
    assert talker.status()["lost"] == {"probe": 20000, "fragmentation": 0, "head": 0}


def test_who_watches_and_does_not_read_is_dropped(env: BrokerEnv, watch: NewWatch):
    """A viewer that is stopped costs a bounded buffer; everybody else goes on."""
    slow = watch(status_every_s=0.1)
    fine = watch()
    talker = env.talker()
    label = "x" * 60_000
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not env.log_lines("does not read"):
        assert time.monotonic() < deadline
        talker.release(talker.acquire(memory_mib=100, label=label))
        while fine.next(0) is not None:
            continue
    with pytest.raises(BrokerGone):
        _read_on(slow)
    lease = talker.acquire(memory_mib=100)
    talker.release(lease)
    while told(fine, "freed")[-1]["lease"] != lease["lease"]:
        continue


def test_a_broker_says_that_it_leaves(env: BrokerEnv, watch: NewWatch):
    """The last event is that, then the connection ends."""
    watching = watch()
    env.stop()
    events = told(watching, "broker")
    assert (events[-1]["state"], events[-1]["reason"]) == ("leaving", "SIGTERM")
    with pytest.raises(BrokerGone):
        watching.next(PATIENCE_S)


def test_a_watcher_can_be_waited_for(env: BrokerEnv, watch: NewWatch):
    """`fileno` is for an event loop: `next(0)` takes what is there and never waits."""
    watching = watch()
    assert watching.next(0) is None
    env.talker().acquire(memory_mib=100)
    (event,) = eventually(lambda: [each for each in [watching.next(0)] if each], what="an event")
    assert event[1]["event"] == "granted"


@pytest.mark.parametrize(
    "fields",
    [
        {"events": False},
        {"status_every_s": "often"},
        {"status_every_s": 1e9},
        {"status_every_s": float("nan")},
        {"since": -1},
    ],
)
def test_a_senseless_wish_is_an_error_and_no_more(env: BrokerEnv, fields: dict[str, Any]):
    """The connection lives on, and can still be used to watch."""
    talker = env.talker()
    assert talker.call("watch", **fields)["op"] == "error"
    assert talker.call("watch")["op"] == "watched"
    assert talker.call("watch")["code"] == "usage"


def test_watching_nothing_is_the_callers_mistake(env: BrokerEnv):
    """It is told as what it is."""
    with pytest.raises(UsageError):
        Watch(env.socket, events=False)
