"""What `@grn.job` promises about one call."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import grn
from grn import applied
from grn.errors import LeaseError
from grn.isolate import BodyDied
from grn.testing.cuda import OutOfMemory
from tests.env import PATIENCE_S
from tests.python import decorated
from tests.python.books import MODULE, free, profiles
from tests.python.decorated import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device


# -- what comes back ------------------------------------------------------------------------------


def test_a_return_value_reaches_the_caller(here: Here) -> None:
    """It ran in a process of its own, under a lease, with its device in place."""
    env = here("sim:2x10000MiB")
    result = decorated.train(0.5, epochs=4)
    assert result["loss"] == 2.0
    assert result["pid"] != os.getpid()
    assert result["CUDA_VISIBLE_DEVICES"] == "0"
    assert "GRN_LEASE" in result
    assert "GRN_LEASE" not in os.environ
    assert free(env)


def test_brackets_or_none(here: Here) -> None:
    """`@grn.job()` is `@grn.job`."""
    here()
    assert decorated.with_brackets() != os.getpid()


def test_an_exception_reaches_the_caller(here: Here) -> None:
    """The very class with its data; the device is free and nothing is learnt."""
    env = here()
    with pytest.raises(decorated.BoomError) as raised:
        decorated.fail(7)
    assert raised.value.code == 7
    assert free(env)
    assert not profiles(env).get("fail", {}).get("runs")


def _fail_often(times: int) -> None:
    for code in range(times):
        with pytest.raises(decorated.BoomError):
            decorated.fail(code)


def test_failures_never_hold_a_device(here: Here) -> None:
    """A type that always fails runs again and again, and after three times that is said."""
    env = here()
    with pytest.warns(RuntimeWarning, match="failed 3 times and has never succeeded"):
        _fail_often(4)
    assert free(env)


def test_a_job_that_dies_is_an_error_with_its_signal(here: Here) -> None:
    """A killed process ends the call, and not the caller."""
    env = here()
    with pytest.raises(BodyDied) as died:
        decorated.be_killed(signal.SIGSEGV)
    assert died.value.signal == signal.SIGSEGV
    assert free(env)


def test_globals_of_the_caller_stay_as_they_are(here: Here) -> None:
    """What a job changes is in its process; with isolate=False it is here."""
    here()
    decorated.SEEN.clear()
    decorated.train(0.5)
    assert decorated.SEEN == []
    assert decorated.in_place("x")["pid"] == os.getpid()
    assert decorated.SEEN == ["x"]


def test_what_cannot_travel_is_named(here: Here) -> None:
    """An argument that no pickle takes is an error before the job starts; the lease is free."""
    env = here()
    with pytest.raises(TypeError, match="argument 1"):
        decorated.train(threading.Lock())  # type: ignore[arg-type]
    assert free(env)


# -- memory ---------------------------------------------------------------------------------------


def test_a_job_is_measured_and_then_booked_at_its_need(here: Here) -> None:
    """The first call has the device to itself; the next one is booked at what was seen."""
    env = here()
    assert decorated.hold_memory(3000)["GRN_MEM_MIB"] == "10000"
    assert decorated.hold_memory(3000)["GRN_MEM_MIB"] == "3000"
    assert profiles(env)["hold_memory"]["estimate_mib"] == 3000


def test_running_out_of_memory_is_recognised(here: Here) -> None:
    """The exception is the job's own, and the next call of the type gets more."""
    env = here("sim:1x10000MiB")
    env.talker().know(f"{MODULE}::run_out", 2000)
    with pytest.raises(OutOfMemory):
        decorated.run_out(1500)
    (profile,) = env.client().profiles()
    assert profile["estimate_mib"] > 2000


def test_a_job_that_uses_no_device_ends_well(here: Here) -> None:
    """A normal return, one warning at the caller's line, no profile of zero."""
    env = here()
    with pytest.warns(RuntimeWarning, match="nothing learnt") as said:
        assert decorated.train(1.0)["loss"] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decorated.train(1.0)
    assert len(said) == 1
    assert said[0].filename == __file__
    assert not profiles(env).get("train", {}).get("estimate_mib")


