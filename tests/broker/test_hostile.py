"""A bad, slow or hostile client harms only itself."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs
from grn.errors import BrokerGone
from grn.rules.wire import MAX_FRAME, Frames, decode, encode
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tests.env import BrokerEnv

    NewEnv = Callable[..., BrokerEnv]

HELLO = {"op": "hello", "magic": "GRN", "version": 1, "features": []}
DEEP = b"\x91" * 100_000 + b"\x90"

BAD = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "four-gib-header": b"\xff\xff\xff\xff",
    "one-byte-too-long": struct.pack(">I", MAX_FRAME + 1),
    "not-msgpack": struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1",
    "not-a-map": struct.pack(">I", 1) + b"\x01",
    "too-deep": struct.pack(">I", len(DEEP)) + DEEP,
    "empty-frame": struct.pack(">I", 0),
    "wrong-magic": encode({**HELLO, "magic": "SSH"}),
    "no-hello": encode({"op": "status", "id": 1}),
    "session-too-long": encode({**HELLO, "session": "x" * 1_048_400}),
    "session-no-text": encode({**HELLO, "session": 5}),
    "version-0": encode({**HELLO, "version": 0}),
    "version-text": encode({**HELLO, "version": "1"}),
}
HELLOS = {
    "wrong-magic", "no-hello", "version-0", "version-text", "session-too-long", "session-no-text",
}  # fmt: skip
"""What is well formed, and no hello that is accepted."""


def raw(env: BrokerEnv) -> socket.socket:
    """Return a socket that has said nothing yet."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(PATIENCE_S)
    sock.connect(env.socket)
    return sock


def until_end(sock: socket.socket) -> bytes:
    """Read until the broker ends the connection."""
    data = b""
    while True:
        try:
            chunk = sock.recv(65536)
        except ConnectionError:
            return data
        if not chunk:
            return data
        data += chunk


def hello(sock: socket.socket, **fields: Any) -> dict[str, Any]:
    """Greet and return the answer."""
    sock.sendall(encode({**HELLO, **fields}))
    (body,) = Frames().feed(sock.recv(65536))
    return decode(body)


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_our_protocol_ends_that_connection(new_env: NewEnv, name: str):
    """Bad bytes end their connection with one line in the log; others do not notice."""
    env = new_env()
    talker = env.talker()
    request = talker.ask("t", memory_mib="whole")
    grant = talker.granted(request)
    with raw(env) as sock:
        sock.sendall(BAD[name])
        assert until_end(sock) == b""
    with raw(env) as sock:
        assert hello(sock)["version"] == 1
        if BAD[name][4:] and name not in HELLOS:
            sock.sendall(BAD[name])
            until_end(sock)
    talker.release(grant)
    dropped = env.log_lines("dropped")
    assert 1 <= len(dropped) <= 2
    assert all(f"pid={os.getpid()}" in line for line in dropped)


def test_a_frame_that_is_cut_off(new_env: NewEnv):
    """A client that dies in the middle of a frame is forgotten; what it sent before counts."""
    env = new_env()
    with raw(env) as sock:
        hello(sock)
        whole = encode({"op": "acquire", "id": 1, "type": "t", "gpus": 1, "memory_mib": 100})
        sock.sendall(whole + whole[:20])
        (body,) = Frames().feed(sock.recv(65536))
        assert decode(body)["op"] == "granted"
    talker = env.talker()
    assert len(talker.status()["leases"]) == 1
    assert env.log_lines("dropped") == []


def test_who_does_not_greet_is_dropped(new_env: NewEnv):
    """A connection without a hello ends after five seconds; one byte now and then is no hello."""
    env = new_env()
    talker = env.talker()
    with raw(env) as silent, raw(env) as slow:
        began = time.monotonic()
        slow.sendall(encode(HELLO)[:6])
        assert until_end(silent) == until_end(slow) == b""
        assert time.monotonic() - began > 4.5
    assert len(env.log_lines("no hello within 5 s")) == 2
    assert talker.status()["schema"] == 1


