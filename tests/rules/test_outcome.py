"""How a job ended, and whether device memory was the reason."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from grn.rules.outcome import (
    BUSY,
    HINT,
    MEMORY,
    MORE,
    NOTHING,
    SAME,
    classify,
    crowded_out,
    describe_end,
    killed_for_host_ram,
    remedy,
    stderr_says,
    stderr_says_oom,
)

STRONG = {
    "torch": b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
    b" total capacity of 7.79 GiB of which 1.10 GiB is free. Process 4711 has 6.6 GiB in use.",
    "torch before 2.5": b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
    "torch, its class alone": b"torch.OutOfMemoryError: Allocation on device",
    "torch on ROCm": b"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB. GPU 0",
    "ROCm": b"RuntimeError: HIP error: out of memory",
    "HIP": b"hipMalloc failed with hipErrorOutOfMemory",
    "cuBLAS": b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN": b"RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "JAX": b"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to"
    b" allocate 17179869184 bytes.",
    "XLA": b"Failed to allocate request for 1.0GiB (1073741824B) on device ordinal 0",
    "TensorFlow": b"tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error",
    "TensorFlow, a tensor": b"OOM when allocating tensor with shape[64,1024] and type float on /device:GPU:0",
    "TensorFlow, the driver": b"failed to allocate 2.00GiB (2147483648 bytes) from device:"
    b" CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "CuPy": b"cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes"
    b" (allocated so far: 0 bytes).",
    "numba": b"numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in"
    b" CUDA_ERROR_OUT_OF_MEMORY",
    "RMM": b"MemoryError: std::bad_alloc: out_of_memory: CUDA error (failed to allocate 16 bytes) at:"
    b" /rmm/mr/cuda_memory_resource.hpp:61",
    "RMM, its pool": b"MemoryError: std::bad_alloc: out_of_memory: RMM failure at:pool.hpp:257: Maximum"
    b" pool size exceeded",
    "the runtime": b"cudaErrorMemoryAllocation: out of memory",
    "CUDA": b"RuntimeError: CUDA error: out of memory",
    "llama.cpp": b"ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0:"
    b" cudaMalloc failed: out of memory",
    "NCCL": b"node1:42:42 [0] init.cc:1100 NCCL WARN Cuda failure 2 'out of memory'",
    "vLLM, at its start": b"ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less"
    b" than desired GPU memory utilization (0.9, 71.2 GiB).",
    "vLLM, its cache": b"ValueError: No available memory for the cache blocks. Try increasing"
    b" `gpu_memory_utilization` when initializing the engine.",
    "a limit": b"[810] Call to cuMemAlloc results in CUDA_ERROR_MPS_CLIENT_TERMINATED",
    "a limit, by the runtime": b"cudaErrorMpsClientTerminated",
    "a limit, by number": b"CUDA error 810: MPS client terminated",
}
INFRASTRUCTURE = {
    "an exclusive device": b"RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable",
    "since 11.4": b"CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "the runtime": b"cudaErrorDevicesUnavailable",
    "the driver": b"cuCtxCreate: CUDA_ERROR_DEVICE_UNAVAILABLE",
    "805": b"MPS client failed to connect to the MPS control daemon or the MPS server",
    "805, by number": b"CUDA error 805",
    "806": b"CUDA_ERROR_MPS_RPC_FAILURE",
    "807": b"cudaErrorMpsServerNotReady",
    "808": b"CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
    "809": b"cudaErrorMpsMaxConnectionsReached",
    "809, by number": b"cuda failure 809",
}
HINTS = [
    b"RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    b"cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
    b"Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.20GiB",
]
NEITHER = [
    b"",
    b"Traceback (most recent call last):\nMemoryError",
    b"std::bad_alloc",
    b"numpy: Unable to allocate 8.0 GiB for an array",
    b"the shop is out of memory sticks",
    b"Failed to allocate request for\n1 GiB on device",
    b"80 epochs, loss 810",
    b"HTTP error 808: the service is unavailable",
]


def among_noise(text: bytes) -> bytes:
    """Put words among other bytes, as on a coloured screen."""
    return b"\xff\x1b[31mnoise\n" + text + b"\x1b[0m\nmore\n"


@pytest.mark.parametrize("source", STRONG)
def test_the_errors_of_the_frameworks_are_known(source: str) -> None:
    """Each framework's way to say that the device is full is recognised among other bytes."""
    assert stderr_says(among_noise(STRONG[source])) == MEMORY
    assert stderr_says_oom(among_noise(STRONG[source]))


@pytest.mark.parametrize("source", INFRASTRUCTURE)
def test_a_device_that_lets_nobody_in_is_not_full(source: str) -> None:
    """An exclusive device and a sharing service without room are told from want of memory."""
    assert stderr_says(among_noise(INFRASTRUCTURE[source])) == BUSY


@pytest.mark.parametrize("text", HINTS)
def test_what_a_full_device_may_cause_is_a_hint(text: bytes) -> None:
    """A library that cannot start on a full device says so in words that others use, too."""
    assert stderr_says(among_noise(text)) == HINT


