"""One connection to the broker for a whole process, shared by all of its threads and event loops.

Design note. Many threads may wait at once: one thread reads the connection and wakes each when its
answer is there; nobody polls. That thread also makes the connection, so that who asks never blocks on
it. It ends when nothing is awaited any more, and closes the connection if nothing is held either: a
broker that was started on demand may then leave, and a process that forks later has no thread left.

When the broker dies, what waits keeps its place at the next one, and what is held goes on being held:
the next connection begins with an `adopt`. If nobody waits, the next use of the hub makes it.

Fork-safe: a child begins with a hub of its own; closing its copy of the socket tells the broker
nothing. A lease belongs to the process that asked for it.

Must not: be imported on the path of `grn run` or `grn.Client`: it loads `threading`.
"""

from __future__ import annotations

import os
import threading
import time

from grn.client import nested_entry
from grn.connection import Connection, connect, connect_or_start
from grn.errors import (
    BrokerGone,
    BrokerUnavailable,
    Cancelled,
    GrnError,
    LeaseError,
    ProtocolError,
    WaitExpired,
)
from grn.grants import Grant, Pending
from grn.saying import warn
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Unpack

    from grn.grants import Ending
    from grn.settings import Settings

    Message = dict[str, Any]

__all__ = [
    "Grant",
    "Hub",
    "Pending",
    "acquire",
    "ask",
    "call",
    "release",
    "shared",
    "started",
]

