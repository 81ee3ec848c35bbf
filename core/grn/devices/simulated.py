"""Simulated devices: a backend whose driver is a folder of small text files.

Promises: one broker per folder; a look costs microseconds (a file is parsed when it changed); what
a dead process held is gone at the next look, however it died. A file that makes no sense is logged
and costs only what it describes.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from grn.devices import simfolder
from grn.devices.base import BusyReading, DeviceInfo, DeviceReading, HeadroomRule, ProcessUse
from grn.devices.rss import RssMeter
from grn.devices.simsetup import is_locked_by, lock_folder, lock_path, make_folder
from grn.errors import PathError
from grn.rules.mask import mask_style, parse_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from grn.devices.simfolder import Holding, SimDevice
    from grn.devices.simspec import SimSpec

__all__ = ["SimulatedBackend", "choose_all", "choose_devices"]

_log = logging.getLogger(__name__)

SETTLED_NS = 20_000_000
"""File times tick coarsely (4 to 10 ms): a file younger than this may change and look the same."""

_GONE = (FileNotFoundError, NotADirectoryError)
"""A folder, or one above it, that was removed, or removed and replaced by a file."""

Key = tuple[int, int]
Stamp = tuple[int, int, int]


class SimulatedBackend:
    """The devices of one state folder, narrowed by masks, of which the broker's own comes first.

    `beside` names devices of the folder that this process has opened already: they are left out,
    and the folder is theirs to lock and to make.
    """

    def __init__(
        self,
        spec: SimSpec,
        *,
        masks: Sequence[str | None],
        state_dir: str,
        beside: AbstractSet[str] | None = None,
    ) -> None:
        self.spec = spec.canonical()
        self._description = spec
        self.meter = spec.meter
        self.headroom_default = HeadroomRule()
        self.directory = spec.directory or os.path.join(state_dir, "sim")
        self._procs = simfolder.procs_path(self.directory)
        self._lock = lock_folder(self.directory) if beside is None else -1
        try:
            if beside is None:
                make_folder(self.directory, spec)
            found, self.note = choose_all(simfolder.read_devices(self.directory), masks)
        except OSError as exc:
            self.close()
            raise _as_path_error(exc, self.directory) from exc
        found = [device for device in found if device.uuid not in (beside or ())]
        cards = {device.index: device.uuid for device in found if device.slice == simfolder.WHOLE}
        self.devices = tuple(_info(device, cards) for device in found)
        self._keys: tuple[Key, ...] = tuple(device.key for device in found)
        self._cards: dict[int, tuple[Stamp, dict[Key, SimDevice] | str]] = {}
        self._holdings: dict[str, tuple[Stamp, list[Holding]]] = {}
        self._busy: dict[Key, dict[int, int]] = {}
        """By device: pid -> percent in which that process says that it keeps it busy."""
        self._seen: tuple[int, int] | None = None
        self._rss = RssMeter()
        self.numbers_differ = ""

    def job_env(self) -> dict[str, str]:
        """Return the variable by which a simulated program finds its devices."""
        return {"GRN_SIM_DIR": self.directory}

    def read(
        self, roots: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> tuple[DeviceReading, ...]:
        """Look at every device once."""
        try:
            self._seen = self._settled_stamp()
            cards = {index: self._card(index) for index, _ in self._keys}
            self._be_slow(cards)
            uses = self._measured(roots, places) if self.meter == "rss" else self._recorded()
        except _GONE as exc:
            reason = f"{exc.filename} was removed"
            return tuple(DeviceReading(info.uuid, "lost", reason) for info in self.devices)
        return tuple(
            _reading(info.uuid, cards[key[0]], key, uses.get(key, ()), self._busy.get(key))
            for info, key in zip(self.devices, self._keys, strict=True)
        )

    def unchanged_since_last_read(self) -> bool:
        """Whether no record was written since `read`; with `meter=rss` nobody can know."""
        if self._seen is None or self.meter == "rss":
            return False
        try:
            return self._stamp() == self._seen
        except _GONE:
            return False

    @property
    def kept_files(self) -> tuple[str, ...]:
        """What must stay where it is: `restore` makes it again.

        Nothing in a folder that the description names: it is the user's, and removing it is how
        the loss of all devices is played.
        """
        if self._description.directory:
            return ()
        return (lock_path(self.directory), self._procs)

    def in_place(self) -> bool:
        """Whether the folder is the one that we locked, and whole."""
        if not self.kept_files:
            return True
        cards = [simfolder.card_path(self.directory, index) for index, _ in self._keys]
        return is_locked_by(self.directory, self._lock) and all(
            map(os.path.exists, [self._procs, *cards])
        )

    def restore(self) -> None:
        """Make the folder again: cards as described, and what living processes held last.

        The memory of a real card would not go with a folder either. Faults that were injected by
        hand are gone.

        Raises:
            BrokerUnavailable: another broker has simulated devices there by now.
            PathError: it cannot be made.
        """
        if not is_locked_by(self.directory, self._lock):
            lock = lock_folder(self.directory)
            self.close()
            self._lock = lock
        try:
            os.makedirs(self._procs, mode=0o700, exist_ok=True)
            make_folder(self.directory, self._description)
            for name, (_, held) in self._holdings.items():
                self._write_again(os.path.join(self._procs, name), held)
        except OSError as exc:
            raise _as_path_error(exc, self.directory) from exc

    @staticmethod
    def _write_again(path: str, held: list[Holding]) -> None:
        records = [holding.record() for holding in held if simfolder.is_current(holding)]
        if records and not os.path.exists(path):  # else its process has written it since
            simfolder.write_file(path, "".join(records))

    def absorb(self, other: SimulatedBackend) -> None:
        """Manage the devices of another backend, too: those of our folder that were hidden from us."""
        self.note = other.note
        self.devices += other.devices
        self._keys += other._keys
        self._seen = None
        other.close()

    def close(self) -> None:
        """Let another broker have the folder."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _stamp(self) -> tuple[int, int]:
        return os.stat(self._procs).st_mtime_ns, os.stat(self.directory).st_mtime_ns

    def _settled_stamp(self) -> tuple[int, int] | None:
        """Return the folders' times, or None if they are too young to tell a change by."""
        stamp = self._stamp()
        return stamp if time.time_ns() - max(stamp) > SETTLED_NS else None

    def _card(self, index: int) -> dict[Key, SimDevice] | str:
        """Return the devices of a card, or why there are none."""
        try:
            stamp = _file_stamp(os.stat(simfolder.card_path(self.directory, index)))
        except FileNotFoundError:
            return "its file was removed"
        known = self._cards.get(index)
        if known is not None and known[0] == stamp:
            return known[1]
        found: dict[Key, SimDevice] | str
        try:
            found = {d.key: d for d in simfolder.read_card(self.directory, index)}
        except PathError as exc:
            _log.warning("card-unreadable index=%d reason=%s", index, exc)
            found = str(exc)
        self._cards[index] = (_settled(stamp), found)
        return found

    def _be_slow(self, cards: dict[int, dict[Key, SimDevice] | str]) -> None:
        delays = [d.slow_s for c in cards.values() if isinstance(c, dict) for d in c.values()]
        if delays and max(delays) > 0:
            time.sleep(max(delays))

    def _recorded(self) -> dict[Key, list[ProcessUse]]:
        """What each live process holds, by the records."""
        uses: dict[Key, list[ProcessUse]] = {}
        self._busy = {}
        seen: dict[str, tuple[Stamp, list[Holding]]] = {}
        with os.scandir(self._procs) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                record = self._record(entry)
                if record is None:
                    continue
                seen[entry.name] = record
                self._count(entry.name, record[1], uses)
        self._holdings = seen
        return uses

    def _record(self, entry: os.DirEntry[str]) -> tuple[Stamp, list[Holding]] | None:
        """Return one process's holdings, parsed again only if the file changed."""
        try:
            stamp = _file_stamp(entry.stat())
            known = self._holdings.get(entry.name)
            if known is not None and known[0] == stamp:
                return known
            text = simfolder.read_file(entry.path)
        except FileNotFoundError:
            return None  # its process ended between the listing and the look
        try:
            return _settled(stamp), simfolder.holdings_in(text)
        except (ValueError, KeyError) as exc:
            _log.warning("record-unreadable path=%s reason=%r", entry.path, exc)
            return stamp, []

    def _count(self, name: str, held: list[Holding], uses: dict[Key, list[ProcessUse]]) -> None:
        for holding in held:
            if simfolder.is_current(holding):
                uses.setdefault(holding.key, []).append(ProcessUse(holding.pid, holding.mib))
                if holding.busy is not None:
                    self._busy.setdefault(holding.key, {})[holding.pid] = holding.busy
            elif holding.start is not None:
                # Named after pid and start time: no later process can have a file of this name.
                simfolder.discard(os.path.join(self._procs, name))

    def _measured(
        self, roots: Mapping[str, Sequence[int]], places: Mapping[str, Sequence[str]]
    ) -> dict[Key, list[ProcessUse]]:
        """Resident memory of each lease's processes, on the lease's first device."""
        key_of = {info.uuid: key for info, key in zip(self.devices, self._keys, strict=True)}
        uses: dict[Key, list[ProcessUse]] = {}
        for lease, found in self._rss.measure(roots, places).items():
            key = key_of.get(places[lease][0])
            if key is not None:
                uses.setdefault(key, []).extend(found)
        return uses


