"""Leases as blocks of code."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import types
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import grn
from grn import applied
from grn.errors import LeaseError, UsageError, WaitExpired
from grn.testing.cuda import SimulatedCuda
from tests.env import eventually
from tests.python.bodies import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv
    from tests.python.conftest import Scripts

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device

TOLD = (
    "import json, os; print(json.dumps({n: v for n, v in os.environ.items()"
    " if n.startswith(('GRN_', 'CUDA_', 'XLA_', 'TF_', 'OMP_'))}))"
)


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what other tests have imported, or left open, be of no matter."""
    for name in ("numpy", "torch", "jax", "tensorflow", "cupy", "numba"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    applied._kept.clear()


def profiles(env: BrokerEnv) -> dict[str, dict[str, Any]]:
    """Return what was learnt, by type."""
    return {profile["type"]: profile for profile in env.client().profiles()}


def test_a_block_holds_a_lease_and_gives_it_back(here: Here) -> None:
    """Inside the block the books have it, behind it they do not."""
    env = here("sim:2x10000MiB")
    with grn.lease(memory="4GiB", label="mine") as lease:
        (held,) = env.status()["leases"]
        assert (held["id"], held["label"], held["pid"]) == (lease.id, "mine", os.getpid())
        assert lease.memory_mib == 4096
        assert [device["index"] for device in lease.devices] == [0]
    assert not env.status()["leases"]


def test_a_subprocess_is_told_by_the_leases_variables(here: Here) -> None:
    """`{**os.environ, **lease.env}` is what `grn run` would give a command."""
    here("sim:2x10000MiB")
    with grn.lease(memory=1000) as lease:
        done = subprocess.run(
            [sys.executable, "-c", TOLD],
            env={**os.environ, **lease.env},
            check=True,
            capture_output=True,
        )
        found = json.loads(done.stdout)
        assert found["CUDA_VISIBLE_DEVICES"] == "0"
        assert found["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert found["GRN_LEASE"] == lease.id
        assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
        assert found["GRN_MEM_MIB"] == "1000"
        assert lease.environment() == {**os.environ, **lease.env}
        assert "CUDA_VISIBLE_DEVICES" in lease.explain()
        assert "GRN_LEASE" not in os.environ


def test_a_fraction_of_the_lease_stands_for_the_inherited_one(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX has two names for it and starts with one only: the other is gone, until the end."""
    here("sim:2x10000MiB")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.2")
    asked = {"XLA_CLIENT_MEM_FRACTION": "0.1", "OMP_NUM_THREADS": "1"}
    with grn.lease(memory=5000, env=asked) as lease:
        assert lease.env["OMP_NUM_THREADS"] == "1"
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in lease.environment()
        lease.apply()
        assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in os.environ
        assert os.environ["XLA_CLIENT_MEM_FRACTION"] == "0.1"
    assert os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.2"
    assert "XLA_CLIENT_MEM_FRACTION" not in os.environ


def test_apply_changes_this_process_until_the_end(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is the lease's inside, and as it was before afterwards."""
    here("sim:2x10000MiB")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    before = dict(os.environ)
    with grn.lease(env={"MINE": "1"}) as lease:
        assert dict(os.environ) == before
        lease.apply()
        lease.apply()
        assert os.environ["GRN_LEASE"] == lease.id
        assert os.environ["CUDA_VISIBLE_DEVICES"] in {"0", "1"}
        assert os.environ["MINE"] == "1"
    assert dict(os.environ) == before


def test_a_mask_of_ones_own_narrows_the_lease(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that sees one card is never given another."""
    here("sim:2x10000MiB")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with grn.lease() as lease:
        assert [device["index"] for device in lease.devices] == [1]


def test_what_is_inside_uses_the_outer_lease(here: Here) -> None:
    """A lease asked for where one is in force is a part of it: on one device that cannot hang."""
    env = here()
    with grn.lease(memory="whole") as outer:
        outer.apply()
        with grn.lease() as inner:
            inner.apply()
            assert inner.id == outer.id
            assert len(env.status()["leases"]) == 1
        assert os.environ["GRN_LEASE"] == outer.id
    assert "GRN_LEASE" not in os.environ


def test_the_outer_lease_is_named_at_every_moment(here: Here) -> None:
    """Parts that come and go in threads never hide the lease that they are in."""
    here()
    missing: list[int] = []

    def parts() -> None:
        for _ in range(30):
            with grn.lease(memory=10) as part:
                part.apply()
                if part.id != os.environ.get("GRN_LEASE"):
                    missing.append(1)

    with grn.lease(memory="whole") as outer:
        outer.apply()
        crew = [threading.Thread(target=parts) for _ in range(4)]
        for thread in crew:
            thread.start()
        while any(thread.is_alive() for thread in crew):
            if os.environ.get("GRN_LEASE") != outer.id:
                missing.append(0)
            crew[0].join(0.0005)
        assert not missing
    assert "GRN_LEASE" not in os.environ


def test_threads_cannot_have_different_devices(here: Here) -> None:
    """The second thread is refused, with the cure; it may use its lease for a subprocess."""
    here("sim:2x10000MiB")
    problems: list[str] = []

    def other(lease: grn.HeldLease) -> None:
        try:
            lease.apply()
        except LeaseError as error:
            problems.append(str(error))

    with grn.lease(memory="whole") as one, grn.lease(memory="whole") as two:
        one.apply()
        thread = threading.Thread(target=other, args=(two,))
        thread.start()
        thread.join()
        assert os.environ["GRN_LEASE"] == one.id
        assert two.env["GRN_LEASE"] == two.id
    assert len(problems) == 1
    assert "MainThread" in problems[0]
    assert "isolate=True" in problems[0]


def test_a_late_apply_is_warned_of(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a framework loaded the caller is told what comes too late, at its own line."""
    here()
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with (
        grn.lease() as lease,
        pytest.warns(RuntimeWarning, match="torch is imported already") as said,
    ):
        lease.apply()
    assert said[0].filename == __file__


def test_caps_on_threads_come_too_late_for_numpy(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NumPy reads its caps when it is loaded; no device is spoken of."""
    here()
    monkeypatch.setattr("grn.loaded._THREADED", ("numpy",))
    monkeypatch.setitem(sys.modules, "numpy", types.ModuleType("numpy"))
    with (
        grn.lease() as lease,
        pytest.warns(RuntimeWarning, match="numpy is imported.*threads") as said,
    ):
        lease.apply()
    assert "mask" not in str(said[0].message)


def test_before_any_import_nothing_is_warned_of(here: Here) -> None:
    """In a fresh process there is nothing to say."""
    here()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with grn.lease(gpus=0) as lease:
            lease.apply()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def framework(*, started: bool) -> types.ModuleType:
    """Return a stand-in for PyTorch."""
    torch: Any = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: started)
    return torch


@pytest.mark.filterwarnings("ignore:lease")
def test_a_process_keeps_the_device_that_it_has_open(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lease under which CUDA was started, later ones are on the same device."""
    here("sim:2x10000MiB")
    with grn.lease() as lease:
        lease.apply()
        monkeypatch.setitem(sys.modules, "torch", framework(started=True))
    with grn.lease(memory=5000) as rest, grn.lease(memory=4000) as again:
        assert [d["index"] for d in [*rest.devices, *again.devices]] == [0, 0]
        again.apply()


@pytest.mark.filterwarnings("ignore:lease")
def test_a_bound_process_is_told_why_it_gets_no_more(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wish for two devices is refused with the reason and the cure, not for a mask nobody set."""
    here("sim:2x10000MiB")
    with grn.lease() as lease:
        lease.apply()
        monkeypatch.setitem(sys.modules, "torch", framework(started=True))
    with pytest.raises(grn.Impossible, match=r"open since an earlier lease: use isolate=True"):
        grn.lease(gpus=2).__enter__()


def test_a_block_is_entered_once_at_a_time(here: Here) -> None:
    """Entered again while it holds a lease it would lose that one, so it is refused."""
    here()
    block = grn.lease(memory=100, type="t")
    with block, pytest.raises(LeaseError, match="holds a lease already"):
        block.__enter__()
    with block as again:
        assert again.id


@pytest.mark.filterwarnings("ignore:lease")
def test_a_framework_that_started_no_device_binds_nothing(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import alone does not tie a process to a card."""
    env = here("sim:2x10000MiB")
    monkeypatch.setitem(sys.modules, "torch", framework(started=False))
    with grn.lease() as lease:
        lease.apply()
    talker = env.talker()
    talker.acquire(memory_mib="whole")
    with grn.lease() as lease:
        assert [device["index"] for device in lease.devices] == [1]
        lease.apply()


def test_a_block_that_raises_teaches_nothing(here: Here) -> None:
    """The exception passes through, the device is free, and no profile is made."""
    env = here()
    lost = {}
    with pytest.raises(ZeroDivisionError), grn.lease(type="t") as lease:
        lost["peak"] = lease.report_peak(3000) and 1 // 0
    assert not lost
    assert not env.status()["leases"]
    assert not profiles(env).get("t", {}).get("runs")


def test_a_reported_peak_is_learnt(here: Here) -> None:
    """A lease has its own `report_peak`, whether it is in force here or not."""
    env = here()
    with grn.lease(type="t") as lease:
        assert lease.report_peak(bytes=3000 << 20)
        assert not lease.report_peak()
    assert profiles(env)["t"]["estimate_mib"] == 3000
    with grn.lease(type="t") as lease:
        assert lease.memory_mib == 3000


def test_running_out_of_memory_is_learnt_as_such(here: Here) -> None:
    """A framework's out-of-memory error books more for the next of the type."""
    env = here()
    env.talker().know("t", 1000)
    with pytest.raises(RuntimeError), grn.lease(type="t"):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with grn.lease(type="t") as lease:
        assert lease.memory_mib is not None
        assert lease.memory_mib > 1000


def test_a_lease_is_named_after_its_function(here: Here) -> None:
    """Without a type the calling function is the type."""
    env = here()
    with grn.lease() as lease:
        lease.report_peak(100)
    me = f"{os.path.realpath(__file__)}::test_a_lease_is_named_after_its_function"
    assert set(profiles(env)) == {me}


def test_a_lease_waits_only_as_long_as_it_may(here: Here) -> None:
    """`wait` takes seconds or a text."""
    here()
    with (
        grn.lease(memory="whole"),
        pytest.raises(WaitExpired),
        grn.lease(memory=1, wait="0.05s"),
    ):
        pytest.fail("it was granted")


def test_without_a_broker_a_block_can_run_all_the_same(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`if_unavailable="run"` holds nothing, sets nothing, and says so."""
    here(start=False)
    monkeypatch.setattr("grn.hub.connect_or_start", _no_broker)
    before = dict(os.environ)
    block = grn.lease(if_unavailable="run")
    with pytest.warns(RuntimeWarning, match="without a lease"):
        lease = block.__enter__()
    lease.apply()
    assert (lease.id, lease.devices, lease.memory_mib, lease.env) == ("", [], None, {})
    assert dict(os.environ) == before
    assert not lease.report_peak(10)
    block.__exit__(None, None, None)
    with pytest.raises(grn.BrokerUnavailable), grn.lease():
        pytest.fail("it was granted")


def _no_broker(*_: object) -> None:
    raise grn.BrokerUnavailable("none here")


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"gpus": -1}, "gpus=-1"),
        ({"gpus": True}, "gpus=True"),
        ({"memory": "much"}, "memory 'much'"),
        ({"memory": 0}, "memory=0"),
        ({"ram": 1.5}, "ram=1.5"),
        ({"policy": "best"}, "spread, pack"),
        ({"if_unavailable": "maybe"}, "fail, run"),
        ({"wait": -1}, "wait=-1"),
        ({"priority": "high"}, "priority='high'"),
        ({"priority": -(1 << 41)}, "is too large"),
        ({"type": " "}, "type"),
        ({"type": 3}, "type=3 is not a text"),
        ({"label": 3}, "label=3 is not a text"),
        ({"env": ["A=1"]}, "give a mapping such as"),
    ],
    ids=str,
)
def test_a_wish_that_makes_no_sense_is_refused_where_it_is_written(
    wish: dict[str, Any], says: str
) -> None:
    """The error names the argument and what would do, before any broker is asked."""
    with pytest.raises(UsageError, match=says):
        grn.lease(**wish)


def test_a_flavor_fills_in_what_is_not_given(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own words win over the flavor's, and the flavor's over what is usual."""
    here("sim:2x10000MiB")
    config = tmp_path / "config.toml"
    config.write_text(
        '[flavors.big]\ngpus = 2\nmemory = "3000MiB"\n[flavors.big.env]\nMINE = "flavor"\n'
    )
    monkeypatch.setenv("GRN_CONFIG", str(config))
    with grn.lease(flavor="big") as lease:
        assert (len(lease.devices), lease.memory_mib, lease.env["MINE"]) == (2, 3000, "flavor")
    with grn.lease(flavor="big", gpus=1, memory=2000, env={"MINE": "own"}) as lease:
        assert (len(lease.devices), lease.memory_mib, lease.env["MINE"]) == (1, 2000, "own")
    with pytest.raises(UsageError, match="small"), grn.lease(flavor="small"):
        pytest.fail("there is no such flavor")


def test_many_tasks_hold_leases_at_once(here: Here) -> None:
    """The asynchronous form waits without blocking the loop, and books as the other does."""
    env = here("sim:4x10000MiB")
    most = []

    async def trial(number: int) -> None:
        async with grn.lease_async(memory=8000, type="t") as lease:
            assert lease.memory_mib == 8000
            most.append(len(env.status()["leases"]))
            if number % 2:
                raise ValueError(number)

    async def study() -> list[object]:
        return await asyncio.gather(*map(trial, range(8)), return_exceptions=True)

    ended = asyncio.run(study())
    assert [type(each) for each in ended] == [type(None), ValueError] * 4
    assert max(most) <= 4
    assert not env.status()["leases"]


def test_the_block_of_a_forked_child_is_not_its_own(here: Here) -> None:
    """A child that leaves the parent's block gives nothing back."""
    env = here()
    with grn.lease() as lease:
        pid = os.fork()
        if not pid:
            try:
                with pytest.raises(LeaseError, match="not by this one"):
                    lease.apply()
                lease.take_back()
            except BaseException:  # noqa: BLE001 - the test's copy must not run on
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert [x["id"] for x in env.status()["leases"]] == [lease.id]


def test_workers_of_a_pool_have_leases_of_their_own(scripts: Callable[..., Scripts]) -> None:
    """Forked and spawned workers each get their own device, without a change of their code."""
    made = scripts("sim:2x10000MiB")
    out = made.run(
        "import grn, json, multiprocessing as mp, os, sys\n"
        "def work(barrier):\n"
        "    with grn.lease(memory='whole') as lease:\n"
        "        lease.apply()\n"
        "        barrier.wait(60)\n"
        "        print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "if __name__ == '__main__':\n"
        "    with grn.lease(gpus=None): pass\n"
        "    for way in ('fork', 'spawn'):\n"
        "        kit = mp.get_context(way)\n"
        "        barrier = kit.Barrier(2)\n"
        "        crew = [kit.Process(target=work, args=(barrier,)) for _ in range(2)]\n"
        "        [each.start() for each in crew]\n"
        "        [each.join() for each in crew]\n"
        "        assert not any(each.exitcode for each in crew)\n"
    ).stdout
    assert sorted(out.split()) == ["0", "0", "1", "1"]


def test_what_a_process_still_holds_is_not_given_away(here: Here) -> None:
    """Memory that the block left in the process counts until it is freed."""
    env = here()
    with grn.lease(memory=4000) as lease:
        lease.apply()
        os.environ["GRN_SIM_DIR"] = lease.env["GRN_SIM_DIR"]
        cuda = SimulatedCuda(os.environ)
        cuda.hold(0, 3000)
        assert told()["GRN_LEASE"] == lease.id
    (device,) = env.status()["devices"]
    assert device["free_mib"] <= 7000
    cuda.release()
    eventually(lambda: not env.status()["leases"])
