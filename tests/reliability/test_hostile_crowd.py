"""Five hundred bad connections of every kind at once, under a small limit, and a good client beside.

One at a time they are in `tests/broker/test_hostile.py`; how long the good one waits is measured in
`tests/bench/hostile.py`, here it must be answered.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from grn.errors import BrokerUnavailable
from tests.env import eventually
from tests.reliability.badclients import crowd

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

CROWD = 500


def test_a_good_client_beside_five_hundred_bad_ones(new_env: Callable[..., BrokerEnv]) -> None:
    """Whatever they do, with 64 descriptors in all: it is answered, and afterwards all is as before."""
    env = new_env(debug="no")
    talker = env.talker()
    resource.prlimit(env.pid, resource.RLIMIT_NOFILE, (64, 64))
    with crowd(env.socket, CROWD) as comes:
        for number in comes:
            if number % 25 == 0:
                talker.release(talker.acquire("t", memory_mib=1))
        for _ in range(20):
            talker.release(talker.acquire("t", memory_mib=1))
            assert talker.status()["leases"] == []
    eventually(lambda: _serves(env))
    assert talker.status()["leases"] == []
    assert len(env.log_lines("cannot-accept")) < 100


def _serves(env: BrokerEnv) -> bool:
    """Whether a client that comes now is served."""
    try:
        return bool(env.talker().status()["schema"] == 1)
    except BrokerUnavailable:
        return False
