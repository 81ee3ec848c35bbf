"""The keys of `status` and `profiles` are a promise: more may come, these stay."""

from __future__ import annotations

from typing import Any

from grn.rules.expected import Forecast
from grn.rules.model import DeviceState, End
from grn.rules.report import SCHEMA, profiles_report, status_report
from grn.rules.wire import decode, encode
from tests.rules.acting import Stage

DEVICE_KEYS = {
    *("index", "uuid", "name", "state"),
    *("total_mib", "free_mib", "booked_mib", "measured_mib", "foreign_mib"),
}
LEASE_KEYS = {
    *("id", "type", "label", "pid", "devices"),
    *("booked_mib", "measured_mib", "peak_mib", "state", "left_over"),
}
WAITER_KEYS = {"type", "label", "since_s", "reason", "expected_s"}
PROFILE_KEYS = {"type", "device_model", "estimate_mib", "peak_mib", "runs", "source", "state"}


def _busy() -> Stage:
    stage = Stage(8000, 8000)
    first = stage.ask("first", label="one", memory_mib=3000)
    stage.run_until(0)
    stage.hold(first, 2500)
    stage.ask("probe")
    stage.others(0, 1000)
    stage.now = 5.0
    stage.ask("waits", label="w", whole=True, arrived_s=2.0)
    return stage


def test_the_schema_is_one() -> None:
    """Programs can tell by one number whether they know the format."""
    report = status_report(_busy().machine, 5.0, ["a warning"])
    assert report["schema"] == SCHEMA == 1
    assert report["warnings"] == ["a warning"]
    assert {"schema", "devices", "leases", "waiters", "warnings"} <= set(report)


def test_the_promised_keys_are_there() -> None:
    """Every object has the keys that others rely on."""
    report = status_report(_busy().machine, 5.0, [])
    assert all(set(device) >= DEVICE_KEYS for device in report["devices"])
    assert all(set(lease) >= LEASE_KEYS for lease in report["leases"])
    assert all(set(waiter) >= WAITER_KEYS for waiter in report["waiters"])
    assert [len(report[key]) for key in ("devices", "leases", "waiters")] == [2, 2, 1]


def test_a_device_is_told_in_numbers() -> None:
    """Total, free, booked, measured and foreign memory are those of the books."""
    device = status_report(_busy().machine, 5.0, [])["devices"][0]
    found = {key: device[key] for key in DEVICE_KEYS}
    assert found == {
        "index": 0,
        "uuid": "GPU-0000",
        "name": "Simulated",
        "state": "ok",
        "total_mib": 8000,
        "free_mib": 4000,
        "booked_mib": 3000,
        "measured_mib": 2500,
        "foreign_mib": 1000,
    }


def test_a_lease_is_told_in_full() -> None:
    """Who runs, where, with how much, and what it held at most."""
    lease = status_report(_busy().machine, 5.0, [])["leases"][0]
    found = {key: lease[key] for key in LEASE_KEYS}
    assert found == {
        "id": "t-1",
        "type": "first",
        "label": "one",
        "pid": 20001,
        "devices": ["GPU-0000"],
        "booked_mib": 3000,
        "measured_mib": 2500,
        "peak_mib": 2500,
        "state": "running",
        "left_over": [],
    }


def test_an_unmeasured_peak_is_null() -> None:
    """A lease that was never seen has no peak."""
    stage = Stage(8000)
    stage.ask(memory_mib=10)
    assert status_report(stage.machine, 0.0, [])["leases"][0]["peak_mib"] is None


def test_states_are_named() -> None:
    """probe, running and draining are told apart; a device says ok, stale or lost."""
    stage = Stage(8000, 8000, 8000, 8000)
    stage.ask("probe")
    stage.ask("runs", memory_mib=10)
    drains = stage.ask("drains", memory_mib=10)
    stage.hold(drains, 5)
    stage.finish(drains, holds_on=True)
    stage.states["GPU-0003"] = DeviceState.LOST
    stage.look()
    report = status_report(stage.machine, 0.0, [])
    assert {x["type"]: x["state"] for x in report["leases"]} == {
        "probe": "probe",
        "runs": "running",
        "drains": "draining",
    }
    assert [device["state"] for device in report["devices"]] == ["ok", "ok", "ok", "lost"]


