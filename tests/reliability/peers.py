"""Clients of a broker in the test's own process: what they say, and what they have heard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grn.rules.wire import Frames, decode, encode
from tests.reliability.world import Wire

if TYPE_CHECKING:
    from tests.reliability.rig import Rig
    from tests.reliability.world import Process

__all__ = ["HELLO", "Peer", "books"]

HELLO = {"op": "hello", "magic": "GRN", "version": 1, "session": "s"}


class Peer:
    """One connected process: what it says, and what it has heard."""

    def __init__(self, rig: Rig, process: Process | None = None, **hello: Any) -> None:
        found = process or rig.world.processes.spawn()
        assert found is not None
        self.rig = rig
        self.process = found
        self.wire = Wire(rig.world, found.pid)
        self._frames = Frames()
        rig.accept(self.wire)
        self.greeting = self.says({**HELLO, **hello}) if hello.get("op", "hello") else []

    def says(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Send these in one write; return what is answered."""
        self.rig.hear(self.wire, b"".join(map(encode, messages)))
        return self.hears()

    def hears(self) -> list[dict[str, Any]]:
        """Return what has come since."""
        self.rig.world.loop.run_soon()
        data = bytes(self.wire.to_client)
        self.wire.to_client.clear()
        return [decode(body) for body in self._frames.feed(data)]

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one message; return its one answer."""
        (answer,) = self.says({"op": op, "id": 900, **fields})
        return answer

    def acquire(self, number: int = 1, **wish: Any) -> dict[str, Any]:
        """Ask for a share."""
        wish = {"type": "t", "gpus": 1, "memory_mib": 1000, **wish}
        return self.says({"op": "acquire", "id": number, **wish})[-1]

    def hangs_up(self) -> None:
        """End the connection."""
        self.wire.client_closed = True
        self.rig.hang_up(self.wire)
        self.rig.world.loop.run_soon()

    def dies(self) -> None:
        """End the process, and with it the connection."""
        self.rig.world.processes.end(self.process)
        self.hangs_up()


def books(rig: Rig) -> dict[str, Any]:
    """Return the leases in the books."""
    assert rig.core is not None
    rig.core.machine.check_invariants()
    return rig.core.machine.leases
