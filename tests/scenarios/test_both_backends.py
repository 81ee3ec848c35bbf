"""The promises that matter most, on simulated devices and behind an NVIDIA driver alike.

The driver is a stand-in, its binding is the real one; the jobs are the same on both.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from tests.env import PATIENCE_S, eventually, wait_gone
from tests.scenarios.standin import Diary, line, most_at_once, touch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.supervise.grnrun import GrnRun

    NewEnv = Callable[..., BrokerEnv]
    NewRun = Callable[..., GrnRun]

FAST = {"sample_fast": "0.05", "sample_slow": "0.1"}
REST_S = 0.5
"""Longer than a look at the devices counts as fresh."""

ENDINGS = [signal.SIGTERM, signal.SIGKILL]


def device(env: BrokerEnv, place: int = 0) -> dict[str, Any]:
    """Return what the books say of one device."""
    entry: dict[str, Any] = env.status()["devices"][place]
    return entry


def given(grant: dict[str, Any]) -> list[str]:
    """Return the devices of a grant."""
    return [entry["uuid"] for entry in grant["devices"]]


def profile(env: BrokerEnv, job_type: str) -> dict[str, Any]:
    """Return what is known of a type."""
    return {entry["type"]: entry for entry in env.talker().profiles()}[job_type]


def is_kept(env: BrokerEnv) -> bool:
    """Whether a profile was written to the store; that is soon after a run, not at once."""
    path = os.path.join(env.environ["GRN_STATE_DIR"], "profiles.sqlite")
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        return store.execute("SELECT 1 FROM profiles").fetchone() is not None


def only_lease(env: BrokerEnv) -> dict[str, Any]:
    """Return the one lease; nothing while there are none or more."""
    leases: list[dict[str, Any]] = env.status()["leases"]
    return leases[0] if len(leases) == 1 else {}


def wait_measured(env: BrokerEnv, mib: int, place: int = 0) -> None:
    """Wait until the jobs of a device are seen to hold so much."""
    eventually(lambda: device(env, place)["measured_mib"] == mib, what=f"{mib} MiB measured")


def replace_broker(env: BrokerEnv, how: signal.Signals) -> None:
    """End the broker, in order or by force, and start the next."""
    if how == signal.SIGKILL:
        env.kill()
    else:
        assert env.stop(how) == 0
    env.start()


def test_a_first_run_is_alone_and_measured_and_the_next_share(new_run: NewRun, kind: str) -> None:
    """Three siblings wait for the first, whose peak then places them on one device together."""
    run = new_run(f"{kind}:1x10000MiB")
    diary = Diary(run.path("diary"))
    first = line("--memory=2000MiB", f"--until-file={run.path('first')}", diary.option)
    later = line("--memory=2000MiB", f"--until-file={run.path('go')}", diary.option)
    four = run.start("--type=t", "--json", first, later, later, later)
    wait_measured(run.env, 2000)
    assert only_lease(run.env)["state"] == "probe"
    assert len(run.env.status()["waiters"]) == 3
    touch(run.path("first"))
    assert most_at_once(diary.wait_for_holds(4)) == 3
    wait_measured(run.env, 6000)
    assert device(run.env)["free_mib"] == 4000
    touch(run.path("go"))
    out, said = four.communicate(timeout=PATIENCE_S)
    assert four.returncode == 0, said
    assert [job["peak_mib"] for job in json.loads(out)["jobs"]] == [2000] * 4
    known = profile(run.env, "t")
    assert (known["state"], known["estimate_mib"]) == ("settled", 2000)


def test_declared_sizes_fill_a_device_and_the_queue_moves_on(new_run: NewRun, kind: str) -> None:
    """Five shares fill a device to the last MiB; the sixth gets the first one that is free."""
    run = new_run(f"{kind}:1x10000MiB")
    diary = Diary(run.path("diary"))
    jobs = [line("--memory=2000MiB", f"--until-file=go{n}", diary.option) for n in range(6)]
    started = [run.start("-q", "--memory=2000MiB", job) for job in jobs[:5]]
    diary.wait_for_holds(5)
    assert device(run.env)["free_mib"] == 0
    sixth = run.start("-q", "--memory=2000MiB", jobs[5])
    (waiter,) = eventually(lambda: run.env.status()["waiters"], what="a waiter")
    assert "2000" in waiter["reason"]
    touch(run.path("go3"))
    diary.wait_for_holds(6)
    for n in range(6):
        touch(run.path(f"go{n}"))
    assert [process.wait(PATIENCE_S) for process in [*started, sixth]] == [0] * 6
    assert most_at_once(diary.holds()) == 5


def test_pack_puts_an_exact_fit_beside_others(new_env: NewEnv, kind: str) -> None:
    """Packed shares go where least is free, and one that fits to the MiB is one that fits."""
    env = new_env(f"{kind}:2x10000MiB", policy="pack", **FAST)
    talker = env.talker()
    grants = [talker.acquire("t", memory_mib=mib) for mib in (4000, 6000, 1)]
    first, second, third = map(given, grants)
    assert first == second != third
    assert [entry["free_mib"] for entry in env.status()["devices"]] == [0, 9999]


@pytest.mark.parametrize("how", ENDINGS, ids=["SIGTERM", "SIGKILL"])
def test_the_next_broker_takes_over_what_runs(
    new_run: NewRun, kind: str, how: signal.Signals
) -> None:
    """Jobs go on under the next broker, which knows what they hold and whom it told to wait."""
    run = new_run(f"{kind}:1x10000MiB")
    diary = Diary(run.path("diary"))
    go = f"--until-file={run.path('go')}"
    held = line("--memory=4000MiB", go, diary.option)
    two = run.start("-q", "--memory=4000MiB", held, held)
    diary.wait_for_holds(2)
    third = run.start("-q", "--memory=4000MiB", line("--memory=4000MiB", diary.option))
    eventually(lambda: run.env.status()["waiters"], what="a waiter")
    replace_broker(run.env, how)
    eventually(lambda: len(run.env.status()["leases"]) == 2, what="both leases")
    wait_measured(run.env, 8000)
    eventually(lambda: run.env.status()["waiters"], what="the waiter is back")
    assert (device(run.env)["free_mib"], device(run.env)["foreign_mib"]) == (2000, 0)
    touch(run.path("go"))
    assert [process.wait(2 * PATIENCE_S) for process in (two, third)] == [0, 0]
    assert most_at_once(diary.holds()) == 2


@pytest.mark.parametrize("how", ENDINGS, ids=["SIGTERM", "SIGKILL"])
def test_what_was_learnt_outlives_the_broker(
    new_run: NewRun, kind: str, how: signal.Signals
) -> None:
    """After a restart the next run of a type is placed by what the first one taught."""
    run = new_run(f"{kind}:1x10000MiB")
    first = run.start("-q", "--type=t", line("--memory=3000MiB", f"--until-file={run.path('end')}"))
    wait_measured(run.env, 3000)
    touch(run.path("end"))
    assert first.wait(PATIENCE_S) == 0
    eventually(lambda: is_kept(run.env), what="the profile is on disk")
    replace_broker(run.env, how)
    known = profile(run.env, "t")
    assert (known["estimate_mib"], known["runs"]) == (3000, 1)
    again = run.start("-q", "--type=t", line(f"--until-file={run.path('go')}"))
    lease = eventually(lambda: only_lease(run.env), what="a lease")
    assert (lease["state"], lease["booked_mib"]) == ("running", 3000)
    touch(run.path("go"))
    assert again.wait(PATIENCE_S) == 0


def test_the_lease_of_a_killed_client_drains(new_env: NewEnv, kind: str) -> None:
    """Its job lives on and holds memory: the lease lasts as long, then who waits gets the device."""
    env = new_env(f"{kind}:1x10000MiB", **FAST)
    owner, waiter = env.remote(), env.talker()
    job = env.job(owner, owner.acquire("t", memory_mib=4000), "--memory=4000MiB")
    job.wait_holding()
    wait_measured(env, 4000)
    owner.kill()
    request = waiter.ask("b", memory_mib=8000)
    eventually(lambda: only_lease(env).get("state") == "draining", what="the lease drains")
    eventually(lambda: only_lease(env)["left_over"] == [job.pid], what="the job is named")
    assert not waiter.decided([request])
    job.finish()
    waiter.granted(request)


def test_a_worker_left_behind_keeps_the_lease(new_env: NewEnv, kind: str) -> None:
    """A killed job's worker still holds memory of the lease; it counts, and it is named."""
    env = new_env(f"{kind}:1x10000MiB", **FAST)
    owner, waiter = env.remote(), env.talker()
    tree = ("--memory=1000MiB", "--children=1", "--child-memory=3000MiB")
    job = env.job(owner, owner.acquire("t", memory_mib=4000), *tree)
    job.wait_holding()
    wait_measured(env, 4000)
    (worker,) = procs.children(job.pid)
    os.kill(job.pid, signal.SIGKILL)
    wait_gone(job.pid)
    owner.kill()
    request = waiter.ask("b", memory_mib=8000)
    eventually(lambda: only_lease(env).get("left_over") == [worker], what="the worker is named")
    assert not waiter.decided([request])
    job.finish()
    waiter.granted(request)


