"""What running jobs teach the books, with stand-in jobs that hold simulated memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def test_a_first_run_is_measured_alone_and_later_runs_share(new_env: NewEnv):
    """The first run of a type has the device to itself; its peak is what later runs book."""
    env = new_env(sample_fast="0.05")
    talker = env.talker()
    first = talker.acquire("t")
    assert first["probe"] is True
    job = env.job(talker, first, "--memory=3000MiB")
    job.wait_holding()
    second = talker.ask("t")
    assert "measured" in talker.next(second)["reason"]
    eventually(lambda: talker.status()["leases"][0]["peak_mib"] == 3000)
    assert job.finish() == 0
    assert talker.release(first)["peak_mib"] == 3000
    assert talker.granted(second)["memory_mib"] == 3000
    third = talker.acquire("t")
    assert (third["memory_mib"], third["probe"]) == (3000, False)
    (profile,) = talker.profiles()
    assert (profile["type"], profile["estimate_mib"], profile["runs"]) == ("t", 3000, 1)


def test_what_was_learnt_outlives_the_broker(new_env: NewEnv):
    """A profile is known to the next broker, also when the last one was killed."""
    env = new_env(sample_fast="0.05")
    talker = env.talker()
    grant = talker.acquire("t")
    job = env.job(talker, grant, "--memory=3000MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["peak_mib"] == 3000)
    assert job.finish() == 0
    talker.release(grant)
    eventually(lambda: _stored(env))
    env.restart()
    assert env.talker().acquire("t")["memory_mib"] == 3000


def test_failed_first_runs_free_their_devices(new_env: NewEnv):
    """Four types whose first run fails lock no device, and leave no profile."""
    env = new_env("sim:4x10000MiB")
    talker = env.talker()
    grants = [talker.acquire(f"bad{n}") for n in range(4)]
    fifth = talker.ask("good")
    assert not talker.decided([fifth])
    for grant in grants:
        assert talker.release(grant, exit_code=1)["outcome"] == "failed"
    assert talker.granted(fifth, within_s=10)["probe"] is True
    assert [p for p in talker.profiles() if p["estimate_mib"] is not None] == []


def test_a_type_that_always_fails_runs_on(new_env: NewEnv):
    """Twenty runs of a type that never succeeds all get their turn; it is said by the third."""
    env = new_env("sim:1x10000MiB")
    talker = env.talker()
    waiting = talker.ask_many(20, "bad")
    said: list[int] = []
    for run, number in enumerate(waiting, start=1):
        report = talker.release(talker.granted(number), exit_code=1)
        said += [run for note in report["notes"] if "never succeeded" in note]
    assert said == [3]
    assert len(env.log_lines("never-succeeded")) == 1
    status = talker.status()
    assert status["leases"] == status["waiters"] == []
    assert [p for p in talker.profiles() if p["estimate_mib"] is not None] == []


def test_a_job_that_outgrows_its_booking_counts_for_more_at_once(new_env: NewEnv):
    """The moment a job holds more than was booked, books and profile say so; nothing is negative."""
    env = new_env(sample_fast="0.05", sample_slow="0.05")
    talker = env.talker()
    _learn(env, "t", 3000)
    a = talker.acquire("t")
    b = talker.acquire("t")
    job_a = env.job(talker, a, "--memory=3000MiB")
    job_b = env.job(talker, b, "--plan=0:3000MiB 0.5:5000MiB")
    eventually(lambda: talker.status()["devices"][0]["free_mib"] == 2000)
    c = talker.ask("t")
    assert not talker.decided([c])
    (profile,) = talker.profiles()
    assert profile["estimate_mib"] == 5000
    (line,) = env.log_lines("outgrown")
    assert "5000" in line
    assert "3000" in line
    assert job_a.finish() == 0
    talker.release(a)
    assert talker.granted(c)["memory_mib"] == 5000
    assert job_b.finish() == 0
    talker.release(b)


def test_an_out_of_memory_books_more_for_the_next_try(new_env: NewEnv):
    """After a job died of memory, the report says what a retry would book, and later runs book it."""
    env = new_env()
    talker = env.talker()
    talker.know("t", 3000)
    grant = talker.acquire("t")
    report = talker.release(grant, exit_code=1, said_oom=True)
    assert report["outcome"] == "oom"
    assert report["next_mib"] == 3900
    assert talker.acquire("t")["memory_mib"] == 3900


def test_profiles_can_be_set_and_forgotten(new_env: NewEnv):
    """What a person sets is booked; what is forgotten is measured anew."""
    env = new_env()
    talker = env.talker()
    talker.know("t", 2000)
    talker.release(talker.acquire("t"))
    answer = talker.call("profiles", action="forget", type="t")
    assert answer["profiles"] == []
    assert talker.acquire("t")["probe"] is True
    unknown = talker.call("profiles", action="forget", type="nobody")
    assert (unknown["op"], unknown["code"]) == ("error", "usage")


def _learn(env: BrokerEnv, job_type: str, mib: int) -> None:
    talker = env.talker()
    grant = talker.acquire(job_type)
    job = env.job(talker, grant, f"--memory={mib}MiB")
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["peak_mib"] == mib)
    assert job.finish() == 0
    talker.release(grant)


def _stored(env: BrokerEnv) -> bool:
    import sqlite3

    path = f"{env.environ['GRN_STATE_DIR']}/profiles.sqlite"
    db = sqlite3.connect(path)
    try:
        return bool(db.execute("SELECT 1 FROM profiles").fetchone())
    finally:
        db.close()
