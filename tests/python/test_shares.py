"""Parts of a device, processes that share one, and cores of one's own, from Python."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

import grn
from grn.affinity import Binding
from grn.errors import UsageError
from tests.env import eventually
from tests.python import decorated

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grn.wishes import Wish
    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device

SHARES: dict[str, Any] = {"memory": 2000, "compute": 30, "processes": 2, "affinity": True}


def mine() -> set[int]:
    """Return the cores of this thread."""
    return os.sched_getaffinity(0)


def booked(env: BrokerEnv, grant: dict[str, Any]) -> tuple[int, int, list[int]]:
    """Return what the books say of the only lease, and its grant of what they do not tell."""
    (lease,) = env.status()["leases"]
    return lease["compute"], grant["processes"], lease["cores"]


def message(lease: grn.HeldLease) -> dict[str, Any]:
    """Return the broker's words."""
    assert lease.grant is not None
    return lease.grant.message


# -- what is asked for ----------------------------------------------------------------------------


def test_a_block_books_its_shares(here: Here) -> None:
    """Both forms of a block ask for a part of the device, for processes and for cores."""
    env = here()
    with grn.lease(**SHARES, cpus=1) as lease:
        assert booked(env, message(lease)) == (30, 2, lease.cores)
        assert len(lease.cores) == 1

    async def block() -> None:
        async with grn.lease_async(**SHARES, cpus=1) as held:
            assert booked(env, message(held)) == (30, 2, held.cores)

    asyncio.run(block())


def test_a_client_books_its_shares(here: Here) -> None:
    """So do the clients; they name the cores, and bind nothing."""
    env = here()
    before = mine()
    wish: dict[str, Any] = {"compute": 30, "processes": 2, "affinity": True, "cpus": 1}
    with grn.Client() as client, client.acquire("t", **wish) as lease:
        assert booked(env, lease.grant) == (30, 2, lease.cores)
        assert lease.cores
        assert mine() == before

    async def ask() -> None:
        async with grn.AsyncClient() as client, await client.acquire("t", **wish) as held:
            assert booked(env, held.grant) == (30, 2, held.cores)

    asyncio.run(ask())


def test_who_asks_for_none_of_it_says_nothing_of_it() -> None:
    """The usual request is no longer for wishes that it does not have."""
    few = {"compute", "processes", "affinity", "core_ids"}
    assert not few & set(request())
    assert not few & set(request(affinity=False))
    assert few <= set(request(compute=30, processes=2, affinity=True))


def wish_of(**given: Any) -> Wish:
    """Return a wish in which the rest is as usual."""
    return grn.lease(**given)._wish


def request(**given: Any) -> dict[str, Any]:
    """Return the message of a wish."""
    return wish_of(**given).request("job", in_process=False)[0]


@pytest.mark.parametrize(
    ("wish", "says"),
    [
        ({"compute": 0}, "compute=0 is not a whole number of 1 to 100"),
        ({"compute": 101}, "compute=101"),
        ({"compute": "30"}, "compute='30'"),
        ({"processes": 0}, "processes=0 is not a whole number of 1 or more"),
        ({"affinity": 1}, "affinity=1 is neither True nor False"),
        ({"compute": 30, "gpus": 0}, "compute=30 is of a device, and gpus=0"),
        ({"memory": 100, "gpus": None}, "memory=100 is of a device, and gpus=None"),
    ],
    ids=str,
)
def test_shares_that_make_no_sense_are_refused(wish: dict[str, Any], says: str) -> None:
    """Where they are written."""
    with pytest.raises(UsageError, match=says):
        grn.lease(**wish)


# -- flavors --------------------------------------------------------------------------------------

FLAVORS = """
[flavors.part]
memory = "3000MiB"
compute = 30
processes = 2
affinity = true
env = { MINE = "flavor", OTHER = "flavor" }
[flavors.cpu]
gpus = 0
"""


@pytest.fixture
def flavors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flavors in the user's file."""
    (tmp_path / "config.toml").write_text(FLAVORS)
    monkeypatch.setenv("GRN_CONFIG", str(tmp_path / "config.toml"))


@pytest.mark.usefixtures("flavors")
def test_a_flavor_gives_its_shares() -> None:
    """All of them, and its variables below the caller's."""
    asked, env = wish_of(flavor="part", env={"MINE": "own"}).request("job", in_process=False)
    shares = {key: asked[key] for key in ("memory_mib", "compute", "processes", "affinity")}
    assert shares == {"memory_mib": 3000, "compute": 30, "processes": 2, "affinity": True}
    assert env == {"MINE": "own", "OTHER": "flavor"}