def test_arguments_that_matter_can_be_in_the_type(here: Here, tmp_path: Path) -> None:
    """Large batches go one after the other, small ones all together: each has its own profile."""
    env = here("sim:1x16384MiB")

    def run(batch: int, count: int, together: int) -> list[int]:
        folder = tempfile.mkdtemp(dir=tmp_path)
        with ThreadPoolExecutor(count) as pool:
            calls = [pool.submit(decorated.by_batch, batch, folder, together) for _ in range(count)]
            return [call.result(PATIENCE_S) for call in calls]

    assert run(2599, 1, 1) == [1]
    assert len(run(13293, 3, 1)) == 3  # two at once would run out of memory
    assert run(2599, 6, 6) == [6] * 6
    assert {name: x["estimate_mib"] for name, x in profiles(env).items()} == {
        "by_batch batch=2599": 2599,
        "by_batch batch=13293": 13293,
    }


def test_arguments_that_do_not_matter_are_not(here: Here, tmp_path: Path) -> None:
    """A sweep over seeds is one type: one first run, then the others at once on two devices."""
    env = here("sim:2x10000MiB")
    decorated.seeded(0, tempfile.mkdtemp(dir=tmp_path), 1)
    folder = tempfile.mkdtemp(dir=tmp_path)
    with ThreadPoolExecutor(7) as pool:
        calls = [pool.submit(decorated.seeded, seed, folder, 7) for seed in range(1, 8)]
        assert [call.result(PATIENCE_S) for call in calls] == [7] * 7
    assert profiles(env)["seeded"]["runs"] == 8


# -- the lighter function -------------------------------------------------------------------------


