"""Changes that cross each other: a job that starts is not called back, held or cancelled unheard."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn.errors import UsageError
from grn.queue.entry import Spec
from grn.queue.lock import AlreadyOwned, owner_of, take
from grn.queue.places import Places
from grn.queue.running import identity
from grn.queue.store import NewJob, Store
from grn.queue.worklist import Worklist
from grn.rules import queueing as states
from tests.env import eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]

ME = (os.getpid(), "x")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """Return the places of a queue that nobody works off."""
    return Places(str(tmp_path / "state"))


def jobs(store: Worklist, *names: str, priority: int = 0, after: tuple[int, ...] = ()) -> list[int]:
    """Add jobs of these names."""
    spec = Spec(line="true", cwd="/", environ={}, after=after)
    return store.add([NewJob(name, spec, priority) for name in names])


def asking(store: Worklist) -> int:
    """Bring the next job to where it waits at the broker; return its number."""
    entry = store.take_next()
    assert entry is not None
    assert store.claim(entry.id, entry.attempt, ME)
    return entry.id


def order(store: Worklist) -> list[str]:
    """Return the names of all that have not ended, by place."""
    return [e.name for e in store.entries() if e.state not in states.OVER]


def test_a_job_that_was_called_back_does_not_start(places: Places) -> None:
    """Whoever comes first wins: the grant that arrives after the call is given back."""
    with Worklist(places) as store:
        jobs(store, "a", "b")
        one, other = asking(store), asking(store)
        assert store.starts(one, 1, {})
        jobs(store, "c")
        store.put_first([3])
        assert not store.starts(other, 1, {})
        assert store.get(one).state == states.RUNNING
        assert not store.recall(one), "what runs is not called back"
        assert store.back(other, 1)
        assert store.get(other).state == states.QUEUED


@pytest.mark.parametrize("change", ["hold", "cancel"])
def test_a_job_that_is_about_to_ask_is_held_or_cancelled_at_once(
    places: Places, change: str
) -> None:
    """Its runner finds nothing to claim."""
    with Worklist(places) as store:
        (job,) = jobs(store, "a")
        entry = store.take_next()
        assert entry is not None
        if change == "hold":
            store.hold([job])
        else:
            store.cancel([job], "why")
        assert not store.claim(job, entry.attempt, ME)
        assert store.get(job).state == {"hold": states.HELD, "cancel": states.CANCELLED}[change]


def test_a_job_that_has_asked_is_held_when_it_is_back(places: Places) -> None:
    """It never starts, and `release` queues it again."""
    with Worklist(places) as store:
        (job,) = jobs(store, "a")
        asking(store)
        store.hold([job])
        assert not store.starts(job, 1, {})
        assert store.back(job, 1)
        assert store.get(job).state == states.HELD
        store.let_go([job])
        assert store.get(job).state == states.QUEUED


def test_a_cancelled_job_does_not_start_and_one_that_runs_is_not_taken_off(places: Places) -> None:
    """`rm` of several does nothing if one of them runs."""
    with Worklist(places) as store:
        one, other, third = jobs(store, "a", "b", "c")
        asking(store)
        asking(store)
        store.cancel([one], "why")
        assert not store.starts(one, 1, {})
        assert store.starts(other, 1, {})
        with pytest.raises(UsageError, match=f"job {other} runs"):
            store.cancel([third, other], "why", running=False)
        assert store.get(third).state == states.QUEUED


@pytest.mark.parametrize(
    ("starts", "cancelled", "state"),
    [
        (False, False, states.QUEUED),
        (False, True, states.CANCELLED),
        (True, False, states.LOST),
        (True, True, states.LOST),
    ],
)
def test_a_runner_that_is_gone_has_lost_only_what_ran(
    places: Places, *, starts: bool, cancelled: bool, state: str
) -> None:
    """What had only asked goes back into the list: it is on disk that it never ran."""
    with Worklist(places) as store:
        (job,) = jobs(store, "a")
        asking(store)
        if starts:
            assert store.starts(job, 1, {})
        if cancelled:
            store.cancel([job], "why")
        assert store.gone(job, 1, "why") == state
        assert store.get(job).state == state
        assert store.gone(job, 1, "why") == ""


def test_a_late_word_of_an_older_runner_changes_nothing(places: Places) -> None:
    """Each word of a runner is for its own attempt."""
    with Worklist(places) as store:
        (job,) = jobs(store, "a")
        asking(store)
        store.gone(job, 1, "")
        asking(store)
        assert not store.starts(job, 1, {})
        store.over(job, 1, states.OK, exit_code=0, result={})
        assert store.get(job).state == states.WAITING


def test_a_long_chain_ends_with_its_first(places: Places) -> None:
    """Thousands that come after one another are cancelled, each with its reason."""
    with Worklist(places) as store:
        spec = [Spec(line="true", cwd="/", environ={}, after=[n] if n else ()) for n in range(3000)]
        store.add([NewJob(str(n), each) for n, each in enumerate(spec)])
        asking(store)
        store.over(1, 1, states.FAILED, exit_code=1, result={})
        assert store.counts() == {states.FAILED: 1, states.CANCELLED: 2999}
        assert "job 2999" in store.get(3000).reason


def test_priorities_order_the_list_and_who_is_moved_takes_his_place_s(places: Places) -> None:
    """A higher one goes before the lower, behind its own; `next` and `move` outrank it."""
    with Worklist(places) as store:
        jobs(store, "a", "b")
        jobs(store, "c", priority=5)
        jobs(store, "d", priority=5)
        jobs(store, "e", priority=-1)
        jobs(store, "f")
        assert order(store) == ["c", "d", "a", "b", "f", "e"]
        store.put_first([6])
        store.put_before(3, 2)
        store.put_before(4, None)
        assert order(store) == ["f", "a", "c", "b", "e", "d"]
        found = [entry.priority for entry in store.entries()]
        assert found == sorted(found, reverse=True), "the broker goes by it, too"


def test_a_higher_priority_calls_back_who_waits_with_a_lower_one(places: Places) -> None:
    """Those of the same priority keep their turn."""
    with Worklist(places) as store:
        high, low = jobs(store, "a", priority=5) + jobs(store, "b")
        asking(store)
        asking(store)
        jobs(store, "c", priority=1)
        assert not store.get(high).recalled
        assert store.get(low).recalled


def test_retried_together_a_chain_stays_one(places: Places) -> None:
    """The new follower comes after the new first one, not after the one that failed."""
    with Worklist(places) as store:
        (first,) = jobs(store, "a")
        (then,) = jobs(store, "b", after=(first,))
        asking(store)
        store.over(first, 1, states.FAILED, exit_code=1, result={})
        with pytest.raises(UsageError, match="ended as failed"):
            store.add_again([store.get(then)])
        assert store.add_again([store.get(then), store.get(first)]) == [4, 3]
        assert store.get(4).spec.after == [3]
        assert store.get(first).retried_as == 3


def test_who_looks_for_the_owner_does_not_keep_another_from_starting(places: Places) -> None:
    """The lock is asked about, not taken; it dies with its holder's descriptor."""
    places.prepare()
    assert owner_of(places) is None
    fd = take(places)
    assert owner_of(places) == os.getpid()
    with pytest.raises(AlreadyOwned, match=str(os.getpid())):
        take(places)
    os.close(fd)
    looking = os.open(places.lock, os.O_RDWR)
    assert owner_of(places) is None
    os.close(take(places))
    os.close(looking)


