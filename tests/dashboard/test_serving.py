"""What the broker serves over HTTP, and what it refuses."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

    NewBoard = Callable[..., BrokerEnv]
    AddressOf = Callable[[BrokerEnv], str]


def _ask(
    address: str, path: str = "/", method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    place = urlsplit(address)
    with closing(http.client.HTTPConnection(place.netloc, timeout=PATIENCE_S)) as line:
        line.request(method, path, headers=headers)
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


class Stream:
    """A page's connection, read event by event."""

    def __init__(self, address: str) -> None:
        self._line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE_S)
        self._line.request("GET", "/stream")
        self._answer = self._line.getresponse()
        assert self._answer.status == 200

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yield (name, data) until the connection ends."""
        name = ""
        for line in self._answer:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])

    def next(self, name: str, true: Callable[[Any], bool] = lambda _: True) -> Any:
        """Return the next event of a name of which something is true."""
        return next(data for kind, data in self.events() if kind == name and true(data))

    def close(self) -> None:
        """End it."""
        self._line.close()


@pytest.fixture
def stream() -> Iterator[Callable[[str], Stream]]:
    """Return a function that opens a page's connection, closed at the end."""
    made: list[Stream] = []

    def open_one(address: str) -> Stream:
        made.append(Stream(address))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def test_health_is_told(new_board: NewBoard, address_of: AddressOf) -> None:
    """`/healthz` says that all is well, with numbers."""
    env = new_board()
    env.talker().acquire("a", memory_mib=10)
    status, _, body = _ask(address_of(env), "/healthz")
    told = json.loads(body)
    assert (status, told["status"], told["pid"]) == (200, "ok", env.pid)
    assert (told["devices"], told["leases"], told["waiters"]) == (2, 1, 0)


def test_page_forbids_what_a_page_can_forbid(new_board: NewBoard, address_of: AddressOf) -> None:
    """The page is live, may not be framed, kept or guessed at, and does not name the library."""
    status, headers, body = _ask(address_of(new_board()))
    assert status == 200
    assert b'data-live="true"' in body
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "grn"
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("path", ["/", "/stream", "/healthz", "/metrics", "/nothing"])
def test_names_of_strangers_are_refused(
    new_board: NewBoard, address_of: AddressOf, path: str
) -> None:
    """A page of somebody whose name was made to mean this machine gets nothing."""
    status, headers, body = _ask(address_of(new_board()), path, Host="evil.example:80")
    assert status == 403
    assert headers["X-Frame-Options"] == "DENY"
    assert b"GPU-" not in body