def test_memory_of_others_is_not_handed_out(new_env: NewEnv, kind: str) -> None:
    """What a process outside of GRN holds is foreign; once it has ended, who waits is served."""
    env = new_env(f"{kind}:1x10000MiB", **FAST)
    other = env.foreign(0, 6000)
    eventually(lambda: device(env)["foreign_mib"] == 6000, what="foreign memory")
    assert device(env)["free_mib"] == 4000
    talker = env.talker()
    request = talker.ask("t", memory_mib=5000)
    assert not talker.decided([request])
    (waiter,) = env.status()["waiters"]
    assert "6000 used by others" in waiter["reason"]
    other.kill()
    other.wait()
    talker.granted(request)


def test_memory_of_others_that_comes_later_is_seen_before_a_grant(
    new_env: NewEnv, kind: str
) -> None:
    """The devices are looked at before the first grant after a rest, not at the next turn."""
    env = new_env(f"{kind}:2x10000MiB", sample_fast="60", sample_slow="60")
    talker = env.talker()
    time.sleep(REST_S)
    env.foreign(0, 9000)
    grant = talker.acquire("t", memory_mib=5000)
    assert given(grant) == [env.status()["devices"][1]["uuid"]]


def test_a_job_that_outgrows_its_booking_counts_for_what_it_holds(
    new_env: NewEnv, kind: str
) -> None:
    """Growth beyond the booking is nobody else's room, and the booking stays what it was."""
    env = new_env(f"{kind}:1x10000MiB", **FAST)
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=2000)
    job = env.job(talker, grant, "--plan=0:1000MiB 0.1:5000MiB")
    wait_measured(env, 5000)
    entry = device(env)
    assert (entry["booked_mib"], entry["free_mib"], entry["foreign_mib"]) == (2000, 5000, 0)
    request = talker.ask("b", memory_mib=6000)
    assert not talker.decided([request])
    assert job.finish() == 0
    assert talker.release(grant)["peak_mib"] == 5000
    talker.granted(request)


