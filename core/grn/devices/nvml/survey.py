"""What a card is, and what its driver can be asked: told once, when a worker starts."""

from __future__ import annotations

import os

from grn.devices.nvml.binding import NOT_SUPPORTED, attempt
from grn.devices.nvml.reader import DeviceReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["census", "find_card", "survey"]

_MIG_ON = 1
_WSL_DEVICE = "/dev/dxg"
"""Under WSL2 the driver lists processes and has no figure for any."""

_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_SWITCH = {0: "off", 1: "on"}


def census(binding: Any) -> dict[str, Any]:
    """Count the cards; nothing here touches one of them.

    Raises:
        NVMLError: there is no driver to ask.
    """
    driver, _ = attempt(binding, binding.nvmlSystemGetDriverVersion)
    cuda, _ = attempt(binding, binding.nvmlSystemGetCudaDriverVersion)
    count = binding.nvmlDeviceGetCount()
    return {"driver": driver, "cuda": _cuda_text(cuda), "count": count}


def find_card(binding: Any, wanted: dict[str, Any]) -> Any:
    """Return the handle of a card: by number at first, by bus and UUID ever after.

    By bus first: the driver looks for a UUID in all cards, and one of the others may hang.

    Raises:
        NVMLError: it is not there, not ours, or lost.
    """
    if "uuid" not in wanted:
        return binding.nvmlDeviceGetHandleByIndex(wanted["index"])
    if wanted["bus"]:
        card, _ = attempt(binding, binding.nvmlDeviceGetHandleByPciBusId, wanted["bus"])
        if card is not None and binding.nvmlDeviceGetUUID(card) == wanted["uuid"]:
            return card
    return binding.nvmlDeviceGetHandleByUUID(wanted["uuid"])


def survey(binding: Any, card: Any) -> tuple[dict[str, Any], list[DeviceReader]]:
    """Describe a card and its slices; return that and what reads its devices.

    Raises:
        NVMLError: the card or the driver is gone.
    """
    uuid, name = binding.nvmlDeviceGetUUID(card), binding.nvmlDeviceGetName(card)
    pci, _ = attempt(binding, binding.nvmlDeviceGetPciInfo, card)
    mode, _ = attempt(binding, binding.nvmlDeviceGetComputeMode, card)
    mig, mig_code = attempt(binding, binding.nvmlDeviceGetMigMode, card)
    divided = mig_code == 0 and mig[0] == _MIG_ON
    shared = [
        *_versions(binding),
        ("MIG", _said(_SWITCH, mig[0] if mig else None, mig_code)),
        ("compute mode", _MODES.get(mode, "not supported")),
        ("ECC", _asked(binding, binding.nvmlDeviceGetEccMode, card)),
        ("persistence", _asked(binding, binding.nvmlDeviceGetPersistenceMode, card)),
    ]
    told: dict[str, Any] = {
        "uuid": uuid,
        "name": name,
        "bus": pci.busId if pci else None,
        "mode": mode,
        "divided": divided,
    }
    slices = _slices(binding, card, name) if divided else []
    readers = [reader for _, reader in slices] if divided else [DeviceReader(binding, card, uuid)]
    names = [slice_name for slice_name, _ in slices] if divided else [name]
    told["devices"] = [
        _device(binding, card, reader, device_name, shared)
        for device_name, reader in zip(names, readers, strict=True)
    ]
    return told, readers


def _slices(binding: Any, card: Any, name: str) -> list[tuple[str, DeviceReader]]:
    """Return the slices of a card; their numbers may have holes."""
    most, _ = attempt(binding, binding.nvmlDeviceGetMaxMigDeviceCount, card)
    found = []
    for number in range(most or 0):
        handle, code = attempt(binding, binding.nvmlDeviceGetMigDeviceHandleByIndex, card, number)
        if code:
            continue  # a hole, or a slice that is not ours
        gpu, _ = attempt(binding, binding.nvmlDeviceGetGpuInstanceId, handle)
        compute, _ = attempt(binding, binding.nvmlDeviceGetComputeInstanceId, handle)
        instance = (-1 if gpu is None else gpu, -1 if compute is None else compute)
        reader = DeviceReader(binding, handle, binding.nvmlDeviceGetUUID(handle), instance)
        own_name, _ = attempt(binding, binding.nvmlDeviceGetName, handle)
        if not own_name or "MIG" not in own_name:
            own_name = f"{name} MIG {round(reader.memory.total / (1 << 30))}gb"
        found.append((own_name, reader))
    return found


def _device(
    binding: Any, card: Any, reader: DeviceReader, name: str, shared: list[tuple[str, str]]
) -> dict[str, Any]:
    memory = reader.memory
    uses = reader.processes.read()
    without = os.path.exists(_WSL_DEVICE) or None in (uses or {}).values()
    processes = "listed, without figures" if without else "listed"
    rates, code = attempt(binding, binding.nvmlDeviceGetUtilizationRates, card)
    return {
        "uuid": reader.uuid,
        "name": name,
        "total": memory.total >> 20,
        "reserved": -(-memory.reserved >> 20),
        "shares_ram": memory.kind == "shared",
        "capabilities": [
            ("memory", memory.answer),
            ("process memory", reader.processes.why_not if uses is None else processes),
            ("utilisation", "yes" if rates is not None else _no(code)),
            ("accounting", reader.accounting.answer),
            *shared,
        ],
    }


def _versions(binding: Any) -> list[tuple[str, str]]:
    driver, driver_code = attempt(binding, binding.nvmlSystemGetDriverVersion)
    cuda, cuda_code = attempt(binding, binding.nvmlSystemGetCudaDriverVersion)
    return [
        ("driver", driver or _no(driver_code)),
        ("CUDA", _cuda_text(cuda) or _no(cuda_code)),
    ]


def _cuda_text(version: int | None) -> str | None:
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _asked(binding: Any, call: Any, card: Any) -> str:
    """Ask for a switch; some calls give its present and its pending position."""
    value, code = attempt(binding, call, card)
    return _said(_SWITCH, value[0] if isinstance(value, (list, tuple)) else value, code)


def _said(words: dict[int, str], value: Any, code: int) -> str:
    return words.get(value, str(value)) if code == 0 else _no(code)


def _no(code: int) -> str:
    return "not supported" if code == NOT_SUPPORTED else f"not available (NVML code {code})"
