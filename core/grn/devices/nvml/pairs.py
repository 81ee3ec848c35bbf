"""How far the cards are from each other, as their driver tells it.

Asked once, by a process of its own: the question names two cards, one of which may hang.
"""

from __future__ import annotations

from itertools import combinations

from grn.devices.nvml.binding import attempt
from grn.rules.topology import NVLINK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["far_apart"]

_P2P_OVER_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_P2P_OK = 0


def far_apart(binding: Any, count: int) -> list[tuple[str, str, int]]:
    """Return (UUID, UUID, distance) of each pair of cards of which the driver tells.

    The distance is 0 over NVLink, else `nvmlDeviceGetTopologyCommonAncestor`: 10 to 50.
    """
    cards: list[tuple[str, Any]] = []
    for index in range(count):
        try:
            handle = binding.nvmlDeviceGetHandleByIndex(index)
            cards.append((binding.nvmlDeviceGetUUID(handle), handle))
        except binding.NVMLError:
            continue  # not ours, or lost: whoever looks after it will say so
    found: list[tuple[str, str, int]] = []
    for (uuid, card), (other, other_card) in combinations(cards, 2):
        try:
            distance = _distance(binding, card, other_card)
        except binding.NVMLError:
            continue
        if distance is not None:
            found.append((uuid, other, distance))
    return found


def _distance(binding: Any, card: Any, other: Any) -> int | None:
    linked, _ = attempt(binding, binding.nvmlDeviceGetP2PStatus, card, other, _P2P_OVER_NVLINK)
    if linked == _P2P_OK:
        return NVLINK
    level, code = attempt(binding, binding.nvmlDeviceGetTopologyCommonAncestor, card, other)
    return int(level) if code == 0 else None
