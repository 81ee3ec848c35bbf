"""The process behind `tests.talker.RemoteTalker`: one JSON command a line in, one result a line out."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from grn.client import Connection, connect
from grn.errors import GrnError
from grn.settings import load


class Remote:
    """One connection, and the children that were started."""

    def __init__(self) -> None:
        self.connection: Connection | None = None
        self.children: list[subprocess.Popen[bytes]] = []

    def do(self, command: dict[str, Any]) -> Any:
        """Carry one command out."""
        kind = command.pop("do")
        return getattr(self, f"do_{kind}")(**command)

    def do_connect(self) -> None:
        """Connect to the broker of the environment."""
        self.connection = connect(load())

    def do_send(self, messages: list[dict[str, Any]]) -> None:
        """Send messages in one write."""
        assert self.connection is not None
        self.connection.send(*messages)

    def do_recv(self, timeout_s: float | None) -> dict[str, Any] | None:
        """Wait for the next message."""
        assert self.connection is not None
        return self.connection.recv(timeout_s)

    def do_spawn(self, argv: list[str], environ: dict[str, str]) -> int:
        """Start a child."""
        null = subprocess.DEVNULL
        child = subprocess.Popen(argv, env=environ, stdin=null, stdout=null)
        self.children.append(child)
        return child.pid

    def do_close(self) -> None:
        """End the connection; the process lives on."""
        assert self.connection is not None
        self.connection.close()


def main() -> None:
    """Obey until the input ends."""
    remote = Remote()
    for line in sys.stdin:
        try:
            result = {"value": remote.do(json.loads(line))}
        except GrnError as error:
            result = {"error": type(error).__name__, "message": error.message}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
