"""Prefect's own tests of task runners, with ours in the place of theirs.

    python -m tests.conformance.prefect [--source PATH …] [--suite NAME …] [--runner MODULE:CLASS]

PATH is what the tests are read from: a checkout of PrefectHQ/prefect, its git directory, an archive of
it, or a source distribution of prefect-dask or prefect-ray (`pip download --no-deps --no-binary :all:
prefect-dask`). Without one, GitHub's archive of the installed version is fetched.
Nothing of them is kept: each suite is written to a temporary folder with one statement added, which
names our runner, and is run there. Neither Dask nor Ray has to be installed.

Judged are the tests of what a runner does. Those of another runner's private parts are named in
`PRIVATE`, and left out.
"""

from __future__ import annotations

import argparse
import atexit
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, NamedTuple

from tests.env import ROOT, BrokerEnv

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["PRIVATE", "SUITES", "main"]

_OURS = "grn_plugins.prefect:GRNTaskRunner"
_DEVICES = "sim:8x8GiB"
_LIMIT_S = 900
_ARCHIVE = "https://github.com/PrefectHQ/prefect/archive/refs/tags/{}.tar.gz"

PRIVATE = {
    "processes": {
        "message_processor": "how its worker processes hand on logs and events",
        "_forwarding": "the same",
        "forwarded_to_parent_log_worker": "the same",
        "initialize_process_pool_worker": "the same",
        "cached_context": "what it keeps between submits",
        "initializer": "its worker processes have one; with ours it is called for each body",
        "max_workers_through_settings": "its setting for the number of worker processes",
        "max_workers_uses_cpu_count": "the same",
    },
    "dask": {"dataframe": "needs dask.dataframe"},
    "ray": {"can_run_many_tasks": "starts a cluster of Ray"},
}
"""For each suite words in the names of tests that are about private parts, and what these are."""


class Suite(NamedTuple):
    """Some tests: in which file, which class, and the statement that names another runner."""

    name: str
    paths: tuple[str, ...]
    select: str
    statement: str


_RUNNER = """
from {module} import {name} as _Given
class _Runner(_Given):
    def __init__(self, *args, **options):
        # Some tests count on tasks that run at once: so the first one must not be measured alone.
        super().__init__(*args, **({{"memory": "1GiB"}} if "GRN" in "{name}" else {{}}) | options)
"""
_FIXTURE = """
def _ours(self):
    runner = {name}()
    runner.cluster_kwargs = {{}}
    yield runner
{cls}.task_runner = pytest.fixture(_ours)
"""
_PREFECT = ("tests/test_task_runners.py",)

_SUITES = (
    Suite("threads", _PREFECT, "TestThreadPoolTaskRunner", "ThreadPoolTaskRunner = {name}"),
    Suite("processes", _PREFECT, "TestProcessPoolTaskRunner", "ProcessPoolTaskRunner = {name}"),
    Suite(
        "dask",
        (
            "src/integrations/prefect-dask/tests/test_task_runners.py",
            "prefect_dask-*/tests/test_task_runners.py",
        ),
        "TestDaskTaskRunner",
        _FIXTURE.replace("{cls}", "TestDaskTaskRunner")
        + "from prefect.futures import PrefectFuture as PrefectDaskFuture",
    ),
    Suite(
        "ray",
        (
            "src/integrations/prefect-ray/tests/test_task_runners.py",
            "prefect_ray-*/tests/test_task_runners.py",
        ),
        "TestRayTaskRunner",
        _FIXTURE.replace("{cls}", "TestRayTaskRunner")
        + "RayTaskRunner = {name}\ndel hosted_api_server, use_hosted_api_server",
    ),
)
SUITES = {suite.name: suite for suite in _SUITES}


# -- where the tests come from --------------------------------------------------------------------


def _fetched() -> str:
    """Fetch the archive of the installed version; return its path."""
    version = importlib.metadata.version("prefect")
    folder = tempfile.mkdtemp(prefix="grn-prefect-")
    atexit.register(shutil.rmtree, folder)
    path = os.path.join(folder, "prefect.tar.gz")
    urllib.request.urlretrieve(_ARCHIVE.format(version), path)  # noqa: S310 - a constant
    return path


def _found(sources: Sequence[str], suite: Suite) -> str | None:
    """Return the text of a suite's file, from the first source that has it."""
    for source in sources:
        for path in suite.paths:
            text = _read(source, path)
            if text is not None and f"class {suite.select}" in text:
                return text
    return None


def _read(source: str, path: str) -> str | None:
    if tarfile.is_tarfile(source) if os.path.isfile(source) else False:
        return _from_archive(source, path)
    plain = os.path.join(source, path)
    if os.path.isfile(plain):
        with open(plain, encoding="utf-8") as file:
            return file.read()
    show = ["git", "-C", source, "show", f"HEAD:{path}"]
    shown = subprocess.run(show, capture_output=True, text=True, check=False)
    return shown.stdout if shown.returncode == 0 else None


def _from_archive(source: str, path: str) -> str | None:
    # Archives of a checkout have one folder around everything.
    pattern = re.compile(rf"(?:[^/]+/)?{re.escape(path)}".replace(r"\*", "[^/]*"))
    with tarfile.open(source) as archive:
        for member in archive:
            if pattern.fullmatch(member.name):
                file = archive.extractfile(member)
                return file.read().decode() if file is not None else None
    return None


