"""How a job ended, and whether device memory was the reason.

An exit status alone cannot tell: Python exits 1 after any error, C++ aborts, and a SIGKILL points at
the host's RAM rather than the device's. So an out-of-memory end needs a failure *and* words of a
framework on stderr; a failure without words but at the limit is only suspected.

Promises: success is success whatever was printed (programs catch the error and shrink); an end that
we caused is `cancelled`, never a lesson about memory; an end nobody saw is `lost`, never `ok`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

__all__ = [
    "CANCELLED",
    "FAILED",
    "KILLED",
    "LOST",
    "OK",
    "OOM",
    "OOM_SUSPECTED",
    "classify",
    "describe_end",
    "stderr_says_oom",
]

OK = "ok"
FAILED = "failed"
KILLED = "killed"
OOM = "oom"
OOM_SUSPECTED = "oom-suspected"
CANCELLED = "cancelled"
LOST = "lost"

_TAIL_BYTES = 64 * 1024
_SUSPECT_PERCENT = 95  # of the booking

_SIGHUP, _SIGINT, _SIGABRT, _SIGBUS, _SIGKILL, _SIGSEGV, _SIGTERM = 1, 2, 6, 7, 9, 11, 15
# Signals by which a program ends itself when an allocation failed and nobody looked.
_CRASHES = (_SIGABRT, _SIGBUS, _SIGSEGV)
# A shell reports the signal of its command as 128 + n: somebody ended that one from outside.
_ENDED_FROM_OUTSIDE = tuple(128 + number for number in (_SIGHUP, _SIGINT, _SIGKILL, _SIGTERM))

# The gaps are bounded: `.*` on a line of 64 KiB that repeats a pattern's start takes seconds.
_STRONG_PATTERNS = (
    # PyTorch
    rb"(?:CUDA|HIP) out of memory",
    rb"torch\.(?:cuda\.)?OutOfMemoryError",
    rb"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED",
    # JAX and XLA
    rb"RESOURCE_EXHAUSTED: Out of memory",
    rb"Failed to allocate request for .{0,200}? on device",
    # TensorFlow
    rb"ResourceExhaustedError",
    rb"OOM when allocating tensor",
    # CuPy, numba, RMM
    rb"cupy\.cuda\.memory\.OutOfMemoryError",
    rb"CUDA_ERROR_OUT_OF_MEMORY",
    rb"std::bad_alloc: .{0,400}?out_of_memory",
    # The CUDA runtime, llama.cpp, NCCL
    rb"cudaErrorMemoryAllocation",
    rb"CUDA error: out of memory",
    rb"cudaMalloc failed: out of memory",
    rb"Cuda failure .{0,200}?out of memory",
    # vLLM
    rb"Free memory on device .{0,200}? less than desired",
    rb"No available memory for the cache blocks",
    # A memory limit of the driver ended the process
    rb"CUDA_ERROR_MPS_CLIENT_TERMINATED",
    rb"(?:CUDA|Cuda|cuda)(?: driver)? error:? 810\b",
)

_compiled: list[re.Pattern[bytes]] = []


def stderr_says_oom(tail: bytes) -> bool:
    """Tell whether the last 64 KiB of a job's stderr carry a framework's out-of-memory error."""
    if not _compiled:
        import re  # noqa: PLC0415 - most jobs never get here, and compiling costs start-up time

        _compiled.append(re.compile(b"|".join(_STRONG_PATTERNS)))
    return _compiled[0].search(tail[-_TAIL_BYTES:]) is not None


def classify(
    *,
    exit_code: int | None,
    signal: int | None,
    said_oom: bool,
    stopped_by_us: bool,
    peak_mib: int | None,
    booked_mib: int | None,
    device_nearly_full: bool,
) -> str:
    """Name the outcome of a job; with neither `exit_code` nor `signal` nobody saw its end."""
    if stopped_by_us:
        return CANCELLED
    if exit_code is None and signal is None:
        return LOST
    if exit_code == 0 and signal is None:
        return OK
    if said_oom:
        return OOM
    at_the_limit = device_nearly_full or _fills_booking(peak_mib, booked_mib)
    if at_the_limit and _ended_itself(exit_code, signal):
        return OOM_SUSPECTED
    return FAILED if signal is None else KILLED


def describe_end(exit_code: int | None, signal: int | None) -> str:
    """Say how a process ended: `exit 3`, `killed by SIGKILL`, `end not seen`."""
    if signal is not None:
        return f"killed by {_signal_name(signal)}"
    return "end not seen" if exit_code is None else f"exit {exit_code}"


def _fills_booking(peak_mib: int | None, booked_mib: int | None) -> bool:
    if peak_mib is None or not booked_mib:
        return False
    return peak_mib * 100 >= booked_mib * _SUSPECT_PERCENT


def _ended_itself(exit_code: int | None, signal: int | None) -> bool:
    return signal in _CRASHES if signal is not None else exit_code not in _ENDED_FROM_OUTSIDE


def _signal_name(number: int) -> str:
    import signal  # noqa: PLC0415 - loads enum, and only ends by a signal need it

    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers, not names
        return f"signal {number}"
