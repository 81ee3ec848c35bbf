"""Makes the state folder of simulated devices, and keeps a second broker out of it.

Like hardware, the folder outlives its broker: opened again with the same text it is left as it
is (a card stays lost, a foreign holder stays), with another text it is made anew.
"""

from __future__ import annotations

import fcntl
import os

from grn.devices import simfolder
from grn.errors import BrokerUnavailable, PathError
from grn.rules.units import format_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.devices.simspec import SimSpec

__all__ = [
    "card_text",
    "card_uuid",
    "is_locked_by",
    "lock_folder",
    "lock_path",
    "make_folder",
    "slice_uuid",
]


_ON_A_BOARD = 10


def card_uuid(index: int) -> str:
    """Return the UUID of a card: the same on every run, so that profiles and masks can be kept."""
    return f"GPU-51d00000-0000-4000-8000-{index:012x}"


def slice_uuid(index: int, slice_index: int) -> str:
    """Return the UUID of a MIG slice."""
    return f"MIG-51d00000-0000-4000-8000-{index:06x}{slice_index:06x}"


def card_text(spec: SimSpec, index: int) -> str:
    """Render the file of one card."""
    card = spec.cards[index]
    keys: dict[str, object] = {
        "name": spec.name(card),
        "uuid": card_uuid(index),
        "bus": f"00000000:{index + 1:02X}:00.0",
        "total": f"{card.total_mib}M",
        "reserved": f"{spec.reserve_mib}M",
        "base": "0M",
        "mode": simfolder.MODES[card.mode],
        "speed": f"{card.speed:g}",
        "migmode": int(bool(card.slices)),
    }
    keys |= {"state": "lost", "reason": "lost= in the description"} if card.lost else {}
    keys |= {} if spec.shows_processes else {"procs": "no"}
    keys |= {} if spec.shows_used else {"totals": "no"}
    keys |= {"slow": spec.slow_s} if spec.slow_s else {}
    lines = [simfolder.render("gpu", keys)]
    for slice_index, mib in enumerate(card.slices):
        mig: dict[str, object] = {
            "gpu": index,
            "index": slice_index,
            "gi": slice_index + 1,
            "ci": 0,
            "uuid": slice_uuid(index, slice_index),
            "name": f"{spec.name(card)} MIG {format_mib(mib)}",
            "total": f"{mib}M",
        }
        lines.append(simfolder.render("mig", mig))
    for a, b, distance in spec.links:
        if a == index:
            far = {"level": distance or _ON_A_BOARD, "nvlink": int(not distance)}
            lines.append(simfolder.render("link", {"a": a, "b": b, **far}))
    return "".join(lines)


def lock_path(directory: str) -> str:
    """Return the file that the folder's broker locks."""
    return os.path.join(directory, ".broker.lock")


def lock_folder(directory: str) -> int:
    """Make the folder if need be and lock it until the returned descriptor is closed.

    Raises:
        BrokerUnavailable: another broker has it.
        PathError: the folder cannot be made or written.
    """
    path = lock_path(directory)
    try:
        os.makedirs(simfolder.procs_path(directory), mode=0o700, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise PathError(
            f"cannot use {directory} for simulated devices: {exc.strerror}; "
            "choose another folder with dir=/path"
        ) from exc
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
        os.close(lock)
        raise BrokerUnavailable(
            f"another broker (pid {holder}) has the simulated devices in {directory}; "
            "stop it, or choose another folder with dir=/path"
        ) from exc
    try:
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError as exc:
        os.close(lock)
        raise PathError(f"cannot write {path}: {exc.strerror}") from exc
    return lock


def is_locked_by(directory: str, lock: int) -> bool:
    """Whether the folder is still the one that this descriptor of `lock_folder` locks."""
    try:
        there = os.lstat(lock_path(directory))
    except OSError:
        return False
    return os.path.samestat(there, os.fstat(lock))


def make_folder(directory: str, spec: SimSpec) -> None:
    """Write what `spec` says into a locked folder, unless it already describes that."""
    text = spec.canonical()
    wanted = range(len(spec.cards))
    same = simfolder.read_spec(directory) == text
    present = simfolder.card_indices(directory)
    for index in present:
        if not same or index not in wanted:
            os.unlink(simfolder.card_path(directory, index))
    for index in wanted:
        if not same or index not in present:
            simfolder.write_file(simfolder.card_path(directory, index), card_text(spec, index))
    if not same:
        _write_foreign(directory, spec)
        # Last, so that a broker killed half-way through makes the folder again.
        simfolder.write_file(os.path.join(directory, "spec"), text + "\n")


def _write_foreign(directory: str, spec: SimSpec) -> None:
    procs = simfolder.procs_path(directory)
    for name in os.listdir(procs):
        if name.startswith("foreign-spec"):
            os.unlink(os.path.join(procs, name))
    for number, foreign in enumerate(spec.foreign):
        where = simfolder.WHOLE if foreign.slice is None else foreign.slice
        simfolder.add_foreign(
            directory, foreign.card, foreign.mib, f"spec{number}", slice_index=where
        )
