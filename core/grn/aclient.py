"""Leases for asyncio programs: many requests at once on one connection, and no thread for each.

Promises: cancelling an `acquire` withdraws the request, and a grant that crossed it on the way is
given back; when the broker is killed, the client finds its successor by itself: what it holds it
goes on holding, what it waits for keeps its place; a broker that hangs is told as such after the
same time as by `grn.client`. For use within one event loop.

Must not: be imported on a job's hot path.
"""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from typing import TYPE_CHECKING, Any, cast

from grn.client import ANSWER_WITHIN_S, acquire_message, nested_entry, silent_text
from grn.connection import connect, connect_or_start
from grn.errors import (
    BrokerGone,
    BrokerSilent,
    BrokerUnavailable,
    Cancelled,
    LeaseError,
    ProtocolError,
    WaitExpired,
    from_code,
)
from grn.rules.wire import Frames, decode, encode
from grn.settings import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from grn.connection import Connection
    from grn.settings import Settings

    Message = dict[str, Any]

__all__ = ["AsyncClient", "AsyncLease"]

_SUCCESSOR_WITHIN_S = 60.0
_RELEASE_WITHIN_S = 5.0
_WITHDRAWN_WITHIN_S = 5.0
_CLOSED_WITHIN_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class AsyncLease:
    """A granted lease, used by the process that asked for it. An async context manager."""

    def __init__(self, client: AsyncClient, grant: Message) -> None:
        self._client = client
        self._held = True
        self.grant = grant
        self.id: str = grant["lease"]
        self.devices: list[dict[str, Any]] = grant["devices"]
        self.memory_mib: int | None = grant["memory_mib"]
        self.cores: list[int] = grant.get("cores") or []

    def environment(self) -> dict[str, str]:
        """Return a copy of the process's environment with what the lease tells a job."""
        from grn.rules.environment import job_environment  # noqa: PLC0415 - only who starts a job

        return job_environment(self.grant, os.environ, {})[0]

    async def release(self, exit_code: int = 0) -> Message | None:
        """Give the lease back; `None` if it was given back before, or belongs to an outer job."""
        if not self._held:
            return None
        self._held = False
        if self.grant["nested"]:
            self._client.leave(self.grant["id"])
            return None
        return await self._client.give_back(self.id, exit_code)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.release(0 if kind is None else 1)


