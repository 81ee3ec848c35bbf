"""What happened, in words: each effect as the event that it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grn.rules import events as ev
from grn.rules.happenings import KEYS, device_events, disk_event, happenings, in_a_line
from grn.rules.model import DeviceState, End
from tests.rules.acting import Stage

if TYPE_CHECKING:
    from tests.rules.acting import Job

PAGE = Path(__file__).parents[2] / "docs" / "events.md"


class Watched(Stage):
    """A stage that keeps the effects, to be told of later."""

    def __init__(self, *sizes_mib: int, **machine: Any) -> None:
        self.effects: list[tuple[float, list[ev.Effect]]] = []
        super().__init__(*sizes_mib, **machine)

    def step(self, event: ev.Event) -> list[ev.Effect]:
        """Keep what comes of it."""
        effects = super().step(event)
        self.effects.append((self.now, effects))
        return effects

    def told(self, *names: str) -> list[dict[str, Any]]:
        """Return all events so far, or those of some names."""
        found = [
            event
            for now, effects in self.effects
            for event, _ in happenings(effects, now, self.profiles)
        ]
        return [event for event in found if not names or event["event"] in names]


def _names(stage: Watched) -> list[str]:
    return [event["event"] for event in stage.told()]


def test_a_lease_from_its_request_to_its_end() -> None:
    """What waits, is granted, starts and ends is told in this order, with numbers."""
    stage = Watched(10000)
    first = stage.ask("big", memory_mib=9000)
    second = stage.ask("small", memory_mib=2000, label="me", engine="run")
    stage.run_until(4.0)
    assert first.lease is not None
    assert first.lease.main is not None
    main = first.lease.main.pid
    stage.finish(first)
    assert second.lease is not None
    assert _names(stage) == ["granted", "queued", "started", "ended", "freed", "granted"]
    (queued,) = stage.told("queued")
    assert (queued["type"], queued["label"], queued["engine"]) == ("small", "me", "run")
    assert "2000 MiB" in queued["reason"]
    (ended,) = stage.told("ended")
    assert (ended["outcome"], ended["exit_code"], ended["ran_s"]) == ("ok", 0, 4.0)
    last = stage.told("granted")[-1]
    assert (last["lease"], last["waited_s"], last["booked_mib"]) == (second.lease.id, 4.0, 2000)
    (started,) = stage.told("started")
    assert (started["lease"], started["pid"]) == (first.lease.id, main)


def test_a_grant_is_told_as_it_was() -> None:
    """A probe that has become a lease among others by the time it is told of was a probe."""
    stage = Watched(10000, provisional_after_s=1.0)
    job = stage.ask("new")
    stage.hold(job, 1000)
    for second in range(1, 4):
        stage.run_until(float(second))
        stage.look()
    assert job.booked_mib < 10000
    (granted,) = stage.told("granted")
    assert (granted["probe"], granted["booked_mib"]) == (True, 10000)


def test_what_nobody_saw_the_end_of_is_lost_once() -> None:
    """An owner's death ends the job in words, too; that it drains on does not end it again."""
    stage = Watched(10000)
    job = stage.ask(memory_mib=4000)
    stage.hold(job, 102)
    assert job.lease is not None
    stage.step(ev.OwnerGone(0.0, job.lease.id, main_alive=False))
    assert [e["outcome"] for e in stage.told("ended")] == ["lost"]
    assert stage.told("ended")[0]["draining"]
    assert not stage.told("freed")
    job.held.clear()
    stage.look()
    assert len(stage.told("ended")) == len(stage.told("freed")) == 1


def test_a_released_lease_whose_owner_dies_keeps_its_outcome() -> None:
    """What was told of an end is not taken back by the death that follows."""
    stage = Watched(10000)
    job = stage.ask(memory_mib=4000)
    stage.hold(job, 102)
    stage.finish(job, End(exit_code=3), holds_on=True)
    assert job.lease is not None
    stage.step(ev.OwnerGone(0.0, job.lease.id, main_alive=False))
    assert [event["outcome"] for event in stage.told("ended")] == ["failed"]


def test_refused_and_withdrawn() -> None:
    """What can never be met is refused, what is withdrawn is cancelled; a bad release is neither."""
    stage = Watched(10000)
    stage.ask("huge", memory_mib=20000)
    job = stage.ask("all", memory_mib=10000)
    stage.cancel(stage.ask("later", memory_mib=10000))
    stage.finish(job)
    stage.finish(job)  # the lease has ended: an error for its client, and no news
    (refused,) = stage.told("refused")
    assert (refused["code"], refused["type"]) == ("impossible", "huge")
    (cancelled,) = stage.told("cancelled")
    assert cancelled["type"] == "later"


def test_what_is_nested_is_told_by_its_own_name() -> None:
    """A job inside a lease is granted that lease, under its own type and size."""
    stage = Watched(10000)
    outer = stage.ask("outer", memory_mib=4000)
    assert outer.lease is not None
    stage.ask("inner", memory_mib=1000, outer=outer.lease.id)
    inner = stage.told("granted")[-1]
    assert (inner["type"], inner["nested"], inner["booked_mib"]) == ("inner", True, 1000)
    assert inner["lease"] == outer.lease.id


