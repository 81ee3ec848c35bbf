"""Blocking leases for a program that uses a device itself.

`Client.acquire` blocks until the lease is granted. When the broker is killed, a client finds its
successor by itself: what it holds it goes on holding, what it waits for keeps its place.
"""

from __future__ import annotations

import os
import time
import warnings

from grn.connection import Connection, connect, connect_or_start, own_cores
from grn.errors import (
    BrokerGone,
    BrokerSilent,
    BrokerUnavailable,
    Cancelled,
    LeaseError,
    ProtocolError,
    UsageError,
    WaitExpired,
    from_code,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

    from grn.settings import Settings

__all__ = [
    "Client",
    "Connection",
    "Lease",
    "acquire_message",
    "connect",
    "connect_or_start",
    "nested_entry",
    "shares",
    "silent_text",
]

ANSWER_WITHIN_S = 30.0
_WITHDRAWN_WITHIN_S = 5.0
_SUCCESSOR_WITHIN_S = 60.0
_RELEASE_WITHIN_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


def acquire_message(
    job_type: str,
    *,
    gpus: int | None,
    memory_mib: int | None,
    whole: bool,
    policy: str | None,
    cpus: int | None,
    ram_mib: int | None,
    compute: int | None,
    processes: int | None,
    affinity: bool,
    group: str = "",
    group_size: int | None = None,
    priority: int,
    label: str,
) -> dict[str, Any]:
    """Put a wish of this process into the words of the wire."""
    return {
        **shares(compute, processes, affinity=affinity),
        **togetherness(group, group_size),
        "op": "acquire",
        "type": job_type,
        "label": label,
        "engine": "python",
        "gpus": gpus,
        "memory_mib": "whole" if whole else memory_mib,
        "policy": policy,
        "cpus": cpus,
        "ram_mib": ram_mib,
        "priority": priority,
        "mask": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "outer": os.environ.get("GRN_LEASE"),
        "cores": own_cores(),
        "in_process": True,
    }


def silent_text(path: str, pid: int, within_s: float) -> str:
    """Say that a broker does not answer."""
    return (
        f"the broker at {path} (pid {pid}) has not answered for {within_s:g} s: is it stopped or very"
        " busy?"
    )


def shares(compute: int | None, processes: int | None, *, affinity: bool | None) -> dict[str, Any]:
    """Return the fields of a request that only few have: what nobody asks for is left out."""
    said = {"compute": compute, "processes": processes}
    fields: dict[str, Any] = {key: value for key, value in said.items() if value is not None}
    if affinity:
        from grn.affinity import request_fields  # noqa: PLC0415 - seldom asked for

        fields.update(request_fields())
    return fields


def togetherness(group: str, group_size: int | None) -> dict[str, Any]:
    """Return the fields of a request that starts together with others.

    Raises:
        UsageError: one of the two is missing.
    """
    if not group and group_size is None:
        return {}
    if not group or not group_size or group_size < 1:
        raise UsageError(
            f"group={group!r}, group_size={group_size!r}: a group that starts together needs a name"
            " and its size"
        )
    return {"group": group, "group_size": group_size}


def nested_entry(grant: dict[str, Any], wish: dict[str, Any]) -> dict[str, Any]:
    """Name what was granted inside an outer job's lease to a broker that never heard of it."""
    declared = wish["memory_mib"]
    mib = grant["memory_mib"] if declared == "whole" else declared
    return {"id": grant["id"], "lease": grant["lease"], "memory_mib": mib}


class Lease:
    """A granted lease, used by the process that asked for it. A context manager."""

    def __init__(self, client: Client, grant: dict[str, Any]) -> None:
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

    def release(self, exit_code: int = 0) -> dict[str, Any] | None:
        """Give the lease back; `None` if it was given back before, or belongs to an outer job."""
        if not self._held:
            return None
        self._held = False
        if self.grant["nested"]:
            self._client.leave(self.grant["id"])
            return None
        return self._client.give_back(self.id, exit_code)

    def __enter__(self) -> Lease:  # noqa: PYI034 - typing.Self is too heavy here
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release(0 if kind is None else 1)


class Client:
    """A blocking client. Not for use by several threads at once: give each its own."""

    def __init__(self, settings: Settings | None = None, *, start: bool = False) -> None:
        if settings is None:
            from grn.settings import load  # noqa: PLC0415 - the caller may bring its own

            settings = load()
        self._settings = settings
        self._connection = connect_or_start(settings) if start else connect(settings, wait=False)
        self._leases: set[str] = set()
        self._nested: dict[int, dict[str, Any]] = {}
        self._withdrawn: set[int] = set()
        self.answer_within_s = ANSWER_WITHIN_S
        """How long `call` waits for an answer."""

    @property
    def broker(self) -> dict[str, Any]:
        """What the broker said of itself: pid, release, device specification."""
        return self._connection.broker

    def call(self, message: dict[str, Any], expected: str) -> dict[str, Any]:
        """Send one message and wait for its answer.

        Raises:
            GrnError: the class that the answer's code names.
            BrokerGone: if the broker ended meanwhile.
            BrokerSilent: if it has not answered for half a minute.
        """
        request_id = self._connection.next_id()
        self._connection.send({**message, "id": request_id})
        try:
            return self._answer(request_id, expected, self.answer_within_s)
        except WaitExpired:
            raise self._silent() from None

    def _silent(self) -> BrokerSilent:
        path, pid = self._connection.path, self.broker["pid"]
        return BrokerSilent(silent_text(path, pid, self.answer_within_s))

    def _answer(self, request_id: int, expected: str, timeout_s: float | None) -> dict[str, Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            answer = self._connection.recv(left)
            if answer is None:
                raise WaitExpired("not granted in the time allowed")
            if answer.get("id") in self._withdrawn and answer["op"] != "waiting":
                self._not_wanted(answer)
                continue
            if answer.get("id") != request_id or answer["op"] == "waiting":
                continue
            if answer["op"] in ("refused", "error"):
                raise from_code(answer["code"], answer["message"])
            if answer["op"] != expected:
                raise ProtocolError(f"{expected!r} was expected, {answer['op']!r} came")
            return answer

    def acquire(
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
    ) -> Lease:
        """Wait for a lease for this process.

        Args:
            job_type: what the need is learnt under.
            gpus: devices; `None` wants no device, 0 an empty mask.
            memory_mib: MiB on each device; `None` books what was learnt.
            whole: complete devices instead of a share.
            policy: `spread` or `pack`; `None` takes the broker's.
            cpus: CPUs to book; `None` books none.
            ram_mib: MiB of RAM to book; `None` books none.
            compute: percent of each device's multiprocessors to book; `None` books none.
            processes: of the job that use a device; `None` is one.
            affinity: cores of its own; to be bound to them is for the caller to do, with
                `grn.affinity.bind(lease.cores)`.
            group: start together with the other requests of this user that name it, all or none.
            group_size: how many those are, this one included.
            priority: higher goes first.
            label: a name for status displays.
            wait_s: give up after so long.

        Raises:
            Impossible: if this machine can never meet the request.
            WaitExpired: if it was not granted within `wait_s`.
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
            try:
                return self._acquire_once(wish, asked_s, wait_s)
            except BrokerGone:
                self._find_successor(_SUCCESSOR_WITHIN_S)

    def _acquire_once(self, wish: dict[str, Any], asked_s: float, wait_s: float | None) -> Lease:
        """Ask, and wait. Asked again after a broker's death, the request keeps its place."""
        request_id = self._connection.next_id()
        waited = time.monotonic() - asked_s
        self._connection.send({**wish, "id": request_id, "waited_s": waited, "asked_s": asked_s})
        try:
            left = None if wait_s is None else max(0.0, wait_s - waited)
            grant = self._answer(request_id, "granted", left)
        except WaitExpired:
            grant = self._withdraw(request_id)
        lease = Lease(self, grant)
        if grant["nested"]:
            self._nested[grant["id"]] = nested_entry(grant, wish)
        else:
            self._leases.add(lease.id)
        return lease

    def leave(self, request_id: int) -> None:
        """Say that what was granted inside an outer job's lease is not used any more."""
        self._nested.pop(request_id, None)
        try:
            self._connection.send({"op": "leave", "id": request_id})
        except BrokerGone:
            return  # a successor hears of what goes on, and this does not

    def give_back(self, lease: str, exit_code: int) -> dict[str, Any] | None:
        """Release a lease by its id. Without a broker it ends with this process: a warning."""
        self._leases.discard(lease)
        message = {"op": "release", "lease": lease, "exit_code": exit_code}
        deadline = time.monotonic() + _RELEASE_WITHIN_S
        try:
            while True:
                try:
                    return self.call(message, "released")
                except BrokerGone:
                    self._find_successor(max(0.0, deadline - time.monotonic()), also=lease)
        except LeaseError:
            return None  # the broker that is gone had taken the release in
        except BrokerUnavailable as error:
            text = f"lease {lease} could not be given back and ends with this process: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            return None

    def _find_successor(self, within_s: float, also: str | None = None) -> None:
        """Connect to the next broker and take the leases that are held along.

        A broker that was started on demand is started again; another one, or one that died before
        it said which it is, is waited for. One that dies before it has taken them in was none.
        """
        gone = self._connection
        broker = gone.greeting or {"devices": None, "on_demand": False}
        self._settings.devices = self._settings.devices or broker["devices"]
        again = connect_or_start if broker["on_demand"] else connect
        held = sorted(self._leases | ({also} if also else set()))
        adopt = {"op": "adopt", "leases": held, "nested": list(self._nested.values())}
        deadline, pause = time.monotonic() + within_s, _FIRST_PAUSE_S
        while True:
            self._connection.close()
            try:
                self._connection = again(self._settings, gone.session)
                self._withdrawn.clear()
                self._connection.last_id = gone.last_id  # what runs nested keeps its request's id
                self.call(adopt, "adopted")
                break
            except BrokerUnavailable:
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _withdraw(self, request_id: int) -> dict[str, Any]:
        """Take a request back; a grant that crossed it on the way is kept after all.

        A broker that hangs will find the withdrawal when it wakes up.
        """
        self._connection.send({"op": "cancel", "id": request_id})
        try:
            return self._answer(request_id, "granted", _WITHDRAWN_WITHIN_S)
        except WaitExpired:
            self._withdrawn.add(request_id)
            raise
        except Cancelled:
            raise WaitExpired("not granted in the time allowed") from None

    def _not_wanted(self, answer: dict[str, Any]) -> None:
        """Give back what was granted after nobody waited for it any more."""
        self._withdrawn.discard(answer["id"])
        if answer["op"] != "granted":
            return
        if answer["nested"]:
            self._connection.send({"op": "leave", "id": answer["id"]})
            return
        told = {"op": "release", "id": self._connection.next_id(), "lease": answer["lease"]}
        self._connection.send({**told, "stopped": True})

    def status(self) -> dict[str, Any]:
        """Return the state of the books (schema 1)."""
        answer = self.call({"op": "status", "page": 0}, "status")
        status: dict[str, Any] = answer["status"]
        page = 0
        while answer["more"]:
            page += 1
            answer = self.call({"op": "status", "page": page}, "status")
            for key in ("leases", "waiters", "recent"):
                status.setdefault(key, []).extend(answer["status"].get(key, ()))
        return status

    def profiles(self, action: str = "list", **fields: Any) -> list[dict[str, Any]]:
        """List, `show`, `set` or `forget` what was learnt of job types."""
        answer = self.call({"op": "profiles", "action": action, **fields}, "profiles")
        listed: list[dict[str, Any]] = answer["profiles"]
        page = 0
        while answer["more"]:
            page += 1
            again = {"op": "profiles", "action": "show", **fields, "page": page}
            answer = self.call(again, "profiles")
            listed += answer["profiles"]
        return listed

    def explain(self, subject: str, gpus: int = 1) -> dict[str, Any]:
        """Explain a job or a type (schema 1), see docs/explain.md.

        Raises:
            UsageError: several jobs are meant, or the broker is of an older version.
        """
        if "explain" not in self.broker.get("features", ()):
            raise UsageError(
                f"the broker (pid {self.broker['pid']}, version {self.broker.get('release')}) cannot"
                " explain yet: stop it (`grn broker stop`), the next job starts the new one"
            )
        answer = self.call({"op": "explain", "subject": subject, "gpus": gpus}, "explained")
        told: dict[str, Any] = answer["explanation"]
        return told

    def stop(self) -> None:
        """Ask the broker to leave, and wait until it has closed the connection.

        Raises:
            BrokerSilent: if it does neither within half a minute.
        """
        self.call({"op": "stop"}, "stopping")
        deadline = time.monotonic() + self.answer_within_s
        try:
            while self._connection.recv(max(0.0, deadline - time.monotonic())) is not None:
                continue
        except BrokerGone:
            return
        raise self._silent()

    def close(self) -> None:
        """End the connection; leases that were not released end with this process."""
        self._connection.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - as above
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
