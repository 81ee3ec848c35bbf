"""Where devices come from: one backend per kind, chosen by a short text.

Light on purpose: a stand-in job imports `grn.devices.simfolder`, so the backends and their
dataclasses are imported only when a broker opens one.
"""

from __future__ import annotations

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.devices.base import Backend

__all__ = ["KINDS", "canonical_spec", "open_backend"]

KINDS = ("sim:4x16GiB", "none", "auto")
"""One example of each kind that `open_backend` accepts."""

_NO_DRIVER = (
    "no devices: real GPUs are not supported by this version; "
    "use --devices sim:4x16GiB to try GRN on simulated ones"
)


def open_backend(spec: str | None, *, mask: str | None, state_dir: str) -> Backend:
    """Open the devices that `spec` names.

    Args:
        spec: 'sim:…', 'none', or 'auto' (also `None` and ''), see `KINDS`.
        mask: the broker's own CUDA_VISIBLE_DEVICES; `None` if it is not set.
        state_dir: a private folder of this broker for what must be on disk.

    Raises:
        UsageError: an unknown kind or a malformed text.
        BrokerUnavailable: another broker holds these devices.
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
    if text == "auto":
        return NoneBackend(_NO_DRIVER)
    raise _unknown(text)


def canonical_spec(spec: str) -> str:
    """Write a specification as the broker that manages it would: two forms of one are equal.

    Raises:
        UsageError: an unknown kind or a malformed text.
    """
    text = spec.strip()
    if text.startswith("sim:"):
        from grn.devices.simspec import parse_spec  # noqa: PLC0415 - see the module's docstring

        return parse_spec(text).canonical()
    if text not in ("", "none", "auto"):
        raise _unknown(text)
    return "none"


def _unknown(text: str) -> UsageError:
    return UsageError(f"unknown devices {text!r}; use one of: {', '.join(KINDS)}")
