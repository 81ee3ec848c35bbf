"""The backend of NVIDIA cards: a `DrivenBackend` over one link for each card."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from grn.devices.base import DeviceReading, HeadroomRule
from grn.devices.claim import claim
from grn.devices.nvml.choice import choose_all
from grn.devices.nvml.link import Link
from grn.devices.nvml.nursery import Nursery
from grn.devices.nvml.opening import WITHIN_S, find_cards
from grn.devices.nvml.round import Round
from grn.errors import BrokerUnavailable
from grn.paths import SYSTEM_SOCKET

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from grn.devices.base import DeviceInfo
    from grn.devices.claim import Claims
    from grn.devices.nvml.choice import Choice
    from grn.devices.nvml.nursery import Worker

__all__ = ["HEADROOM", "NvmlBackend", "open_nvml"]

HEADROOM = HeadroomRule(256, 0.02)


class NvmlBackend:
    """The cards of one broker, narrowed by masks and by what other brokers have claimed."""

    def __init__(
        self,
        devices: Sequence[DeviceInfo],
        links: Sequence[Link],
        nursery: Nursery,
        *,
        note: str = "",
        numbers_differ: str = "",
        claims: Claims | None = None,
    ) -> None:
        self.spec = "nvml"
        self.meter = "device"
        self.headroom_default = HEADROOM
        self.devices: tuple[DeviceInfo, ...] = tuple(devices)
        self.note = note
        self.numbers_differ = numbers_differ
        """Why jobs must be told their devices by UUID, not by number; '' if numbers are certain."""
        self.links = tuple(links)
        self.nursery = nursery
        self.claims = claims
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rounds: set[Round] = set()
        self._joined: list[NvmlBackend] = []
        self._last = self._not_read("it has not been read yet")

    def _not_read(self, why: str) -> tuple[DeviceReading, ...]:
        return tuple(DeviceReading(device.uuid, "stale", why) for device in self.devices)

    def job_env(self) -> dict[str, str]:
        """Return nothing: CUDA finds the cards by itself."""
        return {}

    def read(
        self,
        roots: Mapping[str, Sequence[int]],  # noqa: ARG002 - the signature of every backend
        places: Mapping[str, Sequence[str]],  # noqa: ARG002 - the same
    ) -> tuple[DeviceReading, ...]:
        """Repeat what was last answered: the driver is asked with `ask` only, which never waits."""
        return self._last

    def unchanged_since_last_read(self) -> bool:
        """Return False: no driver tells without being asked."""
        return False

    def ask(self, answer: Callable[[tuple[DeviceReading, ...]], None], *, health: bool) -> None:
        """Look at every device; see `DrivenBackend`."""
        loop = self._attached()
        asked = Round(lambda: self._finish(asked, answer), health=health)
        self._rounds.add(asked)
        asked.begin(loop, self.links)

    def _finish(self, asked: Round, answer: Callable[[tuple[DeviceReading, ...]], None]) -> None:
        self._rounds.discard(asked)
        found = {reading.uuid: reading for link in self.links for reading in link.readings()}
        self._last = tuple(found[device.uuid] for device in self.devices)
        answer(self._last)

    def _attached(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            for link in self.links:
                link.attach(self._loop)
        return self._loop

    def absorb(self, other: NvmlBackend) -> None:
        """Manage the devices of another backend, too: those that were found since we were opened."""
        self.note, self.numbers_differ = other.note, other.numbers_differ
        if not other.devices:
            other.close()
            return
        self.devices += other.devices
        self.links += other.links
        self._last += other.read({}, {})
        self._joined.append(other)
        if self._loop is not None:
            for link in other.links:
                link.attach(self._loop)

    def close(self) -> None:
        """End the workers and give the cards back. Who still waits is not answered any more."""
        for asked in self._rounds:
            asked.cancel()
        self._rounds.clear()
        for link in self.links:
            link.close()
        for nursery in (self.nursery, *(other.nursery for other in self._joined)):
            nursery.close()
        for claims in (self.claims, *(other.claims for other in self._joined)):
            if claims is not None:
                claims.close()


def open_nvml(
    masks: Sequence[str | None], *, beside: AbstractSet[str], within_s: float = WITHIN_S
) -> NvmlBackend | str:
    """Open the NVIDIA cards of this machine that the masks name, or say why there are none to open.

    `beside` names devices that this process has opened already: they are left out.

    Raises:
        BrokerUnavailable: other brokers manage all that the masks leave, and none was open before.
    """
    nursery = Nursery()
    try:
        found, workers = find_cards(nursery, within_s)
        if found.problem or not found.cards:
            nursery.close()
            return found.problem or "the NVIDIA driver lists no card"
        choice = choose_all(found.cards, masks)
        return _assembled(choice, workers, nursery, beside, found.pairs)
    except BaseException:
        nursery.close()
        raise


def _assembled(
    choice: Choice,
    workers: Mapping[int, Worker],
    nursery: Nursery,
    beside: AbstractSet[str],
    pairs: Sequence[tuple[str, str, int]],
) -> NvmlBackend:
    """Claim the chosen devices, keep the workers of their cards, and let the others go."""
    wanted = [(info, card) for info, card in choice.devices if info.uuid not in beside]
    claims = claim([info.uuid for info, _ in wanted])
    if wanted and not claims.held and not beside:
        claims.close()
        raise _all_taken(claims.elsewhere)
    ours = [(info, card) for info, card in wanted if info.uuid in claims.held]
    cards = {card.index: card for _, card in ours}
    for index, worker in workers.items():
        if index not in cards:
            worker.channel.close()  # it ends by itself
    links = [
        Link(card, [i.uuid for i, c in ours if c is card], workers[index], nursery)
        for index, card in cards.items()
    ]
    taken = [f"{uuid} is managed by {who}" for uuid, who in claims.elsewhere.items()]
    return NvmlBackend(
        [replace(info, links=_links(info.uuid, pairs)) for info, _ in ours],
        links,
        nursery,
        note="; ".join([*choice.notes, *taken]),
        numbers_differ=choice.numbers_differ,
        claims=claims,
    )


def _links(uuid: str, pairs: Sequence[tuple[str, str, int]]) -> tuple[tuple[str, int], ...]:
    found = [(other, distance) for one, other, distance in pairs if one == uuid]
    return (*found, *((one, distance) for one, other, distance in pairs if other == uuid))


def _all_taken(elsewhere: Mapping[str, str]) -> BrokerUnavailable:
    holders = ", ".join(dict.fromkeys(elsewhere.values()))
    return BrokerUnavailable(
        f"all {len(elsewhere)} devices are managed by another broker already ({holders}): use that"
        f" one (GRN_SOCKET names its socket; a broker for all users serves {SYSTEM_SOCKET}), or"
        " ask its user to stop it"
    )
