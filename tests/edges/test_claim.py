"""Claims on devices: one holder per device on a machine, whoever it is, for as long as it lives."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest

from grn.devices import claim as claim_module
from grn.devices.claim import claim
from grn.errors import BrokerUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534

HOLDER = """
import os, sys
from grn.devices.claim import claim
if sys.argv[1] != "-":
    os.setgid(int(sys.argv[1]))
    os.setuid(int(sys.argv[1]))
claims = claim(sys.argv[2:])
print(len(claims.held), *claims.elsewhere.values(), flush=True)
sys.stdin.readline()
claims.close()
print("closed", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def device() -> str:
    """Make up a device that no other test or broker claims."""
    return f"GPU-{uuid.uuid4()}"


@pytest.fixture
def hold() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start processes that claim devices; `said` tells what they got."""
    started: list[subprocess.Popen[str]] = []

    def start(*devices: str, user: str = "-") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, user, *devices],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str]) -> str:
    """Wait for a line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def me() -> str:
    """Name this test's user as a claim does."""
    uid = os.getuid()
    return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"


def test_a_free_device_is_ours(device: str) -> None:
    """Every device that nobody has is held, in the order asked for, each one once."""
    claims = claim([device, device + "-b", device])
    assert claims.held == (device, device + "-b")
    assert claims.elsewhere == {}
    claims.close()
    assert claims.held == ()


def test_a_device_of_another_process_names_it(
    device: str, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """The others are ours all the same."""
    holder = hold(device)
    assert said(holder) == "1"
    claims = claim([device, device + "-b"])
    assert claims.held == (device + "-b",)
    assert claims.elsewhere == {device: f"pid {holder.pid} of {me()}"}
    claims.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes of two users")
def test_a_device_of_another_user_names_the_user(
    device: str, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """A claim counts across users, in both directions."""
    holder = hold(device, user=str(NOBODY))
    assert said(holder) == "1"
    assert f"uid {NOBODY}" in claim([device]).elsewhere[device]
    ours = claim([device + "-b"])
    assert said(hold(device + "-b", user=str(NOBODY))) == f"0 pid {os.getpid()} of {me()}"
    ours.close()


def test_a_claim_dies_with_its_process(
    device: str, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """However a holder ends, nothing is left to tidy up."""
    holder = hold(device)
    assert said(holder) == "1"
    holder.kill()
    holder.wait()
    claims = claim([device])
    assert claims.held == (device,)
    claims.close()


def test_a_claim_can_be_given_back(device: str, hold: Callable[..., subprocess.Popen[str]]) -> None:
    """Another broker may have the devices of one that has left and lives on as a process."""
    holder = hold(device)
    assert said(holder) == "1"
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert said(holder) == "closed"
    claims = claim([device])
    assert claims.held == (device,)
    claims.close()
    claims.close()


def test_a_started_program_does_not_keep_the_claim(device: str) -> None:
    """A claim is the broker's, not that of what it starts."""
    claims = claim([device])
    with subprocess.Popen(["sleep", "60"], close_fds=False) as program:
        claims.close()
        again = claim([device])
        program.kill()
    assert again.held == (device,)
    again.close()


def test_of_many_at_one_instant_one_gets_it(
    device: str, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """Each of the others names somebody, or says why it cannot."""
    answers = [said(process) for process in [hold(device) for _ in range(8)]]
    assert sorted(answer[0] for answer in answers) == ["0"] * 7 + ["1"]
    assert all(" of " in x or "starting" in x for x in answers if x[0] == "0")


def test_who_has_been_asked_too_often_still_has_it(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue of curious ones costs the name of the holder, and nobody waits in it."""
    monkeypatch.setattr(claim_module, "_QUEUE", 1)
    claims = claim([device])
    asked = [claim([device]).elsewhere[device] for _ in range(5)]
    assert asked[0] == f"pid {os.getpid()} of {me()}"
    assert "cannot be named" in asked[-1]
    claims.close()


def test_a_holder_that_does_not_listen_yet_is_no_free_device(device: str) -> None:
    """Between its first and its second step a claim counts already."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"\0grn-device-{device}")
        claims = claim([device])
    assert claims.held == ()
    assert "just starting" in claims.elsewhere[device]


def test_without_sockets_there_is_no_claim(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel gives none, that is an error, and not a device that seems free or taken."""

    def none(name: str) -> socket.socket:
        raise OSError(24, "Too many open files", name)

    monkeypatch.setattr(claim_module, "_listen", none)
    with pytest.raises(BrokerUnavailable, match="Too many open files"):
        claim([device])
