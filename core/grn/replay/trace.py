"""Read a trace: a CSV file with a row per job, in any order of columns.

Columns (those in brackets may be missing): `arrival_s`, `duration_s`, [`num_gpu`], and what is asked for
of one device: [`gpu_milli`] (thousandths), [`share`] (of 1) or [`memory_mib`]; [`peak_mib`] is what a
job really held, where that is known; [`type`], [`user`].

A trace says what was asked for, hardly ever what was used. Where it does not, real peaks are drawn:
what was asked for times a factor of the job's type, times a small one of the run. Both depend on
the seed and on the names alone, not on which other rows there are.
"""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from grn.errors import UsageError
from grn.replay.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Reading", "Row", "jobs_from", "read_rows"]

_DAY_S = 86400.0
_WHOLE_MILLI = 1000
_LEAST_MIB = 1


@dataclass(frozen=True, slots=True)
class Row:
    """What a trace says of a job. `share`: of one device; `peak_mib`: if it was measured."""

    arrival_s: float
    duration_s: float
    gpus: int = 1
    share: float = 1.0
    type: str = ""
    user: str = ""
    memory_mib: int | None = None
    peak_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How a trace is made into jobs.

    Args:
        device_mib: the memory of each device.
        devices: how many there are; jobs that want more are left out.
        seed: of what is drawn.
        overstated: the least share of what was asked for that a type really uses; the most is 1.
        jitter: by how much the peak of a run is off that of its type, at most.
        single: leave out jobs of several devices.
        days: from which day to which, of the trace's own time.
        faster: how many times as fast jobs arrive.
        limit: at most so many jobs.
    """

    device_mib: int = 32768
    devices: int = 8
    seed: int = 1
    overstated: float = 0.35
    jitter: float = 0.03
    single: bool = False
    days: tuple[float, float] | None = None
    longest_s: float | None = None
    shortest_s: float | None = None
    faster: float = 1.0
    limit: int | None = None


def read_rows(path: str) -> Iterator[Row]:
    """Read a file.

    Raises:
        UsageError: it is not a trace; the message names line and column.
        OSError: it cannot be read.
    """
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or []
        for needed in ("arrival_s", "duration_s"):
            if needed not in columns:
                found = ", ".join(columns) or "no columns at all"
                raise UsageError(f"{path}: no column {needed}; it has {found}")
        for cells in reader:
            yield _Cells(path, reader.line_num, cells).row()


class _Cells:
    """One line of a file, whose mistakes are told with their place."""

    def __init__(self, path: str, line: int, cells: dict[str, str]) -> None:
        self._path = path
        self._line = line
        self._cells = cells

    def row(self) -> Row:
        memory = self._number("memory_mib", least=1)
        peak = self._number("peak_mib", least=1)
        gpus = self._number("num_gpu", least=1)
        return Row(
            arrival_s=self._wanted("arrival_s", least=0.0),
            duration_s=self._wanted("duration_s", above=0.0),
            gpus=1 if gpus is None else int(gpus),
            share=self._share(),
            type=self._cells.get("type") or "",
            user=self._cells.get("user") or "",
            memory_mib=None if memory is None else int(memory),
            peak_mib=None if peak is None else int(peak),
        )

    def _share(self) -> float:
        share = self._number("share", above=0.0)
        if share is None:
            milli = self._number("gpu_milli", above=0.0)
            share = 1.0 if milli is None else milli / _WHOLE_MILLI
        if share > 1.0:
            raise self._error("share", f"a share of {share:g} of one device")
        return share

    def _wanted(
        self, column: str, *, least: float | None = None, above: float | None = None
    ) -> float:
        number = self._number(column, least=least, above=above)
        if number is None:
            raise self._error(column, "nothing")
        return number

    def _number(
        self, column: str, *, least: float | None = None, above: float | None = None
    ) -> float | None:
        text = self._cells.get(column)
        if text is None or text == "":
            return None
        try:
            number = float(text)
        except ValueError:
            raise self._error(column, f"{text!r}") from None
        low = (least is not None and number < least) or (above is not None and number <= above)
        if low or number != number or number == float("inf"):  # noqa: PLR0124 - NaN is not itself
            raise self._error(column, text)
        return number

    def _error(self, column: str, what: str) -> UsageError:
        return UsageError(f"{self._path}, line {self._line}: {column} cannot be {what}")


def jobs_from(rows: Iterable[Row], how: Reading) -> list[Job]:
    """Make jobs, ordered by arrival and numbered in that order.

    Raises:
        UsageError: no row is left.
    """
    kept = [row for row in rows if _is_kept(row, how)]
    kept.sort(key=attrgetter("arrival_s"))
    if how.limit is not None:
        del kept[how.limit :]
    if not kept:
        raise UsageError("no job of the trace is left: see --days, --single, --devices")
    users = {name: number for number, name in enumerate(dict.fromkeys(row.user for row in kept))}
    factors: dict[str, float] = {}
    began = kept[0].arrival_s
    # One generator for all: jobs that are left out at the end change nothing for those before.
    runs = random.Random(f"{how.seed}/runs")  # noqa: S311 - figures, not secrets
    return [
        _job(number, row, how, factors, runs, (row.arrival_s - began) / how.faster, users[row.user])
        for number, row in enumerate(kept)
    ]


def _is_kept(row: Row, how: Reading) -> bool:
    if row.gpus > how.devices or (how.single and row.gpus > 1):
        return False
    if how.days and not how.days[0] <= row.arrival_s / _DAY_S < how.days[1]:
        return False
    if how.shortest_s is not None and row.duration_s < how.shortest_s:
        return False
    return how.longest_s is None or row.duration_s <= how.longest_s


def _job(
    number: int,
    row: Row,
    how: Reading,
    factors: dict[str, float],
    runs: random.Random,
    arrival_s: float,
    user: int,
) -> Job:
    job_type = row.type or f"{row.gpus} devices, {row.share:g} of each"
    if job_type not in factors:
        draw = random.Random(f"{how.seed}/{job_type}")  # noqa: S311 - the same
        factors[job_type] = draw.uniform(how.overstated, 1.0)
    whole = how.device_mib
    share = row.share if row.gpus == 1 else 1.0
    declared = round(whole * share) if row.memory_mib is None else row.memory_mib
    declared = max(_LEAST_MIB, min(whole, declared))
    drawn = declared * factors[job_type] * runs.uniform(1 - how.jitter, 1 + how.jitter)
    peak = round(drawn) if row.peak_mib is None else row.peak_mib
    return Job(
        number=number,
        arrival_s=arrival_s,
        duration_s=row.duration_s,
        gpus=row.gpus,
        type=job_type,
        declared_mib=declared,
        peak_mib=max(_LEAST_MIB, min(whole, peak)),
        compute=share,
        user=user,
    )