def test_a_newer_client_speaks_the_older_version(new_env: NewEnv):
    """Both sides use the lower of their versions; unknown features and fields do not matter."""
    env = new_env()
    with raw(env) as sock:
        answer = hello(sock, version=7, features=["telepathy"], extra={"a": [1]})
        assert (answer["version"], answer["magic"]) == (1, "GRN")
        sock.sendall(encode({"op": "status", "id": 1, "colour": "blue"}))
        (body,) = Frames().feed(sock.recv(1 << 20))
        assert decode(body)["op"] == "status"


@pytest.mark.parametrize(
    "message",
    [
        {"op": "dance"},
        {"op": "acquire"},
        {"op": "acquire", "type": "t", "gpus": -1},
        {"op": "acquire", "type": "t", "gpus": "one"},
        {"op": "acquire", "type": "t", "memory_mib": 1.5},
        {"op": "acquire", "type": "t", "memory_mib": 1 << 60},
        {"op": "acquire", "type": "t", "policy": "wild"},
        {"op": "acquire", "type": "t", "mask": 3},
        {"op": "acquire", "type": ["t"]},
        {"op": "acquire", "type": "x" * 100_000},
        {"op": "acquire", "type": "t", "priority": 1 << 62},
        {"op": "acquire", "type": "t", "waited_s": -1},
        {"op": "acquire", "type": "t", "waited_s": float("nan")},
        {"op": "release", "lease": "no-1"},
        {"op": "release"},
        {"op": "started", "lease": 5, "pid": 1},
        {"op": "adopt", "leases": "all"},
        {"op": "profiles", "action": "burn"},
        {"op": "profiles", "action": "set", "type": "t"},
        {"op": "status", "page": "one"},
        {"op": "acquire", "type": "t", "group": "g"},
        {"op": "acquire", "type": "t", "group_size": 2},
        {"op": "acquire", "type": "t", "group": "g", "group_size": 0},
        {"op": ["status"]},
        {"op": {"a": 1}},
    ],
    ids=str,
)
def test_a_mistake_gets_an_error_and_the_connection_lives(new_env: NewEnv, message: dict[str, Any]):
    """A field of the wrong kind is answered with an error that has its id."""
    env = new_env()
    talker = env.talker()
    answer = talker.call(**message)
    assert answer["op"] == "error"
    assert answer["code"] in {"usage", "protocol", "lease"}
    assert talker.status()["waiters"] == []


def test_adopting_nonsense_adopts_nothing(new_env: NewEnv):
    """Ids of any kind that name no lease of the client are left out of the answer."""
    env = new_env()
    talker = env.talker()
    answer = talker.call("adopt", leases=[None, 5, ["a"], {"b": 1}, "x-1"])
    assert answer["leases"] == []


def test_a_nested_job_that_is_adopted_twice_is_held_once(new_env: NewEnv):
    """Its end is told once, and the lease around it must end then, too."""
    env = new_env()
    talker = env.talker()
    lease = talker.acquire("t", gpus=0)["lease"]
    inner = [{"id": 7, "lease": lease, "memory_mib": 0}]
    for _ in range(2):
        assert talker.call("adopt", leases=[lease], nested=inner)["leases"] == [lease]
    talker.tell("leave", id=7)
    talker.call("release", lease=lease, exit_code=0)
    assert talker.status()["leases"] == []


def test_bytes_that_are_not_utf8_travel_unharmed(new_env: NewEnv):
    """A label with any bytes is shown as it was given."""
    env = new_env()
    talker = env.talker()
    label = os.fsdecode(b"caf\xe9 \xff\x00")
    talker.acquire("t", memory_mib=1, label=label)
    assert talker.status()["leases"][0]["label"] == label
    env.restart()
    assert env.status()["leases"][0]["label"] == label


def test_who_does_not_read_is_dropped(new_env: NewEnv):
    """A client that asks and never reads loses its connection at a bounded buffer."""
    env = new_env()
    talker = env.talker()
    holder = talker.acquire("t", memory_mib="whole")
    waiting = [talker.ask("t", memory_mib="whole", label="x" * 60_000) for _ in range(10)]
    with raw(env) as deaf:
        hello(deaf)
        question = encode({"op": "status", "id": 1})
        eventually(lambda: _is_cut_off(deaf, question))
    assert len(env.log_lines("does not read")) == 1
    assert (procs.rss_mib(env.pid) or 0) < 200
    talker.release(holder)
    talker.granted(waiting[0])


