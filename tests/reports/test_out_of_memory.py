"""Jobs that run out of device memory: how that is told from other ends, and what follows."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from tests.env import PATIENCE_S, eventually
from tests.reports.scene import FAST, box_of, device, jobs_of, profile, python, runner
from tests.scenarios.standin import line, touch, words

if TYPE_CHECKING:
    from tests.reports.scene import NewEnv

FULL = {
    "torch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has",
    "torch before 2.5": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB",
    "torch before 1.13": "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0;",
    "ROCm": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 256.00 MiB.",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "JAX": "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824",
    "XLA": "E0000 Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0",
    "TensorFlow": "ResourceExhaustedError: OOM when allocating tensor with shape[64,3,224,224]",
    "TensorFlow's driver": "failed to allocate 2.0G from device: CUDA_ERROR_OUT_OF_MEMORY: out of",
    "CuPy": "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes",
    "numba": "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call results in CUDA_ERROR_OUT_OF_MEMORY",
    "RMM": "MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /rmm/cuda_memory.hpp:60",
    "the runtime": "CUDA failure cudaErrorMemoryAllocation at main.cu:12",
    "llama.cpp": "ggml_backend_cuda: allocating 4096 MiB on device 0: cudaMalloc failed: out of memory",
    "llama.cpp's kernels": "CUDA error: out of memory\\n  current device: 0, in function alloc",
    "NCCL": "ncclUnhandledCudaError: Cuda failure 2 'out of memory'",
    "vLLM": "No available memory for the cache blocks. Try increasing gpu_memory_utilization",
    "MPS": "CUDA_ERROR_MPS_CLIENT_TERMINATED",
}
OTHER = {
    "busy": "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "host": "MemoryError: Unable to allocate 64.0 GiB for an array with shape (8589934592,)",
    "illegal": "CUDA error: an illegal memory access was encountered",
    "lost": "CUDA error: unspecified launch failure",
    "mask": "ValueError: invalid literal for int() with base 10: 'GPU-1'",
    "port": "RuntimeError: The server socket has failed to listen on any local network address",
}


VLLM = """\
import os, time
import pynvml
pynvml.nvmlInit()
while not os.path.exists("go"):
    time.sleep(0.05)
card = pynvml.nvmlDeviceGetHandleByUUID(os.environ["GRN_DEVICES"])
info = pynvml.nvmlDeviceGetMemoryInfo(card)
part = float(os.environ.get("WANTED", os.environ["GRN_MEM_FRACTION"]))
if info.free < part * info.total:
    raise SystemExit(
        f"ValueError: Free memory on device ({info.free}/{info.total}) on startup is less than"
        f" desired GPU memory utilization ({part})"
    )
"""


def fails(text: str, *, code: int = 1) -> str:
    """Return a shell's line that ends like a program with these last words."""
    return f"printf '%b\\n' {shlex.quote(text)} >&2; exit {code}"


def test_last_words_of_every_framework_are_known(new_env: NewEnv) -> None:
    """k8s-device-plugin#267, vllm#20305, pytorch#35901: an exit status of 1 says nothing.

    What each framework writes when the card is full makes the outcome, and what it writes about
    other troubles does not, even where it has the word memory.
    """
    run = runner(new_env("nvml:1x100000MiB"))
    done = run("--json", "--memory=1MiB", *map(fails, [*FULL.values(), *OTHER.values()]))
    outcomes = [job["outcome"] for job in jobs_of(done)]
    named = dict(zip([*FULL, *OTHER], outcomes, strict=True))
    assert named == dict.fromkeys(FULL, "oom") | dict.fromkeys(OTHER, "failed")


def test_success_is_success_whatever_was_printed(new_env: NewEnv) -> None:
    """pytorch#35901: a program catches the error, takes a smaller batch and goes on."""
    run = runner(new_env("nvml:1x10000MiB"))
    caught = run("--json", "--memory=1GiB", fails(FULL["torch"], code=0))
    assert [job["outcome"] for job in jobs_of(caught)] == ["ok"]


