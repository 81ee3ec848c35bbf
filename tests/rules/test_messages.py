"""From the wire to the rules' nouns and back: what makes no sense is its sender's mistake."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.errors import ProtocolError, UsageError
from grn.rules import events as ev
from grn.rules.messages import (
    GrantWriter,
    check_hello,
    end_from,
    error_reply,
    hello_reply,
    released_reply,
    request_from,
)
from grn.rules.model import Device, End, Owner, Policy, Request
from grn.rules.wire import MAGIC, VERSION, decode, encode
from tests.rules.acting import Stage, devices

FOUR = devices([8000, 4000, 8000, 8000])
OWNER = Owner(10, 20, 30)
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=10)
    | st.lists(st.integers(), max_size=2)
    | st.sampled_from(["whole", "pack", "spread", "0,1", "GPU-", ""])
)
KEYS = [
    "type",
    "label",
    "gpus",
    "memory_mib",
    "policy",
    "cpus",
    "ram_mib",
    "priority",
    "mask",
    "waited_s",
    "asked_s",
    "compute",
    "processes",
    "affinity",
    "core_ids",
]


def _request_at(now: float, **fields: Any) -> Request:
    message = {"op": "acquire", "id": 1, "type": "job", **fields}
    return request_from(
        message,
        ticket=7,
        owner=OWNER,
        session="s",
        now=now,
        devices=FOUR,
        policy=Policy.SPREAD,
    )


def _request(*, machine: list[Device] | None = None, **fields: Any) -> Request:
    return request_from(
        {"op": "acquire", "id": 1, "type": "job", **fields},
        ticket=7,
        owner=OWNER,
        session="s",
        now=100.0,
        devices=FOUR if machine is None else machine,
        policy=Policy.PACK,
    )


# -- hello ------------------------------------------------------------------------------------------


def test_both_speak_the_lower_version() -> None:
    """A newer client is answered with our version, and is meant to speak it."""
    assert check_hello({"op": "hello", "magic": MAGIC, "version": VERSION}) == VERSION
    assert check_hello({"op": "hello", "magic": MAGIC, "version": VERSION + 9}) == VERSION


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"op": "status", "magic": MAGIC, "version": 1},
        {"op": "hello", "magic": "HTTP", "version": 1},
        {"op": "hello", "magic": MAGIC},
        {"op": "hello", "magic": MAGIC, "version": 0},
        {"op": "hello", "magic": MAGIC, "version": True},
        {"op": "hello", "magic": MAGIC, "version": "1"},
    ],
)
def test_what_is_no_hello_of_ours_is_a_protocol_error(message: dict[str, Any]) -> None:
    """Strangers are turned away at their first message."""
    with pytest.raises(ProtocolError):
        check_hello(message)


def test_the_answer_to_a_hello_names_the_broker() -> None:
    """A client learns who answers and what it manages."""
    reply = hello_reply(1, pid=5, release="0.1.0", on_demand=True, devices="sim:1x1GiB")
    assert {**reply, "features": None} == {
        "op": "hello",
        "magic": MAGIC,
        "version": 1,
        "features": None,
        "pid": 5,
        "release": "0.1.0",
        "on_demand": True,
        "devices": "sim:1x1GiB",
    }


# -- requests ---------------------------------------------------------------------------------------


def test_a_bare_request_wants_no_device() -> None:
    """What is not said is not wished: no device, the broker's policy, no priority."""
    request = _request()
    assert (request.gpus, request.memory_mib, request.whole) == (None, None, False)
    assert (request.cpus, request.ram_mib, request.allowed, request.outer) == (None,) * 4
    assert (request.policy, request.priority) == (Policy.PACK, 0)
    assert (request.ticket, request.owner, request.arrived_s) == (7, OWNER, 100.0)


def test_no_device_and_zero_devices_are_two_wishes() -> None:
    """`None` leaves the mask alone, 0 empties it."""
    assert _request(gpus=None).gpus is None
    assert _request(gpus=0).gpus == 0


def test_whole_is_no_size() -> None:
    """A whole device is asked for by its word."""
    request = _request(memory_mib="whole")
    assert request.whole
    assert request.memory_mib is None


