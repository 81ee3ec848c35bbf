"""How cores of one's own and parts of a device are asked for, explained and shown."""

from __future__ import annotations

from typing import Any

import pytest

from grn.cli.runargs import parse
from grn.cli.runjobs import build_jobs
from grn.cli.status import notes
from grn.cli.wishes import Wishes
from grn.errors import UsageError


def request(*args: str) -> dict[str, Any]:
    """Return what `grn run` with these options would ask for."""
    environ: dict[str, str] = {}
    options = parse([*args, "--no-rules", "--", "true"])
    (job,) = build_jobs(options, environ, Wishes(options, environ))
    return job.request


def lease(**fields: Any) -> list[str]:
    """Return what `grn status` adds about a lease."""
    entry = {"id": "a-1", "left_over": [], "label": "x", "type": "x", **fields}
    return notes({"devices": [{}], "leases": [entry], "waiters": [], "warnings": []})


@pytest.mark.parametrize("text", ["30", "30%"])
def test_a_part_is_a_percentage(text: str) -> None:
    """With or without the sign."""
    assert request(f"--compute={text}", "--processes=2")["compute"] == 30
    assert request(f"--compute={text}", "--processes=2")["processes"] == 2


@pytest.mark.parametrize(
    "args",
    [
        ("--compute=0",),
        ("--compute=101",),
        ("--compute=half",),
        ("--processes=0",),
        ("--compute=30", "--gpus=0"),
        ("--compute=30", "--gpus=none"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, ...]) -> None:
    """Before anything is asked for."""
    with pytest.raises(UsageError):
        request(*args)


def test_only_what_was_asked_for_goes_over_the_wire() -> None:
    """The usual request is not longer for options that it does not use."""
    assert not {"compute", "processes", "affinity", "core_ids"} & set(request())
    asked = request("--affinity")
    assert asked["affinity"] is True
    assert asked["core_ids"]


def test_status_tells_what_few_leases_have() -> None:
    """Cores, parts and limits are named; the usual lease has no line of its own."""
    assert lease() == []
    assert lease(cores=[], compute=None, enforced_by="cooperative") == []
    assert lease(cores=[0, 4], compute=None, enforced_by=None) == ["lease a-1: bound to cores 0, 4"]
    assert lease(cores=[], compute=30, enforced_by="mps") == [
        "lease a-1: 30 % of its devices' multiprocessors; held to its limits by MPS"
    ]
    (trusted,) = lease(cores=[], compute=30, enforced_by="cooperative")
    assert trusted.endswith("trusted to keep to it, as no MPS daemon answers")
