"""Which devices a broker manages and a command sees, under every kind of mask."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

import pytest

from tests.env import eventually
from tests.scenarios.standin import touch, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv
    from tests.supervise.grnrun import GrnRun

    NewEnv = Callable[..., BrokerEnv]
    NewRun = Callable[..., GrnRun]

MASK = 'echo "mask=${CUDA_VISIBLE_DEVICES-unset}"'


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,2,-1,1", [0, 2]),
        ("0,1,2,3,-1,5,6,7", [0, 1, 2, 3]),
        ("0,9,1", [0]),
        ("-1", []),
        ("0,1,2,1", []),
        ("2, +3, -0, 5", [2, 3, 0, 5]),
        ("1gpu2,2ampere", [1, 2]),
        ("one,two,3,4", []),
        ("4,3,two,one", [4, 3]),
    ],
)
def test_a_broker_manages_what_cuda_would_show(
    new_env: NewEnv, mask: str | None, indices: list[int]
) -> None:
    """The broker's own mask counts as the driver counts it; where it leaves none, that is said."""
    env = new_env("sim:8x8000MiB", start=False)
    if mask is not None:
        env.environ["CUDA_VISIBLE_DEVICES"] = mask
    env.start()
    status = env.status()
    assert [device["index"] for device in status["devices"]] == indices
    said = " ".join(status["warnings"])
    assert bool(indices) or "CUDA_VISIBLE_DEVICES" in said


@pytest.mark.parametrize(("outer", "first", "second"), [("2,3", "2", "3"), ("3,2", "3", "2")])
def test_a_mask_inside_a_mask_keeps_its_numbers(
    new_run: NewRun, outer: str, first: str, second: str
) -> None:
    """Under a mask commands get that mask's own numbers, in its order; never 0 or 1 anew."""
    run = new_run("sim:4x8000MiB", broker_environ={"CUDA_VISIBLE_DEVICES": outer})
    wait = f"{MASK}; while ! test -e go; do sleep 0.05; done"
    commands = run.start("-q", "--memory=whole", wait, wait)
    eventually(lambda: len(run.env.status()["leases"]) == 2, what="two leases")
    touch(run.path("go"))
    out, _ = commands.communicate(timeout=60)
    assert commands.returncode == 0
    masks = dict(re.findall(r"^\[(\d) .*\] mask=(\S*)$", out.decode(), re.MULTILINE))
    assert masks == {"1": first, "2": second}
    both = run("-q", "--gpus=2", MASK)
    assert both.stdout.decode() == f"mask={outer}\n"


def test_the_command_sees_the_card_that_was_booked(new_run: NewRun) -> None:
    """Where CUDA numbers cards by speed and the tools by bus, a share of 12000 MiB fits its card."""
    run = new_run("sim:1x8113MiB,1x12189MiB,1x12200MiB,order=fastest:1,2,0")
    for order in ({}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        done = run(
            "-q", "--memory=12000MiB", "--", *words("--print-devices", "--seconds=0"), environ=order
        )
        assert done.returncode == 0, done.stderr
        (card,) = done.stdout.decode().splitlines()
        assert re.search(r"total=(12189|12200)MiB", card), card


def test_no_wish_no_devices_and_a_share_are_three_things(new_run: NewRun) -> None:
    """Without a wish the mask is left alone, with 0 it is empty, and neither waits for a device."""
    run = new_run("sim:2x8000MiB")
    wait = "while ! test -e go; do sleep 0.05; done"
    holder = run.start("-q", "--gpus=2", "--memory=whole", wait)
    eventually(lambda: run.env.status()["leases"], what="a lease on both devices")
    for mask in (None, "", "7", "0,1"):
        environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
        left = run("-q", "--gpus=none", MASK, environ=environ)
        assert left.stdout.decode() == f"mask={'unset' if mask is None else mask}\n"
        hidden = run("-q", "--gpus=0", MASK, environ=environ)
        assert hidden.stdout == b"mask=\n"
    assert holder.poll() is None
    touch(run.path("go"))
    assert holder.wait(60) == 0
    share = run("-q", "--memory=1000MiB", MASK)
    assert share.stdout == b"mask=0\n"


def test_the_callers_mask_narrows_the_wish(new_run: NewRun) -> None:
    """A command gets no device that its caller cannot see; what that leaves impossible is refused."""
    run = new_run("sim:4x8000MiB")
    for mask in ("2", "3,1"):
        done = run("-q", MASK, environ={"CUDA_VISIBLE_DEVICES": mask})
        assert done.stdout.decode().removeprefix("mask=").strip() in mask.split(",")
    both = run("-q", "--gpus=2", MASK, environ={"CUDA_VISIBLE_DEVICES": "3,1"})
    assert sorted(both.stdout.decode().removeprefix("mask=").strip().split(",")) == ["1", "3"]
    for mask, wish, left in (("3,1", 3, 2), ("", 1, 0)):
        refused = run("-q", f"--gpus={wish}", MASK, environ={"CUDA_VISIBLE_DEVICES": mask})
        assert refused.returncode == 125
        assert f"CUDA_VISIBLE_DEVICES leaves {left} of 4" in refused.stderr.decode()


def test_the_shell_that_came_first_narrows_nobody_else(new_run: NewRun, kind: str) -> None:
    """The broker that a masked shell starts gives the next shell what that one sees."""
    run = new_run(f"{kind}:3x8000MiB", on_demand=True)
    first = run("-q", "--memory=100MiB", MASK, environ={"CUDA_VISIBLE_DEVICES": "1"})
    assert first.stdout == b"mask=1\n", first.stderr
    wait = f"{MASK}; while ! test -e go; do sleep 0.05; done"
    environ = {"CUDA_VISIBLE_DEVICES": "1"}
    holder = run.start("-q", "--memory=whole", wait, environ=environ)
    eventually(lambda: run.env.status()["leases"], what="a lease on device 1")
    other = run("-q", "--memory=whole", MASK, environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert other.stdout == b"mask=0\n", other.stderr
    free = run("-q", "--gpus=2", "--memory=whole", MASK)
    assert sorted(free.stdout.decode().removeprefix("mask=").strip().split(",")) == ["0", "2"]
    assert [device["index"] for device in run.env.status()["devices"]] == [1, 0, 2]
    touch(run.path("go"))
    assert holder.wait(60) == 0


def test_without_devices_commands_run_that_want_none(new_run: NewRun) -> None:
    """Where no device is managed, a wish for one is refused with the reason, at once."""
    run = new_run("none")
    for gpus in ("none", "0"):
        assert run("-q", f"--gpus={gpus}", "exit 4").returncode == 4
    refused = run("-q", "--json", "touch started")
    assert refused.returncode == 125
    assert b"this broker manages none" in refused.stderr
    (job,) = json.loads(refused.stdout)["jobs"]
    assert (job["exit_code"], job["devices"]) == (125, [])
    both = run("touch started", "touch started")
    assert both.returncode == 1
    assert both.stderr.count(b"this broker manages none") >= 2
    assert not os.path.exists(run.path("started"))
