"""A machine with cards, as a fake NVIDIA driver shows it: described, and changed while it runs.

A `Box` keeps two views of one machine in step. The *driver's* is the file that the stand-in
libnvidia-ml reads (records in the head of `fakenvml.c`); a program sees it with `box.environ` in
its environment *before it starts*. The *programs'* is a folder of simulated devices with the same
cards: with `box.job_environ` a stand-in job (`python -m grn.testing.job`) obeys its mask, takes
memory there, fails when the card is full, and so shows up in the driver with its pid.

    box = Box(folder, fakenvml, "2x24GiB,1x80GiB,mig=2:20GiB+20GiB,mode=1:exclusive", acct=1)
    broker = Popen([... "--devices=nvml"], env=os.environ | box.environ)
    job = Popen([... "-m", "grn.testing.job", "--memory=3GiB"], env=os.environ | box.job_environ)

    box.add_process(0, 18000, pid=other.pid)      somebody else's memory, gone with its process
    box.add_process(0, 500)                       memory of nobody who can be seen
    box.set(0, procmem="N/A")                     no figure for any process (WSL2); None: no key
    box.set(0, procs="no")                        no list of processes at all
    box.set(0, total=None)                        no memory figures (memory shared with the host)
    box.hide_pids(); box.shift_pids(100000)       the pids that a container sees: none, the host's
    box.lose(1); box.find(1)                      fell off the bus, with its Xid, and back again
    box.xid(0, 13)                                an error event, to whoever listens by now
    slow = box.fail("nvmlDeviceGetMemoryInfo", card=0, delay_s=60, hold=False); box.heal(slow)
    box.fail("nvmlDeviceGetHandleByIndex", code=NO_PERMISSION, card=1)
    box.fail("nvmlInit", code=VERSION_MISMATCH)   the library is newer than the module
    box.remove_driver(); box.restore_driver()     no driver loaded, and loaded again
    box.remove_slice(2); box.restore_slice(2)     the last slice of a card, not made yet, and made
    box.reload_driver()                           every handle is worthless until the next init

Cards are named by their number: the driver's index, which is bus order. UUIDs are new for every
box, because devices are claimed machine-wide by UUID and tests run side by side. Every change is
one rename: a reader sees the old machine or the new one.
"""

from __future__ import annotations

import os
import time
import uuid

from grn import procs
from grn.devices import simfolder
from grn.devices.simfolder import WHOLE, Holding, records_in, render
from grn.devices.simsetup import card_text
from grn.devices.simspec import parse_spec

__all__ = [
    "DRIVER_NOT_LOADED",
    "LOST",
    "NOT_SUPPORTED",
    "NO_FUNCTION",
    "NO_PERMISSION",
    "UNKNOWN",
    "VERSION_MISMATCH",
    "Box",
]

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
NO_FUNCTION = 13
LOST = 15
VERSION_MISMATCH = 18
UNKNOWN = 999

_IN_MIB = frozenset({"base", "used", "total", "reserved"})
_last_ns = 0

Value = str | int | float | None


