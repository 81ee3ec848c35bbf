"""Where the dashboard may listen, and which names it answers to."""

from __future__ import annotations

import pytest

from grn.errors import UsageError
from grn.rules.address import is_loopback, may_be_called, parse_address, url


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8787", "127.0.0.1", 8787),
        (" 8787 ", "127.0.0.1", 8787),
        (":80", "", 80),
        ("localhost:0", "localhost", 0),
        ("[::1]:65535", "::1", 65535),
        ("0.0.0.0:1", "0.0.0.0", 1),  # noqa: S104 - a text
    ],
)
def test_addresses_that_can_be_read(text: str, host: str, port: int) -> None:
    """An address in numbers or localhost with a port, or a port alone; nothing before the colon is none."""
    if not host:
        with pytest.raises(UsageError):
            parse_address(text)
        return
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "::1:80",
        "box:80",
        "127.0.0.1:²",
    ],
)
def test_addresses_that_cannot(text: str) -> None:
    """Names, bare IPv6 and what has no port are errors that quote the text."""
    with pytest.raises(UsageError, match="address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),  # noqa: S104 - a text
     ("::", False), ("192.168.1.5", False)],
)  # fmt: skip
def test_loopback(host: str, alone: bool) -> None:  # noqa: FBT001 - a case of a test
    """Only loopback addresses are this machine's alone."""
    assert is_loopback(host) == alone


@pytest.mark.parametrize(
    ("header", "answered"),
    [
        ("127.0.0.1:8787", True), ("localhost", True), ("LOCALHOST:9", True), ("[::1]:8787", True),
        ("10.0.0.1", True), ("evil.example:8787", False), ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False), ("box:80", False), ("", False), (None, False), ("[evil]", False),
        ("user@localhost", False),
    ],
)  # fmt: skip
def test_names_that_are_answered(header: str | None, answered: bool) -> None:  # noqa: FBT001 - a case of a test
    """Numbers and localhost; no name that somebody else could point at us."""
    assert may_be_called(header) == answered


def test_own_name_is_answered_if_told() -> None:
    """A name that is surely this machine's is answered too."""
    assert may_be_called("box:80", names=frozenset({"box"}))
    assert not may_be_called("box2:80", names=frozenset({"box"}))


def test_url_of_ipv6_has_brackets() -> None:
    """What is printed can be opened."""
    assert url("::1", 80) == "http://[::1]:80/"
    assert url("127.0.0.1", 80) == "http://127.0.0.1:80/"
