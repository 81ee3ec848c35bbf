"""The policies that this broker can decide by: ours, and those of others once they are asked for.

What others wrote must not stop the broker: if it fails, or gives what is no number, the device with
most room is taken, and the log says so.
"""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from grn.errors import UsageError
from grn.policies import offered
from grn.rules.policy import BUILT_IN, named, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.metadata import EntryPoint

    from grn.rules.policy import Room

__all__ = ["Policies"]

log = logging.getLogger("grn.broker")

_LOOK_AGAIN_S = 10.0
"""To look reads a file of each installed package, while nobody is answered."""


class Policies(dict[str, "Callable[[Room], float]"]):
    """By name. `knows` loads what an installed package brings."""

    def __init__(self, default: str) -> None:
        """Take the policy of requests that name none.

        Raises:
            UsageError: there is no such policy, or it cannot be loaded.
        """
        super().__init__(BUILT_IN)
        self._others: dict[str, EntryPoint] = {}
        """Not loaded yet, as of the last look."""
        self._looked_s: float | None = None
        self.default = named(default)
        if not self.knows(self.default):
            raise UsageError(f"policy {default!r} is not to be had: the broker's log says why")

    def knows(self, name: str) -> bool:
        """Whether there is a policy of this name; one of others is loaded the first time.

        One that was installed, or mended, meanwhile is found with the next look, some seconds later.
        """
        if name in self:
            return True
        now = time.monotonic()
        if self._looked_s is None or now >= self._looked_s + _LOOK_AGAIN_S:
            self._others, self._looked_s = offered(), now
        found = self._others.pop(name, None)
        if found is None:
            return False
        try:
            self[name] = _guarded(name, found.load())
        except Exception as error:  # noqa: BLE001 - whatever a module does when it is imported
            log.error("policy-not-loaded name=%r reason=%r", name, error)  # noqa: TRY400 - one line
            return False
        log.info("policy-loaded name=%r from=%s", name, found.value)
        return True


def _guarded(name: str, policy: Callable[[Room], float]) -> Callable[[Room], float]:
    def key(room: Room) -> float:
        try:
            value = float(policy(room))
        except Exception as error:  # noqa: BLE001 - whatever others' code may raise
            _complain(name, room, repr(error))
            return spread(room)
        if math.isnan(value):
            _complain(name, room, "it gave no number")
            return spread(room)
        return value

    return key


def _complain(name: str, room: Room, reason: str) -> None:
    log.error("policy-failed name=%r device=%s reason=%r", name, room.device.uuid, reason)
