"""A broker that a client started under a mask gives other clients what their masks name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from grn.devices.claim import claim
from tests.env import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.fakenvml.box import Box

    NewEnv = Callable[..., BrokerEnv]

EAGER = ["tests.broker.eager"]
"""A broker that looks again at each request that needs it."""


PATIENT = ["tests.broker.patient"]
"""A broker for which no driver is too slow."""


def started(env: BrokerEnv, mask: str, *, by_hand: bool = False) -> BrokerEnv:
    """Start the broker under a mask, as a client would."""
    flags = () if by_hand else ("--on-demand",)
    env.start(*flags, env={**env.environ, "CUDA_VISIBLE_DEVICES": mask})
    return env


def under(new_env: NewEnv, devices: str, mask: str, **options: Any) -> BrokerEnv:
    """Return an environment whose broker was started under a mask."""
    env = new_env(devices, start=False, sample_fast="0.05", sample_slow="0.1")
    env.program = options.pop("program", env.program)
    return started(env, mask, **options)


def box_of(env: BrokerEnv) -> Box:
    """Return the machine behind the driver."""
    assert env.box is not None
    return env.box


def indices(env: BrokerEnv) -> list[int]:
    """Return the numbers of the devices that the broker manages, in its order."""
    return [device["index"] for device in env.status()["devices"]]


def test_masks_one_after_the_other_add_up(new_env: NewEnv, kind: str) -> None:
    """Each client is told its device by the machine's number; those that are known keep their places."""
    env = under(new_env, f"{kind}:4x8000MiB", "2")
    talker = env.talker()
    held = []
    for mask, known in (("2", [2]), ("0", [2, 0]), ("3", [2, 0, 3]), (None, [2, 0, 3, 1])):
        held.append(talker.acquire("t", memory_mib="whole", mask=mask))
        assert indices(env) == known
    assert [grant["mask"] for grant in held] == ["2", "0", "3", "1"]
    assert [grant["devices"][0]["index"] for grant in held] == [2, 0, 3, 1]
    job = env.job(talker, held[1], "--memory=3000MiB")
    eventually(lambda: env.status()["leases"][1]["measured_mib"] == 3000, what="3000 MiB measured")
    assert job.finish() == 0


def test_masks_at_the_same_time_add_up(new_env: NewEnv, kind: str) -> None:
    """Two clients with masks of their own, both new: neither is refused, each gets its own device."""
    env = under(new_env, f"{kind}:3x8000MiB", "1")
    one, other = env.talker(), env.talker()
    first, second = one.ask("t", memory_mib="whole", mask="0"), other.ask("t", mask="2")
    assert one.granted(first)["mask"] == "0"
    assert other.granted(second)["mask"] == "2"
    assert sorted(indices(env)) == [0, 1, 2]


def test_several_devices_of_a_wider_mask(new_env: NewEnv, kind: str) -> None:
    """A wish for two devices is met with one that is managed and one that is new."""
    env = under(new_env, f"{kind}:3x8000MiB", "1")
    grant = env.talker().acquire("t", gpus=2, mask="2,1")
    assert sorted(grant["mask"].split(",")) == ["1", "2"]
    assert indices(env) == [1, 2]


def test_a_starter_without_devices_keeps_nobody_from_them(new_env: NewEnv, kind: str) -> None:
    """Started under an empty mask, it has no device until somebody asks who sees one."""
    env = under(new_env, f"{kind}:2x8000MiB", "")
    talker = env.talker()
    refused = talker.final(talker.ask("t", mask=""))
    assert refused["code"] == "impossible"
    assert indices(env) == []
    assert talker.acquire("t", mask="1")["mask"] == "1"
    assert env.status()["warnings"] == []
    assert talker.acquire("t", mask=None, memory_mib=100)["mask"] == "0"


def test_the_next_broker_manages_the_same(new_env: NewEnv, kind: str) -> None:
    """Killed after it took in more, with leases on both: its successor keeps them, whoever starts it."""
    env = under(new_env, f"{kind}:3x8000MiB", "1")
    talker = env.talker()
    held = [talker.acquire("t", memory_mib="whole", mask=mask) for mask in ("1", "0")]
    jobs = [env.job(talker, grant, "--memory=3000MiB") for grant in held]
    for job in jobs:
        job.wait_holding()
    env.kill()
    started(env, "2")
    assert indices(env) == [1, 0]
    late = env.talker()
    assert late.call("adopt", leases=[grant["lease"] for grant in held])["leases"]
    measured = [3000, 3000]
    eventually(
        lambda: [lease["measured_mib"] for lease in env.status()["leases"]] == measured,
        what="both are measured",
    )
    assert late.acquire("t", memory_mib="whole", mask="2")["mask"] == "2"
    assert [job.finish() for job in jobs] == [0, 0]


