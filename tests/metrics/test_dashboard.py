"""The dashboard for Grafana: its form, and that it asks for figures that there are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

import grn
from grn.metrics.table import METRICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATH = os.path.join(os.path.dirname(grn.__file__), "metrics", "grafana.json")
COLUMNS = 24
NOT_SHOWN = {
    "grn_broker_start_time_seconds",
    "grn_cancellations_total",
    "grn_device_compute_booked_ratio",
    "grn_device_info",
    "grn_device_leases",
    "grn_device_memory_bytes",
    "grn_events_missed_total",
    "grn_job_cpu_seconds_total",
    "grn_lease_utilization_ratio",
    "grn_nested_grants_total",
    "grn_requests_queued_total",
    "grn_type_memory_booked_bytes",
    "grn_type_memory_estimate_bytes",
    "grn_type_memory_peak_bytes",
}
"""For queries of one's own: to know them by name keeps new figures from being forgotten."""

_NAME = re.compile(r"\bgrn_\w+")
_PANELS = {"row", "stat", "timeseries", "table"}


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    """The file."""
    with open(PATH, encoding="utf-8") as file:
        found: dict[str, Any] = json.load(file)
    return found


def expressions(dashboard: dict[str, Any]) -> Iterator[str]:
    """List every query."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_it_asks_for_figures_that_there_are(dashboard: dict[str, Any]) -> None:
    """Each name in a query is one of the collector's, and nothing of what it tells is forgotten."""
    samples = {name for metric in METRICS.values() for name in metric.samples}
    asked = {name for text in expressions(dashboard) for name in _NAME.findall(text)}
    assert asked <= samples
    variables = json.dumps(dashboard["templating"])
    assert set(_NAME.findall(variables)) <= samples
    shown = {name for name, metric in METRICS.items() if asked & set(metric.samples)}
    assert set(METRICS) - shown == NOT_SHOWN


def test_labels_in_legends_are_labels_of_the_figure(dashboard: dict[str, Any]) -> None:
    """`{{device}}` is only asked of what has it."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            labels = {
                label
                for metric in METRICS.values()
                if set(metric.samples) & set(_NAME.findall(target["expr"]))
                for label in metric.labels
            }
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels, target


def test_its_form_is_grafanas(dashboard: dict[str, Any]) -> None:
    """What Grafana needs of a dashboard and of each panel, with unique ids and letters."""
    assert dashboard["title"]
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,40}", dashboard["uid"])
    assert dashboard["schemaVersion"] >= 36
    assert "id" not in dashboard, "a number of one installation"
    names = [variable["name"] for variable in dashboard["templating"]["list"]]
    assert names == ["datasource", "device"]
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        assert panel["type"] in _PANELS
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert {"defaults", "overrides"} == set(panel["fieldConfig"])
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(set(letters)) == len(letters)
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])


def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    """Each has its own place in 24 columns."""
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_units_are_those_of_the_figures(dashboard: dict[str, Any]) -> None:
    """Bytes are shown as bytes, seconds as seconds, ratios as percent."""
    for panel in dashboard["panels"]:
        unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
        asked = [target["expr"] for target in panel.get("targets", ())]
        for text in asked if panel["type"] != "table" else ():
            if "/" in text or "_ratio" in text:
                assert unit == "percentunit", panel["title"]
            elif re.search(r"_bytes\b", text):
                assert unit == "bytes", panel["title"]
            elif "histogram_quantile" in text or "time()" in text:
                assert unit == "s", panel["title"]


def test_promtool_understands_each_query(dashboard: dict[str, Any], tmp_path: Path) -> None:
    """The tool that comes with Prometheus, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    texts = [
        text.replace("$__rate_interval", "5m").replace("$device", ".+")
        for text in expressions(dashboard)
    ]
    rules = [{"record": f"test:{number}", "expr": text} for number, text in enumerate(texts)]
    path = tmp_path / "rules.yml"
    # JSON is YAML.
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool, "check", "rules", str(path)], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()


def test_the_command_prints_it(metrics: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """Whole, and nothing else; no broker is asked."""
    with open(PATH, encoding="utf-8") as file:
        assert metrics("--dashboard").stdout == file.read()
