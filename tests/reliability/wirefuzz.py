"""Fuzzed frames through the real session: connection, core and rules on a simulated machine.

Frames are built as the protocol builds them, of known fields with every kind of value, and then
perhaps damaged: so most get past the decoder and into a handler. `python -m tests.reliability.wirefuzz
--frames 100000000` fuzzes for longer; the nox session `atheris` lets coverage guide the bytes.
"""

from __future__ import annotations

import argparse
import gc
import random
import struct
import sys
from typing import TYPE_CHECKING, Any

import msgpack

from grn.broker import connection as connection_module
from grn.rules.wire import MAX_FRAME, Frames, decode, encode
from tests.reliability.rig import Rig, installed
from tests.reliability.world import Wire, World

if TYPE_CHECKING:
    from tests.reliability.world import Process

__all__ = ["Fuzz", "Session"]

_LENGTH = struct.Struct(">I")
_WILD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 1 << 31, 1 << 40, (1 << 40) + 1, (1 << 63) - 1, (1 << 64) - 1,
    -(1 << 63), 0.0, -0.5, 1e308, float("nan"), float("inf"), "", "x", "caf\udce9", "x" * 300,
    b"", b"\xff\x00", [], [0], [None] * 20, ["a", 1, {}], {}, {"a": 1}, {"id": {"id": []}},
    [[[[]]]], {"a": {"b": {"c": {"d": 1}}}},
)  # fmt: skip
_TAME: dict[str, tuple[Any, ...]] = {
    "type": ("a", "b", "c", "known"),
    "gpus": (None, 0, 1, 1, 2, 9),
    "memory_mib": (None, 100, 2000, "whole", 99999),
    "policy": ("spread", "pack", "wild"),
    "cpus": (None, 1, 4, 99),
    "ram_mib": (None, 1),
    "priority": (0, 1, -3),
    "label": ("", "some label"),
    "mask": (None, "", "0", "1,0", "GPU-0", "7"),
    "outer": (None, "b1-1", "b1-2", "b1-9"),
    "within": (1, 2),
    "cores": (None, 1, 64),
    "in_process": (True, False),
    "largest": (True, False),
    "compute": (1, 50, 100),
    "processes": (1, 4),
    "affinity": (True, False),
    "core_ids": (None, [0, 1]),
    "waited_s": (0.0, 5.0),
    "asked_s": (1000.0, 0.0),
    "lease": ("b1-1", "b1-2", "b1-3", "b2-1"),
    "pid": (1, 100, 101),
    "exit_code": (0, 1, 137),
    "signal": (None, 9),
    "said": ("", "oom"),
    "said_oom": (True, False),
    "stopped": (True, False),
    "mib": (1, 5000),
    "leases": ([], ["b1-1"], ["b1-1", "x"]),
    "nested": ([], [{"id": 3, "lease": "b1-1", "memory_mib": 10}], [{}]),
    "wishes": ([], [{"type": "a", "gpus": 1}], [{"type": "a", "gpus": 2, "memory_mib": 1}] * 3),
    "page": (0, 1, 99),
    "action": ("list", "show", "set", "forget"),
    "device_model": (None, "Simulated"),
    "session": ("s",),
    "magic": ("GRN",),
    "version": (1,),
}
_ACQUIRE = (
    "type", "gpus", "memory_mib", "policy", "cpus", "ram_mib", "priority", "label", "mask", "outer",
    "within", "cores", "in_process", "largest", "compute", "processes", "affinity", "core_ids",
    "waited_s", "asked_s",
)  # fmt: skip
_OPS: dict[str, tuple[int, tuple[str, ...]]] = {
    "acquire": (60, _ACQUIRE),
    "cancel": (60, ()),
    "started": (60, ("lease", "pid")),
    "release": (80, ("lease", "exit_code", "signal", "said", "said_oom", "stopped")),
    "leave": (50, ()),
    "peak": (40, ("lease", "mib")),
    "adopt": (20, ("leases", "nested")),
    "foresee": (10, ("wishes",)),
    "profiles": (4, ("action", "type", "memory_mib", "page", "device_model")),
    "status": (3, ("page",)),
    "record": (3, ()),
    "hello": (20, ("magic", "version", "session")),
    "dance": (10, ()),
}
_RARE_STOP = 20_000


