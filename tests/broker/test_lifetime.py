"""A lease ends by release or by proof of death, and lasts while its processes hold memory."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from tests.env import eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

NOBODY = 65534


def detached_child(log: str) -> int:
    """Return the process that a stand-in job has left behind, by its log."""
    with open(log, encoding="utf-8") as file:
        return int(file.read().partition("detached child=")[2].split()[0])


def _with_no_memory(status: dict[str, Any]) -> dict[str, Any] | None:
    (lease,) = status["leases"]
    found: dict[str, Any] = lease
    return found if found["left_over"] and found["measured_mib"] == 0 else None


def test_a_killed_client_frees_its_lease(new_env: NewEnv):
    """When the owner dies and nothing of it holds memory, a waiter is granted at once."""
    env = new_env(sample_fast="60", sample_slow="60")
    owner, waiter = env.remote(), env.talker()
    owner.acquire("a", memory_mib="whole")
    request = waiter.ask("b", memory_mib="whole")
    assert not waiter.decided([request])
    owner.kill()
    assert waiter.granted(request, within_s=10)


def test_a_killed_client_no_longer_waits(new_env: NewEnv):
    """What a dead client waited for is withdrawn, and who waited behind it moves up."""
    env = new_env()
    holder, ghost, waiter = env.talker(), env.remote(), env.talker()
    grant = holder.acquire("a", memory_mib=4000)
    ghost.ask("head", memory_mib="whole")
    ghost.status()
    request = waiter.ask("b", memory_mib=4000)
    assert not waiter.decided([request])
    ghost.kill()
    waiter.granted(request, within_s=10)
    assert holder.status()["waiters"] == []
    holder.release(grant)


def test_the_job_of_a_killed_client_keeps_its_memory(new_env: NewEnv):
    """The submitter dies, the job lives: the lease stays until the job has ended."""
    env = new_env()
    owner, waiter = env.remote(), env.talker()
    owner.know("t", 4000)
    job = env.job(owner, owner.acquire("t"), "--memory=4000MiB")
    job.wait_holding()
    owner.kill()
    request = waiter.ask("b", memory_mib=8000)
    status = eventually(lambda: _with_lease_state(waiter.status(), "draining"))
    assert status["devices"][0]["free_mib"] == 6000
    eventually(lambda: waiter.status()["leases"][0]["left_over"] == [job.pid])
    assert not waiter.decided([request])
    job.finish()
    assert waiter.granted(request, within_s=10)


def test_a_job_that_has_not_allocated_yet_outlives_its_client(new_env: NewEnv):
    """Also before it holds memory, a job whose submitter died keeps what is booked for it."""
    env = new_env(sample_fast="0.05")
    owner, waiter = env.remote(), env.talker()
    job = env.job(owner, owner.acquire("t", memory_mib=4000))
    owner.status()
    owner.kill()
    request = waiter.ask("b", memory_mib=8000)
    eventually(lambda: _with_lease_state(waiter.status(), "draining"))
    assert not waiter.decided([request])
    assert procs.start_time(job.pid) is not None
    job.finish()
    assert waiter.granted(request, within_s=10)


def test_a_worker_that_has_not_allocated_yet_outlives_client_and_parent(new_env: NewEnv):
    """A shell that is killed with its client has started a training: it will want its share."""
    env = new_env(sample_fast="0.05")
    owner, waiter = env.remote(), env.talker()
    grant = owner.acquire("t", memory_mib=4000)
    log = os.path.join(env.folder, "job.log")
    shell = env.job(owner, grant, "--memory=4000MiB", "--detached-child=3600", f"--log={log}")
    shell.wait_holding()
    worker = detached_child(log)
    owner.kill()
    os.kill(shell.pid, 9)
    wait_gone(shell.pid)
    request = waiter.ask("b", memory_mib=8000)
    try:
        lease = eventually(lambda: _with_no_memory(waiter.status()), what="a kept lease")
        assert (lease["state"], lease["left_over"]) == ("draining", [worker])
        assert not waiter.decided([request])
        env.restart()
        waiter = env.talker()
        request = waiter.ask("b", memory_mib=8000)
        assert not waiter.decided([request])
    finally:
        os.kill(worker, 9)
    assert waiter.granted(request, within_s=10)


def test_a_grandchild_with_the_marker_keeps_the_lease(new_env: NewEnv):
    """A worker that outlives the job's main process keeps the lease while it holds memory."""
    env = new_env(sample_fast="0.05")
    owner, waiter = env.remote(), env.talker()
    grant = owner.acquire("t", memory_mib=4000)
    args = ("--memory=1000MiB", "--children=1", "--child-memory=3000MiB")
    job = env.job(owner, grant, *args)
    job.wait_holding()
    (worker,) = procs.children(job.pid)
    os.kill(job.pid, 9)
    wait_gone(job.pid)
    owner.kill()
    request = waiter.ask("b", memory_mib=8000)
    eventually(lambda: _with_lease_state(waiter.status(), "draining"))
    assert not waiter.decided([request])
    eventually(lambda: waiter.status()["leases"][0]["left_over"] == [worker])
    job.finish()
    assert waiter.granted(request, within_s=10)


