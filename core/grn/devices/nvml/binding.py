"""The binding `pynvml`: whether it is the right one, and what its errors mean.

Errors are compared by `.value`: they cannot be hashed, comparing one with None raises, and codes
that are newer than the binding have no class.
"""

from __future__ import annotations

import importlib
import os

from grn.clashes import clashing_bindings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = [
    "FUNCTION_NOT_FOUND",
    "INSUFFICIENT_SIZE",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "UNKNOWN",
    "attempt",
    "import_binding",
    "is_driver_gone",
    "is_lost",
    "reason_of",
]

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
UNKNOWN = 999

_LOST = frozenset({GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND})
_DRIVER_GONE = frozenset(
    {UNINITIALIZED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIB_RM_VERSION_MISMATCH}
)
_REASONS = {
    UNINITIALIZED: "the driver went away and must be initialised anew",
    NO_PERMISSION: "this user may not open it",
    NOT_FOUND: "the driver does not list it any more",
    DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded: load the nvidia module (modprobe nvidia)",
    LIBRARY_NOT_FOUND: "no NVIDIA driver: libnvidia-ml.so.1 was not found",
    FUNCTION_NOT_FOUND: "the driver is too old for nvidia-ml-py: a function is missing in it",
    GPU_IS_LOST: "the driver lost the GPU (it fell off the bus): reset it, or reboot",
    RESET_REQUIRED: "the GPU must be reset (nvidia-smi --gpu-reset) or the machine rebooted",
    LIB_RM_VERSION_MISMATCH: "the driver was upgraded, and its library does not fit the kernel"
    " module that is loaded: reboot or reload the nvidia module",
    GPU_NOT_FOUND: "the driver cannot find the GPU any more: reset it, or reboot",
    UNKNOWN: "the driver answers 'unknown error'; in a container, after the host ran `systemctl"
    " daemon-reload`, a restart of the container cures it",
}
_NEEDED = (
    "_nvmlGetFunctionPointer",
    "c_nvmlProcessInfo_v2_t",
    "nvmlMemory_v2",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetRemappedRows",
)


def import_binding() -> tuple[Any, str]:
    """Import the binding; return it and what is wrong with it, '' if it is as it should be."""
    try:
        binding = importlib.import_module("pynvml")
    except ImportError as error:
        return None, f"the Python package nvidia-ml-py cannot be imported ({error}): install it"
    missing = [name for name in _NEEDED if not hasattr(binding, name)]
    if not missing:
        return binding, ""
    path = os.path.abspath(binding.__file__ or "")
    beside = os.path.dirname(path)
    culprit = next((name for name, _ in clashing_bindings(beside, os.path.dirname(beside))), "")
    return None, (
        f"the module pynvml in {path} is not the one of nvidia-ml-py (it has no {missing[0]});"
        f" cure: pip uninstall {culprit or 'the package that it came with'}, then"
        " pip install --force-reinstall nvidia-ml-py"
    )


def is_lost(code: int) -> bool:
    """Whether a code says that this card is gone, whoever asks."""
    return code in _LOST


def is_driver_gone(code: int) -> bool:
    """Whether a code says that the driver cannot be asked at all."""
    return code in _DRIVER_GONE


def reason_of(code: int, binding: Any) -> str:
    """Say in plain words what a code means, and what to do."""
    known = _REASONS.get(code)
    return known if known is not None else f"NVML error {code}: {binding.NVMLError(code)}"


def attempt(binding: Any, call: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Ask what a card may not be able to tell: the answer and 0, or None and the code.

    Raises:
        NVMLError: the card or the driver is gone; that is no matter of this one question.
    """
    try:
        return call(*args), 0
    except binding.NVMLError as error:
        code: int = error.value
        if code in _LOST or code in _DRIVER_GONE:
            raise
        return None, code
