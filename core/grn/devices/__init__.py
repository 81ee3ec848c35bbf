"""Where devices come from: one backend per kind, chosen by a short text.

Light on purpose: a stand-in job imports `grn.devices.simfolder`, so the backends and their
dataclasses are imported only when a broker opens one.
"""

from __future__ import annotations

from grn.errors import BrokerUnavailable, UsageError
from grn.rules.mask import hides_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from grn.devices.base import Backend

__all__ = ["KINDS", "SIMULATE", "canonical_spec", "may_gain", "open_backend", "open_more"]

KINDS = ("sim:4x16GiB", "nvml", "none", "auto")
"""One example of each kind that `open_backend` accepts."""
SIMULATE = "GRN_DEVICES=sim:4x16GiB"
"""What to set where there is no device, as every face takes it; one with a flag of its own names that."""


def open_backend(
    spec: str | None, *, mask: str | None, state_dir: str, also: Sequence[str | None] = ()
) -> Backend:
    """Open the devices that `spec` names.

    Args:
        spec: 'sim:…', 'nvml' (NVIDIA cards), 'none', or 'auto' (also `None` and ''): NVIDIA cards
            where there are some, else none; see `KINDS`.
        mask: the broker's own CUDA_VISIBLE_DEVICES; `None` if it is not set.
        state_dir: a private folder of this broker for what must be on disk.
        also: masks of clients; what they name is opened, too.

    Raises:
        UsageError: an unknown kind or a malformed text.
        BrokerUnavailable: another broker holds these devices; 'nvml', and there are no cards.
        PathError: the folder of simulated devices cannot be used.
    """
    text = (spec or "auto").strip()
    if text.startswith("sim:"):
        from grn.devices.simspec import parse_spec  # noqa: PLC0415 - see the module's docstring
        from grn.devices.simulated import SimulatedBackend  # noqa: PLC0415

        return SimulatedBackend(parse_spec(text), masks=(mask, *also), state_dir=state_dir)
    from grn.devices.none import NoneBackend  # noqa: PLC0415

    if text == "none":
        return NoneBackend("no devices: devices none was chosen")
    if text not in ("nvml", "auto", ""):
        raise _unknown(text)
    from grn.devices.nvml.backend import open_nvml  # noqa: PLC0415

    opened = open_nvml((mask, *also), beside=frozenset())
    if not isinstance(opened, str):
        return opened
    if text == "nvml":
        raise BrokerUnavailable(f"no devices for --devices nvml: {opened}")
    return NoneBackend(_none_for(opened))


def may_gain(spec: str | None, masks: Sequence[str | None], *, were_hidden: bool = False) -> bool:
    """Whether a look under these masks could find devices, without starting anything to find out.

    `were_hidden`: also such as were there before, under no mask that was looked under.
    """
    text = canonical_spec(spec or "")
    if text == "none" or all(map(hides_all, masks)):
        return False
    if text.startswith("sim:"):
        return were_hidden
    from grn.devices.nvml.nursery import library_is_missing  # noqa: PLC0415 - as above

    return not library_is_missing()


def open_more(
    spec: str | None, *, masks: Sequence[str | None], beside: AbstractSet[str], state_dir: str
) -> Backend | str:
    """Open what `spec` and the masks name by now, beside what is open; or say why there is nothing.

    Raises:
        BrokerUnavailable: other brokers hold all that there is, and none is open.
        PathError: the folder of simulated devices cannot be read.
    """
    text = canonical_spec(spec or "")
    if text == "none":
        return ""
    if text.startswith("sim:"):
        from grn.devices.simspec import parse_spec  # noqa: PLC0415 - as above
        from grn.devices.simulated import SimulatedBackend  # noqa: PLC0415

        return SimulatedBackend(parse_spec(text), masks=masks, state_dir=state_dir, beside=beside)
    from grn.devices.nvml.backend import open_nvml  # noqa: PLC0415

    found = open_nvml(masks, beside=beside)
    return found if not isinstance(found, str) or beside else _none_for(found)


def canonical_spec(spec: str) -> str:
    """Write a specification in the one form that all its spellings share.

    'auto' stays 'auto': what it turns out to be depends on the machine, so whatever a broker
    manages that was started with it is right.

    Raises:
        UsageError: an unknown kind or a malformed text.
    """
    text = spec.strip()
    if text.startswith("sim:"):
        from grn.devices.simspec import parse_spec  # noqa: PLC0415 - see the module's docstring

        return parse_spec(text).canonical()
    if text not in ("", "none", "auto", "nvml"):
        raise _unknown(text)
    return text or "auto"


def _none_for(why: str) -> str:
    return f"no devices: {why}; {SIMULATE} tries GRN on simulated ones"


def _unknown(text: str) -> UsageError:
    return UsageError(f"unknown devices {text!r}; use one of: {', '.join(KINDS)}")
