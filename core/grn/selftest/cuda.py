"""The CUDA driver through ctypes: which devices this process sees, and memory on them.

The least that a CUDA program can be, so that what is measured of it is the driver's context and what
it asked for, and no framework's cache. Only the driver's own library is needed, no toolkit.

Promises: an error carries the driver's own name for it (`CUDA_ERROR_OUT_OF_MEMORY`), as programs
print it.
"""

from __future__ import annotations

import ctypes

from grn.errors import GrnError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["LIBRARY", "Cuda", "CudaError", "NoCuda", "bare"]

LIBRARY = "libcuda.so.1"
_UUID_BYTES = 16
_TOUCH = 0xA5


class CudaError(GrnError):
    """The CUDA driver refused a call."""

    code = "cuda"


class NoCuda(GrnError):  # noqa: N818 - named by what was found
    """There is no CUDA driver here, so nothing can be tried with it."""

    code = "no-cuda"


def bare(uuid: str) -> str:
    """Return a UUID without its `GPU-` or `MIG-`, which CUDA does not tell."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()


class Cuda:
    """The devices that the mask leaves to this process.

    Raises:
        NoCuda: the driver's library is not there.
        CudaError: it cannot be initialised, or shows no device.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NoCuda(f"{LIBRARY} cannot be loaded: {error}") from error
        self._context: dict[int, ctypes.c_void_p] = {}
        self._call("cuInit", 0)
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self._devices = [self._device(ordinal) for ordinal in range(count.value)]
        self.uuids = [self._uuid(device) for device in self._devices]

    @property
    def version(self) -> str:
        """The newest CUDA that the driver supports, such as `12.8`."""
        number = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def hold(self, ordinal: int, mib: int) -> None:
        """Take memory on a device, and write to all of it, until this process ends.

        Raises:
            CudaError: there is no such device, or not so much memory on it.
        """
        if ordinal >= len(self._devices):
            raise CudaError(f"device {ordinal} is not among the {len(self._devices)} visible ones")
        self._enter(ordinal)
        size = ctypes.c_size_t(mib << 20)
        pointer = ctypes.c_uint64()
        what = f"allocate {mib} MiB on device {ordinal}"
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), size, what=what)
        self._call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(_TOUCH), size)
        self._call("cuCtxSynchronize")

    def _enter(self, ordinal: int) -> None:
        """Make the device's context, which takes memory of its own, the current one."""
        context = ctypes.c_void_p()
        if ordinal not in self._context:
            self._call(
                "cuDevicePrimaryCtxRetain", ctypes.byref(context), self._devices[ordinal],
                what=f"make a context on device {ordinal}",
            )  # fmt: skip
            self._context[ordinal] = context
        self._call("cuCtxSetCurrent", self._context[ordinal])

    def _device(self, ordinal: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        return device

    def _uuid(self, device: ctypes.c_int) -> str:
        """Return a UUID as text, bare. Only `_v2` (CUDA 11.4) knows that of a MIG slice."""
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        name = "cuDeviceGetUuid_v2"
        if not hasattr(self._library, name):
            name = "cuDeviceGetUuid"
        self._call(name, ctypes.byref(raw), device)
        digits = bytes(raw).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _call(self, name: str, *args: Any, what: str = "") -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaError(f"this driver's {LIBRARY} has no {name}: it is too old") from error
        code = function(*args)
        if code:
            tried = f"; tried to {what}" if what else ""
            raise CudaError(f"CUDA error: {self._text(code)}, returned by {name}{tried}")

    def _text(self, code: int) -> str:
        """Name an error as the driver does: `out of memory (CUDA_ERROR_OUT_OF_MEMORY)`."""
        words = []
        for function in ("cuGetErrorString", "cuGetErrorName"):
            text = ctypes.c_char_p()
            getattr(self._library, function)(code, ctypes.byref(text))
            words.append((text.value or b"unknown").decode("ascii", "replace"))
        return f"{words[0]} ({words[1]}, {code})"
