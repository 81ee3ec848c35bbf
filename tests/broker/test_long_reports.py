"""Reports longer than a frame may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.connection import connect
from tests.env import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

_TYPE = "x" * 4000
_MANY = 400
_OP = {"type": _TYPE, "label": "l" * 500, "gpus": 1, "memory_mib": 8192}


def test_status_of_many_waiters_with_long_names_is_complete(
    new_env: Callable[..., BrokerEnv],
) -> None:
    """A status of more than a frame arrives whole, in pages, with each waiter once."""
    env = new_env("sim:1x8GiB")
    connection = connect(env.settings)
    connection.send(*({"op": "acquire", "id": n, **_OP} for n in range(1, _MANY + 1)))
    with env.client() as client:
        eventually(lambda: len(client.status()["waiters"]) == _MANY - 1)
        status = client.status()
    assert len(status["leases"]) == 1
    assert {waiter["type"] for waiter in status["waiters"]} == {_TYPE}
    connection.close()


def test_a_thousand_profiles_are_listed(new_env: Callable[..., BrokerEnv]) -> None:
    """All profiles are listed, however many pages that takes."""
    env = new_env("sim:1x8GiB")
    with env.client() as client:
        for n in range(_MANY):
            client.profiles("set", type=f"{n} {_TYPE}", memory_mib=1024)
        assert len(client.profiles("list")) == _MANY
