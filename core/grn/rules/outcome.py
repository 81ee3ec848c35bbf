"""How a job ended, and whether device memory was the reason.

An exit status alone cannot tell: Python exits 1 after any error, C++ aborts, and a SIGKILL points at
the host's RAM rather than the device's. So an out-of-memory end needs a failure *and* words of a
framework on stderr; a failure without words but at the limit is only suspected.

Three more questions are answered here. Would more memory have helped, or had others taken what was
booked (`remedy`)? Was the device busy rather than full (`BUSY`)? Did the kernel end the job for want
of the host's RAM (`killed_for_host_ram`)?

Promises: success is success whatever was printed (programs catch the error and shrink); an end that
we caused is `cancelled`, never a lesson about memory; an end nobody saw is `lost`, never `ok`; a
SIGKILL is never about device memory.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re

__all__ = [
    "BUSY",
    "CANCELLED",
    "FAILED",
    "HINT",
    "KILLED",
    "LOST",
    "MEMORY",
    "MORE",
    "NOTHING",
    "OK",
    "OOM",
    "OOM_SUSPECTED",
    "SAME",
    "classify",
    "crowded_out",
    "describe_end",
    "killed_for_host_ram",
    "remedy",
    "stderr_says",
    "stderr_says_oom",
]

OK = "ok"
FAILED = "failed"
KILLED = "killed"
OOM = "oom"
OOM_SUSPECTED = "oom-suspected"
CANCELLED = "cancelled"
LOST = "lost"

NOTHING = ""
MEMORY = "memory"
"""What stderr says: the device's memory ran out."""
HINT = "hint"
"""What stderr says: something that a full device causes, among other things."""
BUSY = "busy"
"""What stderr says: the device let nobody in, which is no matter of memory."""

MORE = "more"
"""Remedy: the job needs more than it was booked at."""
SAME = "same"
"""Remedy: the same again, since others had taken what was booked."""

_TAIL_BYTES = 64 * 1024
_SUSPECT_PERCENT = 95  # of the booking

_SIGHUP, _SIGINT, _SIGABRT, _SIGBUS, _SIGKILL, _SIGSEGV, _SIGTERM = 1, 2, 6, 7, 9, 11, 15
# Signals by which a program ends itself when an allocation failed and nobody looked.
_CRASHES = (_SIGABRT, _SIGBUS, _SIGSEGV)
# A shell reports the signal of its command as 128 + n: somebody ended that one from outside.
_ENDED_FROM_OUTSIDE = tuple(128 + number for number in (_SIGHUP, _SIGINT, _SIGKILL, _SIGTERM))
_KILLED_STATUS = 128 + _SIGKILL

# The gaps are bounded: `.*` on a line of 64 KiB that repeats a pattern's start takes seconds.
_MEMORY_PATTERNS = (
    # PyTorch, on cards of either maker
    rb"(?:CUDA|HIP) out of memory",
    rb"torch\.(?:cuda\.)?OutOfMemoryError",
    rb"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED",
    rb"hipErrorOutOfMemory",
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
    # The runtime, llama.cpp, NCCL
    rb"cudaErrorMemoryAllocation",
    rb"(?:CUDA|HIP) error: out of memory",
    rb"cudaMalloc failed: out of memory",
    rb"Cuda failure .{0,200}?out of memory",
    # vLLM
    rb"Free memory on device .{0,200}? less than desired",
    rb"No available memory for the cache blocks",
    # A memory limit of the driver ended the process
    rb"CUDA_ERROR_MPS_CLIENT_TERMINATED",
    rb"cudaErrorMpsClientTerminated",
    rb"(?:CUDA|Cuda|cuda)(?: driver)? (?:error|failure):? 810\b",
)
# An exclusive device that another process has, or a sharing service that takes no more clients.
_BUSY_PATTERNS = (
    rb"CUDA-capable devices?(?:\(s\))? (?:are|is|is/are) busy or unavailable",
    rb"cudaErrorDevicesUnavailable",
    rb"CUDA_ERROR_DEVICE_UNAVAILABLE",
    rb"CUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE|SERVER_NOT_READY)",
    rb"CUDA_ERROR_MPS_MAX_(?:CLIENTS|CONNECTIONS)_REACHED",
    rb"cudaErrorMps(?:ConnectionFailed|RpcFailure|ServerNotReady)",
    rb"cudaErrorMpsMax(?:Clients|Connections)Reached",
    rb"(?:CUDA|Cuda|cuda)(?: driver)? (?:error|failure):? 80[5-9]\b",
    rb"MPS client failed to connect",
)
_HINT_PATTERNS = (
    rb"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED",
    rb"ran out of memory trying to allocate",  # an allocator's warning: it may have found another way
)
# Each pattern has one of these, and most programs' last words have none: no need to load `re`.
_TELL_TALES = (
    b"memory",
    b"alloc",
    b"exhausted",
    b"unavailable",
    b"mps",
    b"not_initialized",
    b" 80",
    b" 810",
)

