"""`grn history` and `grn history show`: what people and programs get."""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
from typing import TYPE_CHECKING

import pytest

from grn.history.filters import as_kept
from tests.history.conftest import BEGAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.history.conftest import Book, Said

FULL = {
    "type": "/usr/bin/python train.py --lr *",
    "label": "lr 0.1",
    "uid": 0,
    "pid": 4242,
    "engine": "doit",
    "policy": "spread",
    "priority": 5,
    "gpus": 2,
    "devices": "GPU-a GPU-b",
    "booked_mib": 4096,
    "probe": 1,
    "asked_at": BEGAN,
    "granted_at": BEGAN + 20,
    "ended_at": BEGAN + 620,
    "freed_at": BEGAN + 624,
    "waited_s": 20.0,
    "ran_s": 600.0,
    "outcome": "failed",
    "exit_code": 3,
    "peak_mib": 3584,
    "source": "sampled",
    "cpu_s": 900.0,
    "rss_mib": 1536,
    "curve": "[0, 512, 1024, 2048, 3072, 3072, 3072, 1024, 512, 0, 3584]",
}


def test_without_a_history_it_says_so(grn_history: Callable[..., Said], folder: str) -> None:
    """No error: nothing has run yet. It names the file, and makes none."""
    said = grn_history()
    assert said.status == 0
    assert "no history yet" in said.out
    assert f"{folder}/history.sqlite" in said.out.replace("\n", "").replace("  ", "")
    assert json.loads(grn_history("--json").out) == {"schema": 1, "leases": []}
    assert grn_history("show", "x").status == 2
    assert os.listdir(folder) == []


