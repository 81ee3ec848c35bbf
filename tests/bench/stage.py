"""The two servers that are compared, each a process of its own in a private folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from grn.client import Client
from grn.settings import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "DEVICES",
    "ROOT",
    "Stage",
    "broker",
    "clean_environment",
    "floor",
    "grn_command",
    "private",
]

DEVICES = "sim:4x16GiB"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_END_WITHIN_S = 10


class Stage:
    """A running server: where it listens, its process, and what leads clients and commands here."""

    def __init__(self, folder: str, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.socket = socket_in(folder)
        self.process = process
        self.environ = environment_in(folder)
        self.settings = load({"socket": self.socket, "state_dir": folder}, self.environ)

    def client(self) -> Client:
        """Connect."""
        return Client(self.settings)


def clean_environment() -> None:
    """Leave out of this process's environment what would change the figures."""
    for name in list(os.environ):
        if name.startswith("GRN_") or name == "CUDA_VISIBLE_DEVICES":
            del os.environ[name]


def environment_in(folder: str) -> dict[str, str]:
    """Return the environment of a command that finds its broker in `folder`."""
    return {
        **os.environ,
        "GRN_SOCKET": socket_in(folder),
        "GRN_STATE_DIR": folder,
        "XDG_CONFIG_HOME": folder,
    }


def socket_in(folder: str) -> str:
    """Return the path at which the server of a folder listens."""
    return os.path.join(folder, "socket")


def grn_command() -> list[str]:
    """Return the words that call `grn`: the installed script, else the module."""
    script = os.path.join(os.path.dirname(sys.executable), "grn")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "grn"]


@contextmanager
def private() -> Iterator[str]:
    """Make a folder that is gone afterwards."""
    folder = tempfile.mkdtemp(prefix="grn-bench-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def floor() -> Iterator[Stage]:
    """Run the floor's server."""
    with private() as folder:
        words = [sys.executable, "-m", "tests.bench.floor", socket_in(folder), "{fd}"]
        with _running(words, folder) as process:
            yield Stage(folder, process)


@contextmanager
def broker(
    devices: str = DEVICES, *, journal: bool = True, flags: Sequence[str] = ()
) -> Iterator[Stage]:
    """Run the broker, with or without its journal, and with these flags."""
    module = ["grn", "broker"] if journal else ["tests.bench.unjournalled"]
    with private() as folder:
        words = [sys.executable, "-m", *module, "--devices", devices, *flags, "--ready-fd", "{fd}"]
        with _running(words, folder) as process:
            yield Stage(folder, process)


@contextmanager
def _running(words: Sequence[str], folder: str) -> Iterator[subprocess.Popen[bytes]]:
    readable, writable = os.pipe()
    with open(os.path.join(folder, "log"), "wb") as log:
        process = subprocess.Popen(
            [word.format(fd=writable) for word in words],
            pass_fds=[writable],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env=environment_in(folder),
        )
    os.close(writable)
    try:
        _wait_until_ready(readable, folder)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(readable: int, folder: str) -> None:
    with open(readable, "rb") as pipe:
        said = pipe.readline()
    if not said.startswith(b"READY"):
        with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as log:
            raise RuntimeError(f"the server did not come up: {said!r}\n{log.read()}")
