"""Choosing a backend by text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.devices import open_backend
from grn.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_simulated_machine_lives_in_the_state_folder(tmp_path: Path) -> None:
    """Without dir= the broker's private folder is used."""
    backend = open_backend("sim:2x16GiB", mask=None, state_dir=str(tmp_path))
    assert backend.spec == "sim:2x16GiB"
    assert backend.job_env() == {"GRN_SIM_DIR": str(tmp_path / "sim")}
    assert backend.headroom_default.of(16384) == 0
    backend.close()


@pytest.mark.parametrize("spec", [None, "", "auto"])
def test_without_a_choice_the_note_says_how_to_try_it(spec: str | None, tmp_path: Path) -> None:
    """No devices is an answer, and comes with what to do."""
    backend = open_backend(spec, mask=None, state_dir=str(tmp_path))
    assert backend.devices == ()
    assert backend.read({}, {}) == ()
    assert "GRN_DEVICES=sim:4x16GiB" in backend.note


def test_none_is_a_choice(tmp_path: Path) -> None:
    """`none` opens no devices and says so."""
    backend = open_backend("none", mask=None, state_dir=str(tmp_path))
    assert (backend.spec, backend.devices, backend.job_env()) == ("none", (), {})
    assert backend.note


def test_an_unknown_kind_is_refused_with_the_kinds(tmp_path: Path) -> None:
    """A typing error must not quietly mean "no devices"."""
    with pytest.raises(UsageError, match=r"simm:4.*sim:4x16GiB.*none"):
        open_backend("simm:4", mask=None, state_dir=str(tmp_path))
