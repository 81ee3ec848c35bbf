"""A turn: one request of an engine, told why it waits, withdrawn from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from grn import hub
from grn.errors import Cancelled, Impossible, WaitExpired
from grn.turns import Turn
from grn.wishes import NORMAL, Wish
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]


def message(gpus: int = 1) -> dict[str, Any]:
    """Return a wish for whole devices."""
    wish = Wish(
        gpus=gpus, memory="whole", policy=None, cpus=None, ram=None, flavor=None, priority=NORMAL,
        wait=None, label="", env=None, if_unavailable="fail", type=None,
    )  # fmt: skip
    return wish.request("job", in_process=False)[0]


def state(env: BrokerEnv) -> tuple[int, int]:
    """Return how many leases and waiters there are."""
    status = env.status()
    return len(status["leases"]), len(status["waiters"])


class Thread(threading.Thread):
    """Takes a turn in a thread; keeps what came of it."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(daemon=True)
        self.turn = turn
        self.granted: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Wait for the grant."""
        try:
            self.granted = self.turn.grant()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def ended(self) -> Thread:
        """Wait for the end of it."""
        self.join(PATIENCE_S)
        assert not self.is_alive(), "the thread still waits"
        return self


def test_a_free_device_is_granted_without_a_word(here: Here) -> None:
    """Who gets its share at once is told nothing."""
    env = here()
    told: list[str] = []
    grant = Turn(message(), waits=told.append).grant()
    assert state(env) == (1, 0)
    hub.release(grant, exit_code=0)
    assert not told
    assert state(env) == (0, 0)


def test_who_waits_is_told_why_once(here: Here) -> None:
    """After a while the waiting thread says the broker's reason, one time."""
    env = here()
    first = Turn(message()).grant()
    told: list[str] = []
    waiting = Thread(Turn(message(), waits=told.append, waits_after_s=0.5))
    waiting.start()
    eventually(lambda: len(told) == 1, what="the reason is told")
    assert waiting.turn.reason in told
    assert "device" in told[0]
    hub.release(first, exit_code=0)
    hub.release(waiting.ended().granted, exit_code=0)
    assert len(told) == 1
    assert state(env) == (0, 0)


def test_another_thread_withdraws_it(here: Here) -> None:
    """A withdrawn turn ends with that reason, and waits for nothing at the broker."""
    env = here()
    first = Turn(message()).grant()
    waiting = Thread(Turn(message()))
    waiting.start()
    eventually(lambda: state(env) == (1, 1), what="it waits")
    waiting.turn.withdraw("a task of the same run has failed")
    with pytest.raises(Cancelled, match="a task of the same run has failed"):
        raise waiting.ended().error or AssertionError("it was granted")
    eventually(lambda: state(env) == (1, 0), what="it waits no more")
    hub.release(first, exit_code=0)
    assert state(env) == (0, 0)


def test_withdrawn_before_it_asks(here: Here) -> None:
    """Nothing is asked by a turn that was withdrawn before."""
    env = here()
    turn = Turn(message())
    turn.withdraw()
    with pytest.raises(Cancelled):
        turn.grant()
    assert state(env) == (0, 0)


def test_withdrawals_that_cross_grants_hold_nothing(here: Here) -> None:
    """Whoever wins, each turn either holds its grant or nothing is held for it."""
    env = here("sim:4x1000MiB")
    for _ in range(20):
        threads = [Thread(Turn(message())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.turn.withdraw()
        held = [thread.ended().granted for thread in threads if thread.ended().granted]
        eventually(
            lambda held=held: state(env) == (len(held), 0), what="only what was granted is held"
        )
        for grant in held:
            hub.release(grant, exit_code=0)
    assert state(env) == (0, 0)


def test_it_gives_up_in_time(here: Here) -> None:
    """Beyond the time allowed the reason is in the error, and nothing waits."""
    env = here()
    first = Turn(message()).grant()
    told: list[str] = []
    with pytest.raises(WaitExpired, match=r"within 0\.2 s"):
        Turn(message(), wait_s=0.2, waits=told.append).grant()
    assert not told
    assert state(env) == (1, 0)
    hub.release(first, exit_code=0)


def test_what_can_never_be_is_refused(here: Here) -> None:
    """A request that this machine can never meet ends at once, with both numbers."""
    here()
    with pytest.raises(Impossible, match="2"):
        Turn(message(gpus=2)).grant()