_LINGER_S = 1.0
"""How long the reader stays for the next question; jobs that follow each other find it there."""
_SUCCESSOR_WITHIN_S = 60.0
RELEASE_WITHIN_S = 5.0
CANCEL_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.2
"""How often `should_stop` is asked: it cannot wake us."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
_SHUTTING_DOWN = "shutting-down"
_NOTHING_SAID: Ending = {
    "exit_code": None,
    "signal": None,
    "said": "",
    "said_oom": False,
    "stopped": False,
}


class Hub:
    """The process's client. All methods may be called by any thread."""

    def __init__(self, settings: Callable[[], Settings] = load) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._reader: threading.Thread | None = None
        self._session: str | None = None
        self._on_demand = True
        self._devices: str | None = None
        self._dismissed = False
        """The broker was told to leave while we waited: it is not for us to start another."""
        self._last_id = 0
        self._pending: dict[int, Pending] = {}
        self._held: set[str] = set()
        self._nested: dict[int, Message] = {}

    # -- for callers ----------------------------------------------------------------------------

    def acquire(
        self,
        wish: Message,
        *,
        wait_s: float | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> Grant:
        """Wait for what `wish`, an `acquire` in the words of the wire, asks for.

        Args:
            wish: see `grn.wishes.Wish.request`.
            wait_s: give up after so long.
            should_stop: asked now and then; when it says yes, the request is withdrawn.

        Raises:
            Impossible: if this machine can never meet it.
            WaitExpired: if it was not granted within `wait_s`.
            Cancelled: if `should_stop` said so.
            BrokerUnavailable: if there is no broker, and none can be started.
        """
        pending = self.ask(wish)
        try:
            if not self._await(pending, wait_s, should_stop):
                self.withdraw(pending)
                pending.wait(CANCEL_WITHIN_S)
            return self.grant_of(pending, wait_s)
        except BaseException:  # also Ctrl-C: a grant must not be left to nobody
            self.abandon(pending)
            raise

    @staticmethod
    def _await(
        pending: Pending, wait_s: float | None, should_stop: Callable[[], bool] | None
    ) -> bool:
        if should_stop is None:
            return pending.wait(wait_s)
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while not pending.done:
            left = _LOOK_EVERY_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            if should_stop():
                raise Cancelled("the request was withdrawn: its caller was asked to stop")
            pending.wait(min(left, _LOOK_EVERY_S))
        return True

    def grant_of(self, pending: Pending, wait_s: float | None = None) -> Grant:
        """Make the grant of a request that is answered.

        Raises:
            GrnError: see `acquire`.
        """
        if not pending.done:  # a broker that hangs does not answer a withdrawal either
            raise self._expired(pending, wait_s)
        try:
            answer = pending.result()
        except Cancelled:
            raise self._expired(pending, wait_s) from None
        if answer["op"] != "granted":
            raise ProtocolError(f"'granted' was expected, {answer['op']!r} came")
        return Grant(self, answer, affinity=pending.message.get("affinity") is True)

    @staticmethod
    def _expired(pending: Pending, wait_s: float | None) -> WaitExpired:
        within = "in the time allowed" if wait_s is None else f"within {wait_s:g} s"
        reason = f": {pending.reason}" if pending.reason else ""
        return WaitExpired(f"not granted {within}{reason}")

    def started(self, lease: str, pid: int) -> None:
        """Name the process that uses a lease, a child of this one. Not answered."""
        self._tell({"op": "started", "lease": lease, "pid": pid})

    def release(self, grant: Grant, **ending: Unpack[Ending]) -> Message | None:
        """Give a grant back, and say how its job ended.

        Args:
            grant: what is given back.
            ending: `exit_code`, `signal`, `said` (what its last words tell: a name of
                `grn.rules.outcome`), `said_oom` and `stopped` (we ended it), as far as known.

        Returns:
            What the broker makes of it; `None` for a part of an outer job's lease, in a forked copy
            of the process, or if there is no broker (the lease then ends with this process).
        """
        pending = self.begin_release(grant, **ending)
        if pending is None:
            return None
        pending.wait(RELEASE_WITHIN_S)
        return self.end_release(grant, pending)

    def begin_release(self, grant: Grant, **ending: Unpack[Ending]) -> Pending | None:
        """Send a release without waiting; `None` if there is nothing to wait for, see `release`."""
        if grant.pid != os.getpid():
            return None
        if grant.nested:
            self._leave(grant)
            return None
        return self.ask({"op": "release", "lease": grant.lease, **_NOTHING_SAID, **ending})

    def end_release(self, grant: Grant, pending: Pending) -> Message | None:
        """Take in what the broker makes of a release, or warn that it did not hear of it."""
        with self._lock:
            self._held.discard(grant.lease)
            self._pending.pop(pending.id, None)
        try:
            if pending.done:
                return pending.result()
            problem = f"the broker did not answer within {RELEASE_WITHIN_S:g} s"
        except LeaseError:
            return None  # the broker that is gone had taken the release in
        except BrokerUnavailable as error:
            problem = str(error)
        warn(f"lease {grant.lease} could not be given back and ends with this process: {problem}")
        return None

    def _leave(self, grant: Grant) -> None:
        with self._lock:
            self._nested.pop(grant.message["id"], None)
        self._tell({"op": "leave", "id": grant.message["id"]})

    def call(self, message: Message, *, within_s: float | None = None) -> Message:
        """Ask anything else, and wait for the answer.

        Raises:
            GrnError: the class that the answer's code names.
        """
        pending = self.ask(message)
        if not pending.wait(within_s):
            self.abandon(pending)
            raise BrokerUnavailable(f"the broker did not answer within {within_s:g} s")
        return pending.result()

    def busy(self) -> int:
        """Return how many requests wait, and leases are held, that went through this hub."""
        with self._lock:
            asked = [each for each in self._pending.values() if each.message["op"] == "acquire"]
            return len(asked) + len(self._held) + len(self._nested)

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, message: Message) -> Pending:
        """Ask without waiting."""
        with self._lock:
            self._last_id += 1
            pending = Pending(self._last_id, message)
            self._pending[pending.id] = pending
            self._send(self._said(pending))
            if self._reader is None:
                self._reader = threading.Thread(target=self._read, name="grn-hub", daemon=True)
                self._reader.start()
        return pending

    def withdraw(self, pending: Pending) -> None:
        """Take a request back; its answer says whether a grant was on its way already."""
        with self._lock:
            if pending.done or not self._send({"op": "cancel", "id": pending.id}):
                return
        # Without a connection there is nobody to refuse it: it is not asked again.

    def abandon(self, pending: Pending) -> None:
        """Nobody waits for this any more: withdraw it, and give back what comes all the same."""
        with self._lock:
            pending.unwanted = True
            if pending.done:
                self._give_back(pending.answer or {})
            elif not self._send({"op": "cancel", "id": pending.id}):
                self._pending.pop(pending.id, None)

    def _tell(self, message: Message) -> None:
        """Send what has no answer; if the broker is gone, nobody needs to hear it."""
        with self._lock:
            self._send(message)

    def _send(self, message: Message) -> bool:
        """Send, with the lock held. What could not be sent is sent again by the reader."""
        if self._connection is None:
            return False
        try:
            self._connection.send(message)
        except BrokerGone:
            return False  # the reader finds out as well
        return True

    @staticmethod
    def _said(pending: Pending) -> Message:
        message = {**pending.message, "id": pending.id}
        if message["op"] == "acquire":
            message["asked_s"] = pending.asked_s
            message["waited_s"] = time.monotonic() - pending.asked_s
        return message

    # -- the reading thread ---------------------------------------------------------------------

    def _read(self) -> None:
        """Hear the broker until nothing is awaited. Whatever ends it, nobody is left waiting."""
        error: BaseException = BrokerUnavailable("the thread that hears the broker has ended")
        try:
            while True:
                connection = self._connection or self._connect()
                if not self._heard(connection) and self._retired():
                    return
        except GrnError as problem:
            error = problem
        finally:
            self._fail_all(error)

    def _heard(self, connection: Connection) -> bool:
        """Hear one message; `False` if none came for a while, or the broker is gone."""
        try:
            message = connection.recv(_LINGER_S)
        except BrokerGone:
            self._drop(connection)
            return False
        if message is not None:
            self._hear(message)
        return message is not None

    def _retired(self) -> bool:
        """Whether the reader may end; decided with the lock, so that no question is overlooked."""
        with self._lock:
            if self._pending:
                return False
            self._reader = None
            if not self._held and not self._nested:
                self._session = None
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
            return True

    def _fail_all(self, error: BaseException) -> None:
        with self._lock:
            if self._reader is not threading.current_thread():
                return  # it retired in order
            self._reader = None
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            pending, self._pending = list(self._pending.values()), {}
            for each in pending:
                each.settle(None, error)

    def _drop(self, connection: Connection) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.close()

    def _connect(self) -> Connection:
        """Connect, begin with what is held, and ask again for all that is awaited.

        Raises:
            GrnError: if there is no broker to be had; of the first one at once.
        """
        connection = self._found()
        with self._lock:
            if self._session is not None:
                told = {
                    "op": "adopt",
                    "id": self._next_id(),
                    "leases": sorted(self._held),
                    "nested": list(self._nested.values()),
                }
                again = [told, *map(self._said, self._pending.values())]
            else:
                again = [self._said(each) for each in self._pending.values()]
            self._session = connection.session
            self._on_demand = bool(connection.broker["on_demand"])
            self._devices = str(connection.broker["devices"])
            self._dismissed = False
            self._connection = connection
            for message in again:
                self._send(message)
        return connection

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _found(self) -> Connection:
        settings = self._settings()
        if self._session is None:
            return connect_or_start(settings)
        settings.devices = settings.devices or self._devices
        start = self._on_demand and not self._dismissed
        again = connect_or_start if start else connect
        deadline, pause = time.monotonic() + _SUCCESSOR_WITHIN_S, _FIRST_PAUSE_S
        while True:
            try:
                return again(settings, self._session)
            except BrokerUnavailable:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _hear(self, message: Message) -> None:
        with self._lock:
            pending = self._pending.get(message.get("id", 0))
            if pending is None:
                return
            if message["op"] == "waiting":
                pending.reason = str(message["reason"])
                return
            if message.get("code") == _SHUTTING_DOWN:
                self._dismissed = self._dismissed or bool(pending.reason)
                return  # it keeps its place at the next broker
            del self._pending[pending.id]
            self._note(pending, message)
            pending.settle(message)

    def _note(self, pending: Pending, message: Message) -> None:
        """Remember what is held now: who asked for it may wake up later."""
        if message["op"] != "granted":
            return
        if pending.unwanted:
            self._give_back(message)
        elif message["nested"]:
            self._nested[message["id"]] = nested_entry(message, pending.message)
        else:
            self._held.add(message["lease"])

    def _give_back(self, grant: Message) -> None:
        """Give back a grant that nobody wants, with the lock held."""
        if grant.get("op") != "granted":
            return
        if grant["nested"]:
            self._nested.pop(grant["id"], None)
            self._send({"op": "leave", "id": grant["id"]})
            return
        self._held.discard(grant["lease"])
        told = {"op": "release", "id": self._next_id(), "lease": grant["lease"]}
        self._send({**told, "stopped": True})

    # -- forks ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Let go of the connection in a forked child: it is the parent's."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.detach().close()  # not shut down: that would end it for the parent, too


