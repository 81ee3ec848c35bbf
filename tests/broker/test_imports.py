"""What importing GRN costs, and which names it promises."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import grn

HEAVY = {
    "asyncio",
    "concurrent",
    "contextlib",
    "dataclasses",
    "inspect",
    "json",
    "logging",
    "pathlib",
    "psutil",
    "pynvml",
    "random",
    "rich",
    "shutil",
    "sqlite3",
    "subprocess",
    "tempfile",
    "threading",
    "tomllib",
    "typing",
    "uuid",
}

NAMES = [
    "AsyncClient",
    "AsyncLease",
    "BrokerGone",
    "BrokerUnavailable",
    "Cancelled",
    "Client",
    "GrnError",
    "HeldLease",
    "Impossible",
    "JobFunction",
    "JournalError",
    "Lease",
    "LeaseError",
    "PathError",
    "ProtocolError",
    "Refused",
    "UsageError",
    "WaitExpired",
    "__version__",
    "job",
    "lease",
    "lease_async",
    "report_peak",
]


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a statement loads in a new interpreter, beyond those of its start."""
    code = (
        "import sys; before = set(sys.modules)\n"
        f"{statement}\n"
        "new = sorted(set(sys.modules) - before)\n"
        "import json; print(json.dumps(new))"
    )
    argv = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; " + code]
    done = subprocess.run(argv, capture_output=True, check=True)
    return set(json.loads(done.stdout))


def test_importing_grn_loads_nothing():
    """`import grn` loads itself and no other module."""
    assert loaded_by("import grn") <= {"grn", "__future__"}


@pytest.mark.parametrize(
    "module", ["grn.client", "grn.connection", "grn.settings", "grn.ondemand", "grn.procs"]
)
def test_the_clients_path_is_light(module: str):
    """What a job's start needs loads none of the modules that take milliseconds."""
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_a_blocking_lease_loads_nothing_heavy_either():
    """Also fetching the public client and its errors through the package stays light."""
    loaded = loaded_by("import grn; grn.Client, grn.Lease, grn.GrnError, grn.report_peak")
    assert {name.partition(".")[0] for name in loaded} & HEAVY == set()


def test_the_public_names():
    """The names that `grn` exports are a promise: each exists, and no other is exported."""
    assert grn.__all__ == NAMES
    for name in NAMES:
        assert getattr(grn, name) is not None
    assert set(NAMES) <= set(dir(grn))


def test_an_unknown_name_is_an_attribute_error():
    """A misspelt name is told as of any module."""
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        _ = grn.Cleint
