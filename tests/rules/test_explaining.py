"""Why a job waits, where it would go, and what would let it start."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grn.errors import UsageError
from grn.rules import events as ev
from grn.rules.estimate import Margin
from grn.rules.expected import forecasts
from grn.rules.explaining import explain
from grn.rules.fairness import Limits, parse_limits
from grn.rules.holding import Opening, openings
from grn.rules.knowing import need_how
from grn.rules.model import DeviceState, End, Owner, Request
from grn.rules.placing import Placement, Placer
from grn.rules.wire import decode, encode
from tests.rules.acting import MODEL, Job, Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def learn(stage: Stage, job_type: str, mib: int, *ran_s: float) -> None:
    """Let a type be known by measured runs of these lengths."""
    for ran in ran_s:
        stage.profiles.of(job_type, MODEL).succeeded(mib, ran, "sampled")


def explained(stage: Stage, subject: object, **more: Any) -> dict[str, Any]:
    """Ask, and see that the answer can travel and the books are as before."""
    ledger = stage.machine.ledger
    before = deepcopy([(book.bookings, book.alone) for book in ledger.books])
    expected = forecasts(stage.machine, stage.now)
    told = explain(stage.machine, str(subject), stage.now, expected=expected, **more)
    stage.machine.check_invariants()
    assert before == [(book.bookings, book.alone) for book in ledger.books]
    assert decode(encode(told)[4:]) == told
    return told


def ended(**fields: object) -> dict[str, Any]:
    """An event of a lease that has ended."""
    return {"event": "ended", "lease": "t-9", "label": "gone", "type": "job", **fields}


# -- what is meant --------------------------------------------------------------------------------


@pytest.fixture
def busy() -> Stage:
    """One job of a known type runs, one of another waits for it."""
    stage = Stage(10000)
    learn(stage, "python train.py", 8000, 100)
    learn(stage, "python eval.py", 3000, 5)
    stage.ask("python train.py", label="sweep")
    stage.run_until(0)
    stage.ask("python eval.py", label="after")
    return stage


@pytest.mark.parametrize(
    ("subject", "kind", "key"),
    [
        ("t-1", "lease", "t-1"),
        ("sweep", "lease", "t-1"),
        ("10001", "lease", "t-1"),
        ("20001", "lease", "t-1"),
        ("3", "waiting", 3),
        ("after", "waiting", 3),
        ("10003", "waiting", 3),
        ("1", "lease", "t-1"),
        ("python eval.py", "type", "python eval.py"),
        ("eval", "type", "python eval.py"),
        ("t-9", "ended", "job"),
        ("9", "ended", "job"),
        ("gone", "ended", "job"),
        ("never heard of", "type", "never heard of"),
    ],
)
def test_a_word_names_a_job_or_a_type(busy: Stage, subject: str, kind: str, key: object) -> None:
    """Lease, ticket, number, pid of the owner or the job, label, type, a part; else a new type."""
    told = explained(busy, subject, ended=[ended(lease="t-8", label="no"), ended()])
    assert told["kind"] == kind
    assert told["subject"] == subject
    assert key in (told.get("lease"), told.get("ticket"), told["type"])


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        ("python", "a part of 2 types"),
        ("sweep", "the name of 2 jobs"),
        ("t-", "the name of 2 jobs"),
    ],
)
def test_a_word_that_names_several_is_refused(busy: Stage, subject: str, said: str) -> None:
    """The error says between which to choose."""
    busy.ask("other", label="sweep", memory_mib=100)
    with pytest.raises(UsageError, match=said):
        explained(busy, subject)


@pytest.mark.parametrize("subject", ["77", "t-77"])
def test_a_job_that_is_not_known_any_more(busy: Stage, subject: str) -> None:
    """It is no new type: the error says where else to look."""
    with pytest.raises(UsageError, match="`grn history`"):
        explained(busy, subject)


def test_a_type_is_meant_where_many_jobs_have_its_name() -> None:
    """The label of a command is often its type."""
    stage = Stage(10000)
    learn(stage, "job", 1000, 5)
    for _ in range(3):
        stage.ask("job", label="job")
    told = explained(stage, "job")
    assert (told["kind"], told["runs"], told["waits"]) == ("type", 3, 0)


# -- a job that waits -----------------------------------------------------------------------------


def test_each_device_says_what_it_lacks_and_who_holds_it(busy: Stage) -> None:
    """In MiB, with what holds most first, and when that is expected to end."""
    busy.others(0, 500)
    busy.run_until(40)
    told = explained(busy, "after")
    assert told["reason"] == busy.machine.reason(3)
    (device,) = told["devices"]
    assert (
        device["why"] == "1500 MiB too little: 3000 MiB wanted, 1500 free of 10000, others hold 500"
    )
    assert (device["fits"], device["lacks_mib"], device["foreign_mib"]) == (False, 1500, 500)
    assert device["held_by"] == [
        {
            "lease": "t-1",
            "type": "python train.py",
            "label": "sweep",
            "uid": 0,
            "state": "running",
            "booked_mib": 8000,
            "measured_mib": 0,
            "counts_mib": 8000,
            "ends_s": 60.0,
        }
    ]
    assert told["lets_start"] == ["on device 0: lease t-1 (sweep) must end, in about 60 s"]
    assert (told["expected_s"], told["expected_on"]) == (60.0, [0])
    assert (told["head"], told["ahead"]) == (True, 0)


def test_only_those_must_end_that_have_to() -> None:
    """The first to end, until there is room; on the device where that is soonest."""
    stage = Stage(10000, 10000)
    for kind, mib, ran in (("a", 3000, 90), ("b", 3000, 30), ("c", 4000, 60), ("d", 9000, 40)):
        learn(stage, kind, mib, ran)
    stage.ask("d", allowed=frozenset({"GPU-0001"}))
    for kind in "abc":
        stage.ask(kind, allowed=frozenset({"GPU-0000"}))
    told = explained(stage, stage.ask("x", memory_mib=6000).request.ticket)
    after = {device["index"]: (device["after"], device["opens_s"]) for device in told["devices"]}
    assert after == {0: (["t-3", "t-4"], 60.0), 1: (["t-1"], 40.0)}
    assert told["lets_start"] == ["on device 1: lease t-1 (d) must end, in about 40 s"]
    assert (told["expected_s"], told["expected_on"]) == (40.0, [1])


def test_what_nobody_knows_is_said() -> None:
    """No number stands for it."""
    stage = Stage(10000)
    stage.ask("mystery", memory_mib=9000)
    told = explained(stage, stage.ask("x", memory_mib=6000).request.ticket)
    assert told["expected_s"] is None
    assert told["devices"][0]["opens_s"] is None
    assert told["lets_start"] == ["on device 0: lease t-1 (mystery) must end, nobody knows when"]


def test_the_first_run_is_waited_for() -> None:
    """A second one of its type cannot tell when, and is told what will do."""
    stage = Stage(10000, 10000)
    stage.ask("new")
    told = explained(stage, stage.ask("new").request.ticket)
    assert told["lets_start"] == [
        (
            "the first run of this type is being measured (lease t-1): it must end, or show that its"
            " memory has settled"
        )
    ]
    assert told["devices"][0]["why"] == "measured alone by lease t-1"


def test_what_is_kept_for_the_head() -> None:
    """It would fit, and is told for whom the room is kept."""
    stage = Stage(10000)
    stage.ask("a", memory_mib=6000)
    stage.ask("big", memory_mib=9000, label="huge")
    told = explained(stage, stage.ask("small", memory_mib=3000).request.ticket)
    (device,) = told["devices"]
    assert (device["fits"], device["kept"]) == (False, True)
    assert device["why"] == "would fit, and is kept for request 3, the head of the queue"
    assert told["lets_start"] == [
        (
            "request 3 (huge), the head of the queue, must start first, or so much end on device 0 that"
            " there is room for both"
        )
    ]
    assert (told["head"], told["ahead"]) == (False, 1)


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (
            {"allowed": frozenset({"GPU-0001"})},
            "not among the devices that its CUDA_VISIBLE_DEVICES",
        ),
        ({"memory_mib": 9000}, "too small: 9000 MiB wanted, it has 4000 MiB in all"),
        ({"memory_mib": 600, "largest": True}, "smaller than the largest, one of which it wants"),
        ({"whole": True}, "wanted alone, and 1 lease is on it"),
        ({"memory_mib": 100, "compute": 50}, "50 % of its multiprocessors wanted, 40 % free"),
    ],
)
def test_why_a_device_does_not_do(wish: dict[str, Any], why: str) -> None:
    """In words that fit what is wrong with it."""
    stage = Stage(4000, 10000)
    stage.ask("here", memory_mib=1000, compute=60, allowed=frozenset({"GPU-0000"}))
    stage.ask("there", memory_mib=9500, compute=60, allowed=frozenset({"GPU-0001"}))
    told = explained(stage, stage.ask("x", **wish).request.ticket)
    assert told["devices"][0]["why"].startswith(why)
    assert not told["devices"][0]["fits"]


def test_a_device_that_others_fill_or_that_is_not_well() -> None:
    """Nothing of ours could end that would help."""
    stage = Stage(10000, 10000)
    stage.states["GPU-0001"] = DeviceState.LOST
    stage.others(0, 6000)
    told = explained(stage, stage.ask("x", whole=True).request.ticket)
    assert [device["why"] for device in told["devices"]] == [
        "wanted alone, and others hold 6000 of 10000 MiB, more than one half",
        "lost (as told)",
    ]
    assert told["lets_start"] == [
        "no device would do with all leases ended: others must free memory, or a device be well again"
    ]


def test_what_is_no_matter_of_devices() -> None:
    """Limits, CPUs, a full disk, another job inside the same lease."""
    stage = Stage(10000, cpus=4, limits=Limits(parse_limits("few=1")))
    outer = stage.ask("few", memory_mib=1000, cpus=3)
    assert outer.lease is not None
    limited = stage.ask("few", memory_mib=10).request.ticket
    assert explained(stage, limited)["lets_start"][0].startswith(
        "one of those jobs must end: 1 of at most 1 jobs"
    )
    stage.cancel(stage.jobs[limited])
    many = stage.ask("cpus", gpus=None, cpus=2).request.ticket
    assert explained(stage, many)["lets_start"] == ["1 more CPUs must become free"]
    inside: dict[str, Any] = {"memory_mib": 800, "outer": outer.lease.id}
    stage.ask("inner", **inside)
    second = stage.ask("inner", **inside).request.ticket
    told = explained(stage, second)
    assert told["lets_start"] == [f"another job inside lease {outer.lease.id} must end"]
    assert told["reason"] == stage.machine.reason(second)
    stage.step(ev.DiskFailed(0.0, (), "no space left"))
    assert "no space left" in explained(stage, many)["lets_start"][0]


# -- a job that runs, a type ----------------------------------------------------------------------


def test_a_job_that_runs(busy: Stage) -> None:
    """Where, with how much, since when, and how long it will go on."""
    busy.hold(next(iter(busy.jobs.values())), 7500)
    busy.run_until(40)
    told = explained(busy, "t-1")
    assert told["on"] == [
        {"index": 0, "uuid": "GPU-0000", "booked_mib": 8000, "measured_mib": 7500}
    ]
    assert (told["since_s"], told["ends_s"], told["overdue"]) == (40.0, 60.0, False)
    busy.run_until(101)
    told = explained(busy, "t-1")
    assert (told["ends_s"], told["overdue"]) == (0.0, True)


def test_a_new_type_would_be_measured() -> None:
    """It is told where its first run would go, alone."""
    told = explained(Stage(10000, 8000), "new")
    assert (told["expected_s"], told["expected_on"], told["probe"]) == (0.0, [0], True)
    assert told["lets_start"] == []
    assert told["known"] == []
    assert told["devices"][1]["why"] == (
        "fits: nobody is on it, and all of its 8000 MiB would be the job's own"
    )


def test_a_type_that_could_never_run_here() -> None:
    """It is said at once, with numbers."""
    told = explained(Stage(10000), "new", gpus=2)
    assert told["refusal"] == "2 devices asked, this broker manages 1"


def test_how_an_estimate_is_made() -> None:
    """Each rule has its words, and the numbers add up to what is booked."""
    stage = Stage(10000, margin=Margin(0.1, 256))
    profile = stage.profiles.of("job", MODEL)
    request = Request(1, "job", Owner(1, 1))

    def how() -> str:
        return need_how(stage.profiles, request, MODEL)

    assert how() == "no run has succeeded yet, so the next one is measured alone on a device"
    profile.succeeded(None, 1.0, "")
    assert how() == "1 run could not be measured, so the next one has a device to itself"
    profile.provisional_mib = 1000
    assert how() == (
        "1.5 times the 1000 MiB that its first run, which still runs, has held so far, and a margin of"
        " 256 MiB"
    )
    profile.succeeded(1000, 1.0, "sampled")
    assert how() == "the one peak that was measured, 1000 MiB, and a margin of 256 MiB"
    profile.succeeded(4000, 1.0, "sampled")
    assert how() == (
        "the largest of the last 2 peaks (at most 20 count), 4000 MiB, and a margin of 400 MiB"
    )
    profile.outgrown(5000)
    assert how() == (
        "the peak of a run that has outgrown its booking, 5000 MiB, and a margin of 500 MiB"
    )
    profile.failed("oom", 1.0, oom_at_mib=5500)
    assert how() == "more than was booked before, since a run died of device memory"
    profile.failed("oom", 1.0, oom_at_mib=7150)
    profile.failed("oom", 1.0, oom_at_mib=9295)
    assert how() == "alone on a device, since 3 runs in a row died of device memory"
    profile.succeeded(5000, 1.0, "sampled")
    profile.set_mib = 6000
    assert how() == "as it was set by hand (`grn profiles set`)"
    assert need_how(stage.profiles, request, "other") == (
        f"1.1 times the estimate of another model ({MODEL})"
    )
    declared = Request(1, "job", Owner(1, 1), memory_mib=2000)
    assert need_how(stage.profiles, declared, "other") == "as declared"
    assert need_how(stage.profiles, declared, MODEL) == (
        "2000 MiB were declared, and a peak of 5000 MiB was seen"
    )


def test_what_is_known_of_a_type(busy: Stage) -> None:
    """Runs, peaks, estimate, run times and ends, as `profiles` has them."""
    (known,) = explained(busy, "eval")["known"]
    assert (known["estimate_mib"], known["peaks_mib"], known["typical_s"]) == (3000, [3000], 5.0)
    assert known["how"] == "the one peak that was measured, 3000 MiB, and a margin of 0 MiB"
    assert known["outcomes"] == ["ok"]


# -- against the placer ---------------------------------------------------------------------------

WISHES = st.fixed_dictionaries(
    {"job_type": st.sampled_from(["small", "middle", "large", "new"])},
    optional={
        "gpus": st.sampled_from([1, 1, 2]),
        "memory_mib": st.sampled_from([500, 4000, 8000]),
        "whole": st.booleans(),
        "cpus": st.integers(1, 4),
        "compute": st.sampled_from([30, 60]),
        "priority": st.integers(-1, 1),
        "largest": st.booleans(),
        "allowed": st.sampled_from([frozenset({"GPU-0000"}), frozenset({"GPU-0000", "GPU-0001"})]),
    },
)


def played(
    sizes: Sequence[int], foreign_mib: int, lost: int, wishes: Sequence[Mapping[str, Any]]
) -> Stage:
    """Let jobs come to a machine of which one device is half filled by others, or lost."""
    stage = Stage(*sizes, cpus=6)
    learn(stage, "small", 1500, 3, 3, 3)
    learn(stage, "middle", 3000, 10)
    stage.profiles.of("large", MODEL).set_mib = 6000
    stage.foreign["GPU-0000"] = foreign_mib
    if lost < len(sizes):
        stage.states[f"GPU-{lost:04d}"] = DeviceState.LOST
    stage.look()
    for wish in wishes:
        job = stage.ask(**wish)
        if job.runs and job.request.priority < 0:
            stage.finish(job, End(exit_code=0))
    return stage


@settings(deadline=None, max_examples=60)
@example(
    sizes=[4000, 4000],
    foreign_mib=1000,
    lost=1,
    wishes=[{"job_type": "small"}, {"job_type": "large"}],
)
@given(
    sizes=st.lists(st.sampled_from([4000, 10000, 10000, 16000]), min_size=2, max_size=4),
    foreign_mib=st.sampled_from([0, 0, 1000, 3000]),
    lost=st.sampled_from([1, 9, 9, 9]),
    wishes=st.lists(WISHES, min_size=1, max_size=12),
)
def test_what_is_said_is_what_is_done(
    sizes: list[int], foreign_mib: int, lost: int, wishes: list[Mapping[str, Any]]
) -> None:
    """A device fits exactly if the placer would take it; what must end is enough, and not too much."""
    stage = played(sizes, foreign_mib, lost, wishes)
    waiting = [job for job in stage.jobs.values() if job.waits]
    for job in waiting:
        told = explained(stage, job.request.ticket)
        assert told["lets_start"], "what waits waits for something"
        assert told["devices"]
        enough_must_end(stage, job)
    for kind in ("small", "middle", "large", "new"):
        told = explained(stage, kind)
        thought = Request(1 << 62, kind, Owner(0, 0), arrived_s=stage.now)
        verdict = stage.machine.placer.place(thought, stage.machine.reservation)
        starts = isinstance(verdict, Placement)
        fits = [device["uuid"] for device in told["devices"] if device["fits"]]
        assert starts == (not told["lets_start"]), told["lets_start"]
        if isinstance(verdict, Placement):
            assert set(verdict.uuids) <= set(fits)
            assert told["expected_s"] == 0


def enough_must_end(stage: Stage, job: Job) -> None:
    """With what must end on a device taken out of a copy of the books, the device fits."""
    machine = stage.machine
    for opening in openings(machine, job.request, stage.now):
        if not opening.after or opening.need is None or opening.need.wait:
            continue
        assert fits_without(stage, opening, opening.after, job.request.type)
        assert not fits_without(stage, opening, opening.after[:-1], job.request.type)


def fits_without(stage: Stage, opening: Opening, leases: Sequence[str], job_type: str) -> bool:
    """Ask the placer about a copy of the books in which these leases have ended."""
    machine = stage.machine
    books = machine.ledger.copied()
    for lease in leases:
        books.remove(lease, machine.leases[lease].uuids)
    placer = Placer(books, machine.profiles, machine.leases)
    book = books.by_uuid[opening.book.device.uuid]
    assert opening.need is not None
    return placer.fits(book, opening.need, None, job_type)


def test_nothing_is_kept_where_others_memory_is_in_the_way() -> None:
    """A job that takes all of a device waits for others there, not for leases: those go on meanwhile."""
    stage = Stage(4000)
    stage.profiles.of("large", MODEL).set_mib = 6000
    stage.foreign["GPU-0000"] = 1000
    stage.look()
    first = stage.ask("small", memory_mib=500)
    large = stage.ask("large")
    second = stage.ask("small", memory_mib=500)
    assert (first.runs, large.runs, second.runs) == (True, False, True)
    assert "others must free memory" in explained(stage, large.request.ticket)["lets_start"][0]
    stage.foreign["GPU-0000"] = 0
    stage.look()
    assert not stage.ask("small", memory_mib=500).runs  # now it is kept for the head
    stage.finish(first, End(exit_code=0))
    stage.finish(second, End(exit_code=0))
    assert large.runs
