"""One test environment: a real broker with a socket, state and devices of its own.

Promises: nothing of it is shared with the machine or with another test; books are checked after
each step (`GRN_DEBUG`); when it closes, a broker that died unnoticed, a traceback in its log or a
process that was left alive fails the test. Tests wait on conditions, with `eventually`, or on a
round trip: the broker answers in order, so a reply proves that everything before it was decided.

Devices are `sim:…`, `none`, or `nvml:…`: the same cards behind a stand-in NVIDIA driver, for the same
stand-in jobs, so that one test can hold for both backends.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from grn import procs
from grn.client import Client, Connection, connect
from grn.devices import simfolder
from grn.devices.simfolder import WHOLE, Holding
from grn.rules.environment import job_environment
from grn.settings import load
from tests.fakenvml.box import Box
from tests.talker import RemoteTalker, Talker
from tests.warm import WarmBroker, can_be_warm
from tests.warm import start as start_warm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from grn.settings import Settings

__all__ = ["PATIENCE_S", "ROOT", "BrokerEnv", "Job", "eventually", "wait_gone"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The checkout."""

PATIENCE_S = 30.0
"""How long a busy machine may take for what is due at once; a promise is much shorter."""

_MARKER = "GRN_TEST_ENV"
_SIGNS_OF_A_DEFECT = (
    "Traceback (most recent call last)",
    "Exception in callback",
    "Fatal error",
    "never retrieved",
)
_T = TypeVar("_T")


def eventually(condition: Callable[[], _T], within_s: float = PATIENCE_S, what: str = "") -> _T:
    """Poll until the condition is true; return what it returned.

    Raises:
        AssertionError: it did not become true in time; an assertion of its own is shown.
    """
    deadline = time.monotonic() + within_s
    while True:
        last: BaseException | None = None
        try:
            value = condition()
        except AssertionError as error:
            last, value = error, None
        if value:
            return value
        if time.monotonic() > deadline:
            text = what or getattr(condition, "__name__", "the condition")
            raise AssertionError(f"not within {within_s:g} s: {text}") from last
        time.sleep(0.01)


def wait_gone(pid: int, within_s: float = PATIENCE_S) -> None:
    """Wait until a process, ours or not, has ended."""
    eventually(lambda: procs.start_time(pid) is None, within_s, f"the end of process {pid}")


class Job:
    """A stand-in job under a lease: it holds memory until it is told to end."""

    def __init__(self, folder: str, number: int) -> None:
        self.hold_file = os.path.join(folder, f"job{number}.holds")
        self.end_file = os.path.join(folder, f"job{number}.end")
        self.pid = 0
        self.process: subprocess.Popen[bytes] | None = None

    def argv(self, args: tuple[str, ...]) -> list[str]:
        """Return the command that runs it."""
        files = [f"--hold-file={self.hold_file}", f"--until-file={self.end_file}"]
        return [sys.executable, "-m", "grn.testing.job", *files, *args]

    def wait_holding(self) -> None:
        """Wait until it holds its memory."""
        eventually(lambda: os.path.exists(self.hold_file), what=f"job {self.pid} holds memory")

    def finish(self) -> int | None:
        """Let it end by itself; return its exit status if it is our child."""
        with open(self.end_file, "w", encoding="ascii"):
            pass
        if self.process is not None:
            return self.process.wait(PATIENCE_S)
        if self.pid:
            wait_gone(self.pid)
        return None


