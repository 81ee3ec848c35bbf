"""The page about figures is held to the code."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from grn.cli.metrics import main
from grn.metrics.table import METRICS

if TYPE_CHECKING:
    from pathlib import Path

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(scope="module")
def page() -> str:
    """`docs/metrics.md`."""
    with open(os.path.join(ROOT, "docs", "metrics.md"), encoding="utf-8") as file:
        return file.read()


def test_the_table_is_the_collectors(page: str) -> None:
    """Each figure with its kind, its labels and its meaning, in the same order, and no other."""
    rows = re.findall(r"^\| `(grn_\w+)` \| (\w+) \| (.+?) \| (.+) \|$", page, flags=re.MULTILINE)
    told = [
        (name, kind, tuple(re.findall(r"`(\w+)`", labels)), text)
        for name, kind, labels, text in rows
    ]
    assert told == [(m.name, m.kind, m.labels, m.help) for m in METRICS.values()]


def test_names_in_the_text_exist(page: str) -> None:
    """Also those in questions and sentences."""
    samples = {name for metric in METRICS.values() for name in (metric.name, *metric.samples)}
    assert set(re.findall(r"\bgrn_\w+", page)) <= samples


def test_options_in_the_text_exist(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the page says to type is what the command takes."""
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    for line in re.findall(r"grn metrics .*", page):
        for option in re.findall(r"--\w+", line.partition("#")[0].partition("`")[0]):
            assert option in known, line


def test_questions_are_promql(page: str, tmp_path: Path) -> None:
    """The tool that comes with Prometheus understands them, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    (block,) = re.findall(r"```promql\n(.*?)```", page, flags=re.DOTALL)
    asked = [line for line in block.splitlines() if line and not line.startswith("#")]
    assert asked
    rules = [{"alert": f"q{number}", "expr": text} for number, text in enumerate(asked)]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "page", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()
