"""The project's checks: `nox` runs lint, types and tests; `nox -s bench` measures.

Nox lives in an environment of its own (`pipx install nox`), never in that of the project.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]


@nox.session
def lint(session: nox.Session) -> None:
    """Rules and formatting; the sources are not imported, so the project is not installed."""
    session.install(*EXTRAS["lint"])
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Both type checkers, strict, on the library and the adapters."""
    session.install("-e", ".[types]")
    session.run("mypy")
    session.run("pyright")


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite; arguments after `--` go to pytest, for example `nox -s tests -- -k ledger`."""
    session.install("-e", ".[test]")
    session.run("pytest", "-q", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure latency, throughput and start-up; the figures go to bench.json."""
    session.install(".")
    session.run("python", "-m", "tests.bench", "--json", "bench.json", *session.posargs)
