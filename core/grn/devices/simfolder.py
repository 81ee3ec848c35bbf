"""The state folder of simulated devices: record format, reading, writing.

    <dir>/spec          the canonical text that the broker was started with
    <dir>/dev<k>        one card: a `gpu` line, then a `mig` line per slice
    <dir>/procs/<name>  what one process, or one foreign holder, holds: `proc` lines

Lines are `kind key=value …`, quotes keep blanks, `#` starts a comment, sizes are whole numbers with
K, M or G, `N/A` is "unknown". A fake libnvidia-ml reads the same lines. Every file is replaced by
rename, so a reader never sees half of one; names that start with a dot are not records.

Broker and jobs share this module. It must stay light (a job starts in milliseconds): no
dataclasses, no typing, nothing but `os` and `re`.
"""

from __future__ import annotations

import os
import re

from grn import procs
from grn.errors import PathError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MODES",
    "WHOLE",
    "Holding",
    "Keys",
    "SimDevice",
    "add_foreign",
    "card_indices",
    "card_path",
    "discard",
    "holdings_in",
    "is_current",
    "procs_path",
    "read_card",
    "read_devices",
    "read_file",
    "read_spec",
    "records_in",
    "remove_foreign",
    "render",
    "set_device",
    "set_slice",
    "size_mib",
    "write_file",
]

WHOLE = -1
"""The slice number of a card that is not divided."""

MODES = {"default": "0", "prohibited": "2", "exclusive": "3"}
"""Compute modes and the numbers that NVML gives them."""

_PAIR = re.compile(r'([^\s="]+)=("[^"]*"|[^\s"]*)')
_SIZE = re.compile(r"(\d+)([KMG]?)")
_SHIFT = {"": 0, "K": 10, "M": 20, "G": 30}

Keys = dict[str, str]


class SimDevice:
    """One device as its card's file describes it: a whole card, or one slice of it."""

    __slots__ = (
        "base_mib",
        "index",
        "links",
        "mode",
        "name",
        "parent",
        "reason",
        "reserve_mib",
        "shows_processes",
        "shows_used",
        "slice",
        "slow_s",
        "speed",
        "state",
        "total_mib",
        "used_mib",
        "utilisation",
        "uuid",
    )

    def __init__(self, index: int, card: Keys, mig: Keys | None = None) -> None:
        own = card if mig is None else mig
        self.index = index
        self.slice = WHOLE if mig is None else int(mig["index"])
        self.uuid = own["uuid"]
        self.parent = None if mig is None else card["uuid"]
        self.name = own["name"]
        self.total_mib = size_mib(own["total"]) or 0
        self.reserve_mib = size_mib(own.get("reserved", "0")) or 0
        self.base_mib = size_mib(own.get("base", "0")) or 0
        self.used_mib = size_mib(own["used"]) if "used" in own else None
        self.utilisation = int(card["util"]) if "util" in card else None
        self.mode = card.get("mode", "0")
        self.links: tuple[tuple[int, int], ...] = ()
        """(card, distance) of other cards, as far as this one's file says."""
        self.speed = float(card.get("speed", "0"))
        self.state = own.get("state", card.get("state", "ok"))
        self.reason = own.get("reason", card.get("reason", ""))
        self.shows_processes = card.get("procs") != "no"
        self.shows_used = card.get("totals") != "no" and own.get("used") != "N/A"
        self.slow_s = float(card.get("slow", "0"))

    @property
    def key(self) -> tuple[int, int]:
        """What a holding names it by: card and slice."""
        return (self.index, self.slice)

    @property
    def capacity_mib(self) -> int:
        """MiB that programs can take when nobody else does."""
        return self.total_mib - self.reserve_mib


class Holding:
    """What one process holds on one device. `live=False`: it stays until its file is removed.

    `busy`: the percent of the time in which it keeps the device busy; `None`: it does not say.
    """

    __slots__ = ("busy", "index", "live", "mib", "pid", "slice", "start")

    def __init__(
        self,
        key: tuple[int, int],
        pid: int,
        mib: int | None,
        start: int | None,
        *,
        live: bool,
        busy: int | None = None,
    ) -> None:
        self.index, self.slice = key
        self.pid = pid
        self.mib = mib
        self.start = start
        self.live = live
        self.busy = busy

    @property
    def key(self) -> tuple[int, int]:
        """The device: card and slice."""
        return (self.index, self.slice)

    def record(self) -> str:
        """Render the line that `holdings_in` reads back."""
        keys: dict[str, object] = {"gpu": self.index, "pid": self.pid}
        if self.slice != WHOLE:
            keys |= {"gi": self.slice + 1, "ci": 0}
        keys |= {"mem": "N/A" if self.mib is None else f"{self.mib}M", "type": "C"}
        if self.live:
            keys |= {"live": 1}
        if self.start is not None:
            keys |= {"start": self.start}
        if self.busy is not None:
            keys |= {"sm": self.busy}
        return render("proc", keys)


def size_mib(text: str) -> int | None:
    """Read a record's size, rounded up to MiB; `N/A` is None."""
    if text.upper() in {"N/A", "NA"}:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    return -(-(int(match[1]) << _SHIFT[match[2]]) >> 20)


def render(kind: str, keys: dict[str, object]) -> str:
    """Render one record line."""
    words = [kind]
    for key, value in keys.items():
        text = str(value)
        words.append(f'{key}="{text}"' if not text or " " in text else f"{key}={text}")
    return " ".join(words) + "\n"