class BrokerEnv:
    """A broker, its clients and their jobs, in a folder of their own."""

    def __init__(
        self,
        folder: str,
        devices: str = "sim:1x10000MiB",
        *,
        socket_path: str | None = None,
        library: str = "",
        **settings: object,
    ) -> None:
        """Describe it; `library` is the folder of the stand-in driver, which `nvml:` needs."""
        self.folder = folder
        self.socket = socket_path or os.path.join(folder, "sock")
        self.log_path = os.path.join(folder, "broker.log")
        self.sim_dir = os.path.join(folder, "sim")
        self.box: Box | None = None
        """The machine behind the stand-in driver, with `nvml:`."""
        self.marker = f"{os.getpid()}-{time.monotonic_ns()}"
        self.environ = {
            _MARKER: self.marker,
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": folder,
            "LANG": "C.UTF-8",
            "GRN_SOCKET": self.socket,
            "GRN_STATE_DIR": os.path.join(folder, "state"),
            **self._device_environ(devices, library),
            "GRN_MARGIN": "0",
            "GRN_DEBUG": "1",
        }
        self.environ |= {f"GRN_{key.upper()}": str(value) for key, value in settings.items()}
        self.program = ["grn"]
        """The module that is run as the broker, and its first words."""
        self.broker: subprocess.Popen[Any] | WarmBroker | None = None
        self._talkers: list[Talker] = []
        self._clients: list[Client] = []
        self._processes: list[subprocess.Popen[Any]] = []
        self._jobs: list[Job] = []

    # -- devices --------------------------------------------------------------------------------

    def _device_environ(self, devices: str, library: str) -> dict[str, str]:
        kind, _, cards = devices.partition(":")
        if kind == "sim":
            return {"GRN_DEVICES": f"{devices},dir={self.sim_dir}"}
        if kind != "nvml":
            return {"GRN_DEVICES": devices}
        folder = os.path.join(self.folder, "box")
        os.mkdir(folder, 0o700)
        self.box = Box(folder, library, cards)
        self.sim_dir = self.box.sim_dir
        # No headroom, so that sizes are those of simulated cards.
        return {
            "GRN_DEVICES": "nvml",
            "GRN_HEADROOM": "0",
            **self.box.environ,
            **self.box.job_environ,
        }

    def foreign(self, card: int, mib: int, slice_index: int = WHOLE) -> subprocess.Popen[Any]:
        """Let a process of somebody else hold memory until it is killed."""
        process = self.popen(["sleep", "3600"], stdin=subprocess.PIPE)
        start = procs.start_time(process.pid)
        holding = Holding((card, slice_index), process.pid, mib, start, live=True)
        path = os.path.join(simfolder.procs_path(self.sim_dir), f"foreign-{process.pid}")
        simfolder.write_file(path, holding.record())
        return process

    def lose(self, card: int) -> None:
        """Let a card fall off the bus."""
        if self.box is not None:
            self.box.lose(card)
        else:
            simfolder.set_device(self.sim_dir, card, state="lost", reason="fell off the bus")

    def find(self, card: int) -> None:
        """Let it be back."""
        if self.box is not None:
            self.box.find(card)
        else:
            simfolder.set_device(self.sim_dir, card, state=None, reason=None)

    # -- the broker -----------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self.broker is not None
        return self.broker.pid

    def spawn_broker(self, *flags: str, **options: Any) -> subprocess.Popen[Any]:
        """Start a broker process without waiting for anything; its output goes to the log."""
        with open(self.log_path, "ab") as log:
            options = {"stdout": log, "stderr": log, **options}
            argv = [sys.executable, "-m", *self.program, "broker", *flags]
            return self.popen(argv, stdin=subprocess.DEVNULL, cwd=ROOT, **options)

    def start(self, *flags: str, **options: Any) -> int:
        """Start the broker and return its pid once it serves."""
        told, tell = os.pipe()
        try:
            self.broker = self._started((f"--ready-fd={tell}", *flags), tell, options)
        finally:
            os.close(tell)
        try:
            ready, _, _ = select.select([told], [], [], PATIENCE_S)
            line = os.read(told, 4096) if ready else b""
        finally:
            os.close(told)
        assert line.startswith(b"READY"), f"no READY but {line!r}; log:\n{self.log()}"
        return self.broker.pid

    def _started(
        self, flags: tuple[str, ...], ready: int, options: dict[str, Any]
    ) -> subprocess.Popen[Any] | WarmBroker:
        if options or self.program != ["grn"] or not can_be_warm(self.environ):
            return self.spawn_broker(*flags, pass_fds=[ready], **options)
        with open(self.log_path, "ab") as log:
            return start_warm(
                ["broker", *flags], self.environ, cwd=ROOT, output=log.fileno(), fds=[ready]
            )

    def kill(self) -> None:
        """Kill the broker as nothing can be prepared for."""
        assert self.broker is not None
        self.broker.kill()
        self.broker.wait(PATIENCE_S)
        self.broker = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask the broker to leave; return its exit status."""
        assert self.broker is not None
        self.broker.send_signal(number)
        status = self.broker.wait(PATIENCE_S)
        self.broker = None
        return status

    def restart(self) -> int:
        """Kill the broker and start another at once."""
        self.kill()
        return self.start()

    def log(self) -> str:
        """Return all that brokers of this environment have logged."""
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def log_lines(self, word: str) -> list[str]:
        """Return the lines of the log that have this word."""
        return [line for line in self.log().splitlines() if word in line]

    # -- clients and jobs -----------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings of this environment, for clients in the test's own process."""
        return load(environ=self.environ)

    def client(self) -> Client:
        """Return a blocking client; it is this process."""
        client = Client(self.settings)
        self._clients.append(client)
        return client

    def talker(self) -> Talker:
        """Return a client that speaks the wire; it is this process."""
        talker = Talker(connect(self.settings))
        self._talkers.append(talker)
        return talker

    def remote(self, **environ: str) -> RemoteTalker:
        """Return a client that is a process of its own and can be killed."""
        argv = [sys.executable, "-m", "tests.remote"]
        pipe = subprocess.PIPE
        env = {**self.environ, **environ}
        return RemoteTalker(self.popen(argv, stdin=pipe, stdout=pipe, cwd=ROOT, env=env))

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process that must not outlive the environment."""
        process = subprocess.Popen(argv, **{"env": self.environ, **options})
        self._processes.append(process)
        return process

    def job(
        self, talker: Talker, grant: Mapping[str, Any], *args: str, name_it: bool = True
    ) -> Job:
        """Start a stand-in job under a lease, as a child of the owner, and name it to the broker."""
        job = Job(self.folder, len(self._jobs))
        self._jobs.append(job)
        environ, _ = job_environment(grant, self.environ, {})
        if isinstance(talker, RemoteTalker):
            job.pid = talker.spawn(job.argv(args), environ)
        else:
            job.process = self.popen(job.argv(args), env=environ)
            job.pid = job.process.pid
        if name_it:
            talker.tell("started", lease=grant["lease"], pid=job.pid)
        return job

    def status(self) -> dict[str, Any]:
        """Return the state of the books, asked over a connection of its own."""
        connection: Connection = connect(self.settings)
        try:
            return Talker(connection).status()
        finally:
            connection.close()

    # -- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End everything and check that nothing went wrong on the way.

        Raises:
            AssertionError: the broker died unnoticed or did not leave in order, its log has a
                traceback, or a process of this environment lives that nobody ended.
        """
        problems = self._broker_problems()
        self._end_what_we_know()
        problems += [f"its log has {sign!r}" for sign in _SIGNS_OF_A_DEFECT if sign in self.log()]
        problems += [f"left alive: {text}" for text in self._end_what_is_left()]
        assert not problems, "\n".join([*problems, "log of the broker:", self.log()])

    def _broker_problems(self) -> list[str]:
        broker, self.broker = self.broker, None
        if broker is None:
            return []
        if broker.poll() is not None:
            return [f"the broker died unnoticed, status {broker.returncode}"]
        broker.terminate()
        try:
            status = broker.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            broker.kill()
            return ["the broker did not leave when it was told to"]
        return [f"the broker left with status {status}"] if status else []

    def _end_what_we_know(self) -> None:
        for client in self._clients:
            client.close()
        for talker in self._talkers:
            talker.close()
        for job in self._jobs:
            with open(job.end_file, "w", encoding="ascii"):
                pass
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.0 if process.stdin else 5.0)
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE_S)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        for job in self._jobs:
            if job.pid and job.process is None:
                wait_gone(job.pid)

    def _end_what_is_left(self) -> list[str]:
        sign = f"{_MARKER}={self.marker}".encode()
        left = []
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            start = procs.start_time(pid)
            words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ")
            if sign not in _read(f"/proc/{pid}/environ").split(b"\0"):
                continue
            if start is not None and procs.is_alive(pid, start):
                left.append(f"pid {pid}: {words.decode(errors='replace')}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        return left


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended
        return b""
