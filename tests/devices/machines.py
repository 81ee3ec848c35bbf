"""Real stand-in jobs on simulated machines, and waiting for what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from grn.devices.simulated import SimulatedBackend

PATIENCE_S = 60.0


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until something holds, for as long as a slow machine may take."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


class OpenSim(Protocol):
    """Opens a simulated machine in the test's own folder."""

    def __call__(self, text: str, *, mask: str | None = None) -> SimulatedBackend:
        """Open it, closed at the end of the test."""
        ...


class Jobs:
    """Stand-in jobs as real processes; none outlives its test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, backend: SimulatedBackend, *words: str, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a job under a clean environment and `environ`."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CUDA_", "XLA_", "TF_", "GRN_"))
        }
        job = subprocess.Popen(
            [sys.executable, "-m", "grn.testing.job", *words],
            env={**clean, **backend.job_env(), **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(job)
        return job

    def run(self, backend: SimulatedBackend, *words: str, **environ: str) -> tuple[int, str, str]:
        """Run a job to its end: exit status, output, errors."""
        job = self.start(backend, *words, **environ)
        out, err = job.communicate(timeout=PATIENCE_S)
        return job.returncode, out, err

    def holding(
        self, backend: SimulatedBackend, *words: str, **environ: str
    ) -> subprocess.Popen[str]:
        """Start a job and return once it holds its memory; it runs until `let_go`."""
        held = self.folder / f"held{len(self.started)}"
        ends = ("--hold-file", str(held), "--until-file", str(self.folder / "go"))
        job = self.start(backend, *words, *ends, **environ)
        wait_until(lambda: held.exists() or job.poll() is not None)
        assert job.poll() is None, job.communicate()[1]
        return job

    def let_go(self) -> None:
        """End every job that `holding` started."""
        (self.folder / "go").touch()

    def kill(self) -> None:
        """End what is left: each job leads a session of its own."""
        for job in self.started:
            try:
                os.killpg(job.pid, 9)
            except ProcessLookupError:
                continue
            finally:
                job.communicate()


def used(backend: SimulatedBackend) -> list[int | None]:
    """Return what each device reads as used."""
    return [reading.used_mib for reading in backend.read({}, {})]
