"""The text that describes simulated devices: `sim:2x24GiB,1x80GiB,meter=rss`.

Pure: text to data and back, `parse_spec(spec.canonical()) == spec`. Parts are separated by commas:
groups of cards (`COUNTxSIZE`), then options (`key=value`), in any order:

    meter=rss            resident memory of a job's processes stands for device memory
    dir=/path            the state folder
    model=NAME           the device model's name
    mode=exclusive       one process per card; or `prohibited`; `mode=1:exclusive` for one card
    reserve=SIZE         what the driver keeps on each card
    foreign=1:18GiB      memory that others hold (`foreign=0.2:1GiB` on a slice); may repeat
    lost=1               a card that cannot be reached; may repeat
    procs=no             the driver does not say which process holds what
    totals=no            nor what a device holds in all
    slow=0.2             each look at the devices takes that long
    speed=1:3            the card's speed, which orders devices unless CUDA_DEVICE_ORDER=PCI_BUS_ID
    order=fastest:1,0,2  the same for all cards, fastest first
    link=0-1:nvlink      two cards that are near to each other; or `link=2-3:20`, with NVML's level of
                         what they have in common (10 to 50); may repeat
    mig=0:20GiB+40GiB    slices of a card, which is then no device itself; may repeat
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from grn.errors import UsageError
from grn.rules.units import format_mib, parse_size_mib

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EXAMPLE", "MAX_CARDS", "Foreign", "SimCard", "SimSpec", "parse_spec"]

EXAMPLE = "sim:2x24GiB,1x80GiB"
MAX_CARDS = 64
"""More cards than any machine has; a typing error must not fill a disk."""

_LEVELS = {"nvlink": 0, **{str(level): level for level in (10, 20, 30, 40, 50)}}


class SimCard(NamedTuple):
    """One simulated card."""

    total_mib: int
    mode: str = "default"
    speed: float = 0.0
    lost: bool = False
    slices: tuple[int, ...] = ()
    """MiB of each MIG slice; with any, the card itself is no device."""


class Foreign(NamedTuple):
    """Memory held by somebody else, on a card or on one of its slices."""

    card: int
    mib: int
    slice: int | None = None


class SimSpec(NamedTuple):
    """A simulated machine."""

    cards: tuple[SimCard, ...]
    meter: str = "device"
    directory: str | None = None
    model: str | None = None
    reserve_mib: int = 0
    foreign: tuple[Foreign, ...] = ()
    shows_processes: bool = True
    shows_used: bool = True
    slow_s: float = 0.0
    links: tuple[tuple[int, int, int], ...] = ()
    """(card, card, distance): 0 over NVLink, else the level of what they have in common."""

    def name(self, card: SimCard) -> str:
        """The model name of a card."""
        return self.model or f"Simulated {format_mib(card.total_mib)}"

    def canonical(self) -> str:
        """Render the one text that stands for this machine."""
        parts = [
            f"{len(list(group))}x{_size(mib)}"
            for mib, group in groupby(card.total_mib for card in self.cards)
        ]
        modes = {card.mode for card in self.cards}
        shared = modes.pop() if len(modes) == 1 else None
        parts += [f"mode={shared}"] if shared not in {None, "default"} else []
        for index, card in enumerate(self.cards):
            parts += _card_options(index, card, with_mode=shared is None)
        parts += [
            f"foreign={f.card}{'' if f.slice is None else f'.{f.slice}'}:{_size(f.mib)}"
            for f in self.foreign
        ]
        parts += [f"reserve={_size(self.reserve_mib)}"] if self.reserve_mib else []
        parts += [f"link={a}-{b}:{distance or 'nvlink'}" for a, b, distance in self.links]
        parts += ["meter=rss"] if self.meter == "rss" else []
        parts += [] if self.shows_processes else ["procs=no"]
        parts += [] if self.shows_used else ["totals=no"]
        parts += [f"slow={_number(self.slow_s)}"] if self.slow_s else []
        parts += [f"model={self.model}"] if self.model else []
        parts += [f"dir={self.directory}"] if self.directory else []
        return "sim:" + ",".join(parts)


def _card_options(index: int, card: SimCard, *, with_mode: bool) -> list[str]:
    found = [f"mig={index}:" + "+".join(_size(mib) for mib in card.slices)] if card.slices else []
    found += [f"mode={index}:{card.mode}"] if with_mode and card.mode != "default" else []
    found += [f"lost={index}"] if card.lost else []
    found += [f"speed={index}:{_number(card.speed)}"] if card.speed else []
    return found


def _size(mib: int) -> str:
    return f"{mib // 1024}GiB" if mib and mib % 1024 == 0 else f"{mib}MiB"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def parse_spec(text: str) -> SimSpec:
    """Read a description of simulated devices.

    Raises:
        UsageError: names the part that makes no sense, and shows one that does.
    """
    body = text.strip().removeprefix("sim:")
    parts = _parts(body) if body else []
    cards = [card for part in parts if "=" not in part for card in _group(part)]
    if not cards:
        raise UsageError(f"{text!r} names no card; for example {EXAMPLE}")
    if len(cards) > MAX_CARDS:
        raise UsageError(f"{text!r}: {len(cards)} cards, at most {MAX_CARDS} can be simulated")
    spec = SimSpec(tuple(cards))
    seen: set[str] = set()
    # Slices first: what other options say may be about a slice.
    for part in sorted((p for p in parts if "=" in p), key=lambda p: not p.startswith("mig=")):
        key, value = (word.strip() for word in part.split("=", 1))
        if key not in _OPTIONS:
            known = ", ".join(f"{name}=" for name in _OPTIONS)
            raise UsageError(f"{part!r}: simulated devices know {known} and COUNTxSIZE")
        if key in seen and key not in _MAY_REPEAT:
            raise UsageError(f"{part!r}: {key}= is given twice")
        seen.add(key)
        spec = _OPTIONS[key](spec, value, part)
    return spec


def _parts(body: str) -> list[str]:
    """Split at commas; a plain number belongs to the `order=` before it."""
    parts: list[str] = []
    for word in body.split(","):
        if word.strip().isdecimal() and parts and parts[-1].startswith("order="):
            parts[-1] += f",{word.strip()}"
        else:
            parts.append(word.strip())
    return parts


def _group(part: str) -> list[SimCard]:
    count, cross, size = part.partition("x")
    if not cross or not count.isdecimal() or int(count) == 0:
        raise UsageError(f"{part!r} is not COUNTxSIZE; for example 4x16GiB")
    if not size.strip():
        raise UsageError(f"{part!r} has no size: write COUNTxSIZE, for example {part}16GiB")
    if int(count) > MAX_CARDS:
        raise UsageError(f"{part!r}: at most {MAX_CARDS} cards can be simulated")
    return [SimCard(parse_size_mib(size, what=f"size of {part!r}"))] * int(count)


def _index(spec: SimSpec, text: str, part: str) -> int:
    if not text.isdecimal() or int(text) >= len(spec.cards):
        last = len(spec.cards) - 1
        raise UsageError(f"{part!r}: {text!r} is no card here; they are numbered 0 to {last}")
    return int(text)


def _split(value: str, part: str, example: str) -> tuple[str, str]:
    left, colon, right = value.partition(":")
    if not colon:
        raise UsageError(f"{part!r} has no colon; for example {example}")
    return left.strip(), right.strip()


def _with_card(spec: SimSpec, index: int, card: SimCard) -> SimSpec:
    return spec._replace(cards=(*spec.cards[:index], card, *spec.cards[index + 1 :]))


def _one_of(value: str, part: str, words: tuple[str, ...]) -> str:
    if value not in words:
        raise UsageError(f"{part!r}: use {' or '.join(words)}")
    return value


def _seconds(value: str, part: str, example: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{part!r}: {value!r} is not a number from 0; for example {example}")
    return number


def _meter(spec: SimSpec, value: str, part: str) -> SimSpec:
    return spec._replace(meter=_one_of(value, part, ("rss", "device")))


def _dir(spec: SimSpec, value: str, part: str) -> SimSpec:
    # A broker that was started on demand runs in /: a relative path would mean something else.
    if not value.startswith("/"):
        raise UsageError(f"{part!r}: give an absolute path; for example dir=/tmp/sim")
    return spec._replace(directory=value.rstrip("/") or "/")


def _model(spec: SimSpec, value: str, part: str) -> SimSpec:
    if not value.isprintable() or not value or set(value) & set('"#'):
        raise UsageError(f"{part!r}: a model name is plain text; for example model=Toy 16G")
    return spec._replace(model=value)


def _mode(spec: SimSpec, value: str, part: str) -> SimSpec:
    left, colon, right = value.partition(":")
    mode = _one_of(right if colon else left, part, ("exclusive", "prohibited", "default"))
    which = [_index(spec, left, part)] if colon else range(len(spec.cards))
    for index in which:
        spec = _with_card(spec, index, spec.cards[index]._replace(mode=mode))
    return spec


def _reserve(spec: SimSpec, value: str, part: str) -> SimSpec:
    mib = parse_size_mib(value, what=f"size of {part!r}", allow_zero=True)
    if mib >= min(card.total_mib for card in spec.cards):
        raise UsageError(f"{part!r}: nothing would be left of the smallest card")
    return spec._replace(reserve_mib=mib)


def _foreign(spec: SimSpec, value: str, part: str) -> SimSpec:
    where, size = _split(value, part, "foreign=0:2GiB")
    left, dot, right = where.partition(".")
    index = _index(spec, left, part)
    card = spec.cards[index]
    mib = parse_size_mib(size, what=f"size of {part!r}", allow_zero=True)
    if not card.slices and not dot:
        limit, held = card.total_mib, Foreign(index, mib)
    elif dot and right.isdecimal() and int(right) < len(card.slices):
        limit, held = card.slices[int(right)], Foreign(index, mib, int(right))
    else:
        raise UsageError(f"{part!r}: card {index} has {len(card.slices)} slices; see mig=")
    if mib > limit:
        raise UsageError(f"{part!r}: {mib} MiB on a device of {limit} MiB")
    return spec._replace(foreign=(*spec.foreign, held))


def _lost(spec: SimSpec, value: str, part: str) -> SimSpec:
    index = _index(spec, value, part)
    return _with_card(spec, index, spec.cards[index]._replace(lost=True))


def _procs(spec: SimSpec, value: str, part: str) -> SimSpec:
    return spec._replace(shows_processes=_one_of(value, part, ("no", "yes")) == "yes")


def _totals(spec: SimSpec, value: str, part: str) -> SimSpec:
    return spec._replace(shows_used=_one_of(value, part, ("no", "yes")) == "yes")


def _slow(spec: SimSpec, value: str, part: str) -> SimSpec:
    return spec._replace(slow_s=_seconds(value, part, "slow=0.2"))


def _speed(spec: SimSpec, value: str, part: str) -> SimSpec:
    left, right = _split(value, part, "speed=0:2")
    index = _index(spec, left, part)
    card = spec.cards[index]._replace(speed=_seconds(right, part, "speed=0:2"))
    return _with_card(spec, index, card)


def _order(spec: SimSpec, value: str, part: str) -> SimSpec:
    how, listed = _split(value, part, "order=fastest:1,0,2")
    _one_of(how, part, ("fastest",))
    order = [_index(spec, word.strip(), part) for word in listed.split(",")]
    if len(set(order)) != len(order):
        raise UsageError(f"{part!r}: a card is named twice")
    for place, index in enumerate(order):
        card = spec.cards[index]._replace(speed=float(len(order) - place))
        spec = _with_card(spec, index, card)
    return spec


def _mig(spec: SimSpec, value: str, part: str) -> SimSpec:
    left, right = _split(value, part, "mig=0:20GiB+20GiB")
    index = _index(spec, left, part)
    card = spec.cards[index]
    sizes = tuple(parse_size_mib(size, what=f"size of {part!r}") for size in right.split("+"))
    if card.slices:
        raise UsageError(f"{part!r}: card {index} is divided twice")
    if sum(sizes) > card.total_mib:
        raise UsageError(f"{part!r}: {sum(sizes)} MiB of slices in a card of {card.total_mib} MiB")
    return _with_card(spec, index, card._replace(slices=sizes))


def _link(spec: SimSpec, value: str, part: str) -> SimSpec:
    cards, how = _split(value, part, "link=0-1:nvlink")
    left, dash, right = cards.partition("-")
    a, b = _index(spec, left.strip(), part), _index(spec, right.strip() if dash else "", part)
    if a == b:
        raise UsageError(f"{part!r}: a card is not linked to itself")
    if how not in _LEVELS:
        raise UsageError(f"{part!r}: {how!r} is not one of: {', '.join(_LEVELS)}")
    return spec._replace(links=(*spec.links, (min(a, b), max(a, b), _LEVELS[how])))


_OPTIONS: dict[str, Callable[[SimSpec, str, str], SimSpec]] = {
    "meter": _meter,
    "dir": _dir,
    "model": _model,
    "mode": _mode,
    "reserve": _reserve,
    "foreign": _foreign,
    "lost": _lost,
    "procs": _procs,
    "totals": _totals,
    "slow": _slow,
    "speed": _speed,
    "order": _order,
    "mig": _mig,
    "link": _link,
}
_MAY_REPEAT = {"foreign", "link", "lost", "speed", "mig", "mode"}
