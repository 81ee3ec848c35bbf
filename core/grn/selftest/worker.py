"""The program that is run as a job: `python -m grn.selftest.worker --mib 1024`.

It says on standard output, one JSON object a line, what it sees (`sees`) and, once it is so, what it
holds (`holds`); then it waits for the end of its standard input. An error goes to standard error in
the driver's words and ends it with 1; where there is no CUDA driver it says so (`unavailable`).

Must not: outlive who started it, whose end of the pipe is its standard input.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import select
import sys

from grn.selftest.cuda import Cuda, CudaError, NoCuda, bare

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    class Devices(Protocol):
        """What a program can do with devices."""

        uuids: list[str]

        @property
        def version(self) -> str:
            """The newest CUDA that the driver supports."""
            ...

        def hold(self, ordinal: int, mib: int) -> None:
            """Take memory on a device until the process ends."""


__all__ = ["describe", "main", "say", "wait_for_end"]

_AT_MOST_S = 90.0
"""A job waits no longer, whatever holds its standard input open."""

_TOLD = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GRN_LEASE", "GRN_DEVICES", "GRN_SIM_DIR")


class Simulated:
    """Simulated devices, with the same interface."""

    def __init__(self) -> None:
        from grn.testing.cuda import SimulatedCuda  # noqa: PLC0415 - real devices need none of it

        self._cuda = SimulatedCuda(os.environ)
        atexit.register(self._cuda.release)
        self.uuids = [bare(device.uuid) for device in self._cuda.devices]

    @property
    def version(self) -> str:
        """There is no CUDA here."""
        return "none (simulated)"

    def hold(self, ordinal: int, mib: int) -> None:
        """Take memory on a simulated device."""
        self._cuda.hold(ordinal, mib)


def say(event: str, **fields: Any) -> None:
    """Write one line for whoever started this program."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def wait_for_end() -> None:
    """Wait until nobody holds the other end of standard input any more."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN)
    poll.poll(_AT_MOST_S * 1000)


def describe() -> dict[str, Any]:
    """Return what this process was told about its devices."""
    return {"pid": os.getpid(), "told": {name: os.environ.get(name) for name in _TOLD}}


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the options say; return the exit status."""
    options = _parser().parse_args(argv)
    kinds: dict[str, Callable[[], Devices]] = {"cuda": Cuda, "sim": Simulated}
    try:
        devices = kinds[options.devices]()
        say("sees", **describe(), uuids=devices.uuids, cuda=devices.version)
        if options.mib:
            devices.hold(0, options.mib)
            say("holds", mib=options.mib)
            wait_for_end()
    except NoCuda as error:
        say("unavailable", reason=error.message)
    except CudaError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    except RuntimeError as error:  # of a simulated program
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m grn.selftest.worker", description=__doc__)
    parser.add_argument("--devices", choices=("cuda", "sim"), default="cuda")
    parser.add_argument("--mib", type=int, default=0, help="held on the first device; 0: look only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
