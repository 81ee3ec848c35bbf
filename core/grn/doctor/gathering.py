"""Gathers the facts of a diagnosis: asks everything once, and stops at nothing that fails.

Promises: bounded, starts no broker, changes nothing that is not its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

import grn
from grn import paths
from grn.config import tables
from grn.devices import canonical_spec
from grn.doctor import brokerlook, devicelook, driverlook, machinelook, pythonlook
from grn.doctor.facts import (
    BrokerFacts,
    DriverFacts,
    Facts,
    Holder,
    MachineFacts,
    MpsFacts,
    PlaceFacts,
    PythonFacts,
    Seen,
    StateFacts,
)
from grn.doctor.holders import holders_of, simulated
from grn.errors import GrnError
from grn.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["gather", "settings_of"]

_SHOWN = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GRN_LEASE")
_T = TypeVar("_T")


def gather(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Facts:
    """Look at everything."""
    settings, settings_problem = settings_of(flags, environ)
    failed: list[tuple[str, str]] = []

    def tried(about: str, look: Callable[[], _T], otherwise: _T) -> _T:
        """One look that fails costs what it would have shown, and is a finding itself."""
        try:
            return look()
        except (OSError, ImportError, ValueError, LookupError, TypeError, GrnError) as error:
            failed.append((about, f"{type(error).__name__}: {error}"))
            return otherwise

    source = _source(flags, environ, settings)
    place = tried(
        "socket", lambda: brokerlook.place_of(environ, settings.socket, source), PlaceFacts()
    )
    broker = BrokerFacts()
    if place.path:
        broker = tried("broker", lambda: brokerlook.ask_broker(place.path), broker)
    status = broker.status or {}
    managed = [device["uuid"] for device in status.get("devices", ())]
    driver = tried("driver", lambda: driverlook.look(managed=managed), DriverFacts.none())
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    return Facts(
        environ={name: environ[name] for name in _SHOWN if name in environ},
        settings_problem=settings_problem,
        configuration_problem=_problem_of_files(environ),
        wanted_devices=_canonical(settings.devices),
        cpu_reserve=settings.cpu_reserve,
        ram_reserve_mib=settings.ram_reserve_mib,
        release=grn.__version__,
        driver=driver,
        seen=tried("device", lambda: devicelook.see(settings.devices, mask, driver), Seen("none")),
        holders=tried("device", lambda: _holders(driver, status, place.path), ()),
        place=place,
        broker=broker,
        state=tried("state", lambda: machinelook.state_of(settings.state_dir), StateFacts()),
        python=tried("python", pythonlook.look, PythonFacts()),
        machine=tried("machine", machinelook.look, MachineFacts()),
        mps=tried("mps", lambda: machinelook.mps_of(environ), MpsFacts()),
        failed=failed,
    )


def _holders(driver: DriverFacts, status: Mapping[str, Any], socket: str) -> tuple[Holder, ...]:
    readings = list(driver.readings.values())
    spec = status.get("broker", {}).get("devices", "")
    if spec.startswith("sim:"):
        readings += simulated(spec, os.path.dirname(socket))
    return holders_of(readings, status.get("leases", ()))


def settings_of(
    flags: Mapping[str, str | None], environ: Mapping[str, str]
) -> tuple[Settings, str]:
    """Load the settings; where they are wrong, go on with what finds a broker, and say why."""
    try:
        return load(flags, environ), ""
    except (GrnError, OSError) as error:
        bare = Settings(
            socket=flags.get("socket") or environ.get("GRN_SOCKET"),
            devices=flags.get("devices"),
            state_dir=paths.state_dir(environ),
        )
        return bare, str(error)


def _problem_of_files(environ: Mapping[str, str]) -> str:
    """Say what is wrong with flavors and rules, as `grn config` does in this folder."""
    try:
        tables.load(None, environ)
    except (GrnError, OSError) as error:
        return str(error)
    return ""


def _canonical(spec: str | None) -> str | None:
    """Write devices as a broker names them, so that both can be compared."""
    try:
        return None if spec is None else canonical_spec(spec)
    except GrnError:
        return spec  # `devicelook.see` says what is wrong with it


def _source(flags: Mapping[str, str | None], environ: Mapping[str, str], settings: Settings) -> str:
    """Say who chose the socket's path; '' if GRN did."""
    if flags.get("socket"):
        return "--socket"
    if environ.get("GRN_SOCKET"):
        return "GRN_SOCKET"
    return "the configuration file" if settings.socket else ""
