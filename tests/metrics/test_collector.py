"""The figures: what is counted, what is not known, and that Prometheus can read them."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("prometheus_client", reason="the extra `metrics` is not installed")

from prometheus_client.parser import text_string_to_metric_families

from grn.metrics import CONTENT_TYPE, Collector
from grn.metrics.names import OTHER
from grn.metrics.states import MOST_LEASES
from grn.metrics.table import METRICS
from grn.rules.model import DeviceState, End
from tests.metrics.states import Watched, event

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB = 1 << 20
_ODD = 'a "name" with \\ and\na line\tfeed \udcff \x1b[31m'


def figures(collector: Collector) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Read the text as Prometheus' own library does; each sample must be there once."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(collector.text().decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{key} is told twice"
            found[key] = sample.value
    return found


def figure(collector: Collector, name: str, **labels: str) -> float | None:
    """Return one figure; `None` if there is none."""
    return figures(collector).get((name, frozenset(labels.items())))


def names(collector: Collector) -> set[str]:
    """Return the names of all samples."""
    return {name for name, _ in figures(collector)}


def fed(stage: Watched, **more: Any) -> Collector:
    """Tell a collector all that happened, and how things are."""
    collector = Collector(**more)
    collector.event(event("broker", state="started", at=900.0))
    for told in stage.events:
        collector.event(told)
    collector.status(stage.status(), at=1000.0 + stage.now)
    return collector


def busy() -> Watched:
    """Two devices; a known type, a probe, something refused, ended, out of memory, and waiting."""
    stage = Watched(10000, 8000, cpus=4, ram_mib=1000)
    done = stage.ask("train", memory_mib=4000, cpus=2)
    stage.run_until(0)
    stage.hold(done, 3000)
    stage.run_until(30)
    stage.finish(done, End(exit_code=0, cpu_s=12.5, rss_mib=10))
    died = stage.ask("train", memory_mib=4000)
    stage.finish(died, End(exit_code=1, said_oom=True))
    runs = stage.ask("train", memory_mib=4000, cpus=1, ram_mib=100, label=_ODD, engine="doit")
    stage.run_until(31)
    stage.hold(runs, 2500)
    stage.others(0, 1000)
    stage.ask("new", engine="doit")
    stage.ask("impossible", memory_mib=99999)
    stage.ask("later", whole=True)
    stage.cancel(stage.ask("withdrawn", whole=True))
    stage.now = 40.0
    return stage


# -- what there is --------------------------------------------------------------------------------


def test_devices() -> None:
    """Memory in bytes, parts as ratios, one state of each."""
    collector = fed(busy())
    device = {"device": "0", "uuid": "GPU-0000"}
    wanted = {"": 10000, "booked_": 4000, "measured_": 2500, "foreign_": 1000, "free_": 5000}
    for name, mib in wanted.items():
        assert figure(collector, f"grn_device_memory_{name}bytes", **device) == mib * MIB, name
    assert figure(collector, "grn_device_leases", **device) == 1
    assert figure(collector, "grn_device_info", **device, model="Simulated") == 1
    states = {str(s): figure(collector, "grn_device_state", **device, state=s) for s in DeviceState}
    assert states == {"ok": 1, "stale": 0, "lost": 0, "unhealthy": 0}


def test_leases_and_types() -> None:
    """Each lease by its id while it is held, and the sums of its type."""
    stage = busy()
    collector = fed(stage)
    lease = {"lease": "t-3", "type": "train"}
    assert figure(collector, "grn_lease_memory_booked_bytes", **lease) == 4000 * MIB
    assert figure(collector, "grn_lease_memory_measured_bytes", **lease) == 2500 * MIB
    assert figure(collector, "grn_lease_memory_peak_bytes", **lease) == 2500 * MIB
    assert figure(collector, "grn_lease_start_time_seconds", **lease) == 1030.0
    assert figure(collector, "grn_type_leases", type="train") == 1
    assert figure(collector, "grn_type_memory_booked_bytes", type="new") == 8000 * MIB
    assert figure(collector, "grn_leases", state="probe") == 1
    learnt = {"type": "train", "model": "Simulated"}
    assert figure(collector, "grn_type_memory_peak_bytes", **learnt) == 3000 * MIB
    assert figure(collector, "grn_type_memory_estimate_bytes", **learnt) == 5200 * MIB
    stage.finish(next(job for job in stage.running() if job.request.label))
    collector.status(stage.status())
    assert not [key for key in figures(collector) if ("lease", "t-3") in key[1]]


def test_the_queue_and_the_host() -> None:
    """Who waits, since when; CPUs and RAM."""
    collector = fed(busy())
    assert figure(collector, "grn_waiting_requests") == 1
    assert figure(collector, "grn_waiting_oldest_time_seconds") == 1031.0
    assert figure(collector, "grn_cpus") == 4
    assert figure(collector, "grn_cpus_booked") == 1
    assert figure(collector, "grn_ram_booked_bytes") == 100 * MIB
    assert figure(collector, "grn_broker_warnings") == 1
    assert figure(collector, "grn_broker_up") == 1
    assert figure(collector, "grn_broker_start_time_seconds") == 900.0


def test_what_has_happened() -> None:
    """Grants, refusals, ends, probes, deaths of memory: each counted once."""
    collector = fed(busy())
    counted = {
        ("grn_grants_total", ("train", "unknown")): 2,
        ("grn_grants_total", ("train", "doit")): 1,
        ("grn_grants_total", ("new", "doit")): 1,
        ("grn_probes_total", ("new",)): 1,
        ("grn_refusals_total", ("impossible",)): 1,
        ("grn_cancellations_total", ()): 1,
        ("grn_requests_queued_total", ("unknown",)): 2,
        ("grn_ends_total", ("train", "ok")): 1,
        ("grn_ends_total", ("train", "oom")): 1,
        ("grn_out_of_memory_total", ("train", "oom")): 1,
        ("grn_job_cpu_seconds_total", ("train",)): 12.5,
        ("grn_nested_grants_total", ()): 0,
        ("grn_events_missed_total", ()): 0,
    }
    for (name, labels), value in counted.items():
        pairs = dict(zip(METRICS[name].labels, labels, strict=True))
        assert figure(collector, name, **pairs) == value, name


def test_waits_and_runs_by_length() -> None:
    """Buckets are cumulative; the last one, the count and the sum agree."""
    collector = Collector()
    for seconds in (0.0005, 0.5, 0.5, 70.0, 1e6):
        collector.event(event("granted", type="a", engine="run", waited_s=seconds, nested=False))
    told = {
        dict(labels)["le"]: value
        for (name, labels), value in figures(collector).items()
        if name == "grn_wait_seconds_bucket"
    }
    assert [told[le] for le in ("0.001", "0.1", "1.0", "300.0", "86400.0", "+Inf")] == [
        *(1, 1, 3, 4, 4, 5)
    ]
    assert figure(collector, "grn_wait_seconds_count", engine="run") == 5
    assert figure(collector, "grn_wait_seconds_sum", engine="run") == pytest.approx(1000071.0005)
    assert sorted(told.values()) == [told[le] for le in sorted(told, key=float)]


def test_the_broker_is_timed_by_those_who_need_not_wait() -> None:
    """Who waits for room waits for others; of whom nobody knows whether it waited says nothing."""

    def granted(ticket: int, seconds: float, *, nested: bool = False) -> dict[str, Any]:
        return event("granted", ticket=ticket, type="a", waited_s=seconds, nested=nested)

    collector = Collector()
    collector.event(granted(1, 100.0))
    assert figure(collector, "grn_broker_latency_seconds_count") is None
    collector.status({**Watched(1000).status(), "waiters": [{"ticket": 2, "since_s": 3.0}]})
    collector.event(granted(2, 50.0))
    collector.event(event("queued", ticket=3))
    collector.event(granted(4, 0.002))
    collector.event(granted(3, 60.0))
    collector.event(granted(5, 0.004, nested=True))
    assert figure(collector, "grn_broker_latency_seconds_count") == 1
    assert figure(collector, "grn_broker_latency_seconds_sum") == 0.002
    collector.gone()
    collector.event(granted(6, 70.0))
    assert figure(collector, "grn_broker_latency_seconds_count") == 1


# -- what is not known ----------------------------------------------------------------------------


def test_nothing_is_made_up() -> None:
    """Before the first state there is only that no broker answers, and counters at 0."""
    assert names(Collector()) == {
        "grn_broker_up",
        "grn_nested_grants_total",
        "grn_cancellations_total",
        "grn_events_missed_total",
    }
    assert names(Collector(count=False)) == {"grn_broker_up"}
    assert figure(Collector(), "grn_broker_up") == 0


def test_unknown_is_left_out_and_never_0() -> None:
    """A driver that does not tell, a job without a device, RAM of which nobody knows how much."""
    stage = Watched(10000)
    stage.ask("host", gpus=None)
    status = stage.status()
    status["devices"][0]["measured_mib"] = None
    collector = Collector()
    collector.status(status)
    known = names(collector)
    assert "grn_ram_bytes" not in known
    assert "grn_device_memory_measured_bytes" not in known
    assert "grn_lease_memory_booked_bytes" not in known
    assert "grn_device_utilization_ratio" not in known
    assert "grn_waiting_oldest_time_seconds" not in known
    assert figure(collector, "grn_type_leases", type="host") == 1


def test_utilisation_where_the_driver_tells() -> None:
    """As a ratio, of devices and of leases."""
    stage = busy()
    status = stage.status()
    status["devices"][0]["utilization"] = 75
    status["leases"][0]["utilization"] = 30
    collector = Collector()
    collector.status(status)
    device = {"device": "0", "uuid": "GPU-0000"}
    assert figure(collector, "grn_device_utilization_ratio", **device) == 0.75
    lease = status["leases"][0]
    labels = {"lease": lease["id"], "type": lease["type"]}
    assert figure(collector, "grn_lease_utilization_ratio", **labels) == 0.3


def test_a_broker_that_has_left() -> None:
    """Its books are gone; what was counted stays."""
    collector = fed(busy())
    collector.gone()
    assert figure(collector, "grn_broker_up") == 0
    assert figure(collector, "grn_probes_total", type="new") == 1
    assert not any(name.startswith(("grn_device", "grn_lease")) for name in names(collector))


def test_starts_do_not_wander() -> None:
    """A state tells how long ago a lease began, to the millisecond of its making; the date stays."""
    stage = busy()
    collector = Collector()
    lease = {"lease": "t-3", "type": "train"}
    collector.status(stage.status(), at=2000.0)
    first = figure(collector, "grn_lease_start_time_seconds", **lease)
    stage.now += 10
    collector.status(stage.status(), at=2010.004)
    assert figure(collector, "grn_lease_start_time_seconds", **lease) == first == 1990.0


# -- bounds ---------------------------------------------------------------------------------------


def test_types_are_bounded() -> None:
    """The first so many have a name of their own; sums are not lost."""
    collector = Collector(most_types=2)
    for name in ("a", "b", "c", "d", "a"):
        granted = event("granted", type=name, engine="run", waited_s=0.0, nested=False, probe=False)
        collector.event(granted)
        collector.event(event("learnt", type=name, device_model="m", estimate_mib=1, peak_mib=1))
    told = {
        dict(labels)["type"]: value
        for (name, labels), value in figures(collector).items()
        if name == "grn_grants_total"
    }
    assert told == {"a": 2, "b": 1, OTHER: 2}
    assert figure(collector, "grn_type_memory_peak_bytes", type=OTHER, model="m") is None


@pytest.mark.parametrize(("name", "key"), [("granted", "engine"), ("refused", "code")])
def test_what_clients_say_is_bounded(name: str, key: str) -> None:
    """Nobody can make a time series of each of their words."""
    collector = Collector()
    for number in range(200):
        told = {"type": "a", "waited_s": 0.0, "nested": False, key: f"x{number}"}
        collector.event(event(name, **told))
    values = {dict(labels).get(key) for _, labels in figures(collector)}
    assert OTHER in values
    assert len(values) < 40


def test_leases_are_bounded() -> None:
    """Beyond so many only sums are told, of all."""
    stage = busy()
    status = stage.status()
    lease = status["leases"][0]
    status["leases"] = [{**lease, "id": f"t-{n}"} for n in range(MOST_LEASES + 5)]
    collector = Collector()
    collector.status(status)
    told = [key for key in figures(collector) if key[0] == "grn_lease_info"]
    assert len(told) == MOST_LEASES
    assert figure(collector, "grn_type_leases", type=lease["type"]) == MOST_LEASES + 5


def test_long_names_stay_apart() -> None:
    """They are cut, and two that begin alike are two."""
    collector = Collector()
    for end in "xy":
        job_type = "python train.py --option=" + "1" * 1000 + end
        collector.event(event("granted", type=job_type, waited_s=0.0, nested=False))
    told = [dict(labels) for name, labels in figures(collector) if name == "grn_grants_total"]
    assert len(told) == 2
    assert max(len(labels["type"]) for labels in told) <= 120


# -- Prometheus' own words ------------------------------------------------------------------------


def everything() -> Collector:
    """A collector that has something of every figure."""
    stage = busy()
    collector = fed(stage)
    status = stage.status()
    status["devices"][0]["utilization"] = 75
    status["leases"][0]["utilization"] = 30
    collector.status({**status, "lost": {"probe": 100}})
    return collector


def test_every_figure_of_the_table_can_be_told() -> None:
    """With its kind, its labels, and its help; nothing else is told."""
    families = list(text_string_to_metric_families(everything().text().decode()))
    told = {
        family.name + ("_total" if family.type == "counter" else ""): family for family in families
    }
    assert set(told) == set(METRICS)
    for name, metric in METRICS.items():
        family = told[name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.name in metric.samples
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_odd_names_arrive_whole() -> None:
    """Quotes, backslashes, line feeds; bytes that are no text as their code."""
    (labels,) = [
        dict(x)
        for name, x in figures(fed(busy()))
        if name == "grn_lease_info" and dict(x)["lease"] == "t-3"
    ]
    assert labels["label"] == 'a "name" with \\ and\na line\tfeed \\udcff \x1b[31m'


def test_names_follow_the_conventions() -> None:
    """Base units, counters end in `_total`, nothing else does."""
    for name, metric in METRICS.items():
        assert name.startswith("grn_")
        assert name.endswith("_total") == (metric.kind == "counter"), name
        assert not any(word in name for word in ("_mib", "_ms", "_percent", "_mb")), name
        if metric.kind == "histogram":
            assert name.endswith("_seconds")
        assert metric.help.endswith("."), name


def test_promtool_finds_no_fault() -> None:
    """The tool that comes with Prometheus, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: the package prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=everything().text(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_collector_keeps_to_itself() -> None:
    """Nothing goes into the registry that a program has for its own figures."""
    from prometheus_client import REGISTRY, generate_latest

    before = {family.name for family in REGISTRY.collect()}
    everything()
    assert {family.name for family in REGISTRY.collect()} == before
    assert b"grn_" not in generate_latest(REGISTRY)
    assert CONTENT_TYPE.startswith("text/plain")


def test_what_is_new_in_an_event_or_a_state_does_no_harm() -> None:
    """Keys may be added."""
    collector = Collector()
    told: Mapping[str, Any] = {"event": "unheard of", "at": 1.0, "seq": 9, "schema": 1}
    collector.event(told)
    collector.status({**Watched(1000).status(), "more": 1})
    assert figure(collector, "grn_broker_up") == 1
