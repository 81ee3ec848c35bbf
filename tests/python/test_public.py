"""The public interface is a promise: names, arguments, and what it costs to import."""

from __future__ import annotations

import importlib.resources
import inspect
import subprocess
import sys

import pytest

import grn
from grn.hub import Hub

WISHES = (
    "*, gpus: 'int | None' = 1, memory: 'str | int | None' = None,"
    " policy: 'Policy | None' = None, cpus: 'int | None' = None, ram: 'str | int | None' = None,"
    " compute: 'int | None' = None, processes: 'int | None' = None, affinity: 'bool | None' = None,"
    " group: 'str' = '', group_size: 'int | None' = None,"
    " flavor: 'str | None' = None, priority: 'int' = 0, wait: 'float | str | None' = None,"
    " label: 'str' = '', env: 'Mapping[str, str] | None' = None,"
    " if_unavailable: 'IfUnavailable' = 'fail', type: 'str | None' = None"
)
FOR_JOBS = (
    ", isolate: 'bool | None' = None, jobstr: 'str | None' = None,"
    " resource_policy: 'Policy | None' = None, continue_on_server_unavailable: 'bool' = False"
)


def signature(function: object) -> str:
    """Return a signature without what it returns."""
    assert callable(function)
    return str(inspect.signature(function)).partition(") ->")[0] + ")"


def test_the_arguments_of_a_lease() -> None:
    """Both forms take the same wishes, by name."""
    assert signature(grn.lease) == signature(grn.lease_async) == f"({WISHES})"


def test_the_arguments_of_a_job() -> None:
    """The decorator takes them, too, and those of its predecessor."""
    function = "function: 'Callable[..., Any] | None' = None, /, "
    assert signature(grn.job) == f"({function}{WISHES}{FOR_JOBS})"


def test_the_arguments_of_clients() -> None:
    """Both clients take the same wishes, in the words of the wire."""
    wishes = (
        "(self, job_type: 'str', *, gpus: 'int | None' = 1, memory_mib: 'int | None' = None,"
        " whole: 'bool' = False, policy: 'str | None' = None, cpus: 'int | None' = None,"
        " ram_mib: 'int | None' = None, compute: 'int | None' = None,"
        " processes: 'int | None' = None, affinity: 'bool' = False,"
        " group: 'str' = '', group_size: 'int | None' = None, priority: 'int' = 0,"
        " label: 'str' = '', wait_s: 'float | None' = None)"
    )
    assert signature(grn.Client.acquire) == signature(grn.AsyncClient.acquire) == wishes


def test_what_a_lease_offers() -> None:
    """Attributes and methods of what a block holds."""
    lease = grn.HeldLease(None, {})
    offered = {name for name in dir(lease) if not name.startswith("_")}
    assert offered == {
        "apply",
        "cores",
        "devices",
        "env",
        "environment",
        "explain",
        "grant",
        "id",
        "memory_mib",
        "report_peak",
        "take_back",
        "warnings",
    }


def test_what_the_hub_offers() -> None:
    """What adapters build on."""
    wait = "wait_s: 'float | None' = None"
    stop = "should_stop: 'Callable[[], bool] | None' = None"
    assert signature(Hub.acquire) == f"(self, wish: 'Message', *, {wait}, {stop})"
    assert signature(Hub.started) == "(self, lease: 'str', pid: 'int')"
    assert signature(Hub.release) == "(self, grant: 'Grant', **ending: 'Unpack[Ending]')"


@pytest.mark.parametrize("package", ["grn", "grn_plugins"])
def test_the_packages_are_typed(package: str) -> None:
    """Type checkers of users read our annotations."""
    assert importlib.resources.files(package).joinpath("py.typed").is_file()


@pytest.mark.parametrize(
    ("name", "unwanted"),
    [
        ("job", {"grn.isolate", "cloudpickle", "multiprocessing", "numpy"}),
        ("lease", {"grn.isolate", "cloudpickle", "multiprocessing", "numpy", "sqlite3"}),
    ],
)
def test_a_name_loads_no_more_than_it_needs(name: str, unwanted: set[str]) -> None:
    """What starts processes is loaded by the first call that needs one."""
    code = f"import grn, sys; grn.{name}; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not set(out.stdout.split()) & unwanted