def test_a_job_that_dies_of_a_full_device_is_known_as_such(new_run: NewRun, kind: str) -> None:
    """Its outcome is out of memory; its own status and words reach the shell."""
    run = new_run(f"{kind}:1x10000MiB")
    done = run("--json", "--memory=3000MiB", line("--plan=0:1000MiB 0.2:12000MiB"))
    assert done.returncode == 1
    assert json.loads(done.stdout)["jobs"][0]["outcome"] == "oom"
    assert b"CUDA out of memory" in done.stderr
    eventually(lambda: device(run.env)["free_mib"] == 10000, what="the device is free")


@pytest.mark.parametrize("style", ["index", "uuid"])
def test_devices_are_taken_in_the_order_of_the_mask(new_env: NewEnv, kind: str, style: str) -> None:
    """Of equally free devices the first in the broker's own mask comes first; the rest is hidden."""
    env = new_env(f"{kind}:3x10000MiB", start=False)
    env.environ["CUDA_VISIBLE_DEVICES"] = "2,0"
    if style == "uuid":
        env.environ["CUDA_VISIBLE_DEVICES"] = ",".join(uuids_of(env, (2, 0)))
    env.start()
    talker = env.talker()
    grants = [talker.acquire("t", memory_mib=1000) for _ in range(2)]
    assert [uuid for grant in grants for uuid in given(grant)] == [
        entry["uuid"] for entry in env.status()["devices"]
    ]
    assert [entry["index"] for entry in env.status()["devices"]] == [2, 0]


