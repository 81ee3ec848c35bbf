"""Blocks with a lease that are used wrongly, or where no broker can be: nothing is taken in silence."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import grn
from grn.errors import LeaseError, PathError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def test_a_socket_that_cannot_be_had_is_no_broker(
    here: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no folder for the socket can be made, `if_unavailable="run"` runs, too."""
    here(start=False)
    monkeypatch.setenv("GRN_SOCKET", "/proc/nowhere/socket")
    with (
        pytest.warns(RuntimeWarning, match="without a lease: cannot make the folder /proc/nowhere"),
        grn.lease(if_unavailable="run") as lease,
    ):
        assert lease.id == ""
    with pytest.raises(PathError), grn.lease():
        pytest.fail("it was granted")


def test_a_lease_that_has_ended_is_not_applied(here: Callable[..., Any]) -> None:
    """Its device is somebody else's: the environment stays as it is."""
    here()
    with grn.lease(memory=100) as lease:
        pass
    before = dict(os.environ)
    with pytest.raises(LeaseError, match=f"lease {lease.id} has ended"):
        lease.apply()
    assert dict(os.environ) == before
