"""Jupyter: cells with decorated functions, blocks and `await`, in a kernel as a notebook has it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

manager = pytest.importorskip("jupyter_client.manager")
pytest.importorskip("ipykernel")

PREPARE = """
import grn, os, sys, time, warnings
warnings.simplefilter("ignore")
kernel = os.getpid()
@grn.job(memory=100)
def where(number):
    print("in the job", flush=True)
    return number, os.environ["CUDA_VISIBLE_DEVICES"], os.getpid() != kernel
"""
AGAIN = """
@grn.job(memory=100)
def where(number):
    return number * 10
"""
CLASSES = """
class Config:
    size = 3
class Wrong(Exception): ...
@grn.job(memory=100)
def use(config):
    if config.size < 0:
        raise Wrong(config.size)
    return config
config = Config()
first = use(config)
config.size = -1
try:
    use(config)
except Wrong as error:
    print(type(first) is Config, first.size, error)
"""
TASKS = """
import asyncio
@grn.job(memory=100)
async def later(number):
    await asyncio.sleep(0)
    return number
print(await asyncio.gather(*map(later, range(3))))
"""
BLOCKS = """
with grn.lease(memory=100) as lease:
    lease.apply()
    print(os.environ["GRN_LEASE"] == lease.id)
async with grn.lease_async(memory=100) as lease:
    print(lease.memory_mib)
"""
TIMED = """%%time
with grn.lease(memory=100) as lease, grn.Client() as client:
    print([each["type"] for each in client.status()["leases"]])
"""
STAY = """
@grn.job(memory="whole")
def stay():
    print("begun", flush=True)
    time.sleep(600)
stay()
"""


class Kernel:
    """A kernel, and what its cells say."""

    def __init__(self, kernel: Any, client: Any) -> None:
        self.kernel = kernel
        self.client = client
        self.said: dict[str, str] = {}

    def start(self, code: str) -> str:
        """Have a cell begun; return its name."""
        cell: str = self.client.execute(code)
        self.said[cell] = ""
        return cell

    def finish(self, cell: str, until: str = "\0") -> str:
        """Return what a cell has said, when it has ended or has said something."""
        deadline = time.monotonic() + PATIENCE_S
        while until not in self.said[cell]:
            message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            content, told = message["content"], message["parent_header"].get("msg_id")
            if told != cell:
                continue
            if content.get("execution_state") == "idle":
                break
            self.said[cell] += content.get("text", content.get("ename", ""))
            self.said[cell] += content.get("data", {}).get("text/plain", "")
        return self.said[cell]

    def run(self, code: str) -> str:
        """Run a cell; return what it says."""
        return self.finish(self.start(code))


@pytest.fixture
def env(new_env: Callable[..., BrokerEnv]) -> BrokerEnv:
    """Return a broker of one device."""
    return new_env("sim:1x8000MiB")


@pytest.fixture
def kernel(env: BrokerEnv, tmp_path: Path) -> Iterator[Kernel]:
    """Return a kernel that is prepared, in a folder of its own; nothing of it may be left."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    process, client = manager.start_new_kernel(env=env.environ, cwd=str(folder))
    try:
        ready = Kernel(process, client)
        assert not ready.run(PREPARE)
        yield ready
    finally:
        client.stop_channels()
        process.shutdown_kernel(now=True)
        with contextlib.suppress(AttributeError):
            process.cleanup_resources()
    eventually(lambda: not env.status()["leases"], what="all leases given back")


def test_a_cell_s_function_runs_in_a_process_of_its_own(kernel: Kernel) -> None:
    """It needs no module; what it prints is the cell's; a cell that is run again counts anew."""
    cell = kernel.start("where(1)")
    assert "(1, '0', True)" in kernel.finish(cell)
    assert "in the job" in kernel.finish(cell, until="in the job")  # it comes by another way
    assert kernel.run(AGAIN + "where(1)") == "10"


def test_classes_of_cells_are_the_same_there_and_back(kernel: Kernel) -> None:
    """Arguments, results and errors keep the kernel's own classes."""
    assert kernel.run(CLASSES) == "True 3 -1\n"


def test_cells_may_await(kernel: Kernel) -> None:
    """Async jobs run at once beside the kernel's own loop; both forms of a block work."""
    assert kernel.run(TASKS) == "[0, 1, 2]\n"
    assert kernel.run(BLOCKS) == "True\n100\n"


def test_types_of_cells_are_the_notebooks(kernel: Kernel, tmp_path: Path) -> None:
    """Of its folder where nobody tells its name; also what a magic runs."""
    folder = os.path.realpath(tmp_path / "notebooks")
    assert kernel.run("where.__grn_job__.type") == f"'{folder}/<notebook>::where'"
    assert f"['{folder}/<notebook>::<module>']" in kernel.run(TIMED)


def test_interrupting_the_kernel_ends_the_job(kernel: Kernel, env: BrokerEnv) -> None:
    """Its process and its lease are gone, and the kernel goes on."""
    cell = kernel.start(STAY)
    kernel.finish(cell, until="begun")
    kernel.kernel.interrupt_kernel()
    assert kernel.finish(cell).endswith("KeyboardInterrupt")
    eventually(lambda: not env.status()["leases"])
    assert "(2, '0', True)" in kernel.run("where(2)")


def test_restarting_the_kernel_ends_the_job(kernel: Kernel, env: BrokerEnv) -> None:
    """A kernel that is killed leaves neither process nor lease behind."""
    kernel.finish(kernel.start(STAY), until="begun")
    assert env.status()["leases"]
    kernel.kernel.restart_kernel(now=True)
    eventually(lambda: not env.status()["leases"])