def test_a_broker_that_was_started_by_hand_keeps_its_mask(new_env: NewEnv, kind: str) -> None:
    """Whoever started it chose its devices; who sees none of them is refused, with what there is."""
    env = under(new_env, f"{kind}:2x8000MiB", "1", by_hand=True, program=EAGER)
    talker = env.talker()
    refused = talker.final(talker.ask("t", mask="0"))
    assert "leaves 0 of 1 that this broker manages (device 1;" in refused["message"]
    assert talker.acquire("t", mask=None)["mask"] == "1"
    assert indices(env) == [1]


def test_masks_are_written_as_the_brokers_own(new_env: NewEnv) -> None:
    """Started under a UUID, it tells its jobs UUIDs, also of devices that came later."""
    env = under(new_env, "sim:2x8000MiB", "GPU-51d00000-0000-4000-8000-000000000001")
    uuid = env.talker().acquire("t", mask="0")["mask"]
    assert uuid == "GPU-51d00000-0000-4000-8000-000000000000"


def test_what_another_broker_has_stays_its_own(new_env: NewEnv) -> None:
    """Without a mask a client gets the rest, with one it is told who has the device, until it is free."""
    env = under(new_env, "nvml:3x8000MiB", "1", program=EAGER)
    talker = env.talker()
    taken = claim([box_of(env).uuids[0]])
    try:
        refused = talker.final(talker.ask("t", mask="0"))
        assert "leaves 0 of 1" in refused["message"]
        assert f"{box_of(env).uuids[0]} is managed by pid" in refused["message"]
        grant = talker.acquire("t", gpus=2, mask=None)
        assert sorted(grant["mask"].split(",")) == ["1", "2"]
        assert "is managed by pid" in " ".join(env.status()["warnings"])
        talker.release(grant)
    finally:
        taken.close()
    assert talker.acquire("t", mask="0")["mask"] == "0"
    assert env.status()["warnings"] == []


def test_a_slow_driver_delays_nobody_else(new_env: NewEnv) -> None:
    """While a look goes on, requests that need none are answered, and those that wait can be withdrawn."""
    env = under(new_env, "nvml:2x8000MiB", "1", program=PATIENT)
    box, talker, leaving = box_of(env), env.talker(), env.remote()
    slow = box.fail("nvmlInit", delay_s=3600)
    waits, also = talker.ask("t", mask="0"), talker.ask("t", mask="0")
    leaving.ask("t", mask=None)
    leaving.kill()
    for wish in ({"gpus": 0}, {"gpus": None}, {"mask": "1", "memory_mib": 100}):
        talker.release(talker.acquire("u", **wish))
    for mask in ("", " ", "NoDevFiles"):
        assert talker.final(talker.ask("t", mask=mask))["code"] == "impossible"
    assert talker.call("acquire", type="t", gpus=1, mask=7)["code"] == "usage"
    talker.tell("cancel", id=also)
    assert talker.final(also)["code"] == "cancelled"
    assert not talker.decided([waits])
    box.heal(slow)
    assert talker.granted(waits)["mask"] == "0"
    eventually(lambda: len(env.status()["leases"]) == 1, what="nothing for who has left")


def test_who_waits_for_a_look_keeps_its_place(new_env: NewEnv) -> None:
    """Asked earlier, it is served earlier, though another one was in the line before it."""
    env = under(new_env, "nvml:2x8000MiB", "1", program=PATIENT)
    box, talker = box_of(env), env.talker()
    holder = talker.acquire("t", memory_mib="whole", mask="1")
    elsewhere = claim([box.uuids[0]])
    try:
        slow = box.fail("nvmlInit", delay_s=3600)
        first = talker.ask("t", memory_mib="whole", mask="1,0")
        second = talker.ask("t", memory_mib="whole", mask="1")
        assert talker.next(second)["op"] == "waiting"
        box.heal(slow)
        assert talker.next(first)["op"] == "waiting"
        talker.release(holder)
        talker.release(talker.granted(first))
        talker.granted(second)
    finally:
        elsewhere.close()


def test_a_driver_that_does_not_answer_is_named(new_env: NewEnv) -> None:
    """Who waited for the look is refused with the reason; what is managed goes on."""
    env = under(new_env, "nvml:2x8000MiB", "1")
    talker = env.talker()
    box_of(env).fail("nvmlInit", delay_s=3600)
    refused = talker.final(talker.ask("t", mask="0"), within_s=PATIENCE_S)
    assert "leaves 0 of 1" in refused["message"]
    assert "did not answer" in refused["message"]
    assert talker.acquire("t", mask="1", memory_mib=100)["mask"] == "1"


@pytest.mark.parametrize("mask", [None, "0"])
def test_to_foresee_is_reason_enough_to_look(new_env: NewEnv, kind: str, mask: str | None) -> None:
    """Who first asks what would be granted is soon told of all that its mask names."""
    env = under(new_env, f"{kind}:2x8000MiB", "1")
    talker = env.talker()
    talker.acquire("t", memory_mib="whole")
    wishes = [{"type": "u", "gpus": 1, "memory_mib": "whole", "mask": mask}]
    talker.call("foresee", wishes=wishes)
    eventually(lambda: indices(env) == [1, 0], what="both are managed")
    assert talker.call("foresee", wishes=wishes)["at_once"] == [True]
