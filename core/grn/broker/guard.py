"""Notices when the broker's name is taken away, and takes it again.

The problem: somebody removes or renames the socket, its lock, the journal or their folder under a
living broker (a cleaner of temp folders, a careless `rm -r`, a logout that wipes the runtime
folder). A client that finds no socket starts a second broker for the same devices, and a successor
that finds no journal forgets live leases.

The choice: wait for the kernel to say so (`namewatch`; no wake-up while nothing happens), then make
everything again in the order of a start: folder, lock, devices' folder, journal, socket. The socket
comes last, since whoever can connect can be served. Connections that exist live on. What cannot be
made now is tried again on the next event, and by a timer that slows down to once a second; only a
journal that cannot be written stops grants meanwhile, as a full disk does. A second broker that is
about to start gives up as soon as it finds our socket or our lock; if it was faster and serves at
the path, it is the broker: we grant nothing more, say so, and leave with our last lease.

Where inotify is not to be had (its limits are per user), the names are looked at every two seconds.

Must not: remove anything, write to a path whose lock is another broker's, or touch a socket that
systemd passed in.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from grn import paths
from grn.broker.lock import TakenError, bind_socket, is_served, refuse_if_served, still_own
from grn.broker.namewatch import NameWatch
from grn.errors import BrokerUnavailable, JournalError, PathError
from grn.rules import events as ev

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from grn.broker.acceptor import Acceptor
    from grn.broker.core import BrokerCore
    from grn.broker.journal import Journal
    from grn.broker.lock import InstanceLock

__all__ = ["Guard", "KeepsFiles"]

_BETWEEN_TRIES_S = 0.02
"""What removes a folder does so file by file: let it get on before the next try."""

_SLOWEST_TRIES_S = 1.0
_LOOK_ONCE_MORE_S = 0.25
_WITHOUT_INOTIFY_S = 2.0
_LAST_LEASE_S = 0.25
_ANSWER_WITHIN_S = 0.2
"""While we wait for what stands at our path, we serve nobody."""

log = logging.getLogger("grn.broker")


@runtime_checkable
class KeepsFiles(Protocol):
    """Devices with files of their own beside the socket."""

    @property
    def kept_files(self) -> tuple[str, ...]:
        """Watched like the socket."""
        ...

    def in_place(self) -> bool:
        """Whether they are still ours."""
        ...

    def restore(self) -> None:
        """Make them again."""
        ...


class _Kept(NamedTuple):
    """One thing that has a name, in the order in which they are made."""

    what: str
    files: tuple[str, ...]
    in_place: Callable[[], bool]
    restore: Callable[[], None]


class Guard:
    """Keeps the broker's names leading to this broker, from its start until `close`."""

    def __init__(
        self,
        core: BrokerCore,
        path: str,
        *,
        mode: int,
        lock: InstanceLock,
        acceptor: Acceptor,
        journal: Journal,
        write_journal: Callable[[], bool],
    ) -> None:
        self._core = core
        self._path = path
        self._mode = mode
        self._lock = lock
        self._acceptor = acceptor
        self._journal = journal
        self._write_journal = write_journal
        self._kept = self._all_kept()
        self._tried_s = self._pause_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._trouble = ""
        self._stopped_grants = False
        self._closed = False
        self._watch = self._new_watch()
        self._look()

    def close(self) -> None:
        """Stop guarding. Without the lock, the journal's path is not to be written any more."""
        self._closed = True
        self._journal.ours = self._lock.still_ours()
        self._stop_watching()
        self._set_timer(None, self._look)

    def _all_kept(self) -> list[_Kept]:
        lock, journal, backend = self._lock, self._journal, self._core.backend
        kept = [_Kept("lock", (lock.path,), lock.still_ours, lock.acquire)]
        if isinstance(backend, KeepsFiles):
            kept.append(_Kept("devices", backend.kept_files, backend.in_place, backend.restore))
        kept.append(_Kept("journal", (journal.path,), lambda: journal.in_place, self._keep_books))
        kept.append(_Kept("socket", (self._path,), self._socket_in_place, self._listen_again))
        return kept

    # -- noticing -------------------------------------------------------------------------------

    def _new_watch(self) -> NameWatch | None:
        try:
            watch = NameWatch()
        except OSError as error:
            log.warning(
                "no-inotify reason=%r: looking every %g s", error.strerror, _WITHOUT_INOTIFY_S
            )
            return None
        self._core.loop.add_reader(watch.fileno(), self._noticed)
        return watch

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._core.loop.remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None

    def _noticed(self) -> None:
        # Somebody did something there: that is a better moment than what the timer waits for.
        self._pause_s = 0.0
        self._look()

    def _look(self) -> None:
        """See whether all names are ours, after having begun to watch what they lead to now."""
        if self._closed:
            return
        self._renew_watch()
        self._journal.ours = self._lock.still_ours()
        lost = [kept for kept in self._kept if not kept.in_place()]
        if not lost:
            self._all_well()
        elif self._another_serves():
            self._retire()
        else:
            due = self._tried_s + max(self._pause_s, _BETWEEN_TRIES_S) - self._core.loop.time()
            if due <= 0:
                self._try(lost)
            else:
                self._set_timer(due, self._look)

    def _renew_watch(self) -> None:
        if self._watch is None:
            return
        files = [file for kept in self._kept for file in kept.files]
        try:
            self._watch.renew(files, os.path.dirname(self._path), awaited=bool(self._trouble))
        except OSError as error:
            log.warning(
                "no-watches reason=%r: looking every %g s", error.strerror, _WITHOUT_INOTIFY_S
            )
            self._stop_watching()

    def _set_timer(self, after_s: float | None, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if after_s is None else self._core.loop.call_later(after_s, then)

    def _socket_in_place(self) -> bool:
        return still_own(self._path, self._acceptor.listener)

    def _another_serves(self) -> bool:
        return not (self._lock.still_ours() or self._socket_in_place() or not is_served(self._path))

    # -- taking the names again -----------------------------------------------------------------

    def _try(self, lost: list[_Kept]) -> None:
        words = ",".join(kept.what for kept in lost)
        try:
            self._make_again()
        except TakenError as error:
            if self._lock.still_ours():  # it lost its lock, as we did, and serves at our path
                self._retire()
                return
            self._failed(words, error)  # it may yet give up, as when it finds our socket
        except (PathError, JournalError, BrokerUnavailable) as error:
            self._failed(words, error)
        else:
            log.warning("name-restored path=%s lost=%s", self._path, words)
            self._pause_s = 0.0
            self._set_trouble("")
        self._tried_s = self._core.loop.time()
        if self._watch is not None:
            self._watch.drain()  # what this try did itself
        self._core.loop.call_soon(self._look)

    def _make_again(self) -> None:
        paths.prepare_folder(self._path, os.environ)
        self._lock.acquire()
        self._journal.ours = True
        if not self._socket_in_place():
            refuse_if_served(self._path, patience_s=_ANSWER_WITHIN_S)
        for kept in self._kept:
            if not kept.in_place():
                kept.restore()

    def _failed(self, words: str, error: PathError | JournalError | BrokerUnavailable) -> None:
        self._pause_s = min(max(2 * self._pause_s, _BETWEEN_TRIES_S), _SLOWEST_TRIES_S)
        said = f"the {words} at {self._path} cannot be made again: {error.message}"
        if said != self._trouble:
            log.warning("name-lost path=%s lost=%s reason=%r", self._path, words, error.message)
        self._set_trouble(said)
        if isinstance(error, JournalError):
            self._stopped_grants = True
            self._core.step(ev.DiskFailed(self._core.now(), (), error.message))
            self._core.settle()

    def _set_trouble(self, said: str) -> None:
        warnings = self._core.warnings
        if self._trouble in warnings:
            warnings.remove(self._trouble)
        if said:
            warnings.append(said)
        self._trouble = said

    def _all_well(self) -> None:
        self._set_trouble("")
        if self._stopped_grants:
            self._stopped_grants = False
            self._core.step(ev.DiskHealed(self._core.now()))
            self._core.settle()
        if self._watch is None:
            self._set_timer(_WITHOUT_INOTIFY_S, self._look)
        elif self._core.loop.time() - self._tried_s < _LOOK_ONCE_MORE_S and self._tried_s:
            # What removed it may still be at it, and of the devices' files not all are watched.
            self._set_timer(_LOOK_ONCE_MORE_S, self._look)
        else:
            self._set_timer(None, self._look)

    def _keep_books(self) -> None:
        if not self._write_journal():
            raise JournalError(f"the journal {self._journal.path} cannot be written")

    def _listen_again(self) -> None:
        # The old one is served until the new one is: who is in its queue is not lost.
        self._acceptor.move_to(
            bind_socket(self._path, mode=self._mode, patience_s=_ANSWER_WITHIN_S)
        )

    # -- giving way -----------------------------------------------------------------------------

    def _retire(self) -> None:
        """Another broker serves at our path: grant nothing more, and leave with the last lease."""
        core = self._core
        self._lock.release()  # if it is the lock at the path, it is the other one's to have
        self.close()
        why = f"another broker serves at {self._path} since this one's files there were removed"
        log.error("name-taken path=%s leases=%d", self._path, len(core.machine.leases))
        self._set_trouble(f"{why}: nothing new is granted, and it leaves with its last lease")
        core.machine.closing = True
        for ticket, (connection, request_id, _) in list(core.asked.items()):
            del core.asked[ticket]
            connection.tickets.pop(request_id, None)
            connection.reply(
                {"op": "refused", "id": request_id, "code": "shutting-down", "message": why}
            )
        core.settle()
        self._leave_with_the_last_lease()

    def _leave_with_the_last_lease(self) -> None:
        # This state is rare and short: a timer here costs less than a look at every end of a lease.
        if self._core.machine.leases:
            self._set_timer(_LAST_LEASE_S, self._leave_with_the_last_lease)
        else:
            self._core.stop("another broker serves at its path")
