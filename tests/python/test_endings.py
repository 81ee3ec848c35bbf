"""What an exception tells of how a job ended."""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

import pytest

from grn.endings import ending_of, says
from grn.isolate import BodyDied
from grn.loaded import has_started_device, may_hold_device, too_late
from grn.rules.outcome import BUSY, MEMORY, NOTHING


def named(name: str, text: str, base: type[Exception] = RuntimeError) -> Exception:
    """Return an exception of a framework's class."""
    module, _, short = name.rpartition(".")
    return type(short, (base,), {"__module__": module})(text)


@pytest.mark.parametrize(
    "error",
    [
        named("torch.OutOfMemoryError", "CUDA out of memory."),
        named("torch.cuda.OutOfMemoryError", "anything"),
        RuntimeError("CUDA error: out of memory"),
        named("jaxlib.xla_extension.XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory while"),
        named("jax.errors.JaxRuntimeError", "RESOURCE_EXHAUSTED: failed to allocate"),
        named("tensorflow.python.framework.errors_impl.ResourceExhaustedError", "OOM when"),
        named("cupy.cuda.memory.OutOfMemoryError", "Out of memory allocating", MemoryError),
        named("numba.cuda.CudaAPIError", "[2] Call to cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"),
        BodyDied("died", status=1, tail="RuntimeError: CUDA out of memory. Tried"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_device_is_recognised(error: Exception) -> None:
    """By the class's name or the text, as each framework has it, also behind other exceptions."""
    assert says(error) == MEMORY
    wrapped = ValueError("trial failed")
    wrapped.__cause__ = error
    ending = ending_of(wrapped)
    assert (ending["said"], ending["said_oom"], ending["exit_code"]) == (MEMORY, True, 1)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), ValueError("out of memory"), named("grpc.RpcError", "RESOURCE_EXHAUSTED")],
    ids=repr,
)
def test_other_errors_are_no_full_device(error: Exception) -> None:
    """The host's memory, and words of other programs, say nothing of a device."""
    assert says(error) == NOTHING


def test_a_busy_device_is_told() -> None:
    """A device that lets nobody in is no matter of memory."""
    text = "CUDA error: all CUDA-capable devices are busy or unavailable"
    assert says(RuntimeError(text)) == BUSY


def test_a_hidden_cause_does_not_count() -> None:
    """`raise … from None` says that the other exception is no matter."""
    error = ValueError("x")
    error.__context__ = RuntimeError("CUDA out of memory")
    assert says(error) == MEMORY
    error.__suppress_context__ = True
    assert says(error) == NOTHING


@pytest.mark.parametrize(
    ("error", "exit_code", "stopped"),
    [
        (None, 0, False),
        (ValueError("x"), 1, False),
        (SystemExit(0), 0, False),
        (SystemExit(None), 0, False),
        (SystemExit(3), 3, False),
        (SystemExit("text"), 1, False),
        (KeyboardInterrupt(), 1, True),
        (asyncio.CancelledError(), 1, True),
        (named("optuna.exceptions.TrialPruned", ""), 1, True),
        (BodyDied("x", status=7), 7, False),
        (BodyDied("x"), 1, False),
    ],
    ids=repr,
)
def test_how_a_block_ended(error: BaseException | None, exit_code: int, *, stopped: bool) -> None:
    """As a program would end that did the same; what was stopped is no failure."""
    ending = ending_of(error)
    assert (ending["exit_code"], ending["stopped"], ending["signal"]) == (exit_code, stopped, None)


def test_a_killed_process_is_told_by_its_signal() -> None:
    """A signal is no exit code."""
    ending = ending_of(BodyDied("x", signal=9))
    assert (ending["exit_code"], ending["signal"]) == (None, 9)


def loaded(monkeypatch: pytest.MonkeyPatch, **modules: Any) -> None:
    """Let these modules, and no other frameworks, be loaded."""
    for name in ("numpy", "torch", "jax", "tensorflow", "cupy", "pycuda", "numba", "polars"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def torch(*, started: bool) -> types.SimpleNamespace:
    """Return a stand-in for PyTorch."""
    return types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: started))


def test_what_may_hold_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A framework that says it has none open has none; one that does not say may."""
    loaded(monkeypatch)
    assert not may_hold_device()
    loaded(monkeypatch, torch=torch(started=False))
    assert not may_hold_device()
    loaded(monkeypatch, torch=torch(started=True))
    assert may_hold_device()
    assert has_started_device() == "torch"
    loaded(monkeypatch, cupy=types.SimpleNamespace())
    assert may_hold_device()
    assert has_started_device() is None


def test_what_comes_too_late_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what the loaded libraries would have read, in words that fit how sure it is."""
    loaded(monkeypatch)
    assert not too_late(["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"])
    loaded(monkeypatch, numpy=types.SimpleNamespace())
    assert not too_late(["CUDA_VISIBLE_DEVICES"])
    assert "numpy is imported already: caps on threads" in too_late(["OMP_NUM_THREADS"])
    loaded(monkeypatch, torch=torch(started=True))
    assert "torch has started its device" in too_late(["CUDA_VISIBLE_DEVICES"])
    assert not too_late([])
