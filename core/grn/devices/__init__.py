"""Where devices come from: one backend per kind, chosen by a short text.

Light on purpose: a stand-in job imports `grn.devices.simfolder`, so the backends and their
dataclasses are imported only when a broker opens one.
"""

from __future__ import annotations

from grn.errors import BrokerUnavailable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from grn.devices.base import Backend

__all__ = ["KINDS", "canonical_spec", "may_gain", "open_backend", "open_more"]

KINDS = ("sim:4x16GiB", "nvml", "none", "auto")
"""One example of each kind that `open_backend` accepts."""


def open_backend(spec: str | None, *, mask: str | None, state_dir: str) -> Backend:
    """Open the devices that `spec` names.

    Args:
        spec: 'sim:…', 'nvml' (NVIDIA cards), 'none', or 'auto' (also `None` and ''): NVIDIA cards
            where there are some, else none; see `KINDS`.
        mask: the broker's own CUDA_VISIBLE_DEVICES; `None` if it is not set.
        state_dir: a private folder of this broker for what must be on disk.

    Raises:
        UsageError: an unknown kind or a malformed text.
        BrokerUnavailable: another broker holds these devices; 'nvml', and there are no cards.
        PathError: the folder of simulated devices cannot be used.
    """
    text = (spec or "auto").strip()
    if text.startswith("sim:"):
        from grn.devices.simspec import parse_spec  # noqa: PLC0415 - see the module's docstring
        from grn.devices.simulated import SimulatedBackend  # noqa: PLC0415

        return SimulatedBackend(parse_spec(text), mask=mask, state_dir=state_dir)
    from grn.devices.none import NoneBackend  # noqa: PLC0415

    if text == "none":
        return NoneBackend("no devices: --devices none")
    if text not in ("nvml", "auto", ""):
        raise _unknown(text)
    from grn.devices.nvml.backend import open_nvml  # noqa: PLC0415

    opened = open_nvml(mask)
    if not isinstance(opened, str):
        return opened
    if text == "nvml":
        raise BrokerUnavailable(f"no devices for --devices nvml: {opened}")
    return NoneBackend(_none_for(opened))


def may_gain(spec: str | None, mask: str | None) -> bool:
    """Whether devices could appear while a broker runs, without starting anything to find out."""
    if canonical_spec(spec or "") not in ("auto", "nvml"):
        return False
    if mask is not None and not mask.strip():
        return False
    from grn.devices.nvml.nursery import library_is_missing  # noqa: PLC0415 - as above

    return not library_is_missing()


def open_more(spec: str | None, *, mask: str | None, beside: AbstractSet[str]) -> Backend | str:
    """Open the devices that `spec` names by now, beside those that are open; or say why there are none.

    Raises:
        BrokerUnavailable: another broker holds all that is new.
    """
    if canonical_spec(spec or "") not in ("auto", "nvml"):
        return ""
    from grn.devices.nvml.backend import open_nvml  # noqa: PLC0415 - as above

    found = open_nvml(mask, beside=beside)
    return found if not isinstance(found, str) else _none_for(found)


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
    return f"no devices: {why}; use --devices sim:4x16GiB to try GRN on simulated ones"


def _unknown(text: str) -> UsageError:
    return UsageError(f"unknown devices {text!r}; use one of: {', '.join(KINDS)}")