def test_time_waited_elsewhere_counts() -> None:
    """A client that waited before a broker's restart keeps its place."""
    assert _request(waited_s=30).arrived_s == 70.0


def test_who_asked_first_stays_first_however_long_the_messages_took() -> None:
    """Asked again after a broker's death, requests keep their order: their clock is the broker's."""
    now = 1000.0
    first = _request_at(
        now + 0.5, asked_s=990.0, waited_s=10.0
    )  # its message lay for half a second
    second = _request_at(now + 0.5, asked_s=990.001, waited_s=10.4)
    assert (first.arrived_s, second.arrived_s) == (990.0, 990.001)


def test_another_clock_is_not_believed() -> None:
    """A client whose clock is not the broker's is placed by how long it says it has waited."""
    request = _request_at(1000.0, asked_s=5.0, waited_s=10.0)
    assert request.arrived_s == pytest.approx(990.0)


@pytest.mark.parametrize(
    "field",
    [
        {"gpus": -1},
        {"gpus": 1.5},
        {"gpus": True},
        {"gpus": "1"},
        {"gpus": 1 << 41},
        {"memory_mib": -1},
        {"memory_mib": "much"},
        {"cpus": -1},
        {"ram_mib": []},
        {"policy": "best"},
        {"policy": 1},
        {"policy": []},
        {"priority": 1.0},
        {"priority": True},
        {"priority": 1 << 41},
        {"waited_s": -1},
        {"waited_s": float("nan")},
        {"waited_s": float("inf")},
        {"waited_s": "1"},
        {"mask": 0},
        {"type": ""},
        {"type": None},
        {"type": 1},
        {"type": "x" * (64 * 1024 + 1)},
        {"label": b"x"},
    ],
    ids=repr,
)
def test_nonsense_is_a_usage_error_that_names_the_field(field: dict[str, Any]) -> None:
    """Wrong types, negative and absurd numbers are told to the client, which may go on."""
    with pytest.raises(UsageError) as caught:
        _request(**field)
    assert next(iter(field)) in caught.value.message


@given(fields=st.dictionaries(st.sampled_from(KEYS), ANYTHING))
def test_no_field_can_do_more_than_be_refused(fields: dict[str, Any]) -> None:
    """Whatever a client sends becomes a request that makes sense, or a usage error."""
    try:
        request = _request(**fields)
    except UsageError:
        return
    numbers = (request.gpus, request.memory_mib, request.cpus, request.ram_mib)
    assert all(value is None or (type(value) is int and value >= 0) for value in numbers)
    assert isinstance(request.policy, Policy)
    assert request.type
    stage = Stage(8000, 4000, 8000, 8000)
    effects = stage.machine.step(ev.Asked(100.0, request))
    effects += stage.machine.step(ev.Settle(100.0))
    stage.machine.check_invariants()
    assert effects


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        ("", []),
        ("0", [0]),
        ("2,1", [1, 2]),
        ("1,9", [1]),
        ("0,0", []),
        ("GPU-0002", [2]),
        ("GPU-0003,GPU-0000", [0, 3]),
    ],
)
def test_the_clients_own_mask_narrows_its_request(mask: str, indices: list[int]) -> None:
    """A client gets none but the devices that it could see before."""
    assert _request(mask=mask).allowed == {f"GPU-{index:04d}" for index in indices}


def test_a_clients_index_is_the_machines_not_the_brokers() -> None:
    """Under a broker that manages devices 2 and 3, a client's `2` is the broker's first."""
    managed = FOUR[2:]
    assert _request(mask="2", machine=managed).allowed == {"GPU-0002"}
    assert _request(mask="0", machine=managed).allowed == frozenset()


def test_slices_of_one_card_are_told_apart() -> None:
    """MIG slices share their card's number; a client that names one gets that one."""
    slices = [Device(f"MIG-{name}", 0, "m", 1000) for name in "abc"]
    for device in slices:
        assert _request(mask=device.uuid, machine=slices).allowed == {device.uuid}


