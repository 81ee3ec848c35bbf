"""A client for tests that speaks the wire, message by message.

Promises: what is answered to one request is kept apart from what is answered to others; a round
trip takes in everything that the broker had decided before it, so no test needs to sleep to learn
that something was *not* granted.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from grn import errors

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping
    from typing import Any, Protocol

    Message = dict[str, Any]

    class Line(Protocol):
        """What both a connection and a remote process's connection can do."""

        def send(self, *messages: Message) -> None:
            """Send messages."""

        def recv(self, timeout_s: float | None = None) -> Message | None:
            """Wait for the next message."""

        def close(self) -> None:
            """End the connection."""


__all__ = ["RemoteTalker", "Talker"]

_PATIENCE_S = 30.0


class Talker:
    """Asks the broker and sorts what it answers."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._last_id = 0
        self._heard: dict[int, list[Message]] = {}

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, job_type: str = "job", **wish: Any) -> int:
        """Send an `acquire` for one device unless `wish` says otherwise; return its id."""
        self._last_id += 1
        wish = {"gpus": 1, **wish}
        self.line.send({"op": "acquire", "id": self._last_id, "type": job_type, **wish})
        return self._last_id

    def ask_many(self, count: int, job_type: str = "job", **wish: Any) -> list[int]:
        """Send many equal wishes in one write; return their ids."""
        ids = list(range(self._last_id + 1, self._last_id + count + 1))
        self._last_id += count
        message = {"op": "acquire", "gpus": 1, "type": job_type, **wish}
        self.line.send(*({**message, "id": number} for number in ids))
        return ids

    def tell(self, op: str, **fields: Any) -> None:
        """Send a message that has no answer."""
        self.line.send({"op": op, **fields})

    def call(self, op: str, **fields: Any) -> Message:
        """Send a message and return its answer, whatever it is."""
        self._last_id += 1
        self.line.send({"op": op, "id": self._last_id, **fields})
        return self.next(self._last_id)

    # -- hearing --------------------------------------------------------------------------------

    def next(self, request_id: int, within_s: float = _PATIENCE_S) -> Message:
        """Wait for the next message about a request."""
        deadline = time.monotonic() + within_s
        while not self._heard.get(request_id):
            message = self.line.recv(max(0.0, deadline - time.monotonic()))
            assert message is not None, f"no word about request {request_id} in {within_s:g} s"
            self._heard.setdefault(message["id"], []).append(message)
        return self._heard[request_id].pop(0)

    def final(self, request_id: int, within_s: float = _PATIENCE_S) -> Message:
        """Wait for the answer to a request, passing over that it waits."""
        deadline = time.monotonic() + within_s
        while True:
            message = self.next(request_id, max(0.0, deadline - time.monotonic()))
            if message["op"] != "waiting":
                return message

    def granted(self, request_id: int, within_s: float = _PATIENCE_S) -> Message:
        """Wait for a grant."""
        message = self.final(request_id, within_s)
        assert message["op"] == "granted", message
        return message

    def decided(self, request_ids: Iterable[int]) -> list[int]:
        """Return which of the requests are decided by now, without taking the answers."""
        # What arrives together is decided together, after all of it was read: only a second round
        # trip is surely later than the decision.
        self.status()
        self.status()
        return [
            number
            for number in request_ids
            if any(message["op"] != "waiting" for message in self._heard.get(number, []))
        ]

    # -- in one step ----------------------------------------------------------------------------

    def acquire(self, job_type: str = "job", **wish: Any) -> Message:
        """Ask and wait for the grant."""
        return self.granted(self.ask(job_type, **wish))

    def release(self, grant: Mapping[str, Any], exit_code: int = 0, **fields: Any) -> Message:
        """Give a lease back and return the broker's report."""
        answer = self.call("release", lease=grant["lease"], exit_code=exit_code, **fields)
        assert answer["op"] == "released", answer
        return answer

    def know(self, job_type: str, mib: int) -> None:
        """Make the need of a type known."""
        answer = self.call("profiles", action="set", type=job_type, memory_mib=mib)
        assert answer["op"] == "profiles", answer

    def status(self) -> dict[str, Any]:
        """Return the state of the books."""
        status: dict[str, Any] = self.call("status")["status"]
        return status

    def profiles(self) -> list[dict[str, Any]]:
        """Return what was learnt."""
        listed: list[dict[str, Any]] = self.call("profiles", action="list")["profiles"]
        return listed

    def close(self) -> None:
        """End the connection."""
        self.line.close()


class _RemoteLine:
    """The connection of another process, worked through its standard input and output."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def command(self, **command: Any) -> Any:
        """Let the process do one thing and return its result."""
        to, back = self._process.stdin, self._process.stdout
        assert to is not None
        assert back is not None
        to.write(json.dumps(command).encode() + b"\n")
        to.flush()
        line = back.readline()
        assert line, "the remote client has died"
        result = json.loads(line)
        if "error" in result:
            raise getattr(errors, result["error"])(result["message"])
        return result["value"]

    def send(self, *messages: Message) -> None:
        self.command(do="send", messages=messages)

    def recv(self, timeout_s: float | None = None) -> Message | None:
        message: Message | None = self.command(do="recv", timeout_s=timeout_s)
        return message

    def close(self) -> None:
        self.command(do="close")


class RemoteTalker(Talker):
    """A talker in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._remote = _RemoteLine(process)
        super().__init__(self._remote)
        self._remote.command(do="connect")

    @property
    def pid(self) -> int:
        """The client's process."""
        return self.process.pid

    def spawn(self, argv: list[str], environ: Mapping[str, str]) -> int:
        """Start a child of the client."""
        pid: int = self._remote.command(do="spawn", argv=argv, environ=dict(environ))
        return pid

    def connect(self) -> None:
        """Connect again, after the broker has gone."""
        self._remote.command(do="connect")

    def kill(self) -> None:
        """Kill the client as nothing can be prepared for."""
        self.process.kill()
        self.process.wait(_PATIENCE_S)
