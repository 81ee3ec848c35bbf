"""Type checkers see through the decorator."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("mypy")

SNIPPET = """
import grn

@grn.job
def train(rate: float, *, epochs: int = 1) -> dict[str, float]:
    return {"loss": rate * epochs}

@grn.job(memory="8GiB", gpus=2)
async def fetch(number: int) -> str:
    return str(number)

@train.profile
def small(rate: float, *, epochs: int = 1) -> None: ...

class Trainer:
    @grn.job
    def fit(self, times: int) -> int:
        return times

    @staticmethod
    @grn.job
    def check(name: str) -> bytes:
        return name.encode()

async def main() -> None:
    reveal_type(await fetch(1))
    async with grn.lease_async(memory=4) as lease:
        reveal_type(lease.env)

reveal_type(train(0.5, epochs=2))
reveal_type(Trainer().fit(2))
reveal_type(Trainer.fit(Trainer(), 2))
reveal_type(Trainer.check("x"))
reveal_type(small)
with grn.lease(gpus=None) as held:
    reveal_type(held)
train("fast")  # E
train(0.5, 2)  # E
Trainer().fit("x")  # E
grn.job(memry=3)  # E
grn.lease(policy="best")  # E
"""

REVEALED = [
    "str",
    "dict[str, str]",
    "dict[str, float]",
    "int",
    "int",
    "bytes",
    "def (rate: float, *, epochs: int =)",
    "grn.leasing.HeldLease",
]


def test_mypy_knows_what_a_job_takes_and_returns(tmp_path: Path) -> None:
    """Arguments and results are the function's own; a wrong one is an error, and nothing else is."""
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    done = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "mypy",
                "--strict",
                "--no-error-summary",
                "--hide-error-context",
            ),
            *("--config-file=", "--no-incremental", f"--cache-dir={tmp_path}", str(snippet)),
        ],
        env={**os.environ, "MYPYPATH": os.path.join(ROOT, "core")},
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = done.stdout.replace("builtins.", "").splitlines()
    notes = [
        line.partition('Revealed type is "')[2].rstrip('"') for line in lines if "note: Rev" in line
    ]
    assert notes == REVEALED, done.stdout + done.stderr
    wrong = {int(line.split(":")[1]) for line in lines if ": error:" in line}
    expected = {at for at, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# E")}
    assert wrong == expected, done.stdout