def test_a_process_is_named_by_its_start_and_boot() -> None:
    """A number that is another's by now, or of another boot, is nobody."""
    found = identity(os.getpid())
    assert found is not None
    boot, _, start = found[1].partition(":")
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        assert boot == file.read().strip()
    assert int(start) == procs.start_time(os.getpid())


def test_jobs_of_another_boot_are_lost_or_queued_again(queue: Make) -> None:
    """What ran is lost, what had only asked runs now; nobody with the same number is signalled."""
    q = queue()
    ran, asked = q.add("echo x >> ran")[0], q.add("echo y >> ran")[0]
    with Worklist(q.places) as store:
        for _ in range(2):
            entry = store.take_next()
            assert entry is not None
            assert store.claim(entry.id, entry.attempt, (os.getpid(), "another-boot:1"))
        assert store.starts(ran, 1, {})
    q.start()
    assert q.ended(ran)["state"] == "lost"
    assert q.ended(asked)["state"] == "ok"
    with open(os.path.join(q.folder, "ran"), encoding="ascii") as file:
        assert file.read() == "y\n"


def test_told_to_end_by_the_machine_a_job_that_waits_goes_back(queue: Make) -> None:
    """A shutdown signals everybody: what waited is queued, what ran has failed, and can be retried."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    owner = q.start()
    q.wait_on("a")
    waiting = q.until(2, "waiting")["runner"]
    for pid in (owner, waiting, q.job(1)["runner"]):
        os.kill(pid, signal.SIGTERM)
    wait_gone(owner)
    assert q.until(2, "queued")["tries"] == 0
    assert q.ended(1)["state"] == "failed"
    q.off("a", "b")
    assert q.run("retry", "--failed").stdout == "3\n"
    assert q.run("retry", "--failed").stdout == ""


def test_cancel_does_not_wait_for_a_runner_that_is_gone(queue: Make) -> None:
    """With nobody left to say how they ended, the command says it itself."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    owner = q.start()
    q.wait_on("a")
    victims = [owner, q.until(2, "waiting")["runner"], q.job(1)["runner"]]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    q.run("cancel", "1", "2")
    assert q.job(1)["state"] == "lost"
    assert q.job(2)["state"] == "cancelled"


