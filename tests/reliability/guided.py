"""Bytes that coverage guides into the decoder and the session: `nox -s atheris`.

Not part of the suite: it wants a build of Python's fuzzer, and has no end of its own
(`-max_total_time=3600` is one).
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["grn"]):
    from grn.broker import connection as connection_module
    from grn.rules import messages, wire
    from tests.reliability.rig import installed
    from tests.reliability.wirefuzz import Fuzz, Session

assert connection_module
assert messages
SESSION = Session()
_BYTES = 1 << 16


def one_input(data: bytes) -> None:
    """Read these bytes as a client's, after its greeting; only a dropped connection may follow."""
    SESSION.world.now += 1.0
    process = SESSION.world.processes.spawn()
    assert process is not None
    peer = SESSION._greeted(process)
    for at in range(0, len(data), _BYTES):
        if not peer.broker_closed:
            SESSION.rig.hear(peer, data[at : at + _BYTES])
    SESSION.world.processes.end(process)
    SESSION.rig.hang_up(peer)
    SESSION.world.loop.run_soon()
    core = SESSION.rig.core
    assert core is not None
    core.machine.check_invariants()
    if core._stop.done():
        SESSION.rig.stopped()
        SESSION.rig.start()


def main() -> None:
    """Fuzz until told to stop; what the structure-aware fuzzer makes is where it begins."""
    with installed(SESSION.world):
        SESSION.rig.start()
        one_input(Fuzz(1).frames(20))
        assert wire.MAX_FRAME > _BYTES
        atheris.Setup(sys.argv, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