def uuids_of(env: BrokerEnv, cards: tuple[int, ...]) -> list[str]:
    """Return the UUIDs of cards before a broker has made them, or any machine's."""
    from grn.devices.simsetup import card_uuid

    return [card_uuid(card) if env.box is None else env.box.uuid(card) for card in cards]


def test_a_job_sees_the_devices_that_it_was_given(new_run: NewRun, kind: str) -> None:
    """Numbers in bus order, whatever CUDA's own order: the job's cuda:0 is the booked card."""
    run = new_run(f"{kind}:1x8000MiB,1x12000MiB,1x12200MiB,order=fastest:2,1,0")
    done = run(
        "-q", "--memory=12100MiB", line("--memory=12100MiB", "--seconds=0", "--print-devices")
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(rb"cuda:(\d) index=(\d)", done.stdout) == [(b"0", b"2")]


def test_slices_of_a_card_are_devices(new_run: NewRun, kind: str) -> None:
    """Two jobs get a MIG slice each, by its own UUID; the divided card itself is no device."""
    run = new_run(f"{kind}:1x80GiB,mig=0:20GiB+20GiB")
    diary = Diary(run.path("diary"))
    go = f"--until-file={run.path('go')}"
    two = run.start("-q", "--memory=15GiB", *[line("--memory=15GiB", go, diary.option)] * 2)
    diary.wait_for_holds(2)
    uuids = {entry["uuid"] for entry in run.env.status()["devices"]}
    assert {hold.device for hold in diary.holds()} == uuids
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    wait_measured(run.env, 15360, 0)
    wait_measured(run.env, 15360, 1)
    touch(run.path("go"))
    assert two.wait(PATIENCE_S) == 0


def test_an_exclusive_card_is_given_to_one(new_env: NewEnv, kind: str) -> None:
    """In exclusive-process mode a card has one lease, however small."""
    env = new_env(f"{kind}:1x10000MiB,mode=exclusive", **FAST)
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=1000)
    request = talker.ask("t", memory_mib=1000)
    assert not talker.decided([request])
    talker.release(grant)
    talker.granted(request)


def test_a_lost_card_costs_nobody_else(new_env: NewEnv, kind: str) -> None:
    """What fell off the bus is named and given to nobody; the other card serves on."""
    env = new_env(f"{kind}:2x10000MiB", **FAST)
    env.lose(0)
    eventually(lambda: device(env, 0)["state"] != "ok", what="the card is lost")
    talker = env.talker()
    grant = talker.acquire("t", memory_mib="whole")
    assert given(grant) == [device(env, 1)["uuid"]]
    assert device(env, 1)["state"] == "ok"
    job = env.job(talker, grant, "--memory=1000MiB")
    wait_measured(env, 1000, place=1)
    assert job.finish() == 0
    talker.release(grant)
