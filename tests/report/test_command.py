"""`grn report`: what it writes where, and what it says."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from grn.cli.main import main
from grn.history.schema import FILE_NAME
from tests.report.madehistory import lease_row, write_history

if TYPE_CHECKING:
    from pathlib import Path

DEVICE = ("GPU-1", 0, "A30", 24_000, 23_000, 0.0)


@pytest.fixture
def folder(tmp_path: Path, clean_environ: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with a history of three leases: of an hour, two days and two weeks ago."""
    del clean_environ
    now = time.time()
    ages = {"a-1": 14 * 86400, "a-2": 2 * 86400, "a-3": 3600}
    rows = [
        lease_row(seq=n, id=name, type="t", granted_at=now - age, ended_at=now - age + 60)
        for n, (name, age) in enumerate(ages.items())
    ]
    write_history(str(tmp_path / FILE_NAME), rows, [DEVICE])
    monkeypatch.setenv("GRN_STATE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _drawn(page: Path) -> list[str]:
    text = page.read_text()
    data = text.partition('id="data">')[2].partition("</script>")[0]
    found: list[str] = json.loads(data)["leases"].get("id") or []
    return found


def test_page_is_written_and_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the last week is in grn-report.html, and one line says so."""
    assert main(["report"]) == 0
    assert _drawn(folder / "grn-report.html") == ["a-2", "a-3"]
    assert capsys.readouterr().out.startswith("grn-report.html: 2 leases, ")
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    ("words", "drawn"),
    [
        (["--days", "1"], ["a-3"]),
        (["--days", "30"], ["a-1", "a-2", "a-3"]),
        (["--since", "3d"], ["a-2", "a-3"]),
        (["--since", "20d", "--until", "1d"], ["a-1", "a-2"]),
        (["--until", "10d"], ["a-1"]),
    ],
)
def test_span_can_be_chosen(folder: Path, words: list[str], drawn: list[str]) -> None:
    """Days, and moments as `grn history` has them, say what is drawn."""
    assert main(["report", "-o", "out.html", *words]) == 0
    assert _drawn(folder / "out.html") == drawn


def test_page_can_go_to_standard_output(
    folder: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """With `-o -` the page is all that is there."""
    del folder
    assert main(["report", "-o", "-"]) == 0
    out = capfdbinary.readouterr().out
    assert out.startswith(b"<!doctype html>")
    assert out.endswith(b"</html>\n")


def test_trace_alone_and_with_the_page(folder: Path) -> None:
    """`--trace` writes a trace; the page comes with `-o`."""
    assert main(["report", "--trace", "t.json"]) == 0
    assert not (folder / "grn-report.html").exists()
    told = json.loads((folder / "t.json").read_text())
    assert [e["args"]["id"] for e in told["traceEvents"] if e["ph"] == "X"] == ["a-2", "a-3"]
    assert main(["report", "--trace", "t.json", "-o", "p.html"]) == 0
    assert (folder / "p.html").exists()


def test_device_file_is_written_to_not_replaced(folder: Path) -> None:
    """What is no plain file, such as a pipe, stays what it is."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main(["report", "--trace", str(pipe), "--days", "1"]) == 0
        assert os.read(reader, 1 << 16).startswith(b'{"traceEvents"')
    finally:
        os.close(reader)
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--since", "soon"], "--since 'soon' is not a moment"),
        (["--since", "1h", "--until", "2h"], "3600 s after its end"),
        (["--days", "1", "--since", "1h"], "give one of them"),
        (["-o", "-", "--trace", "-"], "cannot both"),
    ],
)
def test_mistakes_are_told(folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """A span that cannot be is an error of usage, and nothing is written."""
    assert main(["report", *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(folder.glob("*.html"))


def test_no_history_is_told(tmp_path: Path, clean_environ: None, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """Where nothing has run, it says so, and makes no history."""
    del clean_environ
    assert main(["report", "--state-dir", str(tmp_path)]) == 2
    assert f"there is no history yet: the broker begins it with the first job, in {tmp_path}" in capsys.readouterr().err  # fmt: skip
    assert not os.listdir(tmp_path)


def test_file_that_cannot_be_written_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    """The error names the file and the reason."""
    assert main(["report", "-o", str(folder / "missing" / "page.html")]) == 125
    assert "missing/page.html: No such file or directory" in capsys.readouterr().err