def test_a_grant_that_comes_after_the_call_is_given_back(queue: Make) -> None:
    """Though nobody told its runner: what is on disk decides, and the device is free."""
    q = queue("sim:1x10000MiB")
    q.holder("a", "--memory", "whole")
    q.holder("b", "--memory", "whole")
    owner = q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    os.kill(owner, signal.SIGKILL)
    wait_gone(owner)
    with Worklist(q.places) as store:
        store.hold([2])
    q.off("a", "b")
    q.until(2, "held")
    assert not q.is_on("b")
    eventually(lambda: q.env.status()["leases"] == [], what="the lease is given back")


def test_a_waiting_job_is_held(queue: Make) -> None:
    """It leaves the broker's line, and the next one asks."""
    q = queue("sim:1x10000MiB")
    for name in "abc":
        q.holder(name, "--memory", "whole")
    q.start()
    q.wait_on("a")
    q.until(3, "waiting")
    q.run("hold", "b")
    q.until(2, "held")
    q.off("a")
    q.wait_on("c")
    q.run("release", "b")
    q.off("b", "c")
    assert q.ended(2)["state"] == "ok"


def test_the_owner_leaves_when_its_queue_is_removed(queue: Make) -> None:
    """It would work off a list that nobody sees."""
    q = queue()
    pid = q.start()
    os.rename(q.places.folder, f"{q.places.folder}.away")
    wait_gone(pid)
    assert q.owner is None
    eventually(lambda: q.add("true"), what="a new list is begun")


def test_a_job_that_moves_on_is_not_missed_by_a_look(queue: Make) -> None:
    """Asked for by state, each job is in one answer, whatever changes between the questions."""
    q = queue()
    q.add("true")
    with Store(q.places) as looking, Worklist(q.places) as working:
        looking.hold_still()
        assert not looking.entries((states.STARTING,))
        assert working.take_next() is not None
        assert [entry.id for entry in looking.entries((states.QUEUED,))] == [1]
