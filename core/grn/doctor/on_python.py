"""The interpreter and the packages that GRN needs, and those that get in its way. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor.finding import Finding, note, ok, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.doctor.facts import Facts

__all__ = ["findings"]

_ABOUT = "python"


def findings(facts: Facts) -> Iterator[Finding]:
    """Say what is true of Python and the packages."""
    python = facts.python
    yield ok(_ABOUT, f"{python.python}, GRN {facts.release} in {python.package}")
    have = [f"{name} {version}" for name, version in python.versions.items() if version]
    if have:
        yield ok(_ABOUT, ", ".join(have))
    missing = [name for name, version in python.versions.items() if version is None]
    if missing:
        yield note(
            _ABOUT,
            f"not installed, by their metadata: {', '.join(missing)}",
            "pip install --force-reinstall grn-plugins, if something does not work",
        )
    if python.clash is not None:
        yield told("problem", _ABOUT, python.clash)
    yield from _binding(facts)


def _binding(facts: Facts) -> Iterator[Finding]:
    """Tell a binding that was overwritten from packages that only could do so."""
    if facts.python.binding_problem:
        yield told("problem", _ABOUT, facts.python.binding_problem)
    for package, folder in facts.python.other_bindings:
        yield note(
            _ABOUT,
            f"{package} is installed in {folder}: it can bring another pynvml than nvidia-ml-py",
            f"pip uninstall {package}, then pip install --force-reinstall nvidia-ml-py",
        )
