"""Looks at the machine again for devices that were not there, or not visible, at the broker's start.

A driver that is loaded late, a MIG slice that was made since: a broker that an operator started does
not leave, so it looks again. When it is told to (SIGHUP); and when a request wants a device and there
are none, but not more often than every `PAUSE_S`. That request waits for the answer.

Devices that a mask hides: a broker that a client started has that client's CUDA_VISIBLE_DEVICES, and
another client's may name others. Managing all would take cards from brokers of other users who keep
apart by masks; managing the starter's alone would leave the other client without. So it manages what
its clients' masks name: the first request under a mask that names more waits for a look under it, and
so does a later one that would have to be refused. A broker that was started by hand keeps its mask.

Promises: devices are only added, and those that are known stay as they are, with their leases. The
driver is asked in a thread: nobody else waits. Where there is no driver's library, nothing is started.
Must not: look where there are to be no devices (`none`), or add one that a lease of an earlier broker
names: it was never booked here.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from grn.devices import may_gain, open_more
from grn.devices.booked import rule_device
from grn.errors import GrnError
from grn.rules import events as ev
from grn.rules.environment_values import ALSO_TELL
from grn.rules.mask import hides_all
from grn.rules.messages import GrantWriter
from grn.rules.visible import names_more, shown_by

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from grn.broker.core import BrokerCore
    from grn.devices.base import Backend
    from grn.rules.model import Device, Request
    from grn.settings import Settings

__all__ = ["PAUSE_S", "Lookout", "grant_writer", "rule_devices"]

PAUSE_S = 5.0
"""Requests that come sooner after a look are answered by what it found."""

_MOST_MASKS = 64
"""Of so many masks it is known when they were looked under: of the latest."""

_LONGEST_MASK = 4096
"""All masks that name devices are one record of the journal; a hundred UUIDs fit into one mask."""

Mask = str | None
"""A CUDA_VISIBLE_DEVICES; `None`: it is not set."""

log = logging.getLogger("grn.broker")


class _Held(NamedTuple):
    """A request that waits for a look under this mask, and what its client may see."""

    event: ev.Asked
    mask: Mask
    under: Mask


class Lookout:
    """Finds devices that are new here, and has the broker manage them.

    Attributes:
        masks: those whose devices are managed; the broker's own comes first.
        held: by ticket, requests that wait for a look.
    """

    def __init__(
        self,
        core: BrokerCore,
        settings: Settings,
        *,
        spec: str | None,
        masks: tuple[Mask, ...],
        state_dir: str,
        widens: bool,
    ) -> None:
        self.masks = masks
        self.held: dict[int, _Held] = {}
        self._core = core
        self._settings = settings
        self._spec = spec
        self._state_dir = state_dir
        self._widens = widens
        self._looked_s = core.now()
        self._looked: dict[Mask, float] = dict.fromkeys(masks, self._looked_s)
        """When masks were looked under; the latest comes last."""
        self._looking: tuple[Mask, ...] = ()
        self._wanted: dict[Mask, None] = {}
        self._again = self._closed = False
        self._note = core.backend.note

    # -- requests -------------------------------------------------------------------------------

    def holds(self, event: ev.Asked, mask: Mask) -> bool:
        """Keep a request back if a look may help it; it is handed on when that look is over.

        `mask` is the CUDA_VISIBLE_DEVICES of its client, as it is.
        """
        request, machine = event.request, self._core.machine
        if not request.gpus or request.outer is not None or machine.closing or hides_all(mask):
            return False
        if self._shows_more(request, mask, event.now):
            under = mask
        elif not self._core.devices and self._may_have_appeared(event.now):
            under = self.masks[0]
        else:
            return False
        self.held[request.ticket] = _Held(event, mask, under)
        self._begin(under)
        return True

    def withdrawn(self, event: ev.Event) -> list[ev.Effect] | None:
        """Let go of a request that is cancelled; `None`: the event is not about one of ours."""
        held = self.held.pop(event.ticket, None) if type(event) is ev.Cancelled else None
        if held is None:
            return None
        request = held.event.request
        return [ev.Refused(request.ticket, "cancelled", "the request was withdrawn", request)]

    def expect(self, requests: Iterable[tuple[Request, Mask]]) -> None:
        """Look for what requests may need that are only thought of, given with their masks."""
        now = self._core.now()
        for request, mask in requests:
            if not request.gpus or hides_all(mask) or mask in self._looked:
                continue
            if self._shows_more(request, mask, now):
                self._begin(mask)

    def _shows_more(self, request: Request, mask: Mask, now: float) -> bool:
        """Whether a look under the mask may find devices that are hidden by those so far."""
        if not self._widens or self.masks[0] is None or len(mask or "") > _LONGEST_MASK:
            return False
        looked_s = self._looked.get(mask, self._looked_s if None in self.masks else None)
        if looked_s is None:
            worth_it = names_more(mask, self._core.devices)
        elif now - looked_s < PAUSE_S and mask not in self._looking:
            worth_it = False
        else:  # what was another broker's, or did not answer, may be there by now
            worth_it = self._core.machine.placer.impossible(request) is not None
        return worth_it and may_gain(self._spec, (mask,), were_hidden=True)

    def _may_have_appeared(self, now: float) -> bool:
        if self._looking:
            return True
        if now - self._looked_s < PAUSE_S:
            return False
        self._looked_s = now
        return may_gain(self._spec, self.masks)

    # -- looking --------------------------------------------------------------------------------

    def look(self) -> None:
        """Look now, whatever was found before, and let devices in that errors keep out."""
        log.info("looking-again devices=%d", len(self._core.devices))
        self._core.step(ev.Trusted(self._core.now()))
        self._core.sampler.look()
        self._again = bool(self._looking)
        self._begin(self.masks[0])
        self._core.settle()

    def _begin(self, mask: Mask) -> None:
        """Look under this mask, too, as soon as the look that goes on is over."""
        if mask not in self._looking:
            self._wanted[mask] = None
        if not self._looking:
            self._start()

    def _start(self) -> None:
        self._looking = tuple(dict.fromkeys((*self.masks, *self._wanted)))
        self._wanted.clear()
        self._again = False
        known = frozenset(info.uuid for info in self._core.backend.devices)
        answer = self._core.loop.run_in_executor(None, self._open, self._looking, known)
        answer.add_done_callback(self._ended)

    def _open(self, masks: tuple[Mask, ...], known: frozenset[str]) -> Backend | str:
        try:
            return open_more(self._spec, masks=masks, beside=known, state_dir=self._state_dir)
        except GrnError as error:
            return error.message
        except OSError as error:
            return f"the devices could not be looked at: {error.strerror or error}"

    def _ended(self, answer: asyncio.Future[Backend | str]) -> None:
        masks, self._looking = self._looking, ()
        found: Any = "the look was broken off" if answer.cancelled() else answer.result()
        if self._closed:
            if not isinstance(found, str):
                found.close()
            return
        self._remember(masks)
        if not isinstance(found, str):
            self._gain(found, masks)
        else:
            self._nothing(found)
        self._hand_on(masks)
        if self._again or self._wanted:
            self._start()
        self._core.settle()

    def _remember(self, masks: tuple[Mask, ...]) -> None:
        self._looked_s = self._core.now()
        for mask in masks:
            self._looked.pop(mask, None)
            self._looked[mask] = self._looked_s
        for mask in list(self._looked)[:-_MOST_MASKS]:
            del self._looked[mask]

    def _hand_on(self, masks: tuple[Mask, ...]) -> None:
        """Let requests go on that waited for this look, with what their clients see by now."""
        core = self._core
        for ticket, held in list(self.held.items()):
            if held.under in masks:
                del self.held[ticket]
                shown = shown_by(held.mask, core.devices)
                core.step(ev.Asked(core.now(), replace(held.event.request, allowed=shown)))

    def _gain(self, found: Backend, masks: tuple[Mask, ...]) -> None:
        core, before = self._core, self._core.backend
        new = {info.uuid for info in found.devices}
        backend: Any = found
        if type(before) is type(found):
            backend = before
            backend.absorb(found)
        else:
            before.close()
        self._tell(backend.note)
        devices = rule_devices(self._settings, backend)
        self.masks += tuple(
            mask
            for mask in masks
            if mask not in self.masks and new and (mask is None or new & _shown(mask, devices))
        )
        writer = grant_writer(self._settings, backend, devices, self.masks[0])
        core.gain(backend, devices, writer, self.masks)

    def _nothing(self, why: str) -> None:
        if self._core.devices or not why:
            log.info("nothing-new reason=%r", why)
        if why:
            self._tell(why)
            self._core.step(ev.Found(self._looked_s, (), why))

    def _tell(self, note: str) -> None:
        """Say why there are no devices, or fewer than a mask names, as of now."""
        before, self._note = self._note, note
        if note == before:
            return
        warnings = self._core.warnings
        warnings[:] = [text for text in warnings if text != before]
        if note:
            warnings.append(note)
            log.warning("devices-missing reason=%r", note)

    def close(self) -> None:
        """Look no more; what is still found is given back."""
        self._closed = True
        self.held.clear()


def _shown(mask: str, devices: Sequence[Device]) -> frozenset[str]:
    return shown_by(mask, devices) or frozenset()


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