def test_nothing_can_be_changed(new_board: NewBoard, address_of: AddressOf) -> None:
    """Only GET and HEAD are answered."""
    address = address_of(new_board())
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        status, headers, _ = _ask(address, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method
    status, headers, body = _ask(address, method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 1000
    assert _ask(address, "/nothing")[0] == 404


def test_metrics_count_from_the_start(new_board: NewBoard, address_of: AddressOf) -> None:
    """`/metrics` has gauges of now and counters of all that was since the broker's start."""
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="pip install 'grn-plugins[metrics]'"
    )
    env = new_board()
    talker = env.talker()
    talker.release(talker.acquire("a", memory_mib=4000))
    talker.acquire("a", memory_mib=4000)

    def told() -> dict[str, float]:
        status, headers, body = _ask(address_of(env), "/metrics")
        assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
        families = parser.text_string_to_metric_families(body.decode())
        samples = [sample for family in families for sample in family.samples]
        return {
            sample.name: sum(s.value for s in samples if s.name == sample.name)
            for sample in samples
        }

    found = eventually(lambda: (now := told()).get("grn_grants_total") == 2 and now)
    assert isinstance(found, dict)
    assert found["grn_ends_total"] == 1
    assert found["grn_device_memory_booked_bytes"] == 4000 * 2**20
    assert found["grn_broker_start_time_seconds"] > 0


def test_stream_tells_the_state_and_what_happens(
    new_board: NewBoard, address_of: AddressOf, stream: Callable[[str], Stream]
) -> None:
    """First the last day, then states and events as they come."""
    env = new_board()
    page = stream(address_of(env))
    data = page.next("data")
    assert [device["index"] for device in data["devices"]] == [0, 1]
    page.next("status", lambda status: status["leases"] == [])
    talker = env.talker()
    grant = talker.acquire("a", memory_mib=4000, label="first")
    told = page.next("happened")["events"]
    assert [(event["event"], event["lease"]) for event in told] == [("granted", grant["lease"])]
    status = page.next("status", lambda status: status["leases"])
    assert status["leases"][0]["label"] == "first"
    talker.release(grant)
    assert page.next("happened", lambda data: data["events"][0]["event"] == "ended")
    page.next("status", lambda status: status["recent"])


def test_history_is_told_to_a_page_that_comes_later(
    new_board: NewBoard, address_of: AddressOf, stream: Callable[[str], Stream]
) -> None:
    """What ended before a page was opened is in its data, once it is written."""
    env = new_board()
    talker = env.talker()
    lease = talker.acquire("a", memory_mib=4000)
    talker.release(lease)

    def known() -> bool:
        page = stream(address_of(env))
        told = page.next("data")
        page.close()  # as many as that would be are refused
        return bool(told["leases"].get("id") == [lease["lease"]])

    eventually(known)


def test_it_serves_without_a_history(
    new_board: NewBoard, address_of: AddressOf, stream: Callable[[str], Stream]
) -> None:
    """With `history_days` 0 a page begins with what runs now."""
    env = new_board(history_days=0)
    env.talker().acquire("a", memory_mib=4000)
    page = stream(address_of(env))
    assert page.next("data")["leases"]["count"] == 0
    assert page.next("status")["leases"]


def test_nothing_of_an_environment_is_shown(
    new_board: NewBoard, address_of: AddressOf, stream: Callable[[str], Stream]
) -> None:
    """Neither a client's nor the broker's variables are in anything that is served."""
    env = new_board()
    env.environ["MARK_OF_TEST"] = "not-to-be-shown"
    client = env.remote(MARK_OF_TEST="not-to-be-shown")
    client.acquire("a", memory_mib=10)
    page = stream(address_of(env))
    seen = [json.dumps(page.next("data")), json.dumps(page.next("status", lambda s: s["leases"]))]
    seen += [_ask(address_of(env), path)[2].decode() for path in ("/", "/healthz", "/metrics")]
    assert not [text for text in seen if "not-to-be-shown" in text or "MARK_OF" in text]


def test_stream_ends_when_the_broker_leaves(
    new_board: NewBoard, address_of: AddressOf, stream: Callable[[str], Stream]
) -> None:
    """An open page does not keep a broker that is told to leave."""
    env = new_board()
    page = stream(address_of(env))
    page.next("status")
    assert env.stop() == 0
    # It ends, rather than that nothing comes any more, which would be an error after a while.
    assert {kind for kind, _ in page.events()} <= {"status", "happened"}


def test_no_dashboard_unless_asked_for(new_env: NewBoard) -> None:
    """By default nothing listens, and the library is not loaded."""
    env = new_env()
    assert "dashboard url=" not in env.log()
    with open(f"/proc/{env.pid}/maps", encoding="utf-8") as maps:
        assert "aiohttp" not in maps.read()


def _refused(env: BrokerEnv, *flags: str, **environ: str) -> str:
    """Run a broker that must not start; return what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "grn", "broker", *flags],
        env={**env.environ, **environ},
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode != 0
    return done.stderr.decode()


def test_address_that_others_reach_must_be_meant(
    new_env: NewBoard, new_board: NewBoard, address_of: AddressOf
) -> None:
    """0.0.0.0 is refused with the cure; with `--http-open yes` it is served, with a warning."""
    said = _refused(new_env(start=False), "--http", "0.0.0.0:0")
    assert "--http-open yes" in said
    assert "ssh -L" in said
    env = new_board(http="0.0.0.0:0", http_open="yes")
    port = urlsplit(address_of(env)).port
    assert _ask(f"http://127.0.0.1:{port}/", "/healthz")[0] == 200
    assert _ask(f"http://127.0.0.1:{port}/", Host=f"{socket.gethostname()}:80")[0] == 200
    assert _ask(f"http://127.0.0.1:{port}/", Host="evil.example")[0] == 403
    assert any("open to other machines" in text for text in env.status()["warnings"])


def test_taken_port_is_told(new_env: NewBoard) -> None:
    """A port that somebody has is an error that names it; on demand it is a warning."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = new_env(start=False, http=f"127.0.0.1:{port}")
        assert f"cannot serve the dashboard at 127.0.0.1:{port}" in _refused(env)
        env.start("--on-demand")
        assert any("no dashboard" in text for text in env.status()["warnings"])


def test_missing_package_is_told_with_the_cure(new_env: NewBoard, tmp_path: Path) -> None:
    """Without the library, the error names the command that installs it."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['aiohttp'] = None\n")
    said = _refused(new_env(start=False), "--http", "0", PYTHONPATH=os.fspath(folder))
    assert "pip install 'grn-plugins[dashboard]'" in said


def test_missing_metrics_are_told_with_the_cure(
    new_env: NewBoard, address_of: AddressOf, tmp_path: Path
) -> None:
    """Without the client library of Prometheus, the page is served and `/metrics` names the cure."""
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\nsys.modules['prometheus_client'] = None\n"
    )
    env = new_env(start=False, http="127.0.0.1:0")
    env.environ["PYTHONPATH"] = os.fspath(folder)
    env.start()
    status, _, body = _ask(address_of(env), "/metrics")
    assert (status, b"pip install 'grn-plugins[metrics]'" in body) == (501, True)
    assert _ask(address_of(env), "/healthz")[0] == 200


def test_bad_address_is_told(new_env: NewBoard) -> None:
    """What is no address is an error of usage."""
    assert "names a host by no number" in _refused(new_env(start=False), "--http", "box:80")