def test_a_job_that_is_still_there_at_the_release_keeps_the_lease(new_env: NewEnv):
    """A lease given back while its processes hold memory is free when the memory is."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=4000)
    job = env.job(talker, grant, "--memory=4000MiB")
    job.wait_holding()
    assert talker.release(grant, exit_code=None, signal=9)["draining"] is True
    request = talker.ask("b", memory_mib="whole")
    assert not talker.decided([request])
    assert job.finish() == 0
    assert talker.granted(request, within_s=10)


def test_a_release_of_what_just_ended(new_env: NewEnv):
    """A lease that drains, given back again in the moment when it is free, is told as ended."""
    env = new_env(sample_fast="60", sample_slow="60")
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=4000, in_process=True)
    job = env.job(talker, grant, "--memory=4000MiB", name_it=False)
    job.wait_holding()
    eventually(lambda: talker.status()["leases"][0]["measured_mib"] == 4000)
    assert talker.release(grant)["draining"] is True
    assert job.finish() == 0
    again = talker.call("release", lease=grant["lease"], exit_code=0)
    assert (again["op"], again["code"]) == ("refused", "lease")
    assert talker.status()["leases"] == []


def test_a_left_over_without_memory_keeps_nothing(new_env: NewEnv):
    """A helper that stays behind without memory does not keep the lease, but status names it."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("t", memory_mib=3000)
    request = talker.ask("b", memory_mib="whole")
    log = os.path.join(env.folder, "job.log")
    job = env.job(talker, grant, "--memory=3000MiB", "--detached-child=3600", f"--log={log}")
    job.wait_holding()
    left = detached_child(log)
    try:
        assert job.finish() == 0
        talker.release(grant)
        talker.granted(request, within_s=10)
        (warning,) = talker.status()["warnings"]
        assert grant["lease"] in warning
        assert str(left) in warning
    finally:
        os.kill(left, 9)
        wait_gone(left)
    assert talker.status()["warnings"] == []


def test_a_closed_connection_is_no_proof_of_death(new_env: NewEnv):
    """A client that lost its connection but lives keeps its lease, and can use it again."""
    env = new_env()
    owner, waiter = env.remote(), env.talker()
    grant = owner.acquire("a", memory_mib="whole")
    owner.close()
    request = waiter.ask("b", memory_mib="whole")
    assert not waiter.decided([request])
    owner.connect()
    assert owner.call("adopt", leases=[grant["lease"]])["leases"] == [grant["lease"]]
    owner.release(grant)
    waiter.granted(request)


def test_a_lease_belongs_to_its_owner(new_env: NewEnv):
    """Another process can neither release nor adopt a lease, nor name its main process."""
    env = new_env()
    owner, other = env.remote(), env.talker()
    lease = owner.acquire("a", memory_mib=1000)["lease"]
    assert other.call("release", lease=lease, exit_code=0)["code"] == "lease"
    assert other.call("adopt", leases=[lease])["leases"] == []
    assert other.call("started", lease=lease, pid=os.getpid())["code"] == "lease"
    assert [x["id"] for x in other.status()["leases"]] == [lease]


def test_a_release_twice_is_told(new_env: NewEnv):
    """Giving back what is not held is an error reply; the connection goes on."""
    env = new_env()
    talker = env.talker()
    grant = talker.acquire("a", memory_mib=1000)
    talker.release(grant)
    again = talker.call("release", lease=grant["lease"], exit_code=0)
    assert (again["op"], again["code"]) == ("error", "lease")
    talker.release(talker.acquire("a", memory_mib=1000))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of two users")
def test_a_live_process_of_another_user_is_not_dead(new_env: NewEnv):
    """No permission to signal the owner means that it lives: the lease is kept until it ends."""
    with tempfile.TemporaryDirectory(prefix="grn-", dir="/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        env = new_env(folder=folder, start=False)
        env.program = ["tests.as_user", str(NOBODY), "077", *env.program[1:]]
        env.start()
        owner, waiter = env.remote(), env.talker()
        lease = owner.acquire("a", memory_mib="whole")["lease"]
        request = waiter.ask("b", memory_mib="whole")
        owner.close()
        assert procs.uid(env.pid) == NOBODY
        assert not waiter.decided([request])
        assert [x["id"] for x in waiter.status()["leases"]] == [lease]
        owner.kill()
        waiter.granted(request, within_s=10)
        env.close()


def _with_lease_state(status: dict[str, Any], state: str) -> dict[str, Any]:
    return status if [lease["state"] for lease in status["leases"]] == [state] else {}
