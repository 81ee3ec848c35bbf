"""A device as a backend found it, turned into one that the books can be kept of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.rules.model import Device

if TYPE_CHECKING:
    from grn.devices.base import DeviceInfo, HeadroomRule

__all__ = ["rule_device"]


def rule_device(
    info: DeviceInfo, default: HeadroomRule, chosen: tuple[float, int] | None
) -> Device:
    """Describe a device to the rules.

    Args:
        info: what was found.
        default: the backend's headroom.
        chosen: that of the settings, (share, floor in MiB); `None` takes the backend's.
    """
    headroom_mib = (
        default.of(info.total_mib)
        if chosen is None
        else max(int(info.total_mib * chosen[0]), chosen[1])
    )
    return Device(
        uuid=info.uuid,
        index=info.index,
        model=info.name,
        total_mib=info.total_mib,
        reserve_mib=info.reserve_mib,
        headroom_mib=headroom_mib,
        one_process=info.exclusive_process or info.parent is not None,
        shares_ram=info.shares_ram,
        parent=info.parent,
        bus_id=info.bus_id,
        links=info.links,
        capabilities=info.capabilities,
    )