def test_where_none_is_kept_it_says_so(
    grn_history: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for a history that was turned off."""
    monkeypatch.setenv("GRN_HISTORY_DAYS", "0")
    assert "history_days" in grn_history().out


def test_the_last_twenty(grn_history: Callable[..., Said], book: Book) -> None:
    """Without a number twenty are shown, the newest first; `all` shows all."""
    for _ in range(25):
        book.add()
    lines = grn_history().out.splitlines()
    assert len(lines) == 21
    assert lines[1].split()[0] == "ab12cd-25"
    assert len(grn_history("--last", "3").out.splitlines()) == 4
    assert len(grn_history("--last", "all").out.splitlines()) == 26


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_it_fits_the_terminal(
    columns: int, grn_history: Callable[..., Said], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line is too long, with long names too, and the figures are whole."""
    book.device("GPU-a", 0)
    book.device("GPU-b", 1)
    book.add(**{**FULL, "type": "python train.py --with a lot of words " * 5})
    book.add_running(devices="GPU-a")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = grn_history().out.splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(lines)
    for figure in (
        "ab12cd-1",
        "14 Nov 2023",
        "20 s",
        "10 min",
        "0,1",
        "3.5 GiB",
        "failed (3)",
        "running",
    ):
        assert figure in text
    shown = grn_history("show", "ab12cd-1").out.splitlines()
    assert max(map(len, shown)) <= columns


def test_show_has_all_that_is_known(grn_history: Callable[..., Said], book: Book) -> None:
    """Each field in words, the memory as a sparkline with its least and most."""
    book.device("GPU-a", 0)
    book.add(**FULL)
    text = " ".join(grn_history("show", "ab12").out.split())
    for part in (
        "lease ab12cd-1",
        "/usr/bin/python train.py --lr *",
        "lr 0.1",
        f"{pwd.getpwuid(0).pw_name} (0), process 4242, through doit",
        "2 devices, spread, priority 5",
        "0 (Simulated 16 GiB, GPU-a)",
        "GPU-b",
        "2023-11-14 22:13:20",
        "2023-11-14 22:13:40, after waiting for 20 s",
        "2023-11-14 22:23:40, after running for 10 min",
        "after draining for 4 s",
        "failed: exit 3",
        "4 GiB on each device, alone: the first run of its type",
        "3.5 GiB on its fullest device, the most that was seen",
        "▁▂▃▅▇▇▇▃▂▁ least 0 MiB, most 3.5 GiB",
        "15 min of CPU time, 1.5 cores on average",
        "1.5 GiB in its largest process",
    ):
        assert part in text, part


def test_show_of_a_running_lease(grn_history: Callable[..., Said], book: Book) -> None:
    """It is said that it has not ended; what is not known yet has no line."""
    book.add_running()
    text = grn_history("show", "1").out
    assert "not yet: it has run for" in text
    assert "outcome" not in text
    assert "peak" not in text


def test_show_in_ascii(
    grn_history: Callable[..., Said], book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that was told to be C gets no blocks."""
    book.add(**FULL)
    monkeypatch.setenv("LC_ALL", "C")
    assert grn_history("show", "1").out.isascii()


def test_json(grn_history: Callable[..., Said], book: Book) -> None:
    """One object, schema 1, with each column under its name; lists are lists."""
    book.add(**FULL)
    book.add_running()
    told = json.loads(grn_history("--json").out)
    assert told["schema"] == 1
    running, ended = told["leases"]
    assert running["running"] is True
    assert running["outcome"] is None
    assert running["probe"] is None
    expected = {**FULL, "devices": ["GPU-a", "GPU-b"], "probe": True}
    expected["curve"] = json.loads(str(FULL["curve"]))
    assert {name: ended[name] for name in expected} == expected
    assert json.loads(grn_history("show", "ab12cd-1", "--json").out) == {
        "schema": 1,
        "lease": ended,
    }
    assert json.loads(grn_history("--json", "show", "ab12cd-1").out)["lease"] == ended


def test_csv(grn_history: Callable[..., Said], book: Book) -> None:
    """A line of names, then a line a lease; what is unknown is empty, a comma in a name is quoted."""
    book.add(**{**FULL, "label": 'a "b", c\nd'})
    book.add_running()
    rows = list(csv.DictReader(io.StringIO(grn_history("--csv").out)))
    assert [row["id"] for row in rows] == ["ab12cd-2", "ab12cd-1"]
    assert rows[0]["outcome"] == rows[0]["peak_mib"] == ""
    assert rows[1]["label"] == 'a "b", c\nd'
    assert rows[1]["devices"] == "GPU-a GPU-b"
    assert float(rows[1]["ran_s"]) == 600
    assert "curve" not in rows[0]


def test_filters_by_name(grn_history: Callable[..., Said], book: Book) -> None:
    """Users by name, devices by index or the beginning of a UUID, moments in words."""
    book.device("GPU-a1", 0, seen_at=2)
    book.device("GPU-old", 0, seen_at=1)
    book.device("GPU-b2", 1)
    me = pwd.getpwuid(os.getuid())
    book.add(uid=me.pw_uid, devices="GPU-a1")
    book.add(uid=me.pw_uid + 1, devices="GPU-b2")
    book.add(devices="GPU-old")

    def ids(*words: str) -> list[str]:
        told = json.loads(grn_history("--json", *words).out)
        return [lease["id"][-1] for lease in told["leases"]]

    assert ids("--user", me.pw_name) == ids("--user", str(me.pw_uid)) == ["1"]
    assert ids("--device", "0") == ["3", "1"]
    assert ids("--device", "GPU-b") == ["2"]
    assert ids("--device", "GPU-") == ["3", "2", "1"]
    assert ids("--since", "2h") == []
    assert ids("--since", "2023-11-14 22:15") == ["3", "2"]
    assert ids("--until", "2023-11-14T22:15") == ["1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "whenever"], "yesterday"),
        (["--since", "1h", "--until", "2h"], "before --since"),
        (["--user", "nobody-of-this-name"], "no such user"),
        (["--device", "7"], "knows devices 0"),
        (["--outcome", "great"], "oom-suspected"),
        (["--last", "0"], "1 or more, or `all`"),
        (["--json", "--csv"], "not both"),
        (["show", "nothing"], "no lease 'nothing'"),
        (["show"], "ID"),
        (["--user", "9" * 30], "user"),
    ],
)
def test_a_bad_word_is_a_usage_error(
    words: list[str], says: str, grn_history: Callable[..., Said], book: Book
) -> None:
    """Status 2, nothing on standard output, and what would do."""
    book.device("GPU-a", 0)
    book.add()
    said = grn_history(*words)
    assert said.status == 2
    assert says in said.err
    assert said.out == ""


def test_a_type_that_is_no_utf8(grn_history: Callable[..., Said], book: Book) -> None:
    """Its odd bytes are kept written out; it is found by the word as a shell passes it on."""
    book.add(type=as_kept("caf\udce9.sh"))
    for words in (["caf\udce9.sh"], ["caf\udce9*"], ["caf*"]):
        assert len(json.loads(grn_history("--json", "--type", *words).out)["leases"]) == 1


def test_nothing_found_is_no_error(grn_history: Callable[..., Said], book: Book) -> None:
    """It is said in words, and JSON has an empty list."""
    book.add()
    said = grn_history("--type", "other")
    assert said.status == 0
    assert "No lease" in said.out
    assert json.loads(grn_history("--json", "--type", "other").out)["leases"] == []


def test_a_name_cannot_write_to_the_terminal(grn_history: Callable[..., Said], book: Book) -> None:
    """Escape sequences in labels are shown, not sent."""
    book.add(label="\x1b[2Jgone", type="\x1b]0;title\x07")
    assert "\x1b" not in grn_history().out
    assert "\x1b" not in grn_history("show", "1").out
