"""What a job says of its own peak, where no broker hears it: outside a lease, badly, or into nothing."""

from __future__ import annotations

import sys
import types
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import grn
from grn import reporting

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20


@pytest.fixture
def told(clean_environ: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Figures that would have gone to the broker of this process's lease."""
    del clean_environ
    figures: list[int] = []
    monkeypatch.setenv("GRN_LEASE", "t-1")
    monkeypatch.setattr(reporting, "_tell", lambda _, mib: figures.append(mib))
    return figures


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the process look as if it had loaded a module with these contents."""
    for name in ("torch", "cupy", "jax", "jax._src.xla_bridge"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def load(name: str, **contents: object) -> None:
        module = types.ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    return load


def torch_with(*peaks: int, started: bool = True) -> types.SimpleNamespace:
    """Return a `torch.cuda` that has reserved so much, device by device."""
    return types.SimpleNamespace(
        is_initialized=lambda: started,
        device_count=lambda: len(peaks),
        max_memory_reserved=lambda device: peaks[device],
    )


# -- outside a lease --------------------------------------------------------------------------------


@pytest.mark.usefixtures("clean_environ")
def test_outside_a_lease_nothing_happens() -> None:
    """A job that GRN does not run needs no broker, hears no warning, and goes on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert grn.report_peak(3000) is False
        assert grn.report_peak(bytes=3000) is False
        assert grn.report_peak() is False


# -- figures ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "mib"),
    [
        ({"mib": 3000}, 3000),
        ({"mib": 3000.2}, 3001),
        ({"bytes": 3000 * MIB}, 3000),
        ({"bytes": 3000 * MIB + 1}, 3001),
        ({"bytes": 1}, 1),
    ],
)
def test_a_figure_is_told_in_whole_mib(told: list[int], given: dict[str, float], mib: int) -> None:
    """A part of a MiB counts as one: a peak is never made smaller."""
    assert grn.report_peak(**given)
    assert told == [mib]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"mib": -1},
        {"bytes": -0.5},
        {"mib": float("nan")},
        {"mib": float("inf")},
        {"bytes": 10**400},
        {"mib": "3000"},
        {"mib": "much"},
        {"bytes": [1]},
        {"mib": True},
        {"mib": 1, "bytes": 1},
    ],
    ids=str,
)
def test_a_figure_that_cannot_be_is_the_callers_mistake(
    told: list[int], monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], *, inside: bool
) -> None:
    """It is told where it is made, in a lease and out of one alike."""
    if not inside:
        monkeypatch.delenv("GRN_LEASE")
    with pytest.raises(grn.UsageError, match="report_peak"):
        grn.report_peak(**given)
    assert told == []


# -- frameworks -------------------------------------------------------------------------------------


def test_without_figure_or_framework_nothing_is_told(
    told: list[int], loaded: Callable[..., None]
) -> None:
    """Nothing is loaded to find a figure."""
    del loaded
    assert grn.report_peak() is False
    assert told == []
    assert "torch" not in sys.modules


def test_torch_tells_its_fullest_device(told: list[int], loaded: Callable[..., None]) -> None:
    """A booking is the same on each device, so it follows the one that needs most."""
    loaded("torch", cuda=torch_with(100 * MIB, 300 * MIB + 1, 0))
    assert grn.report_peak()
    assert told == [301]


def test_a_framework_that_uses_no_device_is_not_made_to(
    told: list[int], loaded: Callable[..., None]
) -> None:
    """One that was only loaded is left as it is: asking it more would start the device."""
    loaded("torch", cuda=torch_with(100 * MIB, started=False))
    loaded("jax")
    loaded("jax._src.xla_bridge", backends_are_initialized=lambda: False)
    assert grn.report_peak() is False
    assert told == []


def test_jax_tells_its_pool(told: list[int], loaded: Callable[..., None]) -> None:
    """What its allocator took counts rather than what lived in it; a CPU has no figures."""
    figures = [
        {"peak_bytes_in_use": 200 * MIB, "peak_pool_bytes": 256 * MIB},
        {"peak_bytes_in_use": 100 * MIB},
        None,
    ]
    devices = [
        types.SimpleNamespace(local_hardware_id=i, memory_stats=lambda found=found: found)
        for i, found in enumerate(figures)
    ]
    loaded("jax", local_devices=lambda: devices)
    loaded("jax._src.xla_bridge", backends_are_initialized=lambda: True)
    assert grn.report_peak()
    assert told == [256]


def test_frameworks_of_one_process_add_up_by_device(
    told: list[int], loaded: Callable[..., None]
) -> None:
    """Two pools on one device are both held; pools on two devices are not added."""
    pool = types.SimpleNamespace(total_bytes=lambda: 50 * MIB)
    runtime = types.SimpleNamespace(getDevice=lambda: 1)
    loaded("torch", cuda=torch_with(120 * MIB, 100 * MIB))
    loaded(
        "cupy",
        get_default_memory_pool=lambda: pool,
        cuda=types.SimpleNamespace(runtime=runtime),
    )
    assert grn.report_peak()
    assert told == [150]


def test_a_framework_of_an_unknown_version_is_a_warning(
    told: list[int], loaded: Callable[..., None]
) -> None:
    """It does not end the job, nor hide what another one says."""
    loaded("torch", cuda=types.SimpleNamespace())
    loaded(
        "cupy",
        get_default_memory_pool=lambda: types.SimpleNamespace(total_bytes=lambda: MIB),
        cuda=types.SimpleNamespace(runtime=types.SimpleNamespace(getDevice=lambda: 0)),
    )
    with pytest.warns(RuntimeWarning, match="the peak of torch cannot be read") as heard:
        assert grn.report_peak()
    assert heard[0].filename == __file__
    assert told == [1]


# -- no broker --------------------------------------------------------------------------------------


def test_a_broker_that_is_away_is_a_warning(
    clean_environ: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Hours of work are not lost at their end because nobody hears how much memory they took."""
    del clean_environ
    monkeypatch.setenv("GRN_LEASE", "t-1")
    monkeypatch.setenv("GRN_SOCKET", str(tmp_path / "none"))
    with pytest.warns(RuntimeWarning, match="3000 MiB was not reported .* no broker") as heard:
        assert grn.report_peak(3000) is False
    assert heard[0].filename == __file__


def test_settings_that_cannot_be_read_are_a_warning(
    clean_environ: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that GRN does not understand does not end a job that works."""
    del clean_environ
    monkeypatch.setenv("GRN_LEASE", "t-1")
    monkeypatch.setenv("GRN_POLICY", "nonsense")
    with pytest.warns(RuntimeWarning, match="nonsense"):
        assert grn.report_peak(3000) is False