def test_an_end_is_read_as_it_was_said() -> None:
    """What is not said of an end stays unknown."""
    assert end_from({}) == End()
    said = {"exit_code": 3, "signal": None, "said_oom": True, "stopped": 1}
    assert end_from(said) == End(exit_code=3, said_oom=True)
    with pytest.raises(UsageError):
        end_from({"exit_code": -9})


# -- answers ----------------------------------------------------------------------------------------


def _grant(
    stage: Stage, style: str = "auto", mask: str | None = None, **wish: Any
) -> dict[str, Any]:
    job = stage.ask(**wish)
    assert job.lease is not None
    writer = GrantWriter.for_mask(stage.devices, mask=mask, style=style, extra={"X": "1"})
    reply = writer.write(9, job.lease, nested=False, waited_s=1.5)
    assert decode(encode(reply)[4:]) == reply
    return reply


def test_a_grant_says_all_that_the_job_is_told() -> None:
    """The keys of a grant are what clients build the environment from."""
    reply = _grant(Stage(8000, 4000), gpus=2, memory_mib=1000, cpus=3)
    assert reply == {
        "op": "granted",
        "id": 9,
        "lease": "t-1",
        "gpus": 2,
        "mask": "0,1",
        "devices": [
            {
                "uuid": f"GPU-{index:04d}",
                "index": index,
                "model": "Simulated",
                "total_mib": total,
                "booked_mib": 1000,
            }
            for index, total in enumerate((8000, 4000))
        ],
        "memory_mib": 1000,
        "fraction": 0.125,
        "threads": 3,
        "cpus": 3,
        "probe": False,
        "whole": False,
        "compute": None,
        "processes": 1,
        "cores": [],
        "mps": None,
        "enforced_by": "cooperative",
        "extra": {"X": "1"},
        "nested": False,
        "waited_s": 1.5,
    }


@pytest.mark.parametrize(("gpus", "mask"), [(None, None), (0, ""), (1, "3")])
def test_three_wishes_three_masks(gpus: int | None, mask: str | None) -> None:
    """No wish leaves the mask alone, zero devices empties it, a share names its device."""
    reply = _grant(Stage(*[8000] * 4, order=[3, 1, 0]), gpus=gpus)
    assert reply["mask"] == mask
    if not gpus:
        assert (reply["devices"], reply["memory_mib"], reply["fraction"]) == ([], None, None)


@pytest.mark.parametrize(
    ("style", "own", "mask"),
    [
        ("auto", None, "0"),
        ("auto", "0,1", "0"),
        ("auto", "GPU-0000", "GPU-0000"),
        ("uuid", None, "GPU-0000"),
        ("index", "GPU-0000", "0"),
    ],
)
def test_masks_are_written_like_the_brokers_own(style: str, own: str | None, mask: str) -> None:
    """Numbers or UUIDs: as the broker's mask has them, unless one is asked for."""
    assert _grant(Stage(8000), style, own)["mask"] == mask


def test_a_first_run_and_a_whole_device_are_marked() -> None:
    """Who is measured alone knows it; who has a whole device is told of no fraction."""
    assert _grant(Stage(8000))["probe"] is True
    reply = _grant(Stage(8000), whole=True)
    assert (reply["whole"], reply["fraction"]) == (True, None)


def test_the_answer_to_a_release_tells_what_was_learnt() -> None:
    """Outcome, peak, source, notes and what a retry should ask are passed on."""
    stage = Stage(8000)
    job = stage.ask(memory_mib=3000)
    stage.finish(job, End(exit_code=1, said_oom=True))
    assert job.report is not None
    reply = released_reply(4, job.report, ran_s=2.5)
    assert reply == {
        "op": "released",
        "id": 4,
        "lease": "t-1",
        "outcome": "oom",
        "peak_mib": None,
        "source": None,
        "ran_s": 2.5,
        "draining": False,
        "remedy": "more",
        "next_mib": 3900,
        "notes": [],
    }


def test_an_error_names_its_request() -> None:
    """A client with many requests can tell which one went wrong."""
    assert error_reply(3, "usage", "no") == {
        "op": "error",
        "id": 3,
        "code": "usage",
        "message": "no",
    }
