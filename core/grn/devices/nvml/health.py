"""What a card says of its health. Each figure is None where the card has none."""

from __future__ import annotations

from grn.devices.nvml.binding import attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["health_of"]

_RECOVERY_ACTION = 230
_UNCORRECTED, _VOLATILE = 1, 0
_UNSIGNED = {1: "uiVal", 2: "ulVal", 3: "ullVal", 5: "siVal"}
_NO_REMAPPED_ROWS = (None, None, None, None)


def health_of(binding: Any, card: Any) -> list[Any]:
    """Return remapping pending, remapping failed, uncorrectable ECC errors, recovery action."""
    rows, _ = attempt(binding, binding.nvmlDeviceGetRemappedRows, card)
    _, _, pending, failed = rows or _NO_REMAPPED_ROWS
    errors, _ = attempt(binding, binding.nvmlDeviceGetTotalEccErrors, card, _UNCORRECTED, _VOLATILE)
    fields, _ = attempt(binding, binding.nvmlDeviceGetFieldValues, card, [_RECOVERY_ACTION])
    as_bools = [None if flag is None else bool(flag) for flag in (pending, failed)]
    return [*as_bools, errors, None if fields is None else _number(fields[0])]


def _number(field: Any) -> int | None:
    if field.nvmlReturn:
        return None
    member = _UNSIGNED.get(field.valueType)
    return None if member is None else int(getattr(field.value, member))
