"""Finding the cards: one worker each, all at once, so that one bad card hides no good one.

Blocks for at most `WITHIN_S`: a driver that hangs must not keep a broker from starting, and whoever
starts one waits for ten seconds.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, Any

from grn.devices.nvml.found import Inventory, card_from
from grn.devices.nvml.nursery import Nursery, library_is_missing

if TYPE_CHECKING:
    from grn.devices.nvml.nursery import Worker

__all__ = ["WITHIN_S", "find_cards", "inventory"]

WITHIN_S = 8.0

_PAIRS_WITHIN_S = 1.0
"""Beyond what the cards themselves took: their pairs are asked for meanwhile."""
_NO_LIBRARY = "no NVIDIA driver: libnvidia-ml.so.1 was not found"


def inventory(within_s: float = WITHIN_S) -> Inventory:
    """Return what is there, without a broker and without changing anything (`grn doctor`)."""
    nursery = Nursery()
    try:
        found, _ = find_cards(nursery, within_s)
    finally:
        nursery.close()
    return found


def find_cards(nursery: Nursery, within_s: float = WITHIN_S) -> tuple[Inventory, dict[int, Worker]]:
    """Return what is there, and by the driver's number the workers of cards that can be read."""
    until_s = time.monotonic() + within_s
    if library_is_missing():
        return Inventory(_NO_LIBRARY), {}
    try:
        nursery.start()
    except OSError as error:
        return Inventory(f"no process to ask the driver can be started: {error.strerror}"), {}
    problem = nursery.wait_ready(until_s)
    if problem:
        return Inventory(problem), {}
    count = _count(nursery, until_s, within_s)
    if count.get("census") is None:
        return Inventory(str(count["reason"])), {}
    return _survey(nursery, count["census"], until_s, within_s)


def _count(nursery: Nursery, until_s: float, within_s: float) -> dict[str, Any]:
    """Return the census, or as a trouble why there is none."""
    counter = nursery.fork({})
    told = {} if counter is None else _first_words({0: counter}, until_s)
    if counter is not None:
        if 0 not in told:
            nursery.kill(counter)
        counter.channel.close()
    stuck = (
        f"the driver did not answer within {within_s:g} s: it may still be waking up (persistence"
        " mode keeps it awake), or hang: see dmesg"
    )
    return told.get(0, {"reason": stuck})


def _survey(
    nursery: Nursery, census: dict[str, Any], until_s: float, within_s: float
) -> tuple[Inventory, dict[int, Worker]]:
    count = census["count"]
    asked = nursery.fork({"pairs": count}) if count > 1 else None
    forked = {index: nursery.fork({"index": index}) for index in range(count)}
    workers = {index: worker for index, worker in forked.items() if worker is not None}
    told = _first_words(workers, until_s)
    pairs = _pairs(nursery, asked, until_s)
    cards = tuple(card_from(index, told.get(index), within_s) for index in forked)
    for card in cards:
        worker = workers.get(card.index)
        if worker is not None and card.problem:
            nursery.kill(worker)
            worker.channel.close()
            del workers[card.index]
    return Inventory("", census["driver"], census["cuda"], cards, pairs), workers


def _pairs(
    nursery: Nursery, asked: Worker | None, until_s: float
) -> tuple[tuple[str, str, int], ...]:
    """Return how far the cards are apart; nothing if that is not told soon: jobs run without it."""
    if asked is None:
        return ()
    told = _first_words({0: asked}, min(until_s, time.monotonic() + _PAIRS_WITHIN_S))
    if 0 not in told:
        nursery.kill(asked)
    asked.channel.close()
    pairs = told.get(0, {}).get("pairs", ())
    return tuple((str(uuid), str(other), int(distance)) for uuid, other, distance in pairs)


def _first_words(workers: dict[int, Worker], until_s: float) -> dict[int, dict[str, Any]]:
    """Wait for what each worker says first; return that of those that said it in time."""
    told: dict[int, dict[str, Any]] = {}
    waiting = dict(workers)
    while waiting and (left := until_s - time.monotonic()) > 0:
        ready, _, _ = select.select([w.channel for w in waiting.values()], [], [], left)
        for index, worker in list(waiting.items()):
            if worker.channel not in ready:
                continue
            messages = worker.channel.receive()
            if messages:
                told[index] = messages[0]
            elif worker.channel.ended:
                told[index] = {"trouble": "stale", "reason": "the process that asked it died"}
            else:
                continue
            del waiting[index]
    return told
