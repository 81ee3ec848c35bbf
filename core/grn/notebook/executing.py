"""Executes a notebook cell by cell, on nbclient, and keeps what came out whatever happens.

Promises: the executed notebook is written after each cell, by rename, so that a reader never sees half
of it, and at the end of every way of ending; the input is not touched; the kernel gets this process's
environment, also where its kernelspec says otherwise; nothing of the kernel is left.

Exit statuses: 0 all cells ran; 1 a cell raised; 3 the kernel died; 124 a cell took too long; 130 or 143
interrupted; 2 the notebook cannot be read or written, or its kernel is not known; 125 all cells ran, and
the result is elsewhere, since the disk was full or the folder could not be written any more.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from grn.errors import GrnError, UsageError
from grn.notebook.kernels import unknown
from grn.notebook.parameters import inject
from grn.rules.environment_table import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.notebook.arguments import NotebookOptions

__all__ = ["execute"]

# nbformat has no types for them.
_read: Callable[..., Any] = nbformat.read
_write: Callable[..., None] = nbformat.write

CELL_RAISED, KERNEL_DIED, CELL_TIMEOUT = 1, 3, 124
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_FORMAT = 4


def execute(options: NotebookOptions) -> int:
    """Execute a notebook; return the exit status.

    Raises:
        UsageError: it cannot be read, its kernel is not known, or its output cannot be written.
    """
    run = _Run(options)
    try:
        return asyncio.run(run.run())
    finally:
        run.close()


class _Run:
    """One execution."""

    def __init__(self, options: NotebookOptions) -> None:
        self._options = options
        self._target = os.path.abspath(options.target)
        self._cwd = os.path.abspath(options.cwd or os.path.dirname(options.path) or ".")
        try:
            self._notebook: Any = _read(options.path, as_version=_FORMAT)
        except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
            raise UsageError(f"{options.path} is no notebook: {error}") from error
        inject(self._notebook, options.parameters)
        self._code = [n for n, c in enumerate(self._notebook.cells) if c.cell_type == "code"]
        self._private = tempfile.TemporaryDirectory(prefix="grn-nb-")
        self._begun_s = time.time()
        self._interrupted: int | None = None
        self._now = 0
        self._started = False
        self._unwritten = False
        for cell in self._notebook.cells:
            if cell.cell_type == "code":  # what an earlier run left is not what this one gave
                cell.outputs, cell.execution_count = [], None

    async def run(self) -> int:
        """Execute all cells."""
        timeout_s = self._options.cell_timeout_s
        client = NotebookClient(
            self._notebook,
            timeout=timeout_s,
            startup_timeout=120,
            kernel_name=self._options.kernel_name,
            resources={"metadata": {"path": self._cwd}},
            on_cell_execute=self._begins,
            on_cell_executed=self._ended,
        )
        work = asyncio.ensure_future(self._executed(client))
        loop = asyncio.get_running_loop()
        self._listen(loop, work)
        try:
            return await work
        except asyncio.CancelledError:
            number = self._interrupted or signal.SIGTERM
            return self._over(128 + number, f"interrupted by {signal.Signals(number).name}")

    def close(self) -> None:
        """Remove what was needed to talk to the kernel."""
        self._private.cleanup()

    def _listen(self, loop: asyncio.AbstractEventLoop, work: asyncio.Future[int]) -> None:
        def stop(number: int) -> None:
            self._interrupted = self._interrupted or number
            work.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)

    async def _executed(self, client: Any) -> int:
        manager = client.create_kernel_manager()
        try:
            self._strip(manager.kernel_spec.env)
        except NoSuchKernel as error:
            known = manager.kernel_spec_manager.find_kernel_specs()
            raise UsageError(unknown(error.name, known)) from error
        self._connect_privately(manager)
        self._begin()
        client.km = manager
        try:
            return await self._with_kernel(client)
        except DeadKernelError:
            return self._over(KERNEL_DIED, self._dead(manager))
        except CellTimeoutError:
            limit = self._options.cell_timeout
            return self._over(CELL_TIMEOUT, f"cell {self._now} took longer than {limit}")
        except CellExecutionError as error:
            # On one line: the last line of what is said is what lists show.
            said = " ".join(str(error.evalue).split())
            return self._over(CELL_RAISED, f"cell {self._now} raised {error.ename}: {said}")
        except (OSError, RuntimeError) as error:
            if self._started or isinstance(error, UsageError):
                raise
            return self._over(KERNEL_DIED, self._did_not_start(manager, error))

    async def _with_kernel(self, client: Any) -> int:
        loop, here = asyncio.get_running_loop(), asyncio.current_task()
        async with client.async_setup_kernel(env=dict(os.environ), cwd=self._cwd):
            if here is not None:
                self._listen(loop, here)  # nbclient has put its own in their place
            self._started = True
            await self._cells(client)
        return self._over(0, "")

    def _connect_privately(self, manager: Any) -> None:
        """Have the kernel listen in a folder that only we can enter: others could read TCP."""
        manager.transport = "ipc"
        # Its sockets are named after this file; without it all kernels of a folder share theirs.
        manager.connection_file = os.path.join(self._private.name, "kernel.json")

    @staticmethod
    async def _cells(client: Any) -> None:
        for index, cell in enumerate(client.nb.cells):
            await client.async_execute_cell(
                cell, index, execution_count=client.code_cells_executed + 1
            )
        client.set_widgets_metadata()

    @staticmethod
    def _strip(env: dict[str, str]) -> None:
        """Take out of a kernelspec what the lease has decided: it would win over it."""
        for row in TABLE:
            if row.name in os.environ:
                env.pop(row.name, None)

    # -- what is told ---------------------------------------------------------------------------

    async def _begins(self, cell: Any, cell_index: int) -> None:
        del cell
        self._now = self._code.index(cell_index) + 1
        _say(f"[{self._now}/{len(self._code)}] cell {cell_index + 1}")

    async def _ended(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        del cell, cell_index, execute_reply
        try:
            self._write(self._target, "running", None, "")
        except OSError as error:  # cells that took hours are worth more than what is written now
            if not self._unwritten:
                _complain(f"cannot write {self._target} for now: {error.strerror}")
            self._unwritten = True

    @staticmethod
    def _did_not_start(manager: Any, error: Exception) -> str:
        words = " ".join(manager.kernel_spec.argv)
        return f"the kernel {manager.kernel_name!r} did not start ({words}): {error}"

    def _dead(self, manager: Any) -> str:
        text = f"the kernel died in cell {self._now} of {len(self._code)}"
        process = getattr(manager.provisioner, "process", None)
        status = process.poll() if process is not None else None
        if status is None:
            return text
        if status < 0:
            return f"{text}: killed by {signal.Signals(-status).name}"
        hint = (
            " (a cell that ends the kernel itself is no way to end a notebook)"
            if not status
            else ""
        )
        return f"{text}: it ended with status {status}{hint}"

    def _over(self, status: int, text: str) -> int:
        how = ("ok" if not status else "failed", status, text)
        try:
            self._write(self._target, *how)
            _say(f"written to {self._target}")
        except OSError as error:
            handle, beside = tempfile.mkstemp(suffix=os.path.basename(self._target))
            os.close(handle)
            self._write(beside, *how)
            _complain(f"cannot write {self._target}: {error.strerror}; it is in {beside}")
            status = status or GrnError.exit_status
        if text:
            _complain(text)
        return status

    def _begin(self) -> None:
        """Write the notebook before anything of it runs: what fails should fail now, not after hours.

        Raises:
            UsageError: it cannot be written where it is wanted.
        """
        try:
            if not self._options.inplace:
                self._write(self._target, "running", None, "")
            else:  # it keeps the outputs that it has until there are others
                tempfile.TemporaryFile(dir=os.path.dirname(self._target)).close()
        except OSError as error:
            raise UsageError(
                f"cannot write the notebook {self._target}: {error.strerror}"
            ) from error

    def _write(self, path: str, state: str, status: int | None, text: str) -> None:
        self._notebook.metadata["grn"] = {
            "state": state,
            "exit_code": status,
            "text": text,
            "devices": os.environ.get("GRN_DEVICES", ""),
            "lease": os.environ.get("GRN_LEASE", ""),
            "begun_s": round(self._begun_s, 3),
            "took_s": round(time.time() - self._begun_s, 3),
            "parameters": dict(self._options.parameters),
        }
        half = f"{path}.{os.getpid()}.tmp"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with open(half, "w", encoding="utf-8", errors="backslashreplace") as file:
                _write(self._notebook, file)
            os.replace(half, path)
        except OSError:
            if os.path.exists(half):
                os.unlink(half)
            raise


def _complain(text: str) -> None:
    sys.stderr.write(f"grn run-notebook: {text}\n")
    sys.stderr.flush()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
