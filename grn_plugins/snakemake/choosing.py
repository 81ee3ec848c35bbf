"""Which devices would do for an ask, where it names some: by model, by number, or a part of one.

Only such asks need it: all others are the broker's to decide. Must not: choose among those that would do.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from grn import hub
from grn.errors import Impossible
from grn.rules.mask import mask_style, parse_mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn_plugins.snakemake.request import Ask

    Device = Mapping[str, Any]

__all__ = ["Choice", "choice_of"]

_ANSWER_WITHIN_S = 30.0
_WHOLE = 100  # percent


class Choice:
    """What an ask comes to on this machine."""

    __slots__ = ("compute", "mask", "memory")

    def __init__(self, mask: str | None, memory: int | str | None, compute: int | None) -> None:
        self.mask = mask
        """What narrows the devices; `None` is this process's own mask."""
        self.memory = memory
        self.compute = compute


def choice_of(ask: Ask, commanded: str | None) -> Choice:
    """Look at this machine's devices, if the ask needs that.

    Args:
        ask: what a job wishes for.
        commanded: the devices that its command names itself.

    Raises:
        Impossible: if no device would do; it says what there is.
        BrokerUnavailable: if there is no broker to tell.
    """
    if ask.model is None and ask.share is None and not ask.cards and commanded is None:
        return Choice(None, ask.memory_mib, None)
    shown = hub.call({"op": "status", "page": 0}, within_s=_ANSWER_WITHIN_S)["status"]["devices"]
    left = _within(os.environ.get("CUDA_VISIBLE_DEVICES"), shown)
    left = _of_model(ask.model, left)
    left = _of_numbers(ask.cards, left, shown)
    if commanded is not None:
        left = _commanded(commanded, left, shown)
    mask = ",".join(device["uuid"] for device in left) if len(left) < len(shown) else None
    return Choice(mask, _memory(ask, left), ask.share)


def _within(mask: str | None, devices: Sequence[Device]) -> list[Device]:
    """Keep what a mask leaves; a number in it counts all devices of the machine."""
    if mask is None:
        return list(devices)
    if mask_style(mask) == "uuid":
        named = parse_mask(mask, [device["uuid"] for device in devices]).indices
        return [devices[position] for position in named]
    count = max((device["index"] for device in devices), default=-1) + 1
    by_number = {device["index"]: device for device in reversed(devices)}
    numbers = parse_mask(mask, [""] * count).indices
    return [by_number[number] for number in numbers if number in by_number]


def _of_model(model: str | None, devices: Sequence[Device]) -> list[Device]:
    if model is None:
        return list(devices)
    words = _words(model)
    found = [device for device in devices if words and words <= _words(device["name"])]
    if not found:
        raise Impossible(f"gpu_model={model!r} is none of the devices here: {_named(devices)}")
    return found


def _words(name: str) -> set[str]:
    """Return a model's words: `NVIDIA A100-SXM4-80GB` is an a100, an 80gb and an a100-80gb."""
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _of_numbers(
    cards: Sequence[int], devices: Sequence[Device], shown: Sequence[Device]
) -> list[Device]:
    if not cards:
        return list(devices)
    found = [device for device in devices if device["index"] in cards]
    if len(found) < len(cards):
        names = ", ".join(f"gpu{number}" for number in cards)
        raise Impossible(f"{names} is wanted, and the devices here are: {_named(shown)}")
    return found


def _commanded(commanded: str, devices: Sequence[Device], shown: Sequence[Device]) -> list[Device]:
    found = [device for device in _within(commanded, shown) if device in devices]
    if not found:
        raise Impossible(
            f"its command sets CUDA_VISIBLE_DEVICES={commanded}, and the devices that it may have"
            f" are: {_named(devices)}. Take that out of the command: GRN sets it"
        )
    return found


def _named(devices: Sequence[Device]) -> str:
    if not devices:
        return "none"
    return ", ".join(f"{device['index']} ({device['name']})" for device in devices)


def _memory(ask: Ask, devices: Sequence[Device]) -> int | str | None:
    """Return the memory to book on each device: what is declared, or that part of the smallest one."""
    if ask.memory_mib is not None or ask.share is None:
        return ask.memory_mib
    if ask.share == _WHOLE:
        return "whole"
    smallest = min((device["capacity_mib"] for device in devices), default=0)
    return max(1, smallest * ask.share // _WHOLE)