_compiled: list[tuple[str, re.Pattern[bytes]]] = []


def stderr_says(tail: bytes) -> str:
    """Tell what the last 64 KiB of a job's stderr say: `MEMORY`, `BUSY`, `HINT` or `NOTHING`."""
    tail = tail[-_TAIL_BYTES:]
    lowered = tail.lower()
    if not any(word in lowered for word in _TELL_TALES):
        return NOTHING
    if not _compiled:
        import re  # noqa: PLC0415 - most jobs never get here, and compiling costs start-up time

        for meaning, patterns in (
            (MEMORY, _MEMORY_PATTERNS),
            (BUSY, _BUSY_PATTERNS),
            (HINT, _HINT_PATTERNS),
        ):
            _compiled.append((meaning, re.compile(b"|".join(patterns))))
    for meaning, pattern in _compiled:
        if pattern.search(tail):
            return meaning
    return NOTHING


def stderr_says_oom(tail: bytes) -> bool:
    """Tell whether the last 64 KiB of a job's stderr carry a framework's out-of-memory error."""
    return stderr_says(tail) == MEMORY


def classify(
    *,
    exit_code: int | None,
    signal: int | None,
    said_oom: bool,
    stopped_by_us: bool,
    peak_mib: int | None,
    booked_mib: int | None,
    device_nearly_full: bool,
    said: str = NOTHING,
    told: bool | None = None,
) -> str:
    """Name the outcome of a job; with neither `exit_code` nor `signal` nobody saw its end.

    `said` is what its stderr says (`said_oom` is short for `MEMORY`). `told` is what the job itself
    reported, which beats words and figures: it ran out of device memory, or it did not.
    """
    if stopped_by_us:
        return CANCELLED
    if exit_code is None and signal is None:
        return LOST
    if exit_code == 0 and signal is None:
        return OK
    other = FAILED if signal is None else KILLED
    if told is False or _was_killed(exit_code, signal):
        return other
    if told or said_oom or said == MEMORY:
        return OOM
    at_the_limit = device_nearly_full or _fills_booking(peak_mib, booked_mib)
    if said != BUSY and at_the_limit and _ended_itself(exit_code, signal):
        return OOM_SUSPECTED
    return other


def remedy(outcome: str, *, device_nearly_full: bool, said: str, filled_by_others: bool) -> str:
    """Tell what a retry needs: `MORE` memory, the `SAME` again, or `NOTHING` (memory was not it).

    A failure near the booking alone is no proof: with a tight margin each failure of a known type
    looks like that. It counts if the device was full too, or stderr hints at it. Where others had
    taken what was booked for the job, its booking was not too small.
    """
    suspected = outcome == OOM_SUSPECTED and (device_nearly_full or said == HINT)
    if outcome != OOM and not suspected:
        return NOTHING
    return SAME if filled_by_others else MORE


def crowded_out(*, left_mib: int | None, booked_mib: int | None) -> bool:
    """Tell whether others held so much of a device that the booking did not fit beside it.

    `left_mib` is what was left of the device for this lease: its total less the driver's reserve,
    what is foreign, and what other leases were measured at; for several devices the smallest.
    Unknown figures accuse nobody.
    """
    if left_mib is None or not booked_mib:
        return False
    return left_mib * 100 < booked_mib * _SUSPECT_PERCENT


def killed_for_host_ram(
    *,
    exit_code: int | None,
    signal: int | None,
    kills_before: int | None,
    kills_after: int | None,
) -> bool:
    """Tell whether the kernel killed the job since its control group ran out of the host's RAM.

    The counts are those of the job's control group, from before its start and after its end.
    """
    if kills_before is None or kills_after is None:
        return False
    return _was_killed(exit_code, signal) and kills_after > kills_before


def describe_end(exit_code: int | None, signal: int | None) -> str:
    """Say how a process ended: `exit 3`, `killed by SIGKILL`, `end not seen`."""
    if signal is not None:
        return f"killed by {_signal_name(signal)}"
    return "end not seen" if exit_code is None else f"exit {exit_code}"


def _was_killed(exit_code: int | None, signal: int | None) -> bool:
    return signal == _SIGKILL or (signal is None and exit_code == _KILLED_STATUS)


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
