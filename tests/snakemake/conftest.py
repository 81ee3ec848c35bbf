"""Real Snakemakes as subprocesses, on simulated devices with a broker of their own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

pytest.importorskip("snakemake", reason="needs the extra: pip install 'grn-plugins[snakemake]'")

RUN_WITHIN_S = 4 * PATIENCE_S


class Run:
    """One Snakemake under way."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self._path = path

    @property
    def text(self) -> str:
        """What it has written so far, stdout and stderr together."""
        return self._path.read_text("utf-8", "replace")

    def end(self, within_s: float = RUN_WITHIN_S) -> int:
        """Wait for its end; return its exit code."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {within_s:g} s:\n{self.text}") from None

    def ok(self, within_s: float = RUN_WITHIN_S) -> str:
        """Wait for its end, which has to be a good one; return what it wrote."""
        assert self.end(within_s) == 0, self.text
        return self.text

    def fails(self, within_s: float = RUN_WITHIN_S) -> str:
        """Wait for its end, which has to be a failure; return what it wrote."""
        assert self.end(within_s) == 1, self.text
        return self.text

    def wait_for(self, words: str) -> None:
        """Wait until it has written this."""
        eventually(lambda: words in self.text, what=f"{words!r} in:\n{self.text}")


class Flow:
    """A workflow in a folder of its own."""

    def __init__(self, env: BrokerEnv, folder: Path) -> None:
        self.env = env
        self.folder = folder
        self._runs = 0

    def write(self, name: str, text: str) -> Path:
        """Write a file of the workflow."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")
        return path

    def run(self, *words: str, executor: str = "grn", cores: int = 4, **environ: str | None) -> Run:
        """Start Snakemake; a variable that is None is taken out of its environment."""
        self._runs += 1
        path = self.folder / f"output{self._runs}"
        argv = [sys.executable, "-m", "snakemake", f"-j{cores}"]
        if executor:
            argv += ["--executor", executor]
        env = {**self.env.environ, **environ}
        env["PATH"] = f"{os.path.dirname(sys.executable)}:{env['PATH']}"
        env = {name: value for name, value in env.items() if value is not None}
        with open(path, "wb") as output:
            process = self.env.popen(
                [*argv, *words],
                cwd=self.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that a test can interrupt it as a terminal would
            )
        return Run(process, path)

    def read(self, name: str) -> str:
        """Return a file's text."""
        return (self.folder / name).read_text("utf-8")

    def lines(self, name: str) -> list[list[str]]:
        """Return the words of a file's lines; none if there is no file."""
        path = self.folder / name
        return (
            [line.split() for line in path.read_text("utf-8").splitlines()] if path.exists() else []
        )

    def idle(self) -> bool:
        """Whether nobody has a lease or waits for one."""
        status = self.env.status()
        return not status["leases"] and not status["waiters"]


def job(*words: str) -> str:
    """Return a stand-in for a GPU program, as a line for the shell of a rule."""
    return " ".join([shlex.quote(sys.executable), "-m", "grn.testing.job", *words])


@pytest.fixture
def new_flow(new_env: Callable[..., BrokerEnv], tmp_path: Path) -> Iterator[Callable[..., Flow]]:
    """Return a function that makes a workflow: its Snakefile, its devices, settings of the broker."""
    count = 0

    def make(snakefile: str, devices: str = "sim:2x8000MiB", **settings: Any) -> Flow:
        nonlocal count
        count += 1
        folder = tmp_path / f"flow{count}"
        folder.mkdir()
        flow = Flow(new_env(devices, **{"sample_fast": 0.05, **settings}), folder)
        flow.write("Snakefile", snakefile)
        return flow

    return make