_ENGINES = (
    (
        "dask",
        "dask.dataframe",
        "distributed",
        "pandas",
        "prefect_dask",
        "prefect_dask.task_runners",
    ),
    ("ray", "ray.cluster_utils", "prefect_ray", "prefect_ray.context"),
)
_STAND_IN = "def __getattr__(name): return type(name, (), {})\n"


def _write_stand_ins(folder: str) -> None:
    """Write packages that have whatever they are asked for, in place of an engine that is missing."""
    for names in _ENGINES:
        if all(importlib.util.find_spec(name) for name in names if "." not in name):
            continue
        for name in names:
            package = os.path.join(folder, *name.split("."))
            os.makedirs(package, exist_ok=True)
            with open(os.path.join(package, "__init__.py"), "w", encoding="ascii") as file:
                file.write(_STAND_IN)


# -- one run --------------------------------------------------------------------------------------


class Verdict(NamedTuple):
    """What became of one test: `passed`, `failed` or `skipped`, and the first line of why."""

    name: str
    word: str
    why: str


def _run(suite: Suite, text: str, runner: str, env: BrokerEnv) -> list[Verdict]:
    """Run one suite in a folder of its own."""
    module, _, name = runner.partition(":")
    folder = tempfile.mkdtemp(prefix="suite", dir=env.folder)
    statement = suite.statement.format(name="_Runner")
    with open(os.path.join(folder, "test_suite.py"), "w", encoding="utf-8") as file:
        file.write(f"{text}\n{_RUNNER.format(module=module, name=name)}\n{statement}\n")
    _write_stand_ins(folder)
    report = os.path.join(folder, "report.xml")
    words = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "tests.conformance.prefect_plugin"),
        *("-p", "no:cacheprovider", "--tb=native", "-o", "asyncio_mode=auto", "--timeout=300"),
        *("-o", "asyncio_default_fixture_loop_scope=session", f"--junitxml={report}"),
        *("--rootdir", folder, f"test_suite.py::{suite.select}"),
    ]
    environ = _environ(env, suite, folder)
    subprocess.run(words, cwd=folder, env=environ, timeout=_LIMIT_S, check=False)
    return list(_verdicts(report))


def _environ(env: BrokerEnv, suite: Suite, folder: str) -> dict[str, str]:
    return {
        **env.environ,
        "GRN_CONFORMANCE_PRIVATE": ",".join(PRIVATE.get(suite.name, ())),
        "PYTHONPATH": os.pathsep.join([ROOT, folder]),
        "PREFECT_HOME": os.path.join(folder, "prefect"),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_TESTING_TEST_MODE": "1",
        "PREFECT_TESTING_UNIT_TEST_MODE": "1",
        "DO_NOT_TRACK": "1",
    }


def _verdicts(report: str) -> Iterator[Verdict]:
    if not os.path.exists(report):
        yield Verdict("the suite itself", "failed", "it could not be run")
        return
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by our own pytest
        bad = case.find("failure") if case.find("error") is None else case.find("error")
        skipped = case.find("skipped")
        word = "failed" if bad is not None else "skipped" if skipped is not None else "passed"
        told = bad if bad is not None else skipped
        why = (told.get("message") or "") if told is not None else ""
        yield Verdict(case.get("name") or "", word, why.partition("\n")[0])


# -- all of it ------------------------------------------------------------------------------------


def main(words: Sequence[str] | None = None) -> int:
    """Run the suites and print what came of them; 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.prefect")
    parser.add_argument("--source", action="append")
    parser.add_argument("--suite", action="append", choices=sorted(SUITES))
    parser.add_argument("--runner", default=_OURS)
    given = parser.parse_args(words)
    failed = 0
    sources = [os.path.abspath(source) for source in given.source or [_fetched()]]
    for name in given.suite or SUITES:
        text = _found(sources, SUITES[name])
        if text is None:
            print(f"{name}: not in {', '.join(sources)}")  # noqa: T201
            failed += 1
            continue
        with tempfile.TemporaryDirectory(prefix="grn-conformance-") as folder:
            verdicts = _with_broker(folder, SUITES[name], text, given.runner)
        failed += _tell(name, verdicts)
    return 1 if failed else 0


def _with_broker(folder: str, suite: Suite, text: str, runner: str) -> list[Verdict]:
    env = BrokerEnv(folder, _DEVICES)
    env.start()
    try:
        verdicts = _run(suite, text, runner, env)
        held = env.status()["leases"]
    finally:
        env.close()
    if held:
        verdicts.append(Verdict("no lease is left", "failed", f"{len(held)} are"))
    return verdicts


def _tell(name: str, verdicts: Sequence[Verdict]) -> int:
    passed = sum(verdict.word == "passed" for verdict in verdicts)
    bad = [verdict for verdict in verdicts if verdict.word == "failed"]
    print(f"{name}: {passed} of {len(verdicts)} passed")  # noqa: T201
    for verdict in verdicts:
        if verdict.word != "passed":
            print(f"    {verdict.word}: {verdict.name}: {verdict.why}")  # noqa: T201
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())