class AsyncClient:
    """A client for one event loop. An async context manager that connects on entry."""

    def __init__(self, settings: Settings | None = None, *, start: bool = False) -> None:
        self._settings = load() if settings is None else settings
        self._start = start
        self._leases: set[str] = set()
        self._nested: dict[int, Message] = {}
        self._wire = _Wire(self._leases)
        self._session: str | None = None
        self._finding = asyncio.Lock()
        self._given_up: _Wire | None = None
        self.broker: Message = {}
        """What the broker said of itself: pid, release, device specification."""
        self.answer_within_s = ANSWER_WITHIN_S
        """How long `call` waits for an answer."""

    async def connect(self) -> Self:
        """Connect; with `start`, start a broker if none runs.

        Raises:
            BrokerUnavailable: if none can be reached or started.
        """
        await self._connect(connect_or_start if self._start else connect)
        return self

    async def _connect(self, how: Callable[[Settings, str | None], Connection]) -> None:
        # In a thread: a broker that starts takes its time, and the event loop has none to spare.
        loop = asyncio.get_running_loop()
        made = loop.run_in_executor(None, how, self._settings, self._session)
        try:
            connection = await asyncio.shield(made)
        except asyncio.CancelledError:
            made.add_done_callback(_close_unwanted)
            raise
        wire = _Wire(self._leases, self._wire.last_id, path=connection.path)
        sock = connection.detach()
        sock.setblocking(False)
        await loop.create_unix_connection(lambda: wire, sock=sock)
        if self._session is not None:
            # Before anything else: what is granted from now on must not be taken for a lease of
            # which the word was lost.
            nested = list(self._nested.values())
            told = {"op": "adopt", "leases": sorted(self._leases), "nested": nested}
            await self._ask(wire, connection.broker["pid"], told, "adopted")
        self._wire, self.broker, self._session = wire, connection.broker, connection.session

    async def call(self, message: Message, expected: str) -> Message:
        """Send one message and wait for its answer.

        Raises:
            GrnError: the class that the answer's code names.
            BrokerGone: if the broker ended meanwhile.
            BrokerSilent: if it has not answered for half a minute.
        """
        return await self._ask(self._wire, self.broker.get("pid", 0), message, expected)

    async def _ask(self, wire: _Wire, pid: int, message: Message, expected: str) -> Message:
        _, answer = wire.ask(message)
        try:
            await asyncio.wait({answer}, timeout=self.answer_within_s)
            if not answer.done():
                raise BrokerSilent(silent_text(wire.path, pid, self.answer_within_s))
            return _result(answer.result(), expected)
        finally:
            answer.cancel()  # an answer that nobody waits for any more is passed over

    async def acquire(
        self,
        job_type: str,
        *,
        gpus: int | None = 1,
        memory_mib: int | None = None,
        whole: bool = False,
        policy: str | None = None,
        cpus: int | None = None,
        ram_mib: int | None = None,
        compute: int | None = None,
        processes: int | None = None,
        affinity: bool = False,
        group: str = "",
        group_size: int | None = None,
        priority: int = 0,
        label: str = "",
        wait_s: float | None = None,
    ) -> AsyncLease:
        """Wait for a lease for this process; any number of tasks may do so at once.

        The arguments and errors are those of `grn.Client.acquire`.
        """
        wish = acquire_message(
            job_type,
            gpus=gpus,
            memory_mib=memory_mib,
            whole=whole,
            policy=policy,
            cpus=cpus,
            ram_mib=ram_mib,
            compute=compute,
            processes=processes,
            affinity=affinity,
            group=group,
            group_size=group_size,
            priority=priority,
            label=label,
        )
        asked_s = time.monotonic()
        while True:
            wire = self._wire
            try:
                return await self._acquire_once(wire, wish, asked_s, wait_s)
            except BrokerGone:
                await self._find_successor(wire, _SUCCESSOR_WITHIN_S)

    async def _acquire_once(
        self, wire: _Wire, wish: Message, asked_s: float, wait_s: float | None
    ) -> AsyncLease:
        """Ask, and wait. Asked again after a broker's death, the request keeps its place."""
        waited = time.monotonic() - asked_s
        request_id, answer = wire.ask({**wish, "waited_s": waited, "asked_s": asked_s})
        try:
            await asyncio.wait({answer}, timeout=_left(wait_s, waited))
            if not answer.done():
                wire.send({"op": "cancel", "id": request_id})
                await asyncio.wait({answer}, timeout=_WITHDRAWN_WITHIN_S)
        except asyncio.CancelledError:
            wire.withdraw(request_id, answer)
            raise
        if not answer.done():  # the broker hangs, and will find the withdrawal when it wakes up
            wire.withdraw(request_id, answer)
            raise WaitExpired(f"not granted within {wait_s:g} s")
        try:
            grant = _result(answer.result(), "granted")
        except Cancelled:
            raise WaitExpired(f"not granted within {wait_s:g} s") from None
        if grant["nested"]:
            self._nested[grant["id"]] = nested_entry(grant, wish)
        return AsyncLease(self, grant)

    def leave(self, request_id: int) -> None:
        """Say that what was granted inside an outer job's lease is not used any more."""
        self._nested.pop(request_id, None)
        self._wire.send({"op": "leave", "id": request_id})

    async def give_back(self, lease: str, exit_code: int) -> Message | None:
        """Release a lease by its id. Without a broker it ends with this process: a warning."""
        message = {"op": "release", "lease": lease, "exit_code": exit_code}
        wire = self._wire
        try:
            try:
                return await self.call(message, "released")
            except BrokerGone:
                await self._find_successor(wire, _RELEASE_WITHIN_S)
                return await self.call(message, "released")
        except LeaseError:
            return None  # the broker that is gone had taken the release in
        except BrokerUnavailable as error:
            text = f"lease {lease} could not be given back and ends with this process: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            return None
        finally:
            self._leases.discard(lease)

    async def _find_successor(self, gone: _Wire, within_s: float) -> None:
        """Connect to the next broker and take the leases that are held along.

        Of many tasks that lost the same broker, one finds the next for all.
        """
        async with self._finding:
            if self._wire is not gone:
                return
            if gone.closed_by_us or self._given_up is gone:
                raise BrokerUnavailable("this client has no broker any more")
            try:
                await self._connect_to_successor(within_s)
            except BrokerUnavailable:
                self._given_up = gone
                raise

    async def _connect_to_successor(self, within_s: float) -> None:
        # A broker that was started on demand is started again; another one is waited for.
        self._settings.devices = self._settings.devices or self.broker["devices"]
        again = connect_or_start if self.broker["on_demand"] else connect
        deadline, pause = time.monotonic() + within_s, _FIRST_PAUSE_S
        while True:
            try:
                return await self._connect(again)
            except BrokerUnavailable:
                if time.monotonic() + pause > deadline:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def status(self) -> dict[str, Any]:
        """Return the state of the books (schema 1)."""
        answer = await self.call({"op": "status", "page": 0}, "status")
        status = cast("dict[str, Any]", answer["status"])
        page = 0
        while answer["more"]:
            page += 1
            answer = await self.call({"op": "status", "page": page}, "status")
            for key in ("leases", "waiters", "recent"):
                status.setdefault(key, []).extend(answer["status"].get(key, ()))
        return status

    async def profiles(self, action: str = "list", **fields: Any) -> list[dict[str, Any]]:
        """List, `show`, `set` or `forget` what was learnt of job types."""
        answer = await self.call({"op": "profiles", "action": action, **fields}, "profiles")
        listed = cast("list[dict[str, Any]]", answer["profiles"])
        page = 0
        while answer["more"]:
            page += 1
            again = {"op": "profiles", "action": "show", **fields, "page": page}
            answer = await self.call(again, "profiles")
            listed += answer["profiles"]
        return listed

    async def close(self) -> None:
        """End the connection; leases that were not released end with this process."""
        wire = self._wire
        wire.close()
        try:
            await asyncio.wait_for(wire.ended.wait(), _CLOSED_WITHIN_S)
        except TimeoutError:  # what was sent last is not taken
            wire.abort()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class _Wire(asyncio.Protocol):
    """One connection: sends requests, and gives each answer to who asked."""

    def __init__(self, held: set[str], last_id: int = 0, *, path: str = "the socket") -> None:
        self.path = path
        self.closed_by_us = False
        self.ended = asyncio.Event()
        self.ended.set()
        self._transport: asyncio.Transport | None = None
        self._closing: asyncio.Transport | None = None
        self._frames = Frames()
        self.last_id = last_id
        self._held = held
        self._asked: dict[int, asyncio.Future[Message]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.ended.clear()

    def data_received(self, data: bytes) -> None:
        try:
            messages = [decode(body) for body in self._frames.feed(data)]
        except ProtocolError as error:
            self._end(error)
            return
        for message in messages:
            if message.get("op") == "waiting":
                continue
            answer = self._asked.pop(message.get("id", 0), None)
            if answer is None or answer.done():
                continue
            if message.get("op") == "granted" and not message["nested"]:
                self._held.add(message["lease"])  # at once: who asked wakes up later
            answer.set_result(message)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._end(BrokerGone("the broker closed the connection"))
        self.ended.set()

    def _end(self, error: Exception) -> None:
        if self._transport is not None:
            self._transport.close()
            self._closing, self._transport = self._transport, None
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(error)

    def send(self, message: Message) -> None:
        """Send a message that nobody answers; if the broker is gone, nobody hears it either."""
        if self._transport is not None:
            self._transport.write(encode(message))

    def ask(self, message: Message) -> tuple[int, asyncio.Future[Message]]:
        """Send a message; return its id, and the answer to come.

        Raises:
            BrokerGone: if there is no connection.
        """
        if self._transport is None:
            raise BrokerGone("there is no connection to a broker")
        self.last_id += 1
        data = encode({**message, "id": self.last_id})
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked[self.last_id] = answer
        self._transport.write(data)
        return self.last_id, answer

    def withdraw(self, request_id: int, answer: asyncio.Future[Message]) -> None:
        """Nobody waits for this any more: take it back, and a grant that comes all the same."""
        if not answer.done():
            self.send({"op": "cancel", "id": request_id})
        answer.add_done_callback(self._not_wanted)

    def _not_wanted(self, answer: asyncio.Future[Message]) -> None:
        if answer.exception() is not None:
            return  # the broker is gone, and the request with it
        grant = answer.result()
        if grant["op"] != "granted":
            return
        if grant["nested"]:
            self.send({"op": "leave", "id": grant["id"]})
            return
        self._held.discard(grant["lease"])
        self.last_id += 1
        told = {"op": "release", "id": self.last_id, "lease": grant["lease"]}
        self.send({**told, "stopped": True})

    def close(self) -> None:
        """End the connection; who still waits is told."""
        self.closed_by_us = True
        self._end(BrokerGone("this client was closed"))

    def abort(self) -> None:
        """End it at once, whatever was not sent yet."""
        if self._closing is not None:
            self._closing.abort()


def _left(wait_s: float | None, waited_s: float) -> float | None:
    return None if wait_s is None else max(0.0, wait_s - waited_s)


def _result(answer: Message, expected: str) -> Message:
    if answer["op"] in {"refused", "error"}:
        raise from_code(answer["code"], answer["message"])
    if answer["op"] != expected:
        raise ProtocolError(f"{expected!r} was expected, {answer['op']!r} came")
    return answer


def _close_unwanted(made: asyncio.Future[Connection]) -> None:
    if not made.cancelled() and made.exception() is None:
        made.result().close()
