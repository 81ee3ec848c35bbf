"""A stand-in for a GPU program: `python -m grn.testing.job --memory 3GiB --seconds 2`.

Promises: it sees the devices that its mask leaves, follows its memory plan on a monotonic clock,
fails like a framework when the card is full, dies of the signal that stopped it, and leaves no
record behind; after SIGKILL the readers see that its process is gone.

A worker (`--children`) is forked before any memory is taken, holds its own, and outlives its parent
unless the parent fails: that is how data loaders leave memory behind on a real card.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from grn.devices.simfolder import write_file
from grn.testing.cuda import CudaError, SimulatedCuda
from grn.testing.joboptions import read_options

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import NoReturn

    from grn.devices.simfolder import SimDevice
    from grn.testing.joboptions import Step

__all__ = ["main"]

_POLL_S = 0.01
_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(BaseException):
    """A signal asks this process to end; not an `Exception`, so that nothing else catches it."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Job:
    """One run: the main process and the workers that it forks."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.workers: list[int] = []
        self.cuda: SimulatedCuda | None = None
        self.zero_s = time.monotonic()

    def run(self) -> int:
        """Follow the plan to its end; return the exit status."""
        options = self.options
        for name in options.print_env:
            print(f"{name}={os.environ.get(name, '<unset>')}", flush=True)  # noqa: T201
        self.log("start")
        if options.detached_child is not None:
            self.log(f"detached child={_leave_behind(options.detached_child)}")
        time.sleep(options.start_delay)
        self.zero_s = time.monotonic()
        if options.print_devices or options.steps or options.child_memory:
            self.cuda = SimulatedCuda(os.environ, busy=options.busy)
        if options.print_devices and self.cuda is not None:
            _print_devices(self.cuda)
        ready = self.fork_workers()
        self.follow(options.steps, lambda: self.announce(ready))
        failed = [pid for pid in self.workers if os.waitpid(pid, 0)[1] != 0]
        self.workers = []
        self.log("end")
        return options.exit_code or int(bool(failed))

    def follow(self, steps: Sequence[Step], when_held: Callable[[], None]) -> None:
        """Hold each step's memory at its time, then run to the end."""
        options = self.options
        announced = False
        for at_s, mib in steps:
            if at_s > options.end_s and not options.until_file:
                break
            self.sleep_until(at_s)
            self.hold(mib)
            if mib and not announced:
                announced = True
                when_held()
        if not announced:
            when_held()
        if options.until_file:
            while not os.path.exists(options.until_file):
                time.sleep(_POLL_S)
        else:
            self.sleep_until(options.end_s)

    def hold(self, mib: int) -> None:
        """Hold `mib` on each of the job's devices."""
        cuda = self.cuda
        if cuda is None:
            return
        wanted = self.options.device
        for ordinal in range(len(cuda.devices)) if wanted is None else wanted:
            device = cuda.device(ordinal)
            pool = _pool_mib(device, self.options.preallocate) if mib else 0
            try:
                cuda.hold(ordinal, max(mib, pool))
            except CudaError as error:
                self.log(f"failed device={device.uuid} mib={max(mib, pool)} error={error}")
                raise
            self.log(f"hold device={device.uuid} mib={max(mib, pool)}")

    def fork_workers(self) -> int | None:
        """Start the workers; return a descriptor that ends when each holds its memory."""
        if not self.options.children:
            return None
        reader, writer = os.pipe()
        for _ in range(self.options.children):
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                _finish(self, lambda: self.be_worker(writer))
            self.workers.append(pid)
        os.close(writer)
        return reader

    def be_worker(self, ready: int) -> int:
        """Hold a worker's memory until the end of the run."""
        self.workers = []
        if self.options.child_ignore_sigint:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.cuda is not None:
            self.cuda.after_fork()
        mib = self.options.child_memory
        self.follow([(0.0, mib)] if mib else [], lambda: os.close(ready))
        self.log("end")
        return 0

    def announce(self, ready: int | None) -> None:
        """Create the hold file, once the workers hold their memory too."""
        if not self.options.hold_file:
            return
        if ready is not None:
            os.read(ready, 1)  # nobody writes: it returns when every worker has closed its end
        write_file(self.options.hold_file, f"{os.getpid()}\n")

    def sleep_until(self, at_s: float) -> None:
        """Sleep until a time of the plan."""
        time.sleep(max(0.0, self.zero_s + at_s - time.monotonic()))

    def log(self, event: str) -> None:
        """Append one line; short appends of several processes do not mix."""
        if self.options.log:
            with open(self.options.log, "a", encoding="utf-8") as file:
                file.write(f"{time.monotonic():.6f} pid={os.getpid()} {event}\n")

    def close(self) -> None:
        """Give the memory back and end the workers that are left."""
        if self.cuda is not None:
            self.cuda.release()


def _finish(job: Job, body: Callable[[], int]) -> NoReturn:
    """Run a process's body and end as it says: by exit status or by the signal that stopped it."""
    stopped_by = 0
    status = 1
    try:
        status = body()
    except Stopped as stop:
        stopped_by = stop.signum
    except CudaError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        _end_workers(job.workers)
    finally:
        for signum in _STOPPING:
            signal.signal(signum, signal.SIG_IGN)
        job.close()
        if stopped_by:
            signal.signal(stopped_by, signal.SIG_DFL)
            os.kill(os.getpid(), stopped_by)
    sys.stdout.flush()
    # No interpreter shutdown: there is nothing left to do, and a worker must not run its parent's.
    os._exit(status & 0xFF)


def _end_workers(workers: Sequence[int]) -> None:
    for pid in workers:
        os.kill(pid, signal.SIGTERM)  # our own children, not waited for yet: the pid is theirs
    for pid in workers:
        os.waitpid(pid, 0)


def _leave_behind(seconds: float) -> int:
    """Start a daemon of its own session that holds no memory; return its pid."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for signum in _STOPPING:
            signal.signal(signum, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        time.sleep(seconds)
        os._exit(0)
    return pid


def _pool_mib(device: SimDevice, fraction: float) -> int:
    """Return what JAX or TensorFlow would take at once, as the environment tells them."""
    told_not_to = (
        os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() in {"false", "0"}
        or os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH") == "true"
    )
    if told_not_to or not fraction:
        return 0
    fraction = float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", fraction))
    return int(fraction * device.total_mib)


def _print_devices(cuda: SimulatedCuda) -> None:
    for ordinal, device in enumerate(cuda.devices):
        text = f"cuda:{ordinal} index={device.index} uuid={device.uuid} total={device.total_mib}MiB"
        print(text, flush=True)  # noqa: T201


def _stop(signum: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(signum)


def _install_handlers(options: argparse.Namespace) -> None:
    for signum in _STOPPING:
        # A signal that was ignored from the start (nohup, a shell's background job) stays so.
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, _stop)
    if options.ignore_sigint:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run a stand-in job and end the process."""
    options = read_options(argv)
    _install_handlers(options)
    job = Job(options)
    _finish(job, job.run)


if __name__ == "__main__":
    main()