def test_what_was_learnt() -> None:
    """A measured run tells what the next one will be booked."""
    stage = Watched(10000)
    job = stage.ask("train")
    stage.hold(job, 3000)
    stage.finish(job)
    learnt = stage.told("learnt")[-1]
    assert (learnt["type"], learnt["estimate_mib"], learnt["runs"]) == ("train", 3000, 1)


def test_a_device_is_told_of_when_it_changes() -> None:
    """Only then, and with the reason while it cannot be leased."""
    stage = Watched(10000, 10000)
    known: dict[str, tuple[str, str]] = {}
    books = stage.machine.ledger.books
    assert len(device_events(known, books)) == 2
    assert not device_events(known, books)
    stage.states["GPU-0001"] = DeviceState.LOST
    stage.look()
    (lost,) = device_events(known, books)
    assert (lost["index"], lost["state"], lost["reason"]) == (1, "lost", "as told")
    del stage.states["GPU-0001"]
    stage.look()
    (back,) = device_events(known, books)
    assert (back["state"], back["reason"]) == ("ok", None)


def test_a_disk_fails_and_heals() -> None:
    """The reason is told while there is one."""
    assert disk_event("full") == {"event": "disk", "state": "failed", "reason": "full"}
    assert disk_event("") == {"event": "disk", "state": "healed", "reason": None}


def test_an_event_in_the_log() -> None:
    """Names and values, what is unknown left out, what could be misread in quotes."""
    event = {"event": "ended", "lease": "a-1", **dict.fromkeys(KEYS["ended"])}
    line = in_a_line({**event, "lease": "a-1", "label": "my job", "devices": ["GPU-1", "GPU-2"]})
    assert line == "ended lease=a-1 label='my job' devices=GPU-1,GPU-2"


WISHES = st.fixed_dictionaries(
    {
        "job_type": st.sampled_from(["a", "b", "c"]),
        "memory_mib": st.sampled_from([None, 1000, 6000, 30000]),
        "gpus": st.sampled_from([None, 0, 1, 2]),
        "label": st.sampled_from(["", "me"]),
    }
)
ENDS = st.sampled_from([End(exit_code=0), End(exit_code=1), End(signal=9), End(stopped=True)])
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), WISHES),
        st.tuples(st.just("hold"), st.integers(0, 9), st.integers(0, 5000)),
        st.tuples(st.just("end"), st.integers(0, 9), ENDS, st.booleans()),
        st.tuples(st.just("die"), st.integers(0, 9)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
    ),
    max_size=30,
)


def _act(stage: Watched, act: tuple[Any, ...]) -> None:
    running, waiting = stage.running(), [j for j in stage.jobs.values() if j.waits]
    if act[0] == "ask":
        stage.ask(**act[1])
    elif act[0] == "cancel" and waiting:
        stage.cancel(waiting[act[1] % len(waiting)])
    elif running and act[0] in ("hold", "end", "die"):
        _act_on(stage, running[act[1] % len(running)], act)


def _act_on(stage: Watched, job: Job, act: tuple[Any, ...]) -> None:
    assert job.lease is not None
    if act[0] == "hold":
        stage.hold(job, act[2])
    elif act[0] == "end":
        stage.finish(job, act[2], holds_on=act[3])
    elif job.lease.id in stage.machine.leases:
        job.held.clear()
        stage.step(ev.OwnerGone(stage.now, job.lease.id, main_alive=False))
        job.ended_s = stage.now
        stage.settle()


@given(ACTS)
@settings(max_examples=40)
def test_every_day_is_told_whole(acts: list[tuple[Any, ...]]) -> None:
    """Each lease is granted, ended and freed at most once and in this order, with all its keys."""
    stage = Watched(10000, 10000)
    for act in acts:
        _act(stage, act)
    life: dict[str, list[str]] = {}
    for event in stage.told():
        assert next(iter(event)) == "event"
        assert tuple(event)[1:] == KEYS[event["event"]]
        if event["event"] in ("granted", "ended", "freed"):
            life.setdefault(event["lease"], []).append(event["event"])
    for lease, told in life.items():
        assert told == ["granted", "ended", "freed"][: len(told)], lease
        assert (told[-1] == "freed") == (lease not in stage.machine.leases)


# -- the page -------------------------------------------------------------------------------------


def _told_by_the_page() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name: _outside_of_brackets(keys) for name, keys in rows}


def _outside_of_brackets(text: str) -> list[str]:
    return re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", text))


@pytest.mark.parametrize("name", KEYS)
def test_the_page_names_each_event_with_its_keys(name: str) -> None:
    """What docs/events.md says of an event is what the code tells, in the same order."""
    assert _told_by_the_page()[name] == list(KEYS[name])


def test_the_page_names_no_other_event() -> None:
    """Nothing is described that is never told."""
    assert set(_told_by_the_page()) == set(KEYS)
