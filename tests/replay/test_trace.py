"""Reading traces: what is taken, what is drawn, and how a mistake is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grn.errors import UsageError
from grn.replay.synthetic import Synthetic, synthetic_rows
from grn.replay.trace import Reading, jobs_from, read_rows

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "arrival_s,duration_s,num_gpu,gpu_milli,type\n"


def _file(folder: Path, text: str) -> str:
    path = folder / "trace.csv"
    path.write_text(text)
    return str(path)


def test_a_trace_becomes_jobs_in_order_of_arrival(tmp_path: Path) -> None:
    """Shares become MiB of the device; the clock starts with the first job."""
    path = _file(tmp_path, HEAD + "200,30,1,500,b\n100,20,2,1000,a\n")
    first, second = jobs_from(read_rows(path), Reading(device_mib=8000, jitter=0.0, overstated=1.0))
    assert (first.arrival_s, first.gpus, first.declared_mib, first.type) == (0.0, 2, 8000, "a")
    assert (second.arrival_s, second.declared_mib, second.peak_mib) == (100.0, 4000, 4000)


def test_memory_that_was_measured_is_not_drawn(tmp_path: Path) -> None:
    """A trace that knows real peaks is believed."""
    path = _file(tmp_path, "arrival_s,duration_s,memory_mib,peak_mib\n0,10,3000,1234\n")
    (job,) = jobs_from(read_rows(path), Reading())
    assert (job.declared_mib, job.peak_mib) == (3000, 1234)


def test_a_type_keeps_its_factor_whatever_rows_are_left_out(tmp_path: Path) -> None:
    """Other days of a trace are other jobs of the same types."""
    path = _file(tmp_path, HEAD + "".join(f"{n},10,1,500,t{n % 3}\n" for n in range(9)))
    rows = list(read_rows(path))
    late = jobs_from(rows[5:], Reading(jitter=0.0))
    known = {job.type: job.peak_mib for job in jobs_from(rows, Reading(jitter=0.0))}
    assert {job.type: job.peak_mib for job in late}.items() <= known.items()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column arrival_s; it has no columns at all"),
        ("id,arrival_s\n1,2\n", "no column duration_s; it has id, arrival_s"),
        (HEAD + "0,10,1,500,a\n5,,1,500,a\n", "line 3: duration_s cannot be nothing"),
        (HEAD + "0,ten,1,500,a\n", "line 2: duration_s cannot be 'ten'"),
        (HEAD + "0,0,1,500,a\n", "line 2: duration_s cannot be 0"),
        (HEAD + "-1,5,1,500,a\n", "line 2: arrival_s cannot be -1"),
        (HEAD + "nan,5,1,500,a\n", "line 2: arrival_s cannot be nan"),
        (HEAD + "0,5,0,500,a\n", "line 2: num_gpu cannot be 0"),
        (HEAD + "0,5,1,1500,a\n", "line 2: share cannot be a share of 1.5"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    """Who made the file finds the line."""
    with pytest.raises(UsageError, match=told):
        list(read_rows(_file(tmp_path, text)))


def test_a_trace_of_which_nothing_is_left_is_an_error(tmp_path: Path) -> None:
    """Options that leave no job are a mistake, not a table of nothing."""
    path = _file(tmp_path, HEAD + "0,10,4,1000,a\n")
    with pytest.raises(UsageError, match="no job"):
        jobs_from(read_rows(path), Reading(devices=2))


def test_a_made_trace_is_as_loaded_as_asked() -> None:
    """The load is that of whole devices; the seed decides everything else."""
    rows = synthetic_rows(Synthetic(jobs=2000, load=0.7, devices=4))
    wanted_s = sum(row.duration_s * row.gpus for row in rows)
    assert wanted_s / 4 / (rows[-1].arrival_s - rows[0].arrival_s) == pytest.approx(0.7, rel=0.03)
    assert rows == synthetic_rows(Synthetic(jobs=2000, load=0.7, devices=4))
    assert rows != synthetic_rows(Synthetic(jobs=2000, load=0.7, devices=4, seed=2))
    assert 0.3 < sum(row.share == 1.0 for row in rows) / 2000 < 0.8
