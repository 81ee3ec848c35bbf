"""A program that has loaded the stand-in driver and answers questions about it.

It is a process of its own, since a library path counts only from the start of one. Each question is
an expression over `N` (the real `pynvml`), `h` (a handle by index), `slice_` (by UUID), `used` (MiB
by pid), `later` (a call in a thread of its own) and `blocked` (whether a card's calls do not return).
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.env import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakenvml.box import Box

__all__ = ["Driver"]


class Driver:
    """The driver of a box as one process sees it."""

    def __init__(self, box: Box, environ: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakenvml.asking"],
            env={**environ, **box.environ},
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
            text=True,
        )

    def __call__(self, question: str) -> Any:
        """Return what an expression gives; an error of the driver is its number, as ('error', n)."""
        self.ask(question)
        return self.answer()

    def ask(self, question: str) -> None:
        """Ask without waiting for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the next answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver's user died"
        return eval(line)  # noqa: S307 - our own words

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()


def _serve() -> None:
    pynvml: Any = importlib.import_module("pynvml")
    threads = ThreadPoolExecutor()

    def h(index: int) -> Any:
        return pynvml.nvmlDeviceGetHandleByIndex(index)

    def slice_(uuid: str) -> Any:
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)

    def used(handle: Any) -> dict[int, int | None]:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {p.pid: None if p.usedGpuMemory is None else p.usedGpuMemory >> 20 for p in found}

    def later(call: Callable[[], Any]) -> Future[Any]:
        return threads.submit(call)

    def blocked(index: int) -> bool:
        """Call until a call does not return."""
        while True:
            try:
                later(lambda: used(h(index))).result(timeout=0.3)
            except TimeoutError:
                return True

    names: dict[str, Any] = {"N": pynvml} | {
        f.__name__: f for f in (h, slice_, used, later, blocked)
    }
    for line in sys.stdin:
        try:
            value = eval(line, names)  # noqa: S307 - our own words
        except pynvml.NVMLError as error:
            value = ("error", error.value)
        sys.stdout.write(f"{value!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
