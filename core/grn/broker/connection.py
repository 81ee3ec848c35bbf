"""One client's connection: bytes in, messages handled, replies out.

A bad, slow or hostile client harms only itself: what is not our protocol ends this connection with
one log line, a client that does not read is dropped at a bounded buffer, a client that does not
greet within 5 s is dropped too. Replies of one batch leave in one write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import socket
import struct
from typing import TYPE_CHECKING, Any

from grn import procs
from grn.errors import GrnError, LeaseError, ProtocolError, Refused, UsageError
from grn.rules import events as ev
from grn.rules.foresight import answered_at_once
from grn.rules.messages import (
    check_hello,
    end_from,
    error_reply,
    hello_reply,
    number,
    request_from,
    text,
)
from grn.rules.model import Owner
from grn.rules.report import PAGE_BYTES, PAGED, pages, status_pages
from grn.rules.wire import Frames, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from grn.broker.core import BrokerCore
    from grn.rules.model import Lease, Request

__all__ = ["HELLO_WITHIN_S", "MAX_UNREAD", "Connection"]

HELLO_WITHIN_S = 5.0
MOST_VALUES = 1 << 14
"""In a message: ten thousand adopted leases fit, and the check takes some milliseconds at most."""

MAX_UNREAD = 8 << 20
"""Bytes that wait for a client that does not read before it is dropped."""

_LONGEST_SESSION = 256
_PEERCRED = struct.Struct("3i")
_PIDFD = struct.Struct("i")
_SO_PEERPIDFD = 77  # the socket module has no name for it
log = logging.getLogger("grn.broker")


def peer_has_died(peer: socket.socket) -> bool:
    """Whether the process that made the connection is known to be dead."""
    try:
        raw = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _PIDFD.size)
    except OSError as error:
        return error.errno == errno.ESRCH  # other errors: before Linux 6.5 nobody can say
    (pidfd,) = _PIDFD.unpack(raw)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(0))
    finally:
        os.close(pidfd)


class Connection(asyncio.BufferedProtocol):
    """What the broker knows of one connected client.

    All connections read into the broker's one buffer: each read is handled before the next one, and
    a fresh buffer for each, as asyncio's plain protocol takes it, costs more than a whole grant.
    """

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._frames = Frames()
        self._out: list[bytes] = []
        self._greeted = False
        self._transport: asyncio.Transport | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._owner: Owner | None = None
        self._session = ""
        self._crowd = ""
        """Why its user may have no more connections: it is told so when it greets."""
        self.pid = self.uid = 0
        self.tickets: dict[int, int] = {}
        """Request id -> ticket, of requests that wait."""
        self.nested: dict[int, int] = {}
        """Request id -> ticket, of nested jobs that run."""
        self.leases: set[str] = set()
        self._handlers: dict[str, Callable[[dict[str, Any]], None]] = {
            "acquire": self._acquire,
            "cancel": self._cancel,
            "started": self._started,
            "release": self._release,
            "leave": self._leave,
            "peak": self._peak,
            "adopt": self._adopt,
            "status": self._status,
            "profiles": self._profiles,
            "foresee": self._foresee,
            "watch": self._watch,
            "explain": self._explain,
            "record": self._record,
            "stop": self._stop,
        }

    # -- asyncio --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn from the kernel who is there: never from a pid in a message."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream socket gives
        self._transport = transport
        peer = transport.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        self.pid, self.uid, _ = _PEERCRED.unpack(credentials)
        loop = self._core.loop
        self._hello_timer = loop.call_later(HELLO_WITHIN_S, self._not_greeted)
        self._crowd, at_once = self._core.guests.too_many(self._core.connections, self.uid)
        self._core.connected(self)
        if at_once:
            self.drop(self._crowd)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where the next read goes."""
        del sizehint
        return self._core.inbox

    def buffer_updated(self, nbytes: int) -> None:
        """Handle all complete frames of a read, then let the broker decide."""
        try:
            for body in self._frames.feed(bytes(self._core.inbox[:nbytes])):
                self._message(decode(body, most_values=MOST_VALUES))
        except ProtocolError as error:
            self.drop(str(error))
        self._core.turn.heard(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client closed, died, or was dropped: what it waited for is withdrawn."""
        del exc
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        self._core.disconnected(self)
        self._transport = None

    def _not_greeted(self) -> None:
        self.drop(f"no hello within {HELLO_WITHIN_S:g} s")

    def drop(self, why: str) -> None:
        """End this connection with one log line."""
        if self._transport is not None and not self._transport.is_closing():
            log.warning("dropped pid=%d uid=%d reason=%r", self.pid, self.uid, why)
            self.flush()
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._transport.abort()

    def close(self) -> None:
        """End this connection after what is queued was sent."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # -- replies --------------------------------------------------------------------------------

    def reply(self, message: dict[str, Any]) -> None:
        """Queue a message; `flush` sends all of a batch at once."""
        try:
            self._out.append(encode(message))
        except ProtocolError as error:
            self._out.append(encode(error_reply(message.get("id"), error.code, str(error))))
        self._core.unflushed[self] = None

    def push(self, frames: bytes) -> None:
        """Send frames that are ready, after what is queued."""
        self._out.append(frames)
        self.flush()

    def flush(self) -> None:
        """Send what is queued; a client that does not read is dropped."""
        transport = self._transport
        if not self._out or transport is None or transport.is_closing():
            self._out.clear()
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        transport.write(data)
        if transport.get_write_buffer_size() > MAX_UNREAD:
            log.warning("dropped pid=%d uid=%d reason='does not read'", self.pid, self.uid)
            transport.abort()

    # -- messages -------------------------------------------------------------------------------

    def _message(self, message: dict[str, Any]) -> None:
        if not self._greeted:
            self._hello(message)
            return
        op = message.get("op")
        handler = self._handlers.get(op) if type(op) is str else None
        request_id = message.get("id")
        if handler is None:
            known = f"unknown op {op!r}"
            self.reply(error_reply(request_id, "protocol", known))
            return
        try:
            handler(message)
        except GrnError as error:
            self.reply(error_reply(request_id, error.code, error.message))
        except OSError as error:
            # asyncio would close the connection without a word.
            log.exception("failed op=%r pid=%d", message.get("op"), self.pid)
            self.reply(error_reply(request_id, "error", f"the broker met an error: {error}"))

    def _hello(self, message: dict[str, Any]) -> None:
        version = check_hello(message)
        if self._crowd:
            self.reply(error_reply(None, Refused.code, self._crowd))
            self.drop(self._crowd)
            return
        session = message.get("session", "")
        if not isinstance(session, str) or len(session) > _LONGEST_SESSION:
            # It goes into each record of the journal, whose length is bounded.
            raise ProtocolError(f"session: a text of at most {_LONGEST_SESSION} characters")
        self._session = session
        self._greeted = True
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        core = self._core
        self.reply(
            hello_reply(
                version,
                pid=core.pid,
                release=core.release,
                on_demand=core.on_demand,
                devices=core.backend.spec,
            )
        )

    def owner(self) -> Owner:
        """Return who holds this client's leases: its pid with its start time.

        Raises:
            LeaseError: if the process cannot be seen from here, so its death could not either.
        """
        if self._owner is None:
            start = procs.start_time(self.pid) if self.pid > 0 else None
            transport = self._transport
            # Asked after the start time was read: while who connected lives, the number is its
            # own; after its death it may be anybody's.
            if start is not None and (
                transport is None or peer_has_died(transport.get_extra_info("socket"))
            ):
                raise LeaseError(f"the client, process {self.pid}, has died")
            if start is None:
                raise LeaseError(
                    "the client's process cannot be seen by the broker (another pid namespace?):"
                    " run it in the broker's, for containers with --pid=host"
                )
            self._owner = Owner(self.pid, start, self.uid)
        return self._owner

    def _acquire(self, message: dict[str, Any]) -> None:
        request_id = message.get("id")
        if type(request_id) is not int or request_id in self.tickets or request_id in self.nested:
            raise UsageError(f"id {request_id!r}: a number that no other request has is expected")
        core = self._core
        core.ticket += 1
        request = self._request(message, core.ticket)
        self.tickets[request_id] = request.ticket
        core.asked[request.ticket] = (self, request_id, request.arrived_s)
        event = ev.Asked(core.now(), request)
        if core.lookout is None or not core.lookout.holds(event, message.get("mask")):
            core.step(event)

    def _request(self, message: dict[str, Any], ticket: int) -> Request:
        core = self._core
        outer, within = self._outer(message), message.get("within")
        return request_from(
            message,
            ticket=ticket,
            owner=self.owner(),
            session=self._session,
            now=core.now(),
            devices=core.devices,
            policy=core.policies.default,
            knows=core.policies.knows,
            outer=outer,
            ancestors=procs.ancestors(self.pid) if outer else (),
            within=self.nested.get(within) if type(within) is int else None,
        )

    def _outer(self, message: dict[str, Any]) -> str | None:
        """Return the lease that the client is inside of; it is not enough to say so."""
        lease = self._core.machine.leases.get(text(message, "outer"))
        return lease.id if lease is not None and self._belongs_to(lease) else None

    def _cancel(self, message: dict[str, Any]) -> None:
        request_id = message.get("id")
        ticket = self.tickets.get(request_id) if type(request_id) is int else None
        if ticket is not None:
            self._core.step(ev.Cancelled(self._core.now(), ticket))

    def _started(self, message: dict[str, Any]) -> None:
        lease = self._own_lease(message)
        pid = message.get("pid")
        if type(pid) is not int or pid <= 0:
            raise UsageError(f"pid {pid!r} is not a process id")
        main = self.owner() if pid == self.pid else self._child(pid)
        if main is not None:  # else it is over already: its end is on its way
            self._core.step(ev.Started(self._core.now(), lease, main))

    def _child(self, pid: int) -> Owner | None:
        start = procs.start_time(pid)
        if start is None:
            return None
        if self.pid not in procs.ancestors(pid):  # a fork server may stand between them
            raise LeaseError(f"process {pid} is not the client and does not descend from it")
        return Owner(pid, start, self.uid)

    def _own_lease(self, message: dict[str, Any]) -> str:
        lease_id = text(message, "lease")
        lease = self._core.machine.leases.get(lease_id)
        if lease is None:
            raise LeaseError(f"lease {lease_id!r} is not held any more")
        if lease.request.owner != self.owner():
            raise LeaseError(f"lease {lease_id} belongs to process {lease.request.owner.pid}")
        return lease_id

    def _release(self, message: dict[str, Any]) -> None:
        lease_id = self._own_lease(message)
        self._core.give_back(self, message.get("id"), lease_id, end_from(message))

    def _adopt(self, message: dict[str, Any]) -> None:
        wanted = message.get("leases")
        if not isinstance(wanted, list):
            raise UsageError("leases: a list of lease ids is expected")
        held = self._core.machine.leases
        owner = self.owner()
        known = [lease for lease in wanted if type(lease) is str and lease in held]
        mine = [lease for lease in known if held[lease].request.owner == owner]
        self.leases.update(mine)
        self._reenter(message)
        self._core.lives.returned(owner, self._session, frozenset(mine))
        self.reply({"op": "adopted", "id": message.get("id"), "leases": mine})

    def _reenter(self, message: dict[str, Any]) -> None:
        """Take in the nested jobs that a client goes on running under a new broker."""
        nested = message.get("nested", [])
        if not isinstance(nested, list):
            raise UsageError("nested: a list of nested jobs is expected")
        for job in nested:
            request_id = job.get("id") if isinstance(job, dict) else None
            if type(request_id) is not int:
                raise UsageError("nested: each job needs the id of its request")
            lease = self._core.machine.leases.get(text(job, "lease"))
            if request_id in self.nested or request_id in self.tickets:
                continue  # told before: a second hold under one id would never be given back
            if lease is not None and self._belongs_to(lease):
                mib = number(job, "memory_mib") or 0
                self._core.reenter(self, request_id, lease.id, mib)

    def _peak(self, message: dict[str, Any]) -> None:
        mib = number(message, "mib")
        if mib is None:
            raise UsageError("mib: the peak in MiB is expected")
        lease_id = text(message, "lease")
        lease = self._core.machine.leases.get(lease_id)
        if lease is None:
            raise LeaseError(f"lease {lease_id!r} is not held any more")
        if not self._belongs_to(lease):
            raise LeaseError(f"process {self.pid} does not belong to lease {lease_id}")
        self._core.step(ev.PeakTold(self._core.now(), lease_id, mib))
        self.reply({"op": "noted", "id": message.get("id")})

    def _belongs_to(self, lease: Lease) -> bool:
        """Whether the client is of the lease: it owns it, carries its name, or descends from its job."""
        owner = lease.request.owner
        if self.pid <= 0 or self.uid not in (owner.uid, 0):
            return False
        if self.owner() == owner or procs.marker(self.pid) == lease.id:
            return True
        main = lease.main
        above = (self.pid, *procs.ancestors(self.pid))
        return main is not None and main.pid in above and procs.is_alive(main.pid, main.start)

    def _leave(self, message: dict[str, Any]) -> None:
        self._core.leave(self, message.get("id"))

    def _status(self, message: dict[str, Any]) -> None:
        page = number(message, "page") or 0  # now: later nobody would answer for a mistake in it
        self._core.sampler.when_fresh(lambda: self._tell_status(message, page))

    def _tell_status(self, message: dict[str, Any], page: int) -> None:
        parts = status_pages(self._core.status())
        shown = parts[page] if page < len(parts) else {**parts[0], **{key: [] for key in PAGED}}
        shown = self._core.guests.shown(shown, self.uid)
        more = page + 1 < len(parts)
        self.reply({"op": "status", "id": message.get("id"), "status": shown, "more": more})

    def _explain(self, message: dict[str, Any]) -> None:
        subject, gpus = text(message, "subject"), number(message, "gpus")
        if not subject:
            raise UsageError("subject: a job or a type is expected")
        self._core.sampler.when_fresh(
            lambda: self._tell_explained(message, subject, 1 if gpus is None else gpus)
        )

    def _tell_explained(self, message: dict[str, Any], subject: str, gpus: int) -> None:
        try:
            told = self._core.explain(subject, gpus, self.uid)
            told = self._core.guests.explained(told, self.uid)
        except GrnError as error:  # several are meant; this may run when the devices were looked at
            self.reply(error_reply(message.get("id"), error.code, error.message))
        else:
            self.reply({"op": "explained", "id": message.get("id"), "explanation": told})

    def _watch(self, message: dict[str, Any]) -> None:
        self._core.observers.watch(self, message)

    def _record(self, message: dict[str, Any]) -> None:
        told = encode({"op": "recorded", "id": message.get("id")})
        self._core.observers.record(lambda: self.push(told))

    def _profiles(self, message: dict[str, Any]) -> None:
        page = number(message, "page") or 0
        parts = pages(self._core.edit_profiles(message), PAGE_BYTES)
        shown = parts[page] if page < len(parts) else []
        more = page + 1 < len(parts)
        self.reply({"op": "profiles", "id": message.get("id"), "profiles": shown, "more": more})

    def _foresee(self, message: dict[str, Any]) -> None:
        wishes = message.get("wishes")
        if not isinstance(wishes, list) or not all(isinstance(wish, dict) for wish in wishes):
            raise UsageError("wishes: a list of requests is expected")
        # No ticket of a request is negative: these are none.
        requests = [self._request(wish, -n) for n, wish in enumerate(wishes, 1)]
        if self._core.lookout is not None:
            self._core.lookout.expect(zip(requests, [w.get("mask") for w in wishes], strict=True))
        self._core.sampler.when_fresh(lambda: self._tell_foreseen(message, requests))

    def _tell_foreseen(self, message: dict[str, Any], requests: list[Request]) -> None:
        at_once = answered_at_once(self._core.machine, requests, self._core.now())
        self.reply({"op": "foreseen", "id": message.get("id"), "at_once": at_once})

    def _stop(self, message: dict[str, Any]) -> None:
        if self._core.guests.is_guest(self.uid):
            raise LeaseError("only the broker's own user can stop it")
        self.reply({"op": "stopping", "id": message.get("id")})
        self._core.stop("asked by a client")