def _is_cut_off(sock: socket.socket, question: bytes) -> bool:
    try:
        sock.sendall(question)
    except ConnectionError:
        return True
    return False


def test_a_request_id_that_waits_cannot_be_used_again(new_env: NewEnv):
    """Two waiting requests of one id would be confused: the second is an error."""
    env = new_env()
    talker = env.talker()
    talker.acquire("t", memory_mib="whole")
    request = talker.ask("t", memory_mib="whole")
    assert talker.next(request)["op"] == "waiting"
    talker.line.send({"op": "acquire", "id": request, "type": "t", "gpus": 1})
    assert talker.next(request)["op"] == "error"
    assert len(talker.status()["waiters"]) == 1


def test_a_report_that_outgrows_a_frame_comes_in_pages(new_env: NewEnv):
    """A status over a frame's limit is split; each page says whether there is more."""
    env = new_env()
    talker = env.talker()
    talker.acquire("t", memory_mib="whole")
    for _ in range(20):
        talker.ask("t", memory_mib="whole", label="x" * 60_000)
    first, second = talker.call("status"), talker.call("status", page=1)
    assert (first["more"], second["more"]) == (True, False)
    assert len(first["status"]["waiters"]) + len(second["status"]["waiters"]) == 20


def test_clients_that_come_and_go(new_env: NewEnv):
    """Five hundred connections that end in every way leave nothing behind in the broker."""
    env = new_env(debug="no", history_days=0)  # it opens files of its own
    talker = env.talker()
    before = _descriptors(env)
    for number in range(500):
        sock = raw(env)
        if number % 3:
            sock.sendall(encode(HELLO))
        if number % 3 == 2:
            sock.sendall(encode({"op": "acquire", "id": 1, "type": "t", "gpus": 1, "cpus": 1}))
        sock.close()
    eventually(lambda: _descriptors(env) <= before + 1)
    for lease in talker.status()["leases"]:
        talker.call("adopt", leases=[lease["id"]])
        talker.release({"lease": lease["id"]})
    eventually(lambda: not talker.status()["waiters"], what="the end of the last connection")


def _descriptors(env: BrokerEnv) -> int:
    return len(os.listdir(f"/proc/{env.pid}/fd"))


def test_no_more_descriptors_is_survived(new_env: NewEnv):
    """A crowd that takes all descriptors keeps nobody from what he has, and costs no busy loop."""
    env = new_env()
    talker = env.talker()
    resource.prlimit(env.pid, resource.RLIMIT_NOFILE, (48, 48))
    crowd = [raw(env) for _ in range(100)]
    eventually(lambda: env.log_lines("cannot-accept"))
    for _ in range(20):
        talker.release(talker.acquire("t", memory_mib=1))
        assert talker.status()["schema"] == 1
    for sock in crowd:
        sock.close()
    assert env.talker().status()["schema"] == 1
    assert len(env.log_lines("cannot-accept")) < 50


def test_a_stopped_broker_is_not_gone(new_env: NewEnv):
    """While the broker is suspended nobody takes its place, and it goes on where it was."""
    env = new_env()
    owner = env.talker()
    grant = owner.acquire("t", memory_mib="whole")
    os.kill(env.pid, signal.SIGSTOP)
    try:
        owner.tell("release", id=999, lease=grant["lease"], exit_code=0)
        assert owner.line.recv(0.2) is None
    finally:
        os.kill(env.pid, signal.SIGCONT)
    assert owner.next(999)["op"] == "released"


def test_a_connection_that_ended_says_so(new_env: NewEnv):
    """A client whose broker is gone gets an error that says so, not a hang."""
    env = new_env()
    talker = env.talker()
    env.kill()
    with pytest.raises(BrokerGone):
        talker.status()
    env.start()
