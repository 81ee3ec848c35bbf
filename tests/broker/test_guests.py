"""Several users at one broker, which runs as root: what each may do, and see of the others."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from grn.broker.guests import Guests
from grn.errors import GrnError, LeaseError
from grn.rules.guests import HIDDEN
from grn.watching import Watch
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.env import BrokerEnv
    from tests.talker import Talker

    NewEnv = Callable[..., BrokerEnv]

ALICE, BOB = 65533, 65534
SECRET, LABEL = "python train.py --key hush", "the-secret-one"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")


@contextmanager
def user(uid: int) -> Iterator[None]:
    """Be this user for a moment: the kernel tells a broker who connected, as of then."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def talker_of(env: BrokerEnv, uid: int) -> Talker:
    """Connect as this user."""
    with user(uid):
        return env.talker()


@pytest.fixture
def open_folder() -> Iterator[str]:
    """Return a folder that everybody may enter."""
    with tempfile.TemporaryDirectory(prefix="grn-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)  # noqa: S103
        yield folder


@pytest.fixture
def shared(open_folder: str, new_env: NewEnv) -> Callable[..., BrokerEnv]:
    """Return a function that makes a broker of root's to which everybody may connect."""

    def make(files: int | None = None, **settings: Any) -> BrokerEnv:
        env = new_env("sim:2x10000MiB", folder=open_folder, start=False, **settings)
        env.start(preexec_fn=None if files is None else partial(_few_files, files))
        os.chmod(env.socket, 0o666)  # noqa: S103
        return env

    return make


def _few_files(most: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def test_nobody_sees_what_anothers_job_is(shared: Callable[..., BrokerEnv]) -> None:
    """Whose it is and what it holds is seen; root sees all, as does its own user."""
    env = shared()
    alice, bob, root = (talker_of(env, uid) for uid in (ALICE, BOB, 0))
    with user(BOB):
        watch = Watch(env.socket, status_every_s=0.1)
    grant = alice.acquire(SECRET, memory_mib=10000, label=LABEL)
    alice.acquire(SECRET, memory_mib=10000, label=LABEL)
    waits = alice.ask(SECRET, memory_mib=10000, label=LABEL)
    own = bob.ask("mine", memory_mib=9000, label="my-label")
    status = bob.status()
    told = [status, bob.call("explain", subject="mine"), bob.call("explain", subject=str(own))]
    assert SECRET not in repr(told)
    assert LABEL not in repr(told)
    assert [(x["type"], x["label"], x["uid"]) for x in status["leases"]] == 2 * [
        (HIDDEN, HIDDEN, ALICE)
    ]
    assert [x["type"] for x in status["waiters"]] == [HIDDEN, "mine"]
    assert [x["booked_mib"] for x in status["leases"]] == [10000, 10000]
    for seeing in (alice, root):
        assert [x["label"] for x in seeing.status()["leases"]] == [LABEL, LABEL]
    refused = bob.call("explain", subject=grant["lease"])
    assert (refused["op"], refused["code"]) == ("error", "lease")
    assert f"user {ALICE}" in refused["message"]
    assert alice.call("explain", subject=grant["lease"])["explanation"]["type"] == SECRET
    alice.release(grant)
    alice.granted(waits)
    refused = bob.call("explain", subject=grant["lease"])
    assert (refused["op"], refused["code"]) == ("error", "lease")
    heard = []
    while not any("'ended'" in repr(x) for x in heard):
        what = watch.next(PATIENCE_S)
        assert what is not None
        heard.append(what)
    watch.close()
    assert {"event", "status"} <= {kind for kind, _ in heard}
    assert SECRET not in repr(heard)
    assert LABEL not in repr(heard)
    with user(BOB):
        later = Watch(env.socket, since=0)
    kept = [later.next(PATIENCE_S) for _ in range(4)]
    later.close()
    assert None not in kept
    assert SECRET not in repr(kept)


def test_an_open_broker_shows_all(shared: Callable[..., BrokerEnv]) -> None:
    """`private = no`: a team that wants to know what its colleagues run."""
    env = shared(private="no")
    alice, bob = talker_of(env, ALICE), talker_of(env, BOB)
    grant = alice.acquire(SECRET, memory_mib=1000, label=LABEL)
    assert [x["label"] for x in bob.status()["leases"]] == [LABEL]
    assert bob.call("explain", subject=grant["lease"])["explanation"]["type"] == SECRET


def test_nobody_ends_anothers_job(shared: Callable[..., BrokerEnv]) -> None:
    """Neither its lease, nor its wait, nor the broker that keeps both."""
    env = shared()
    alice, bob = talker_of(env, ALICE), talker_of(env, BOB)
    grant = alice.acquire("t", memory_mib="whole", gpus=2)
    waits = alice.ask("t", memory_mib=1000)
    lease = grant["lease"]
    for op in ("release", "peak"):
        answer = bob.call(op, lease=lease, exit_code=0, mib=5)
        assert (answer["op"], answer["code"]) == ("error", "lease"), op
    bob.tell("started", lease=lease, pid=os.getpid())
    bob.tell("cancel", id=waits)
    assert bob.call("adopt", leases=[lease])["leases"] == []
    assert bob.call("stop")["code"] == "lease"
    bob.close()
    assert not alice.decided([waits])
    assert [x["id"] for x in env.status()["leases"]] == [lease]
    alice.release(grant)
    alice.granted(waits)


def test_a_user_may_run_so_many(shared: Callable[..., BrokerEnv]) -> None:
    """What is over a user's limit waits with that reason, and holds nobody up."""
    env = shared(limits=f"user:*=2,user:{BOB}=1")
    alice, bob = talker_of(env, ALICE), talker_of(env, BOB)
    grants = [alice.acquire("t", memory_mib=1000) for _ in range(2)]
    third, first = alice.ask("t", memory_mib=1000), bob.acquire("t", memory_mib=1000)
    second = bob.ask("t", memory_mib=1000)
    reasons = [waiter["reason"] for waiter in env.status()["waiters"]]
    assert reasons == [
        f"2 of at most 2 jobs of user {ALICE} run already",
        f"1 of at most 1 jobs of user {BOB} run already",
    ]
    alice.release(grants[0])
    alice.granted(third)
    assert not bob.decided([second])
    bob.release(first)
    bob.granted(second)


def test_a_crowd_of_one_users_connections_leaves_room_for_others(
    shared: Callable[..., BrokerEnv],
) -> None:
    """A guest gets a part of the descriptors, and is told so; the broker's own user is none."""
    env = shared(files=128)
    bob = [talker_of(env, BOB) for _ in range(32)]
    with pytest.raises(GrnError, match=f"user {BOB} has 32 connections"):
        talker_of(env, BOB)
    with user(BOB):
        silent = [socket.socket(socket.AF_UNIX) for _ in range(60)]
        for each in silent:
            each.connect(env.socket)
    alice = talker_of(env, ALICE)
    alice.release(alice.acquire("t", memory_mib=1000))
    own = [env.talker() for _ in range(20)]
    assert all(each.status()["devices"] for each in own)
    for each in silent:
        each.close()
    bob[0].close()
    eventually(lambda: _connects(env))


def _connects(env: BrokerEnv) -> bool:
    try:
        talker_of(env, BOB)
    except GrnError:
        return False
    return True


def test_guests_are_neither_root_nor_the_brokers_user() -> None:
    """To them everything is shown."""
    guests = Guests(1000)
    job = {"uid": 1001, "type": "t", "label": ""}
    assert guests.shown(job, 0) == guests.shown(job, 1000) == guests.shown(job, 1001) == job
    assert guests.shown([job], 1002) == [{"uid": 1001, "type": HIDDEN, "label": ""}]
    with pytest.raises(LeaseError, match="user 1001"):
        guests.explained({"subject": "x", "job": job}, 1002)
    assert Guests(1000, private=False).shown(job, 1002) == job