def choose_devices(devices: Sequence[SimDevice], mask: str | None) -> tuple[list[SimDevice], str]:
    """Apply the broker's mask to devices in bus order; return those left, and a note."""
    offered = list(devices)
    if mask is not None and mask_style(mask) == "index":
        # A number means what it means to CUDA: a card, and of a divided card its first slice.
        offered = [device for device in offered if device.slice <= 0]
    chosen = parse_mask(mask, [device.uuid for device in offered])
    found = [offered[position] for position in chosen.indices]
    usable = [device for device in found if device.mode != simfolder.MODES["prohibited"]]
    notes = [chosen.reason] if chosen.reason else []
    if len(usable) < len(found):
        notes.append(f"{len(found) - len(usable)} devices are in prohibited compute mode")
    return usable, "; ".join(notes)


def choose_all(
    devices: Sequence[SimDevice], masks: Sequence[str | None]
) -> tuple[list[SimDevice], str]:
    """Choose what any of the masks names, in their order, and a note.

    The first is the broker's own. How clients' masks were read concerns nobody else, nor does how
    its own was, once it hides all and theirs do not.
    """
    choices = [choose_devices(devices, mask) for mask in masks]
    found = {device.key: device for chosen, _ in choices for device in chosen}
    own, note = choices[0]
    return list(found.values()), note if own or not found else ""


