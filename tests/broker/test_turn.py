"""When the broker decides: at once for one speaker, once a turn for a crowd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.broker.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeHandle:
    """What `call_soon` returns."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        """Take the call back."""
        self.cancelled = True


class FakeLoop:
    """A loop whose clock and turns are moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.soon: list[FakeHandle] = []

    def time(self) -> float:
        """Return the moment."""
        return self.now

    def call_soon(self, call: Callable[[], None]) -> FakeHandle:
        """Have it called in the next turn."""
        self.soon.append(FakeHandle(call))
        return self.soon[-1]

    def turn(self) -> None:
        """Let one turn pass."""
        ready, self.soon = self.soon, []
        for handle in ready:
            if not handle.cancelled:
                handle.call()


def make() -> tuple[FakeLoop, Turn, list[float]]:
    """Return a loop, a turn on it, and the times at which it settled."""
    loop = FakeLoop()
    settled: list[float] = []
    return loop, Turn(loop, lambda: settled.append(loop.now)), settled  # type: ignore[arg-type]


def test_one_speaker_is_answered_at_once():
    """A client that talks alone never waits for the end of a turn."""
    loop, turn, settled = make()
    for _ in range(3):
        turn.heard("a")
    assert len(settled) == 3
    assert not loop.soon


def test_a_crowd_is_decided_once_a_turn():
    """Clients that speak together are decided together, after the last of them."""
    loop, turn, settled = make()
    turn.heard("a")
    for speaker in "bcdb":
        turn.heard(speaker)
    assert len(settled) == 1
    loop.turn()
    assert len(settled) == 2


def test_speakers_far_apart_are_no_crowd():
    """Who speaks long after another one is answered at once."""
    loop, turn, settled = make()
    turn.heard("a")
    loop.now += 1
    turn.heard("b")
    assert len(settled) == 2


def test_the_end_decides_what_is_open():
    """Closing settles what was put off, once."""
    loop, turn, settled = make()
    turn.heard("a")
    turn.heard("b")
    turn.close()
    loop.turn()
    assert len(settled) == 2