def _packed(value: Any) -> bytes:
    body: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return body


class Fuzz:
    """A source of frames; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - frames, not secrets
        wild = [_packed(value) for value in _WILD]
        tame = {
            key: [_packed(key) + _packed(value) for value in values]
            for key, values in _TAME.items()
        }
        self._parts: dict[str, list[bytes]] = {}
        for op, (_, fields) in _OPS.items():
            likely = [part for key in fields for part in tame[key]] * 8
            odd = [_packed(key) + value for key in fields for value in wild]
            strange = [_packed(key) + value for key in tame for value in wild[::7]]
            self._parts[op] = likely + odd + strange[:: max(1, len(strange) // 20)]
        self._ops = [op for op, (weight, _) in _OPS.items() for _ in range(weight)]
        self._op = {op: _packed("op") + _packed(op) for op in _OPS}
        self._ids = [_packed("id") + _packed(number) for number in range(40)] * 20
        self._ids += [_packed("id") + x for x in wild]
        self._must = {"acquire": tame["type"], "peak": tame["lease"]}
        self._must |= {"started": tame["lease"], "release": tame["lease"]}
        self._last = b""

    def frames(self, count: int) -> bytes:
        """Return so many frames in one piece."""
        return b"".join([self._frame() for _ in range(count)])

    def _frame(self) -> bytes:
        rng = self._rng
        random_ = rng.random
        op = self._ops[int(random_() * len(self._ops))]
        parts = rng.choices(self._parts[op], k=int(random_() * 6))
        parts.append(self._ids[int(random_() * len(self._ids))])
        must = self._must.get(op)
        if must is not None:
            parts.append(must[int(random_() * len(must))])
        fate = random_()
        parts.append(self._op[op] if fate > 1 / _RARE_STOP else _packed("op") + _packed("stop"))
        body = bytes((0x80 | len(parts),)) + b"".join(parts)
        if fate > 0.92:
            body = self._damaged(body)
            self._last = body
            if fate > 0.995:
                return self._wrong_length(body)
        return _LENGTH.pack(len(body)) + body

    def _damaged(self, body: bytes) -> bytes:
        rng = self._rng
        at = rng.randrange(len(body))
        kind = rng.randrange(7)
        if kind == 0:
            return body[:at] + bytes([rng.randrange(256)]) + body[at + 1 :]
        if kind == 1:
            return body[:at] + rng.randbytes(rng.randrange(1, 9)) + body[at:]
        if kind == 2:
            return body[:at] + body[at + rng.randrange(1, 9) :]
        if kind == 3:
            return body[:at] + self._last[-at:]
        if kind == 4:
            head = rng.choice(
                (b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
            )
            return body[:at] + head + body[at:]
        if kind == 5:
            return b"\x81" + _packed("op") + b"\x91" * rng.choice((8, 70, 3000)) + b"\x90"
        return rng.randbytes(rng.randrange(60))

    def _wrong_length(self, body: bytes) -> bytes:
        length = self._rng.choice((0, 1, len(body) + 1, len(body) // 2, MAX_FRAME + 1, 0xFFFFFFFF))
        return _LENGTH.pack(length) + body


class Session:
    """A broker, a hostile client that is replaced when it is dropped, and a good one beside it."""

    def __init__(self) -> None:
        self.world = World((16000, 16000))
        self.rig = Rig(self.world)
        self.decoded = 0
        self.dropped = 0
        self.answers = 0
        self._good_frames = Frames()

    def run(self, fuzz: Fuzz, frames: int, *, at_once: int = 12) -> None:
        """Feed so many frames.

        Raises:
            Exception: what a session must never raise.
            AssertionError: the good client was not answered, or the books do not hold.
        """
        real = connection_module.decode

        def counted(body: bytes, **more: Any) -> dict[str, Any]:
            self.decoded += 1
            return real(body, **more)

        connection_module.decode = counted  # type: ignore[assignment]  # the same, counted
        try:
            with installed(self.world):
                self._run(fuzz, frames, at_once)
        finally:
            connection_module.decode = real

    def _run(self, fuzz: Fuzz, frames: int, at_once: int) -> None:
        self.rig.start()
        self._good_starts()
        turn = 0
        process = self.world.processes.spawn()
        assert process is not None
        wire = self._greeted(process)
        enough = self.decoded + frames
        while self.decoded < enough:
            turn += 1
            self.world.now += 0.0007
            data = fuzz.frames(at_once)
            self.rig.hear(wire, data[: 1 << 16])
            self.world.loop.run_soon()
            if wire.broker_closed:
                self.dropped += 1
                self.rig.hang_up(wire)
                wire = self._greeted(process)
            wire.to_client.clear()
            if self.rig.core is not None and self.rig.core._stop.done():
                self.rig.stopped()
                self.rig.start()
                self._good_starts()
                wire = self._greeted(process)
            if turn % 40 == 0:
                process = self._replaced(process, wire)
                wire = self._greeted(process)
                self._good_asks()
        for last in (process, self._good):
            self.world.processes.end(last)
        self.rig.killed()

    def _greeted(self, process: Process) -> Wire:
        wire = Wire(self.world, process.pid)
        self.rig.accept(wire)
        hello = {"op": "hello", "magic": "GRN", "version": 1, "session": "s"}
        self.rig.hear(wire, encode(hello))
        return wire

    def _replaced(self, process: Process, wire: Wire) -> Process:
        """Let the hostile process die, with all that it holds."""
        self.world.processes.end(process)
        self.rig.hang_up(wire)
        self.world.loop.run_soon()
        self.world.now += 1.0
        self.world.loop.run_due()
        assert self.rig.core is not None
        self.rig.core.machine.check_invariants()
        fresh = self.world.processes.spawn()
        assert fresh is not None
        return fresh

    # -- beside it ----------------------------------------------------------------------------

    def _good_starts(self) -> None:
        good = self.world.processes.spawn()
        assert good is not None
        self._good = good
        self._good_wire = self._greeted(self._good)
        self._good_frames = Frames()
        self._good_answers()

    def _good_asks(self) -> None:
        """Ask for a share and give it back; both must be answered."""
        self.answers += 1
        number = 2 * self.answers
        wish = {"op": "acquire", "id": number, "type": "good", "gpus": 1, "memory_mib": 100}
        self.rig.hear(self._good_wire, encode(wish))
        (granted,) = [x for x in self._good_answers() if x["op"] != "waiting"]
        assert granted["op"] == "granted", granted
        told = {"op": "release", "id": number + 1, "lease": granted["lease"], "exit_code": 0}
        self.rig.hear(self._good_wire, encode(told))
        (released,) = self._good_answers()
        assert released["op"] == "released", released

    def _good_answers(self) -> list[dict[str, Any]]:
        self.world.loop.run_soon()
        wire = self._good_wire
        data = bytes(wire.to_client)
        wire.to_client.clear()
        return [decode(body) for body in self._good_frames.feed(data)]


def main() -> None:
    """Fuzz for as long as asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    session = Session()
    gc.disable()
    session.run(Fuzz(args.seed), args.frames)
    sys.stdout.write(
        f"{session.decoded} frames, {session.dropped} connections dropped, a good client answered"
        f" {2 * session.answers} times\n"
    )


if __name__ == "__main__":
    main()
