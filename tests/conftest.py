"""What all tests share: a factory of test environments, and Hypothesis profiles.

Hypothesis takes the same examples in each CI run, and new ones on a developer's machine.
"""

from __future__ import annotations

import gc
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.env import BrokerEnv
from tests.fakenvml.box import Box
from tests.fakenvml.build import build, compiler
from tests.prefect import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# What is collected stays to the end: the garbage collector need not go through it, now or in any test.
gc.disable()

_BUSY: Any = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

# Whoever starts the tests in the background or under nohup has these ignored, and so would every
# process that a test starts and then signals.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number,
            signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL,
        )

settings.register_profile("dev", **_BUSY)
settings.register_profile("ci", derandomize=True, print_blob=True, **_BUSY)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the tests that want nothing but a core among the many that mostly wait."""
    busy = [item for item in items if item.get_closest_marker("busy")]
    if not busy:
        return
    others = [item for item in items if not item.get_closest_marker("busy")]
    step = len(others) // len(busy) + 1
    items.clear()
    for number, item in enumerate(busy):
        items += [*others[number * step : (number + 1) * step], item]
    items += others[len(busy) * step :]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:  # also where no worker collects: in the process that has them
    """Have the garbage collector look after what tests make, and at nothing else."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _with_prefect(item: pytest.Item) -> bool:
    group = item.get_closest_marker("xdist_group")
    return group is not None and group.args == (serving.GROUP,)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have the Prefect server run for the tests that use it."""
    if _with_prefect(item):
        serving.resume()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop it after the last of them in a row, when their fixtures are gone."""
    if _with_prefect(item) and (nextitem is None or not _with_prefect(nextitem)):
        serving.pause()


@pytest.fixture(params=["sim", "nvml"])
def kind(request: pytest.FixtureRequest) -> str:
    """Return each kind of devices in turn; a test writes `f"{kind}:2x10000MiB"`."""
    param: str = request.param
    return param


@pytest.fixture
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that the tester's shell says about GRN or its devices reach the test."""
    for name in list(os.environ):
        if name.startswith(("GRN_", "CUDA_", "LISTEN_")) or name == "XDG_RUNTIME_DIR":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def fakenvml(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a stand-in libnvidia-ml, built once per session."""
    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler here (cc, gcc or clang) to build the stand-in NVIDIA driver")
    return build(cc, str(tmp_path_factory.mktemp("fakenvml")))


@pytest.fixture
def new_box(tmp_path: Path, fakenvml: str) -> Callable[..., Box]:
    """Return a function that makes a machine behind the stand-in NVIDIA driver, see `Box`."""
    made: list[Box] = []

    def make(cards: str = "1x10000MiB", **keys: Any) -> Box:
        folder = str(tmp_path / f"box{len(made)}")
        os.mkdir(folder, 0o700)
        made.append(Box(folder, fakenvml, cards, **keys))
        return made[-1]

    return make


@pytest.fixture
def new_env(
    tmp_path: Path, clean_environ: None, request: pytest.FixtureRequest
) -> Iterator[Callable[..., BrokerEnv]]:
    """Return a function that makes an environment with a running broker, checked at the end.

    `start=False` makes one without a broker, `folder` puts it elsewhere; other keywords are
    settings. With devices `nvml:…` the cards are behind the stand-in NVIDIA driver.
    """
    del clean_environ
    made: list[BrokerEnv] = []

    def make(
        devices: str = "sim:1x10000MiB",
        *,
        start: bool = True,
        folder: str | None = None,
        **more: Any,
    ) -> BrokerEnv:
        if folder is None:
            folder = str(tmp_path / f"e{len(made)}")
            os.mkdir(folder, 0o700)
        if devices.startswith("nvml:"):
            more["library"] = request.getfixturevalue("fakenvml")
        env = BrokerEnv(folder, devices, **more)
        made.append(env)
        if start:
            env.start()
        return env

    yield make
    problems = []
    for env in made:
        try:
            env.close()
        except AssertionError as error:
            problems.append(str(error))
    assert not problems, "\n".join(problems)