def test_a_type_that_ran_out_is_booked_more(new_env: NewEnv) -> None:
    """pytorch#35901: fragments make a job run out at half of what it reserved.

    The same command runs again with more, then with more again, and what succeeds is remembered;
    no option of its allocator is touched.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    env.client().profiles("set", type="t", memory_mib=1000)
    program = (
        'echo "$GRN_MEM_MIB" >>booked; echo "${PYTORCH_ALLOC_CONF-unset}" >>allocator\n'
        f'test "$GRN_MEM_MIB" -ge 1900 || {{ {fails(FULL["torch"])}; }}'
    )
    done = run("--json", "--type=t", "--retries-on-oom=3", program)
    (job,) = jobs_of(done)
    assert (job["outcome"], job["tries"]) == ("ok", 3), done.stderr
    first, second, third = map(int, run.wait_for("booked").split())
    assert first == 1000
    assert second >= 1300
    assert third >= 1.3 * second
    assert set(run.wait_for("allocator").split()) == {"unset"}


def test_options_of_the_allocator_stay_the_users(new_env: NewEnv) -> None:
    """pytorch#35901, #166802: a string that the user composed must arrive as it is."""
    run = runner(new_env("nvml:1x10000MiB"))
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "XLA_FLAGS": "--xla_dump_to=/tmp"}
    job = words("--print-env", *own, "PYTORCH_ALLOC_CONF", "--seconds=0")
    done = run("-q", "--memory=1GiB", "--", *job, environ=own)
    expected = [f"{name}={value}" for name, value in own.items()]
    assert done.stdout.decode().split() == [*expected, "PYTORCH_ALLOC_CONF=<unset>"]


def test_a_card_filled_by_others_is_no_fault_of_the_job(new_env: NewEnv) -> None:
    """k8s-device-plugin#267, Lightning#16147: somebody else takes the memory that was booked.

    The job fails, waits until there is room again, and runs with the same booking as before; its
    type is not booked more for it.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    env.client().profiles("set", type="t", memory_mib=3000)
    job = line("--plan=0:100MiB 0.2:3000MiB", "--seconds=0.3")
    program = f'echo "$GRN_MEM_MIB" >>booked; until test -e go; do sleep 0.05; done; exec {job}'
    started = run.start("-q", "--type=t", "--retries-on-oom=2", program)
    eventually(lambda: env.status()["leases"], what="a lease")
    other = env.foreign(0, 9500)
    eventually(lambda: device(env)["foreign_mib"] == 9500, what="somebody else's memory")
    touch(run.path("go"))
    (waiter,) = eventually(lambda: env.status()["waiters"], what="it waits again")
    assert "9500 used by others" in waiter["reason"]
    other.kill()
    other.wait()
    _, said = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == 0, said
    assert run.wait_for("booked").split() == ["3000", "3000"]
    assert profile(env, "t")["estimate_mib"] == 3000


def test_a_server_that_wants_a_part_of_the_whole_card(new_env: NewEnv) -> None:
    """vllm#20305: it takes a fraction of the total, and refuses to start beside others.

    `GRN_MEM_FRACTION` is the booking as such a fraction, so that two of them start on one card.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    one, two = (run.start("-q", "--memory=4000MiB", "--", *python(VLLM)) for _ in range(2))
    eventually(lambda: device(env)["booked_mib"] == 8000, what="two on one card")
    box_of(env).add_process(0, 1000)
    touch(run.path("go"))
    assert [one.wait(PATIENCE_S), two.wait(PATIENCE_S)] == [0, 0]
    greedy = run("--json", "--memory=4000MiB", "--", *python(VLLM), environ={"WANTED": "0.95"})
    assert jobs_of(greedy)[0]["outcome"] == "oom"
    assert b"less than desired" in greedy.stderr


def test_a_server_that_finds_less_than_it_wants_tries_again(new_env: NewEnv) -> None:
    """vllm#20305: it did not wait for those who were just about to leave.

    Where others took what was booked it waits for room, and starts with the same share.
    """
    env = new_env("nvml:1x10000MiB", **FAST)
    run = runner(env)
    server = run.start("-q", "--memory=4000MiB", "--retries-on-oom=1", "--", *python(VLLM))
    eventually(lambda: env.status()["leases"], what="a lease")
    others = box_of(env).add_process(0, 7000, pid=os.getpid())
    eventually(lambda: device(env)["foreign_mib"] == 7000, what="memory of others")
    touch(run.path("go"))
    (waiter,) = eventually(lambda: env.status()["waiters"], what="it waits again")
    assert "7000 used by others" in waiter["reason"]
    box_of(env).remove_process(others)
    _, said = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0, said


def test_a_share_never_says_more_than_was_booked(new_env: NewEnv) -> None:
    """pytorch#58466, pytorch#166802: fractions are of the total, and there was no variable for them.

    Whatever is told as a fraction is at most the booking; a smaller one that the user set stays.
    """
    env = new_env("nvml:1x10000MiB", start=False)
    box_of(env).set(0, reserved=600)
    env.start()
    run = runner(env)
    names = ("GRN_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    job = words("--print-env", *names, "--seconds=0")
    told = run("-q", "--memory=3333MiB", "--", *job).stdout.decode().split()
    fractions = [float(text.partition("=")[2]) for text in told]
    assert all(0.3 < fraction <= 0.3333 for fraction in fractions), told
    own = run("-q", "--memory=3333MiB", "--", *job, environ={names[1]: "0.1"})
    assert f"{names[1]}=0.1" in own.stdout.decode().split()