def records_in(text: str) -> list[tuple[str, Keys]]:
    """Read every line of a file as (kind, keys)."""
    found: list[tuple[str, Keys]] = []
    for line in text.splitlines():
        kind, _, rest = line.partition("#")[0].strip().partition(" ")
        if kind:
            found.append((kind, {key: value.strip('"') for key, value in _PAIR.findall(rest)}))
    return found


def holdings_in(text: str) -> list[Holding]:
    """Read the `proc` lines of one file; raise `ValueError` or `KeyError` if one makes no sense."""
    found: list[Holding] = []
    for kind, keys in records_in(text):
        if kind != "proc":
            continue
        key = (int(keys["gpu"]), int(keys["gi"]) - 1 if "gi" in keys else WHOLE)
        pid = int(keys["pid"])
        start = int(keys["start"]) if "start" in keys else None
        live = pid > 0 and keys.get("live") == "1"
        busy = int(keys["sm"]) if "sm" in keys else None
        found.append(Holding(key, pid, size_mib(keys["mem"]), start, live=live, busy=busy))
    return found


def is_current(holding: Holding) -> bool:
    """Whether a holding still counts: its process lives and is the one that wrote it."""
    return not holding.live or procs.is_alive(holding.pid, holding.start)


def card_path(directory: str, index: int) -> str:
    """Return the file of one card."""
    return os.path.join(directory, f"dev{index}")


def procs_path(directory: str) -> str:
    """Return the folder of what processes hold."""
    return os.path.join(directory, "procs")


def card_indices(directory: str) -> list[int]:
    """Return the cards that have a file, in bus order."""
    names = os.listdir(directory)
    return sorted(int(n[3:]) for n in names if n.startswith("dev") and n[3:].isdecimal())


def read_file(path: str) -> str:
    """Return a small file's text."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_card(directory: str, index: int) -> list[SimDevice]:
    """Return the device, or the slices, of one card.

    Raises:
        PathError: the file is missing or makes no sense.
    """
    path = card_path(directory, index)
    try:
        records = records_in(read_file(path))
        card = next(keys for kind, keys in records if kind == "gpu")
        migs = [keys for kind, keys in records if kind == "mig"]
        devices = [SimDevice(index, card, mig) for mig in migs] or [SimDevice(index, card)]
        links = tuple(_link(keys) for kind, keys in records if kind == "link")
    except (OSError, ValueError, KeyError, StopIteration) as exc:
        raise PathError(f"{path} does not describe a simulated device: {exc!r}") from exc
    for device in devices:
        device.links = links
    return devices


def _link(keys: Keys) -> tuple[int, int]:
    """Read a `link` line: the other card, and 0 over NVLink, else the level of what they share."""
    near = keys.get("nvlink") == "1"
    return int(keys["b"]), 0 if near else int(keys["level"])


def read_devices(directory: str) -> list[SimDevice]:
    """Return all devices of the folder in bus order, slices in place of a divided card."""
    return [device for index in card_indices(directory) for device in read_card(directory, index)]


def read_spec(directory: str) -> str:
    """Return the text that the folder was made from; '' if there is none."""
    try:
        return read_file(os.path.join(directory, "spec")).strip()
    except FileNotFoundError:
        return ""


def write_file(path: str, text: str) -> None:
    """Replace a file by rename, so that a reader sees the old text or the new one."""
    folder, name = os.path.split(path)
    scratch = os.path.join(folder, f".{name}.{os.getpid()}")
    with open(scratch, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(scratch, path)


def discard(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def add_foreign(
    directory: str, index: int, mib: int, name: str, *, pid: int = 0, slice_index: int = WHOLE
) -> str:
    """Let somebody else hold `mib` on a card (or on one of its slices) until it is removed."""
    path = _foreign_path(directory, name)
    write_file(path, Holding((index, slice_index), pid, mib, None, live=False).record())
    return path


def remove_foreign(directory: str, name: str) -> None:
    """Take a foreign holder away again."""
    os.unlink(_foreign_path(directory, name))


def _foreign_path(directory: str, name: str) -> str:
    if "/" in name or not name:
        raise PathError(f"{name!r} cannot name a foreign holder: use a plain word")
    return os.path.join(procs_path(directory), f"foreign-{name}")


def set_device(directory: str, index: int, **keys: str | float | None) -> None:
    """Change keys of a card's record while the broker runs; `None` removes a key.

    Whole numbers for `base`, `used`, `total` and `reserved` are MiB. To inject a fault:
    `state="lost", reason="fell off the bus"`.
    """
    _change(directory, index, WHOLE, keys)


def set_slice(directory: str, index: int, slice_index: int, **keys: str | float | None) -> None:
    """Change keys of one slice's record, as `set_device` does for a card."""
    _change(directory, index, slice_index, keys)


def _change(
    directory: str, index: int, slice_index: int, keys: Mapping[str, str | float | None]
) -> None:
    path = card_path(directory, index)
    lines: list[str] = []
    for kind, old in records_in(read_file(path)):
        meant = kind == "gpu" if slice_index == WHOLE else old.get("index") == str(slice_index)
        lines.append(render(kind, _changed(old, keys) if meant else dict(old)))
    write_file(path, "".join(lines))


def _changed(old: Keys, keys: Mapping[str, str | float | None]) -> dict[str, object]:
    new: dict[str, object] = dict(old)
    for key, value in keys.items():
        sized = key in {"base", "used", "total", "reserved"} and isinstance(value, int)
        new[key] = f"{value}M" if sized else value
    return {key: value for key, value in new.items() if value is not None}
