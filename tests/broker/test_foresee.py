"""A client asks what would be granted at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]


def test_an_answer_for_each_wish_and_no_lease(new_env: NewEnv) -> None:
    """The answer is that of requests in this order; none of them is made."""
    env = new_env("sim:1x10000MiB")
    talker = env.talker()
    held = talker.acquire("held", memory_mib=4000)
    wishes = [{"type": "t", "gpus": 1, "memory_mib": mib} for mib in (7000, 5000, 2000, 10001)]
    assert talker.call("foresee", wishes=wishes)["at_once"] == [False, False, True, True]
    talker.release(held)
    assert talker.call("foresee", wishes=wishes)["at_once"] == [True, False, True, True]
    status = talker.status()
    assert (status["leases"], status["waiters"]) == ([], [])


@pytest.mark.parametrize("wishes", [None, "all", [1], [{"gpus": 1}], [{"type": "t", "gpus": -1}]])
def test_what_makes_no_sense_is_refused(new_env: NewEnv, wishes: object) -> None:
    """It is an error that names what is expected, and the connection lives."""
    talker = new_env().talker()
    assert talker.call("foresee", wishes=wishes)["code"] == "usage"
    assert talker.call("foresee", wishes=[])["at_once"] == []