class Box:
    """One machine; see the module for what can be done to it."""

    def __init__(
        self,
        folder: str,
        library: str,
        cards: str = "1x10000MiB",
        *,
        driver: str = "570.124.06",
        **keys: Value,
    ) -> None:
        """Make a machine in an empty folder.

        Args:
            folder: a private folder for the two views.
            library: the folder of the built library (fixture `fakenvml`).
            cards: what `sim:` would take: `2x24GiB,foreign=0:1GiB,mig=1:10GiB+10GiB`.
            driver: the version that it claims to have.
            keys: more keys for every card's record, as `set` takes them.
        """
        self.folder = folder
        self.library = library
        self.config = os.path.join(folder, "nvml.conf")
        self.sim_dir = os.path.join(folder, "sim")
        self.procs = simfolder.procs_path(self.sim_dir)
        os.makedirs(self.procs, mode=0o700)
        spec = parse_spec(cards)
        self._cards = [_records(card_text(spec, index)) for index in range(len(spec.cards))]
        self._head: dict[str, str] = {"driver": driver, "cuda": "12080", "procdir": self.procs}
        self._boot = 0
        self._pidns: dict[str, object] = {}
        self._links: list[str] = []
        self._xids: list[str] = []
        self._failures: dict[int, str] = {}
        self._lost: dict[int, int] = {}
        self._unmade: list[tuple[tuple[str, dict[str, str]], str]] = []
        self._loaded = True
        self._sizes = [[record["total"] for _, record in records] for records in self._cards]
        for foreign in spec.foreign:
            self.add_process(foreign.card, foreign.mib, slice_index=foreign.slice)
        for card in range(len(self._cards)):
            self._update(card, WHOLE, keys)
        self.write()
        for card, described in enumerate(spec.cards):
            if described.lost:
                self.lose(card)

    # -- what it is -----------------------------------------------------------------------------

    @property
    def environ(self) -> dict[str, str]:
        """What a program needs before it starts to find the driver (its `nvidia-ml-py` does)."""
        before = os.environ.get("LD_LIBRARY_PATH")
        path = f"{self.library}:{before}" if before else self.library
        return {"LD_LIBRARY_PATH": path, "FAKE_NVML_CONFIG": self.config}

    @property
    def job_environ(self) -> dict[str, str]:
        """What a stand-in job needs to find the cards; on a real machine CUDA knows by itself."""
        return {"GRN_SIM_DIR": self.sim_dir}

    @property
    def uuids(self) -> list[str]:
        """The UUIDs of all devices in bus order, slices in place of a divided card."""
        return [device.uuid for device in simfolder.read_devices(self.sim_dir)]

    def uuid(self, card: int, slice_index: int = WHOLE) -> str:
        """The UUID of a card, or of one of its slices."""
        return self._keys(card, slice_index)["uuid"]

    # -- changes --------------------------------------------------------------------------------

    def set(self, card: int, slice_index: int = WHOLE, **keys: Value) -> None:
        """Change keys of a card's record, or a slice's; `None` removes one.

        Whole numbers for `base`, `used`, `total` and `reserved` are MiB.
        """
        self._update(card, slice_index, keys)
        self.write()

    def add_process(
        self,
        card: int,
        mib: int | None,
        *,
        pid: int = 0,
        slice_index: int | None = None,
        kind: str = "C",
        name: str = "",
        sm: int | None = None,
    ) -> str:
        """Let somebody else hold memory; return the name for `remove_process`.

        Args:
            card: where.
            mib: how much; `None` is a figure that the driver does not give.
            pid: a process that lives here: the memory is gone with it. One that does not exist
                here (of another namespace) holds it until it is removed. 0: nobody to be seen.
            slice_index: on which slice of a divided card.
            kind: C compute, G graphics, M an MPS client, or several of them.
            name: of the record.
            sm: percent of the time in which it computes; `None`: the driver has no sample of it.
        """
        start = procs.start_time(pid) if pid else None
        where = (card, WHOLE if slice_index is None else slice_index)
        holding = Holding(where, pid, mib, start, live=start is not None)
        name = name or f"{uuid.uuid4()}"
        busy = "" if sm is None else f" sm={sm}"
        text = holding.record().replace("type=C", f"type={kind}{busy}")
        simfolder.write_file(os.path.join(self.procs, f"foreign-{name}"), text)
        return name

    def remove_process(self, name: str) -> None:
        """Take such a holder away again."""
        simfolder.remove_foreign(self.sim_dir, name)

    def account(self, card: int, pid: int, mib: int) -> None:
        """Let the driver remember the largest use of a process; the card's record needs `acct=1`."""
        keys: dict[str, object] = {"gpu": card, "pid": pid, "maxmem": f"{mib}M"}
        path = os.path.join(self.procs, f"account-{card}-{pid}")
        simfolder.write_file(path, render("acct", keys))

    def hide_pids(self) -> None:
        """Show no process, as in a container with a pid namespace of its own; memory is counted."""
        self._pidns = {"hide": 1}
        self.write()

    def shift_pids(self, by: int) -> None:
        """Show live processes under other pids, as the host's look from inside a container."""
        self._pidns = {"shift": by}
        self.write()

    def remove_slice(self, card: int) -> None:
        """Take the last slice of a divided card away, as if it had not been made yet."""
        self._unmade.append((self._cards[card].pop(), self._sizes[card].pop()))
        self.write()

    def restore_slice(self, card: int) -> None:
        """Make it."""
        record, size = self._unmade.pop()
        self._cards[card].append(record)
        self._sizes[card].append(size)
        self.write()

    def link(self, a: int, b: int, *, level: int = 20, nvlink: bool = False) -> None:
        """Tell how close two cards are: 0 same board … 50 across sockets."""
        self._links.append(render("link", {"a": a, "b": b, "level": level, "nvlink": int(nvlink)}))
        self.write()

    # -- what goes wrong ------------------------------------------------------------------------

    def xid(self, card: int, code: int) -> None:
        """Report an error event, once, to each listener that is registered by now."""
        self._xids.append(render("xid", {"gpu": card, "code": code}))
        self.write()

    def fail(
        self,
        function: str = "*",
        *,
        code: int = 0,
        card: int | None = None,
        delay_s: float = 0.0,
        hold: bool = True,
    ) -> int:
        """Let calls fail, or take long, until `heal`; return what names this failure.

        Args:
            function: `nvmlX` (and its `_v2`, `_v3`), a prefix `nvmlX*`, or `*`: all on a device.
            code: what they return; 0: what is true.
            card: only on this one.
            delay_s: how long they take first; over as soon as it is healed.
            hold: other calls of the same process wait meanwhile. Where each card has a process
                of its own, a whole driver that is stuck is a delay of all cards.
        """
        keys: dict[str, object] = {"fn": function, "code": code, "delay_ms": int(delay_s * 1000)}
        keys |= {} if card is None else {"gpu": card}
        keys |= {} if hold else {"hold": 0}
        token = max(self._failures, default=0) + 1
        self._failures[token] = render("fail", keys)
        self.write()
        return token

    def heal(self, *tokens: int) -> None:
        """End these failures, or all of them; a lost card is found by `find`."""
        for token in tokens or set(self._failures) - set(self._lost.values()):
            del self._failures[token]
        self.write()

    def lose(self, card: int, *, xid: int = 79) -> None:
        """Let a card fall off the bus: every call on it and every program on it fails."""
        self._update(card, WHOLE, {"state": "lost"})
        self._xids.append(render("xid", {"gpu": card, "code": xid}))
        self._lost[card] = self.fail(code=LOST, card=card)

    def find(self, card: int) -> None:
        """Let a lost card be well again."""
        self._update(card, WHOLE, {"state": None})
        self.heal(self._lost.pop(card))

    def remove_driver(self) -> None:
        """Unload the driver: every call says so."""
        self._loaded = False
        self.write()

    def restore_driver(self) -> None:
        """Load it again; who had initialised it must do so anew."""
        self._loaded = True
        self.reload_driver()

    def reload_driver(self) -> None:
        """Make every handle worthless: calls end in 'unknown error' until the next nvmlInit."""
        self._boot += 1
        self.write()

    # -- writing --------------------------------------------------------------------------------

    def write(self) -> None:
        """Write both views; nothing that a reader can see in between is half of a change."""
        for index, (records, sizes) in enumerate(zip(self._cards, self._sizes, strict=True)):
            # A program knows a card's size, whatever the driver says.
            lines = [
                render(kind, {"total": size, **keys})
                for (kind, keys), size in zip(records, sizes, strict=True)
            ]
            simfolder.write_file(simfolder.card_path(self.sim_dir, index), "".join(lines))
        if self._loaded:
            _replace(self.config, self._text())
        else:
            simfolder.discard(self.config)

    def _text(self) -> str:
        lines = [f"{kind} {value}\n" for kind, value in self._head.items()]
        lines.append(f"boot {self._boot}\n")
        if self._pidns:
            lines.append(render("pidns", self._pidns))
        for records in self._cards:
            lines += [render(kind, dict(keys)) for kind, keys in records]
        return "".join([*lines, *self._links, *self._xids, *self._failures.values()])

    def _keys(self, card: int, slice_index: int) -> dict[str, str]:
        return self._cards[card][slice_index + 1][1]

    def _update(self, card: int, slice_index: int, changes: dict[str, Value]) -> None:
        keys = self._keys(card, slice_index)
        for key, value in changes.items():
            if value is None:
                keys.pop(key, None)
            else:
                sized = key in _IN_MIB and isinstance(value, int)
                keys[key] = f"{value}M" if sized else str(value)


def _records(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return a card's record and those of its slices, each with a UUID that is nobody else's."""
    records = records_in(text)
    for kind, keys in records:
        keys["uuid"] = f"{'GPU' if kind == 'gpu' else 'MIG'}-{uuid.uuid4()}"
    return records


def _replace(path: str, text: str) -> None:
    """Replace a file; its time differs from every earlier one's, however fast they follow."""
    global _last_ns  # noqa: PLW0603 - one clock for all boxes of the process
    _last_ns = max(time.time_ns(), _last_ns + 1)
    scratch = f"{path}.new"
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.utime(scratch, ns=(_last_ns, _last_ns))
    os.replace(scratch, path)