def test_a_waiter_tells_since_when_and_why() -> None:
    """Each waiter has its time and its reason with numbers."""
    waiter = status_report(_busy().machine, 5.0, [])["waiters"][0]
    assert (waiter["type"], waiter["label"], waiter["since_s"]) == ("waits", "w", 3.0)
    assert "device 0: 4000 MiB free of 8000" in waiter["reason"]


def test_a_waiter_tells_in_how_long_it_is_expected_to_start() -> None:
    """In seconds from now; null where nobody knows, or nobody has worked it out."""
    machine = _busy().machine
    ticket = next(iter(machine.line)).ticket
    told = [
        status_report(machine, 5.0, [], expected)["waiters"][0]["expected_s"]
        for expected in (
            {ticket: Forecast(12.5, (), False)},
            {ticket: Forecast(4.0, (), False)},
            {},
            None,
        )
    ]
    assert told == [7.5, 0.0, None, None]


def test_a_status_can_travel() -> None:
    """The object goes through a frame unchanged."""
    report = status_report(_busy().machine, 5.0, ["w"])
    assert decode(encode({"status": report})[4:]) == {"status": report}


def _reported(
    stage: Stage, job_type: str | None = None, model: str | None = None
) -> list[dict[str, Any]]:
    known = stage.profiles.all() if job_type is None else stage.profiles.of_type(job_type)
    return profiles_report(known, stage.profiles.margin, model)


def test_a_profile_has_the_promised_keys() -> None:
    """What was learnt is told with its numbers and its state."""
    stage = Stage(8000)
    stage.know("job", 3000)
    (profile,) = _reported(stage)
    assert {key: profile[key] for key in PROFILE_KEYS} == {
        "type": "job",
        "device_model": "Simulated",
        "estimate_mib": 3000,
        "peak_mib": 3000,
        "runs": 1,
        "source": "sampled",
        "state": "settled",
    }


def test_a_profile_tells_where_its_peaks_come_from() -> None:
    """Each peak of the window has source and date, beside the promised keys; all of it can travel."""
    stage = Stage(8000)
    profile = stage.profiles.of("job", "Simulated")
    profile.succeeded(3000, 2.0, "device-delta", at=5.0)
    profile.succeeded(1000, 2.0, "sampled", at=6.0, censored=True)
    profile.quantiles_mib = list(range(0, 1100, 100))
    (told,) = _reported(stage)
    assert told["peaks"] == [{"mib": 3000, "source": "device-delta", "at": 5.0, "censored": False}]
    assert (told["source"], told["first_at"], told["last_at"]) == ("device-delta", 5.0, 6.0)
    assert (told["quantiles_mib"]["0"], told["quantiles_mib"]["100"]) == (0, 1000)
    assert len(told["quantiles_mib"]) == 11
    assert decode(encode(told)[4:]) == told


def test_a_lease_tells_of_a_peak_that_its_job_reported() -> None:
    """The figure in use is shown with its source, also before anything was sampled."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=3000)
    assert job.lease is not None
    stage.machine.learning.reported(job.lease, 2000)
    (lease,) = status_report(stage.machine, 0.0, [])["leases"]
    assert (lease["peak_mib"], lease["peak_source"]) == (2000, "in-process")


def test_a_lease_tells_of_devices_that_it_was_not_given() -> None:
    """Programs can see what people are warned of."""
    stage = Stage(8000, 8000)
    stage.hold(stage.ask(memory_mib=3000), 1000, index=1)
    (lease,) = status_report(stage.machine, 0.0, [])["leases"]
    assert lease["strays"] == ["GPU-0001"]


def test_profiles_can_be_narrowed() -> None:
    """By type and by model; what nothing is known of is not listed."""
    stage = Stage(8000)
    stage.know("a", 1000)
    stage.know("a", 2000, "other")
    stage.know("b", 3000)
    stage.profiles.of("never-ran", "Simulated")
    assert len(_reported(stage)) == 3
    assert len(_reported(stage, "a")) == 2
    assert len(_reported(stage, "a", "other")) == 1
    assert _reported(stage, "c") == []


def test_a_type_that_only_failed_is_listed_as_unmeasured() -> None:
    """One can see that runs failed although nothing is known."""
    stage = Stage(8000)
    stage.finish(stage.ask("broken"), End(exit_code=1))
    (profile,) = _reported(stage, "broken")
    assert (profile["state"], profile["estimate_mib"], profile["runs"]) == ("unmeasured", None, 0)
    assert profile["outcomes"] == ["failed"]