@pytest.mark.usefixtures("flavors")
def test_the_requests_own_shares_win() -> None:
    """Each by itself, a no as well."""
    asked = request(flavor="part", compute=50, affinity=False)
    assert (asked["compute"], asked["processes"]) == (50, 2)
    assert "affinity" not in asked


@pytest.mark.usefixtures("flavors")
@pytest.mark.parametrize("gpus", [0, None])
def test_who_wants_no_device_drops_a_flavors_parts_of_one(gpus: int | None) -> None:
    """What is not of a device stays."""
    asked = request(flavor="part", gpus=gpus)
    assert asked["gpus"] == gpus
    assert asked["memory_mib"] is None
    assert "compute" not in asked
    assert asked["affinity"]


@pytest.mark.usefixtures("flavors")
def test_a_part_of_a_device_that_the_flavor_rules_out_is_refused() -> None:
    """The flavor is named with file and line, unless the request says how many devices."""
    with pytest.raises(UsageError, match=r"the request says .*config\.toml:8, \[flavors\.cpu\]"):
        request(flavor="cpu", memory=1000)
    assert request(flavor="cpu", memory=1000, gpus=1)["memory_mib"] == 1000


# -- cores ----------------------------------------------------------------------------------------


def test_a_fresh_process_is_bound_to_its_cores(here: Here) -> None:
    """From its beginning, and the caller is not."""
    here()
    before = mine()
    cores, booked_cores = decorated.bound()
    assert cores == booked_cores
    assert len(cores) == 1
    assert mine() == before


def test_a_call_in_place_is_bound_for_its_length(here: Here) -> None:
    """With isolate=False the caller's thread is, until the call returns."""
    here()
    before = mine()
    cores, booked_cores = decorated.bound_in_place()
    assert cores == booked_cores
    assert mine() == before


def test_apply_binds_until_the_end_of_the_block(here: Here) -> None:
    """What is started inside inherits it, also a thread that goes on."""
    here()
    before, seen, end = mine(), [], threading.Event()

    def stay() -> None:
        seen.append(mine())
        end.wait(60)
        seen.append(mine())

    thread = threading.Thread(target=stay)
    code = "import os; print(*os.sched_getaffinity(0))"
    with grn.lease(affinity=True, cpus=1) as lease:
        assert mine() == before
        lease.apply()
        assert mine() == set(lease.cores)
        thread.start()
        eventually(lambda: seen)
        told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        assert set(map(int, told.stdout.split())) == set(lease.cores)
    assert mine() == before
    end.set()
    thread.join()
    assert seen == [set(lease.cores), before]


def test_a_block_without_the_wish_is_not_bound(here: Here) -> None:
    """Applying a lease leaves the thread where it runs."""
    here()
    before = mine()
    with grn.lease(cpus=1) as lease:
        lease.apply()
        assert (lease.cores, mine()) == ([], before)


def test_another_thread_takes_a_binding_back(here: Here) -> None:
    """Of the thread that was bound, not of the one that calls."""
    here()
    before = mine()
    with grn.lease(affinity=True, cpus=1) as lease:
        lease.apply()
        thread = threading.Thread(target=lease.take_back)
        thread.start()
        thread.join()
        assert mine() == before


def test_bindings_to_the_same_cores_end_by_themselves() -> None:
    """The end of one leaves a thread that another has bound."""
    before, core = mine(), min(mine())
    inside, go_on, seen = threading.Event(), threading.Event(), list[set[int]]()

    def other() -> None:
        binding = Binding([core])
        inside.set()
        go_on.wait(60)
        seen.append(mine())
        binding.take_back()
        seen.append(mine())

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(60)
    binding = Binding([core])
    binding.take_back()
    assert mine() == before
    go_on.set()
    thread.join()
    assert seen == [{core}, before]


def test_cores_that_cannot_be_had_are_warned_of(here: Here) -> None:
    """A part of a lease that has none runs unbound."""
    here()
    before = mine()
    with grn.lease() as outer:
        outer.apply()
        with grn.lease(affinity=True) as part:
            with pytest.warns(RuntimeWarning, match="not bound to cores: the broker gave it none"):
                part.apply()
            assert mine() == before


def test_a_request_says_that_it_is_a_programs_own() -> None:
    """An adapter writes its own name over it."""
    assert wish_of().request("job", in_process=False)[0]["engine"] == "python"
