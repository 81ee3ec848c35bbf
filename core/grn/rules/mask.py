"""CUDA_VISIBLE_DEVICES, read the way the CUDA driver reads it.

The rules (CUDA C++ Programming Guide, "CUDA Environment Variables"; PyTorch's own parser, which was
compared with the runtime in pytorch/pytorch#84879 and #92315):

- unset is every device, set and empty is none;
- an entry is a number or a UUID (`GPU-…`, `MIG-…`), which may be cut to a prefix that fits one device;
- numbers are read like strtoul: blanks and a sign before, anything after (`1gpu2` is 1);
- the first entry that names no device ends the list; those before it stay;
- a device named twice voids the whole list;
- numbers and UUIDs do not mix: the first entry decides, one of the other kind names no device.

Promises: never more devices than the driver would show, never in another order, and a reason that
names the entry whenever the list was cut or is empty.
Must not know what a device is: it only sees the UUIDs, in the order that the numbers count.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Style = Literal["index", "uuid"]

__all__ = ["MaskResult", "hides_all", "mask_style", "parse_mask", "render_mask"]

_UUID_PREFIXES = ("GPU-", "MIG-")
_NO_DEVICES = "NoDevFiles"  # what Slurm writes for a job without GPUs
_BLANKS = " \t\n\v\f\r"  # isspace() in the C locale, which strtoul skips
_DIGITS = "0123456789"
_MOST_DIGITS = 9  # a longer number is past every list of devices


class MaskResult:
    """What a mask leaves: positions in the list of devices, in the mask's order, and why.

    `reason` is None if every entry counted, else a sentence for people.
    """

    __slots__ = ("indices", "reason")

    def __init__(self, indices: list[int], reason: str | None = None) -> None:
        self.indices = indices
        self.reason = reason

    def __repr__(self) -> str:
        return f"MaskResult({self.indices!r}, {self.reason!r})"


def parse_mask(value: str | None, uuids: Sequence[str]) -> MaskResult:
    """Apply the mask `value` (None is unset) to devices that have these full UUIDs."""
    if value is None:
        return MaskResult(list(range(len(uuids))))
    if not value.strip(_BLANKS):
        return MaskResult([], "CUDA_VISIBLE_DEVICES is set and empty, which hides every device")
    if value.strip(_BLANKS) == _NO_DEVICES:
        return MaskResult([], f"CUDA_VISIBLE_DEVICES is {_NO_DEVICES}, which hides every device")
    return _parse_entries([entry.strip(_BLANKS) for entry in value.split(",")], uuids)


def hides_all(value: str | None) -> bool:
    """Whether a mask is meant to hide every device: set and empty, or what Slurm writes for that."""
    return value is not None and value.strip(_BLANKS) in ("", _NO_DEVICES)


def mask_style(value: str | None) -> Style:
    """Tell how a mask names devices, so that it can be handed down in the same style."""
    is_uuid = value is not None and value.lstrip(_BLANKS).startswith(_UUID_PREFIXES)
    return "uuid" if is_uuid else "index"


def render_mask(devices: Sequence[tuple[int, str]], style: Style) -> str:
    """Write the mask for (index, full UUID) pairs in lease order.

    A MIG slice has no number, and the kinds do not mix: with one in the list all are UUIDs.
    """
    if style == "uuid" or any(uuid.startswith("MIG-") for _, uuid in devices):
        return ",".join(uuid for _, uuid in devices)
    return ",".join(str(index) for index, _ in devices)


def _parse_entries(entries: Sequence[str], uuids: Sequence[str]) -> MaskResult:
    by_uuid = entries[0].startswith(_UUID_PREFIXES)
    indices: list[int] = []
    for position, entry in enumerate(entries, start=1):
        found = _by_uuid(entry, uuids) if by_uuid else _by_number(entry, len(uuids))
        where = f"entry {position} of CUDA_VISIBLE_DEVICES, {entry!r},"
        if isinstance(found, str):
            return MaskResult(indices, f"{where} {found}; {_kept(len(indices))}")
        if found in indices:
            return MaskResult([], f"{where} names a device twice, which voids the whole list")
        indices.append(found)
    return MaskResult(indices)


def _kept(count: int) -> str:
    if count == 0:
        return "no device is left"
    return f"the list ends there, after {count} device{'s' if count > 1 else ''}"


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | str:
    """Find the position of a UUID or a unique prefix of one, or say what is wrong with it."""
    if not entry.startswith(_UUID_PREFIXES):
        return "is not a UUID as the first entry is"
    if entry in uuids:
        return uuids.index(entry)
    fits = [index for index, uuid in enumerate(uuids) if uuid.startswith(entry)]
    if len(fits) == 1:
        return fits[0]
    return f"fits {len(fits)} devices" if fits else "is the UUID of no device here"


def _by_number(entry: str, count: int) -> int | str:
    """Read a number like strtoul, or say what is wrong with it."""
    unsigned = entry[1:] if entry.startswith(("+", "-")) else entry
    digits = unsigned[: len(unsigned) - len(unsigned.lstrip(_DIGITS))]
    if not digits:
        if entry.startswith(_UUID_PREFIXES):
            return "is a UUID, but the first entry is a number"
        return "is neither a number nor a UUID" if entry else "is blank"
    number = int(digits) if len(digits.lstrip("0")) <= _MOST_DIGITS else count
    if entry.startswith("-") and number:
        return "is negative"
    if number < count:
        return number
    if count == 0:
        return "names a device, but there is none here"
    return f"is past the last device (0 to {count - 1} exist)"
