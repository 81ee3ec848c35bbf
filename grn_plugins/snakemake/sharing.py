"""What a group of jobs wishes for together, and which part of its lease each of them gets.

Pure. Promises: what runs at the same time gets devices of its own, or parts of one that add up; every
member of a group finds its part when it is alone; a part that is given back is there for the next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from grn.errors import UsageError
from grn_plugins.snakemake.request import Ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Part", "Parts", "at_once", "covers", "in_levels"]

_WHOLE = 100  # percent


def at_once(asks: Sequence[Ask]) -> Ask:
    """Add up what jobs wish for that run at the same time.

    Jobs that declare what they need of one device share a device; all others have devices of their own.

    Raises:
        UsageError: if they want devices of different models, or different policies.
    """
    first = asks[0]
    if len(asks) == 1:
        return first
    alone = all(ask.gpus == 1 for ask in asks)
    memory = _all_given(ask.memory_mib for ask in asks)
    share = _all_given(ask.share for ask in asks)
    common = _common(asks)
    if alone and memory:
        return common._replace(gpus=1, memory_mib=sum(memory))
    if alone and share and sum(share) <= _WHOLE:
        return common._replace(gpus=1, share=sum(share))
    return common._replace(
        gpus=sum(ask.gpus for ask in asks),
        memory_mib=max(memory) if memory else None,
        share=max(share) if share else None,
    )


def in_levels(levels: Sequence[Sequence[Ask]]) -> Ask:
    """Return what a group wishes for whose levels run one after the other.

    Raises:
        UsageError: see `at_once`.
    """
    sums = [at_once(level) for level in levels if level]
    if len(sums) == 1:
        return sums[0]
    memory = _all_given(ask.memory_mib for ask in sums)
    share = _all_given(ask.share for ask in sums)
    return _common(sums)._replace(
        gpus=max(ask.gpus for ask in sums),
        memory_mib=max(memory) if memory else None,
        share=max(share) if share else None,
    )


def covers(has: Ask, wants: Ask) -> bool:
    """Whether a lease that was asked for so has room for what is wished for now."""
    sizes = ((has.memory_mib, wants.memory_mib), (has.share, wants.share))
    enough = all((a is None) == (b is None) and (a or 0) >= (b or 0) for a, b in sizes)
    return enough and has.gpus >= wants.gpus


def _common(asks: Sequence[Ask]) -> Ask:
    """Return what all of them have to agree on."""
    return Ask(
        gpus=0,
        policy=_the_one("grn_policy", (ask.policy for ask in asks)),
        model=_the_one("gpu_model", (ask.model for ask in asks)),
        cards=tuple(sorted({card for ask in asks for card in ask.cards})),
        priority=max(ask.priority for ask in asks),
    )


def _all_given(values: Iterable[int | None]) -> list[int]:
    """Return the values, nothing if one is missing."""
    found = list(values)
    given = [value for value in found if value is not None]
    return given if len(given) == len(found) else []


def _the_one(name: str, values: Iterable[str | None]) -> str | None:
    found = sorted({value for value in values if value is not None})
    if len(found) > 1:
        raise UsageError(
            f"rules of one group have one lease, and want different ones: {name} is"
            f" {' and '.join(found)}"
        )
    return found[0] if found else None


class Part(NamedTuple):
    """What one job has of a group's lease: positions among its devices, and how much of each."""

    positions: tuple[int, ...]
    size: int


class Parts:
    """A group's lease as its jobs take parts of it. Not for several threads at once."""

    def __init__(self, ask: Ask, grant: Mapping[str, Any]) -> None:
        """Begin with all of it free; `ask` is what was asked for, `grant` the broker's answer."""
        self._ask = ask
        self._grant = grant
        self._all = ask.memory_mib or ask.share or 1
        self._free = [self._all] * len(grant["devices"])

    def take(self, ask: Ask) -> Part | None:
        """Take a part; `None` if others have too much of it now."""
        size = min(self._all, self._size(ask))
        fits = [at for at, free in enumerate(self._free) if free >= size]
        fits.sort(key=lambda at: -self._free[at])
        wanted = min(ask.gpus, len(self._free))
        if len(fits) < wanted:
            return None
        part = Part(tuple(sorted(fits[:wanted])), size)
        for at in part.positions:
            self._free[at] -= size
        return part

    def _size(self, ask: Ask) -> int:
        if self._ask.memory_mib is not None:
            return ask.memory_mib or self._all
        if self._ask.share is not None:
            return ask.share or self._all
        return self._all

    def give_back(self, part: Part) -> None:
        """Take a part in again."""
        for at in part.positions:
            self._free[at] += part.size

    def message(self, part: Part, ask: Ask) -> dict[str, Any]:
        """Return the grant as the job is told of it."""
        grant = self._grant
        devices = [grant["devices"][at] for at in part.positions]
        entries = (grant.get("mask") or "").split(",")
        told = {
            **grant,
            "gpus": ask.gpus,
            "devices": devices,
            "mask": ",".join(entries[at] for at in part.positions),
        }
        booked = grant.get("memory_mib")
        if booked is not None and part.size < self._all:
            mib = max(1, booked * part.size // self._all)
            told["memory_mib"] = mib
            told["fraction"] = min(mib / device["total_mib"] for device in devices)
        return told
