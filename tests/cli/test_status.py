"""What `grn status` makes of a status object, as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from grn.cli.status import notes, tables
from grn.cli.table import print_tables

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from tests.env import BrokerEnv

STATUS: dict[str, Any] = {
    "schema": 1,
    "devices": [
        {
            "index": 0,
            "uuid": "GPU-a",
            "name": "Simulated 10000",
            "state": "ok",
            "total_mib": 10240,
            "free_mib": 4096,
            "booked_mib": 6144,
            "measured_mib": None,
            "foreign_mib": 0,
        }
    ],
    "leases": [
        {
            "id": "k3",
            "type": "train",
            "label": "train",
            "pid": 321,
            "devices": ["GPU-a"],
            "booked_mib": 6144,
            "measured_mib": 1024,
            "peak_mib": 2048,
            "state": "draining",
            "left_over": [401, 402],
        }
    ],
    "waiters": [
        {
            "type": "python big.py",
            "label": "big",
            "since_s": 12.3,
            "reason": "8 GiB wanted; device 0: 4 GiB free of 10 GiB, 6 GiB booked",
        }
    ],
    "warnings": ["job k3 uses device 1, which it was not given"],
}


@pytest.fixture
def text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The text for `STATUS`, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    print_tables(tables(STATUS), notes(STATUS))
    return capsys.readouterr().out


def test_fits_80_columns(text: str) -> None:
    """No line is longer than 80 columns."""
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("columns", [40, 50, 60, 70])
def test_a_narrow_terminal_shows_every_number(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and process ids are whole on one line, also where the columns do not fit."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables(tables(STATUS), notes(STATUS))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    for number in ("10 GiB", "4 GiB", "6 GiB", "0 MiB", "1 GiB", "2 GiB", "321", "12 s"):
        assert any(number in line for line in lines)


def test_devices_show_their_books(text: str) -> None:
    """A device shows total, free and booked; an unknown figure is not shown as 0."""
    line = next(line for line in text.splitlines() if "Simulated" in line)
    assert " ".join(line.split()) == "0 ok 10 GiB 4 GiB 6 GiB ? 0 MiB Simulated 10000"


def test_leases_show_device_indices(text: str) -> None:
    """A lease names its device by the index that people know."""
    line = next(line for line in text.splitlines() if line.startswith("k3"))
    assert " ".join(line.split()) == "k3 draining 0 6 GiB 1 GiB 2 GiB 321 train"


def test_waiters_show_their_reason(text: str) -> None:
    """Every waiter is shown with label, type and the whole reason."""
    words = " ".join(text.split())
    assert "12 s big (python big.py)" in words
    assert STATUS["waiters"][0]["reason"] in words


def expecting(*seconds: float | None) -> dict[str, Any]:
    """A status whose waiters are expected to start in so long."""
    waiter = STATUS["waiters"][0]
    return {**STATUS, "waiters": [{**waiter, "expected_s": second} for second in seconds]}


@pytest.mark.parametrize("columns", [60, 80])
def test_waiters_show_when_they_are_expected_to_start(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each its own; what is not known is a question mark, never a number."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables(tables(expecting(None, 0.2, 75, 600)))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    lines = [line for line in out.split("\n\n")[-1].splitlines() if "big (python big.py)" in line]
    told = [line.partition("big (")[0].split(maxsplit=2)[2].strip() for line in lines]
    assert told == ["?", "a moment", "75 s", "10 min"]


@pytest.mark.parametrize(("columns", "second"), [(80, None), (59, 75)])
def test_no_column_of_unknowns(
    columns: int,
    second: float | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no start is known, or there is no room for it, nothing is said of it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables(tables(expecting(second, second)))
    assert "starts in" not in capsys.readouterr().out


def test_left_overs_and_warnings_are_said(text: str) -> None:
    """Processes that stayed behind and warnings are sentences of their own."""
    assert "left over by lease k3 (train): process 401, 402" in text
    assert "warning: job k3 uses device 1" in text


def test_an_idle_broker_says_so() -> None:
    """Without devices, leases and waiters the text says that, rather than nothing."""
    empty: dict[str, Any] = {"devices": [], "leases": [], "waiters": [], "warnings": []}
    assert notes(empty) == ["The broker manages no device.", "No job runs or waits."]


PROGRAM = "/home/ada/projects/vision/.venv/bin/python"
ARGUMENTS = " ".join(f"--option-{n}=/data/projects/vision/{n}" for n in range(8))


def full(label: str) -> dict[str, Any]:
    """A status with long names everywhere."""
    kind = f"{PROGRAM} train.py {ARGUMENTS}"
    lease = {**STATUS["leases"][0], "type": kind, "label": label, "left_over": []}
    waiter = {**STATUS["waiters"][0], "type": kind, "label": label}
    return {**STATUS, "leases": [lease] * 3, "waiters": [waiter] * 2}


@pytest.mark.parametrize(("columns", "lines_of_a_lease"), [(80, 1), (60, 2)])
@pytest.mark.parametrize("label", ["sweep-17", f"{PROGRAM} trai.."])
def test_long_names_are_shortened(
    columns: int,
    lines_of_a_lease: int,
    label: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lease takes one line, on a narrow terminal two; a job is not named twice over."""
    monkeypatch.setenv("COLUMNS", str(columns))
    print_tables(tables(full(label)))
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= columns
    _, leases, waiting = out.split("\n\n")
    assert len(leases.splitlines()) == 2 + 3 * lines_of_a_lease
    assert STATUS["waiters"][0]["reason"] in " ".join(waiting.split())
    assert "/home/ada" not in out
    shown = "sweep-17" if label == "sweep-17" else "python train.py"
    assert out.count(shown) == 5
    assert out.count("python") <= 5


def test_a_label_is_not_given_up_for_a_type() -> None:
    """Where there is little room, a label stands alone and whole."""
    (*_, leases, _) = tables(full("evaluate-the-last-week"))
    assert leases.shorten is not None
    name = leases.rows[0][-1]
    assert leases.shorten(name, 25) == "evaluate-the-last-week"
    assert leases.shorten(name, 70).startswith("evaluate-the-last-week (python train.py")


def test_the_broker_tells_when_a_job_is_expected_to_start(
    env: BrokerEnv, broker: int, grn: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """By the run times that were learnt; after a type that never ran nobody knows."""
    del broker
    talker = env.talker()
    whole = {"memory_mib": 8192, "gpus": 2}
    talker.release(talker.acquire("train", **whole))
    talker.acquire("train", **whole)
    talker.ask("never seen", **whole)
    talker.ask("train", **whole)
    first, second = json.loads(grn("status", "--json").stdout)["waiters"]
    assert first["expected_s"] is not None
    assert second["expected_s"] is None
    assert "starts in" in grn("status").stdout
