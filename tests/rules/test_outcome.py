"""How a job ended, and whether device memory was the reason."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from grn.rules.outcome import classify, describe_end, stderr_says_oom

STRONG = [
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    b"torch.cuda.OutOfMemoryError: no room",
    b"RuntimeError: HIP out of memory. Tried to allocate 1 GiB",
    b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    b"cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    b"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123 bytes.",
    b"Failed to allocate request for 1.0GiB (1073741824B) on device ordinal 0",
    b"tensorflow.python.framework.errors_impl.ResourceExhaustedError: failed",
    b"OOM when allocating tensor with shape[1,2]",
    b"failed to allocate 2.00G (21 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8 bytes",
    b"MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /x.hpp:70",
    b"RuntimeError: cudaErrorMemoryAllocation: out of memory",
    b"CUDA error: out of memory",
    b"ggml_backend_cuda: cudaMalloc failed: out of memory",
    b"NCCL WARN Cuda failure 2 'out of memory'",
    b"Free memory on device (1.0/8.0 GiB) on startup is less than desired GPU memory",
    b"ValueError: No available memory for the cache blocks.",
    b"CUDA_ERROR_MPS_CLIENT_TERMINATED",
    b"CUDA error 810",
]
WEAK = [
    b"",
    b"Traceback (most recent call last):\nMemoryError",
    b"std::bad_alloc",
    b"CUDA error: all CUDA-capable devices are busy or unavailable",
    b"CUBLAS_STATUS_NOT_INITIALIZED",
    b"numpy: Unable to allocate 8.0 GiB for an array",
    b"the shop is out of memory sticks",
    b"Failed to allocate request for\n1 GiB on device",
]


@pytest.mark.parametrize("text", STRONG)
def test_the_errors_of_the_frameworks_are_known(text: bytes) -> None:
    """Each framework's way to say that the device is full is recognised among other bytes."""
    assert stderr_says_oom(b"\xff\x1b[31mnoise\n" + text + b"\x1b[0m\nmore\n")


@pytest.mark.parametrize("text", WEAK)
def test_other_errors_do_not_count_as_device_memory(text: bytes) -> None:
    """The host's memory, a busy device and chatter are not this error."""
    assert not stderr_says_oom(text)


def test_only_the_end_of_stderr_counts() -> None:
    """What scrolled by 64 KiB ago did not end the job."""
    assert not stderr_says_oom(b"CUDA out of memory" + b"x" * 64 * 1024)


def test_a_hostile_line_is_searched_in_linear_time() -> None:
    """A long line that repeats the start of a pattern cannot stall the caller."""
    started = time.process_time()
    stderr_says_oom((b"Cuda failure " * 6000)[: 64 * 1024])
    stderr_says_oom((b"std::bad_alloc: " * 6000)[: 64 * 1024])
    assert time.process_time() - started < 5


def outcome(**how: Any) -> str:
    """Classify an end that differs from an ordinary failure in the ways given."""
    usual: dict[str, Any] = {
        "exit_code": 1,
        "signal": None,
        "said_oom": False,
        "stopped_by_us": False,
        "peak_mib": 100,
        "booked_mib": 1000,
        "device_nearly_full": False,
    }
    return classify(**(usual | how))


def test_success_is_success_whatever_was_said() -> None:
    """A program that caught the error and shrank has succeeded."""
    assert outcome(exit_code=0, said_oom=True, peak_mib=1000, device_nearly_full=True) == "ok"


def test_a_failure_with_the_words_is_out_of_memory() -> None:
    """Failing by code or by signal, the framework's words decide."""
    assert outcome(said_oom=True) == "oom"
    assert outcome(exit_code=None, signal=signal.SIGABRT, said_oom=True) == "oom"


@pytest.mark.parametrize(
    "how",
    [
        {"peak_mib": 950},
        {"device_nearly_full": True},
        {"peak_mib": None, "device_nearly_full": True},
        {"exit_code": None, "signal": signal.SIGABRT, "peak_mib": 1000},
        {"exit_code": None, "signal": signal.SIGSEGV, "device_nearly_full": True},
    ],
)
def test_a_failure_at_the_limit_is_suspected(how: dict[str, Any]) -> None:
    """Without words, a full booking or a full device raises the suspicion."""
    assert outcome(**how) == "oom-suspected"


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"peak_mib": 949},
        {"peak_mib": None},
        {"peak_mib": 100, "booked_mib": None},
        {"booked_mib": 0},
    ],
)
def test_a_failure_below_the_limit_is_a_failure(how: dict[str, Any]) -> None:
    """Unknown figures raise no suspicion."""
    assert outcome(**how) == "failed"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_job_ended_from_outside_is_not_suspected(number: int) -> None:
    """A signal from outside says nothing of device memory, also when a shell reports it."""
    assert outcome(exit_code=None, signal=number, device_nearly_full=True) == "killed"
    assert outcome(exit_code=128 + number, device_nearly_full=True) == "failed"


def test_a_job_that_we_stopped_is_cancelled_however_it_ended() -> None:
    """A stopped job teaches nothing, even if it says success or out of memory."""
    assert outcome(stopped_by_us=True, exit_code=0) == "cancelled"
    assert outcome(stopped_by_us=True, said_oom=True) == "cancelled"


def test_an_end_that_nobody_saw_is_lost() -> None:
    """No status is not success."""
    assert outcome(exit_code=None) == "lost"


@pytest.mark.parametrize(
    ("exit_code", "number", "text"),
    [
        (3, None, "exit 3"),
        (0, None, "exit 0"),
        (None, 9, "killed by SIGKILL"),
        (None, 63, "killed by signal 63"),
        (None, None, "end not seen"),
    ],
)
def test_an_end_is_told_in_words(exit_code: int | None, number: int | None, text: str) -> None:
    """Codes and signals are told apart."""
    assert describe_end(exit_code, number) == text
