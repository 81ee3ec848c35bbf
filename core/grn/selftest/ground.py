"""The broker that is tested, and how it is left behind.

Where nobody has the devices, a broker of our own is started: its socket, books and profiles are in a
folder that is removed at the end. Where the user's own broker has them, a second one would hand them
out twice; so the checks go through that one, book like any other job, and have their job types,
`selftest:...`, forgotten at the end. Stopping a broker that serves others is left to its owner.

Must not: start a broker at the user's socket, touch a profile of another name, or wait for a broker
that hangs longer than it was told to: once it was silent, it is not asked again.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.client import Client
from grn.devices import canonical_spec
from grn.errors import BrokerSilent, BrokerUnavailable, GrnError, UsageError
from grn.settings import known_flags, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from grn.settings import Settings

__all__ = ["PREFIX", "Ground", "open_ground"]

PREFIX = "selftest:"
"""How our job types begin."""

_OWN = {
    "idle_exit": "5s",  # it leaves by itself if we are killed
    "margin": "0",
    "sample_fast": "0.1s",
    "sample_slow": "0.25s",
}

_LEAVES_WITHIN_S = 4.0
_LOOK_EVERY_S = 0.02


class Ground:
    """A broker to test. `private`: it is our own."""

    def __init__(self, client: Client, socket: str | None, folder: str, *, private: bool) -> None:
        self.client = client
        self.private = private
        self.pid: int = client.broker["pid"]
        self.spec: str = client.broker["devices"]
        self.folder = folder
        self._socket = socket
        self._start = procs.start_time(self.pid)
        self._silent: BrokerSilent | None = None

    @property
    def simulated(self) -> bool:
        """Whether its devices are."""
        return self.spec.startswith("sim:")

    @property
    def words(self) -> list[str]:
        """What `grn run` needs to find it."""
        return [] if self._socket is None else [f"--socket={self._socket}"]

    def status(self, within_s: float) -> dict[str, Any]:
        """Ask the broker for the state of its books.

        Raises:
            BrokerSilent: it does not answer, now or when it was asked before.
        """
        if self._silent is not None:
            raise self._silent
        self.client.answer_within_s = within_s
        try:
            return self.client.status()
        except BrokerSilent as error:
            self._silent = error
            raise

    def environ(self) -> dict[str, str]:
        """The environment for what we start: the user's, without his settings of GRN."""
        settings = {"GRN_" + flag[2:].replace("-", "_").upper() for flag, _, _ in known_flags()}
        if self._socket is None:
            settings.discard("GRN_SOCKET")
        return {name: value for name, value in os.environ.items() if name not in settings}

    def close(self) -> None:
        """Leave it as it was: our own is ended, another one forgets our job types."""
        self.client.answer_within_s = _LEAVES_WITHIN_S
        try:
            if self._silent is not None:
                return
            if self.private:
                self.client.stop()
                _wait_for_end(self.pid, self._start)
            else:
                self._forget()
        except BrokerUnavailable:
            return  # it is gone already, or hangs
        finally:
            self.client.close()
            if self.private:
                _kill(self.pid, self._start)

    def _forget(self) -> None:
        known = {entry["type"] for entry in self.client.profiles()}
        for job_type in known:
            if job_type.startswith(PREFIX):
                self.client.profiles("forget", type=job_type)


def open_ground(
    folder: str,
    *,
    devices: str | None = None,
    socket: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Ground:
    """Find or start the broker to test.

    Args:
        folder: a private folder for a broker of our own.
        devices: as in `--devices`; None: what the settings say.
        socket: test the broker there, whatever it manages.
        environ: the environment that the settings are read from.

    Raises:
        GrnError: there is none and none can be started, or we run inside a lease.
    """
    if "GRN_LEASE" in environ:
        raise UsageError(
            "this runs inside a job, which has a share of a device already; start it outside of GRN"
        )
    settings = load({"devices": devices, "socket": socket}, environ)
    wanted = canonical_spec(settings.devices or "")
    if socket is not None or not wanted.startswith(("sim:", "none")):
        running = _running(settings)
        if running is not None:
            if socket is not None or running.broker["devices"] == "nvml":
                return Ground(running, settings.socket, folder, private=False)
            running.close()
        elif socket is not None:
            raise BrokerUnavailable(f"no broker at {socket}")
    return _start(folder, devices, environ)


def _wait_for_end(pid: int, start: int | None) -> None:
    """Wait, for a bounded time: it may write in its folder until then."""
    deadline = time.monotonic() + _LEAVES_WITHIN_S
    while start is not None and procs.is_alive(pid, start) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _kill(pid: int, start: int | None) -> None:
    """End a broker of our own that does not leave."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return  # it has left
    try:
        if start is not None and procs.start_time(pid) == start:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        return  # it left just now
    finally:
        os.close(fd)


def _running(settings: Settings) -> Client | None:
    """Return a client of the broker at the user's socket, if one runs."""
    try:
        client = Client(settings)
        _ = client.broker
    except BrokerSilent:
        raise
    except BrokerUnavailable:
        return None
    return client


def _start(folder: str, devices: str | None, environ: Mapping[str, str]) -> Ground:
    path = os.path.join(folder, "sock")
    flags: dict[str, Any] = {
        **_OWN,
        "devices": devices,
        "socket": path,
        "state_dir": os.path.join(folder, "state"),
    }
    settings = load(flags, environ)
    try:
        client = Client(settings, start=True)
    except GrnError as error:
        raise BrokerUnavailable(
            f"no broker could be started to test with: {error.message}"
        ) from error
    return Ground(client, path, folder, private=True)