def _as_path_error(exc: OSError, directory: str) -> PathError:
    if isinstance(exc, PathError):
        return exc
    return PathError(f"cannot keep simulated devices in {directory}: {exc.strerror}")


def _info(device: SimDevice, cards: Mapping[int, str]) -> DeviceInfo:
    links = [(cards[card], far) for card, far in device.links if card in cards]
    return DeviceInfo(
        device.index,
        device.uuid,
        device.name,
        device.total_mib,
        device.reserve_mib,
        device.parent,
        exclusive_process=device.mode == simfolder.MODES["exclusive"],
        links=tuple(links) if device.slice == simfolder.WHOLE else (),
    )


def _reading(
    uuid: str,
    card: dict[Key, SimDevice] | str,
    key: Key,
    uses: Sequence[ProcessUse],
    busy: Mapping[int, int] | None,
) -> DeviceReading:
    if isinstance(card, str):
        return DeviceReading(uuid, "lost", card)
    device = card.get(key)
    if device is None:
        return DeviceReading(uuid, "lost", "its slice was removed")
    if device.state == "lost":
        return DeviceReading(uuid, "lost", device.reason or "the driver lost it")
    if device.state != "ok":
        return DeviceReading(uuid, "stale", device.reason or f"its state is {device.state}")
    used = device.used_mib
    if used is None and device.shows_used:
        used = device.base_mib + sum(use.mib or 0 for use in uses)
    processes = tuple(uses) if device.shows_processes else None
    return DeviceReading(
        uuid,
        "ok",
        "",
        used if device.shows_used else None,
        processes,
        busy=_busy(device, busy),
    )


def _busy(device: SimDevice, shares: Mapping[int, int] | None) -> BusyReading:
    """Say how busy a device is, as its record says, or else its processes."""
    percent = device.utilisation
    if percent is None and shares is not None:
        percent = min(100, sum(shares.values()))
    return BusyReading(percent, None if shares is None else tuple(shares.items()))


def _file_stamp(stat: os.stat_result) -> Stamp:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _settled(stamp: Stamp) -> Stamp:
    """Make a young file's stamp one that no file has: inode numbers are used again at once."""
    return stamp if time.time_ns() - stamp[1] > SETTLED_NS else (0, 0, 0)