@pytest.mark.parametrize("text", NEITHER)
def test_other_errors_do_not_count_as_device_memory(text: bytes) -> None:
    """The host's memory, other errors and chatter say nothing of the device."""
    assert stderr_says(text) == NOTHING
    assert not stderr_says_oom(text)


def test_the_words_for_memory_outrank_the_others() -> None:
    """One process of several may have found the device busy because another filled it."""
    text = b"\n".join([*INFRASTRUCTURE.values(), *HINTS, STRONG["torch"]])
    assert stderr_says(text) == MEMORY


def test_only_the_end_of_stderr_counts() -> None:
    """What scrolled by 64 KiB ago did not end the job."""
    assert not stderr_says_oom(b"CUDA out of memory" + b"x" * 64 * 1024)


def test_a_hostile_line_is_searched_in_linear_time() -> None:
    """A long line that repeats the start of a pattern cannot stall the caller."""
    started = time.process_time()
    stderr_says_oom((b"Cuda failure " * 6000)[: 64 * 1024])
    stderr_says_oom((b"std::bad_alloc: " * 6000)[: 64 * 1024])
    stderr_says((b"Free memory on device " * 6000)[: 64 * 1024])
    stderr_says((b"Failed to allocate request for " * 6000)[: 64 * 1024])
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


@pytest.mark.parametrize("how", [{"signal": signal.SIGKILL, "exit_code": None}, {"exit_code": 137}])
def test_a_kill_is_never_about_device_memory(how: dict[str, Any]) -> None:
    """Also after words about it: what kills is short of the host's RAM, or a person."""
    full = {"peak_mib": 1000, "device_nearly_full": True, "said_oom": True, "said": MEMORY}
    assert outcome(**how, **full, told=True) == ("failed" if "signal" not in how else "killed")


def test_a_busy_device_raises_no_suspicion() -> None:
    """It fails at once, whatever the figures say: another device may work."""
    assert outcome(said=BUSY, peak_mib=1000, device_nearly_full=True) == "failed"


def test_a_hint_counts_only_where_memory_was_tight() -> None:
    """The same words with room left have another cause."""
    assert outcome(said=HINT, peak_mib=100) == "failed"
    assert outcome(said=HINT, peak_mib=960) == "oom-suspected"
    assert outcome(said=HINT, device_nearly_full=True) == "oom-suspected"


def test_what_the_job_itself_reports_beats_words_and_figures() -> None:
    """It knows whether it ran out; success and a stop of ours stay what they are."""
    assert outcome(told=True) == "oom"
    assert outcome(told=False, said=MEMORY, peak_mib=1000) == "failed"
    assert outcome(told=True, exit_code=0) == "ok"
    assert outcome(told=True, stopped_by_us=True) == "cancelled"


@pytest.mark.parametrize(
    ("verdict", "how", "expected"),
    [
        ("oom", {}, MORE),
        ("oom", {"filled_by_others": True}, SAME),
        ("oom-suspected", {}, NOTHING),
        ("oom-suspected", {"device_nearly_full": True}, MORE),
        ("oom-suspected", {"said": HINT}, MORE),
        ("oom-suspected", {"device_nearly_full": True, "filled_by_others": True}, SAME),
        ("failed", {"device_nearly_full": True, "said": BUSY}, NOTHING),
        ("killed", {"device_nearly_full": True}, NOTHING),
        ("ok", {"device_nearly_full": True}, NOTHING),
    ],
)
def test_the_remedy_fits_the_cause(verdict: str, how: dict[str, Any], expected: str) -> None:
    """More for a job that was too big, the same where others took its share, else nothing."""
    usual: dict[str, Any] = {
        "device_nearly_full": False,
        "said": NOTHING,
        "filled_by_others": False,
    }
    assert remedy(verdict, **(usual | how)) == expected


@pytest.mark.parametrize(
    ("left_mib", "booked_mib", "crowded"),
    [
        (3000, 4000, True),
        (3799, 4000, True),
        (3800, 4000, False),
        (4000, 4000, False),
        (None, 4000, False),
        (0, None, False),
    ],
)
def test_a_share_that_others_took_is_noticed(
    left_mib: int | None, booked_mib: int | None, *, crowded: bool
) -> None:
    """A booking that does not fit any more beside the others; a little noise is no reproach."""
    assert crowded_out(left_mib=left_mib, booked_mib=booked_mib) == crowded


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"signal": signal.SIGKILL}, True),
        ({"exit_code": 137}, True),
        ({"signal": signal.SIGKILL, "kills_after": 2}, False),
        ({"signal": signal.SIGKILL, "kills_before": None}, False),
        ({"signal": signal.SIGKILL, "kills_after": None}, False),
        ({"signal": signal.SIGTERM}, False),
        ({"exit_code": 1}, False),
    ],
)
def test_a_kill_by_the_kernel_is_told_by_its_count(how: dict[str, Any], *, expected: bool) -> None:
    """A SIGKILL while the count of the control group rose; without a count nothing is claimed."""
    usual: dict[str, Any] = {"exit_code": None, "signal": None, "kills_before": 2, "kills_after": 3}
    assert killed_for_host_ram(**(usual | how)) == expected


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