# -- the hub of this process ----------------------------------------------------------------------

_WHICH_BROKER = ("GRN_SOCKET", "GRN_CONFIG", "XDG_RUNTIME_DIR", "TMPDIR")
_hubs: dict[tuple[str | None, ...], Hub] = {}
_making = threading.Lock()


def shared() -> Hub:
    """Return the process's hub for the broker that its environment names."""
    key = tuple(map(os.environ.get, _WHICH_BROKER))
    with _making:
        hub = _hubs.get(key)
        if hub is None:
            hub = _hubs[key] = Hub()
        return hub


def _forked() -> None:
    global _making  # noqa: PLW0603 - the parent's lock may be held for ever in a child
    _making = threading.Lock()
    for hub in _hubs.values():
        hub.forget()
    _hubs.clear()


os.register_at_fork(after_in_child=_forked)


def acquire(
    wish: Message,
    *,
    wait_s: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Grant:
    """Wait for a lease, see `Hub.acquire`."""
    return shared().acquire(wish, wait_s=wait_s, should_stop=should_stop)


def ask(message: Message) -> Pending:
    """Ask without waiting, see `Hub.ask`."""
    return shared().ask(message)


def call(message: Message, *, within_s: float | None = None) -> Message:
    """Ask anything else, see `Hub.call`."""
    return shared().call(message, within_s=within_s)


def started(lease: str, pid: int) -> None:
    """Name the process that uses a lease, see `Hub.started`."""
    shared().started(lease, pid)


def release(grant: Grant, **ending: Unpack[Ending]) -> Message | None:
    """Give a lease back to the broker that granted it, see `Hub.release`."""
    return grant.hub.release(grant, **ending)