def test_a_lighter_function_is_measured_first(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs first, with the same arguments, in place of the unknown; the result is the real one's."""
    env = here()
    monkeypatch.setenv(decorated.CALLS, str(tmp_path / "calls"))
    assert decorated.heavy(2000, epochs=3) == "real"
    assert decorated.heavy(2000, epochs=5) == "real"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["light 2000 3", "real 2000 3 2000", "real 2000 5 2000"]
    assert free(env)


def test_a_lighter_function_is_skipped_where_the_type_is_known(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process has learnt is known here, too."""
    env = here()
    monkeypatch.setenv(decorated.CALLS, str(tmp_path / "calls"))
    env.talker().know(f"{MODULE}::heavy", 2500)
    decorated.heavy(2000, epochs=1)
    assert (tmp_path / "calls").read_text().splitlines() == ["real 2000 1 2500"]


def test_a_lighter_function_that_fails_is_the_callers_error(here: Here) -> None:
    """The real one does not run on a guess, and the device is free."""
    env = here()
    ran: list[str] = []

    @grn.job(isolate=False)
    def real() -> None:
        ran.append("real")

    @real.profile
    def lighter() -> None:
        ran.append("lighter")
        raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        real()
    assert ran == ["lighter"]
    assert free(env)


# -- where it runs --------------------------------------------------------------------------------


def test_threads_get_devices_of_their_own(here: Here) -> None:
    """Two threads that call at once see two masks."""
    env = here("sim:2x10000MiB")
    barrier = threading.Barrier(2)

    def one(_: int) -> str:
        barrier.wait(PATIENCE_S)
        return str(decorated.hold_memory(6000)["CUDA_VISIBLE_DEVICES"])

    env.talker().know(f"{MODULE}::hold_memory", 6000)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(one, range(2))) == ["0", "1"]


def test_in_place_only_one_thread_at_a_time(here: Here) -> None:
    """A second thread is refused at once, with the cure, whether the first one waits or runs."""
    env = here("sim:2x10000MiB")
    go_on, inside = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(decorated.in_place_until, go_on, inside)
        assert inside.wait(PATIENCE_S)
        with pytest.raises(LeaseError, match=r"another thread or task.*isolate=False"):
            decorated.in_place("y")
        go_on.set()
        assert first.result(PATIENCE_S)
    decorated.in_place("y")
    assert "GRN_LEASE" not in os.environ
    assert free(env)


def test_a_job_in_a_job_uses_its_lease(here: Here) -> None:
    """On one device, directly and in threads: the inner calls run in place, in the outer lease."""
    env = here()
    result = decorated.outer()
    assert [x["lease"] for x in result["inner"]] == [result["lease"]] * 4
    assert [x["pid"] for x in result["inner"]] == [result["pid"]] * 4
    assert free(env)


def test_a_job_in_a_job_may_have_a_process_of_its_own(here: Here) -> None:
    """isolate=True is obeyed there, too: another process, the same lease."""
    env = here()
    result = decorated.outer_of_apart()
    assert result["inner"]["lease"] == result["lease"]
    assert result["inner"]["pid"] != result["pid"]
    assert free(env)


def test_a_job_may_call_itself(here: Here) -> None:
    """Recursion does not wait for itself."""
    here()
    assert decorated.factorial(5) == 120


def test_under_an_outer_lease_a_job_runs_in_place(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that `grn run` started is the job's already."""
    here()
    with grn.lease() as lease:
        monkeypatch.setenv("GRN_LEASE", lease.id)
        assert decorated.with_brackets() == os.getpid()


def test_methods_of_all_kinds(here: Here) -> None:
    """Methods, class and static methods are jobs; the object travels along."""
    here()
    results = [
        Trainer(3).fit(2),
        Trainer.fit(Trainer(3), 2),
        Trainer.check(5),
        Trainer.check_too(5),
        Trainer(3).check(5),
        Trainer.make(4),
    ]
    assert [result[:-1] for result in results] == [(6,), (6,), (5,), (5,), (5,), ("Trainer", 4)]
    assert all(result[-1] != os.getpid() for result in results)


def test_a_local_function_is_a_job(here: Here) -> None:
    """A closure travels by value."""
    here()
    offset = 40

    @grn.job
    def add(number: int) -> tuple[int, int]:
        return offset + number, os.getpid()

    total, pid = add(2)
    assert total == 42
    assert pid != os.getpid()


def test_the_environment_is_there_before_the_first_statement(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Switches that a framework reads at its import are set, also if the caller has it loaded."""
    here()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert decorated.knobs() == {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "loaded": "False",
    }


def test_a_switch_of_ones_own_is_kept_with_a_warning(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's preallocation stays, and what it costs is said once, at the caller's line."""
    here()
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    with pytest.warns(RuntimeWarning, match="XLA_PYTHON_CLIENT_PREALLOCATE=true stays") as said:
        assert decorated.knobs()["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert [each.filename for each in said if "XLA" in str(each.message)] == [__file__]


def test_in_place_a_loaded_framework_is_warned_of(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment comes too late, it is said and not pretended."""
    here()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.warns(RuntimeWarning, match="torch is imported already") as said:
        decorated.in_place(1)
    assert [each.filename for each in said if "torch" in str(each.message)] == [__file__]
    applied._kept.clear()


def test_without_a_broker_it_can_run_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`continue_on_server_unavailable=True` warns and runs; without it the error is the caller's."""
    here(start=False)

    def none_here(*_: object) -> None:
        raise grn.BrokerUnavailable("none here")

    monkeypatch.setattr("grn.hub.connect_or_start", none_here)
    go_on = grn.job(continue_on_server_unavailable=True)(decorated.train.__wrapped__)
    with pytest.warns(RuntimeWarning, match="train runs without a lease: none here"):
        assert go_on(2.0)["loss"] == 2.0
    with pytest.raises(grn.BrokerUnavailable, match="none here"):
        decorated.train(2.0)
