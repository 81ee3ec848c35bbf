"""Looks at the machine again for devices that were not there when the broker started.

A driver that is loaded late, a MIG slice that was made since: a broker that an operator started does
not leave, so it looks again. When it is told to (SIGHUP); and when a request wants a device and there
are none, but not more often than every `PAUSE_S`. That request waits for the answer.

Promises: devices are only added, and those that are known stay as they are, with their leases. The
driver is asked in a thread: nobody else waits. Where there is no driver's library, nothing is started.
Must not: look where somebody chose the devices (`none`, `sim:`), or add one that a lease of an
earlier broker names: it was never booked here.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from grn.devices import may_gain, open_more
from grn.devices.booked import rule_device
from grn.errors import GrnError
from grn.rules import events as ev
from grn.rules.environment_values import ALSO_TELL
from grn.rules.messages import GrantWriter

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from grn.broker.core import BrokerCore
    from grn.devices.base import Backend
    from grn.rules.model import Device
    from grn.settings import Settings

__all__ = ["PAUSE_S", "Lookout", "grant_writer", "rule_devices"]

PAUSE_S = 5.0
"""Requests that come sooner after a look are answered by what it found."""

log = logging.getLogger("grn.broker")


class Lookout:
    """Finds devices that are new, and has the broker manage them."""

    def __init__(
        self, core: BrokerCore, settings: Settings, *, spec: str | None, mask: str | None
    ) -> None:
        self._core = core
        self._settings = settings
        self._spec = spec
        self._mask = mask
        self._looked_s = core.now()
        self._looking = self._again = self._closed = False
        self._note = core.backend.note
        self._held: dict[int, ev.Asked] = {}

    # -- requests -------------------------------------------------------------------------------

    def intercept(self, event: ev.Event) -> list[ev.Effect] | None:
        """Take in what concerns requests that wait for a look; `None`: it is not for us.

        Called while there are no devices.
        """
        if type(event) is ev.Asked and self._is_worth_a_look(event):
            self._held[event.request.ticket] = event
            self._begin()
            return []
        if type(event) is ev.Cancelled and self._held.pop(event.ticket, None) is not None:
            return [ev.Refused(event.ticket, "cancelled", "the request was withdrawn")]
        return None

    def _is_worth_a_look(self, event: ev.Asked) -> bool:
        request, machine = event.request, self._core.machine
        if not request.gpus or request.outer is not None or machine.closing:
            return False
        if request.allowed is not None:  # what its own mask names was read without the devices
            return False
        if self._looking:
            return True
        if event.now - self._looked_s < PAUSE_S:
            return False
        self._looked_s = event.now
        return may_gain(self._spec, self._mask)

    # -- looking --------------------------------------------------------------------------------

    def look(self) -> None:
        """Look now, whatever was found before, and let devices in that errors keep out."""
        log.info("looking-again devices=%d", len(self._core.devices))
        self._core.step(ev.Trusted(self._core.now()))
        self._core.sampler.look()
        self._begin()
        self._core.settle()

    def _begin(self) -> None:
        if self._looking:
            self._again = True
            return
        self._looking = True
        known = frozenset(info.uuid for info in self._core.backend.devices)
        answer = self._core.loop.run_in_executor(None, self._open, known)
        answer.add_done_callback(self._looked)

    def _open(self, known: frozenset[str]) -> Backend | str:
        try:
            return open_more(self._spec, mask=self._mask, beside=known)
        except GrnError as error:
            return error.message

    def _looked(self, answer: asyncio.Future[Backend | str]) -> None:
        self._looking = False
        self._looked_s = self._core.now()
        found: Any = "the look was broken off" if answer.cancelled() else answer.result()
        if self._closed:
            if not isinstance(found, str):
                found.close()
            return
        if not isinstance(found, str):
            self._gain(found)
        elif self._core.devices or not found:
            log.info("nothing-new reason=%r", found)
        else:
            self._tell(found)
            self._core.step(ev.Found(self._looked_s, (), found))
        held, self._held = self._held, {}
        for event in held.values():
            self._core.step(event)
        if self._again:
            self._again = False
            self._begin()
        self._core.settle()

    def _gain(self, found: Backend) -> None:
        core, before = self._core, self._core.backend
        backend: Any = found
        if before.devices:
            backend = before
            backend.absorb(found)
        elif before is not found:
            before.close()
        self._tell(backend.note)
        devices = rule_devices(self._settings, backend)
        core.gain(backend, devices, grant_writer(self._settings, backend, devices, self._mask))

    def _tell(self, note: str) -> None:
        """Say why there are no devices, or fewer than a mask names, as of now."""
        before, self._note = self._note, note
        if note == before:
            return
        warnings = self._core.warnings
        warnings[:] = [text for text in warnings if text != before]
        if note:
            warnings.append(note)
            log.warning("%s", note)

    def close(self) -> None:
        """Look no more; what is still found is given back."""
        self._closed = True
        self._held.clear()


def rule_devices(settings: Settings, backend: Backend) -> tuple[Device, ...]:
    """Describe a backend's devices to the rules."""
    default, chosen = backend.headroom_default, settings.headroom_rule
    return tuple(rule_device(info, default, chosen) for info in backend.devices)


def grant_writer(
    settings: Settings, backend: Backend, devices: Sequence[Device], mask: str | None
) -> GrantWriter:
    """Return what writes grants; numbers that would name other devices are never handed out."""
    style = "uuid" if backend.numbers_differ else settings.mask_style or "auto"
    told = {} if settings.also_tell is None else {ALSO_TELL: settings.also_tell}
    return GrantWriter.for_mask(devices, mask=mask, style=style, extra=backend.job_env() | told)
