"""The project's checks: `nox` runs lint, types and tests; `nox -s bench` measures.

Nox lives in an environment of its own (`pipx install nox`), never in that of the project: it upgrades
`packaging` past what Snakemake allows. `nox -l` lists all sessions; those that take long, or read
other projects' tests, run only when they are named.
"""

from __future__ import annotations

import nox

nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]
NEWEST = "newest"
DOIT = ["0.35.0", "0.36.0", NEWEST]
SNAKEMAKE = ["8.30.0", "9.0.1", "9.13.4", NEWEST]
PREFECT = ["3.4.25", "3.6.29"]


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
    session.install(".[all]")
    session.run("python", "-m", "tests.bench", "--json", "bench.json", *session.posargs)


@nox.session
def replay(session: nox.Session) -> None:
    """Replay a trace under our rules and others': `nox -s replay -- TRACE`; without one, a made trace."""
    session.install(".")
    session.run("python", "-m", "grn.replay", *(session.posargs or ["--synthetic"]))


# -- how sure we are ------------------------------------------------------------------------------


@nox.session
def simulation(session: nox.Session) -> None:
    """A million simulated days, as before a release: `-- --seeds 1000000`; `-- --seed 7` shows one."""
    session.install("-e", ".[test-core]")
    session.run("python", "-m", "tests.reliability", *(session.posargs or ["--seeds", "1000000"]))


@nox.session
def mutation(session: nox.Session) -> None:
    """How many small changes of the books, the journal and the session the fast tests notice."""
    session.install("-e", ".[test-core]")
    session.run("python", "-m", "tests.reliability.mutate", *session.posargs)


@nox.session
def atheris(session: nox.Session) -> None:
    """Frames guided by coverage, for an hour unless told otherwise (`-- -max_total_time=60`)."""
    session.install("-e", ".[test-core]", "atheris>=2.3")
    session.run(
        "python", "-m", "tests.reliability.guided", *(session.posargs or ["-max_total_time=3600"])
    )


# -- releases of the engines ----------------------------------------------------------------------


def _release(name: str, version: str) -> str:
    return name if version == NEWEST else f"{name}=={version}"


@nox.session
@nox.parametrize("version", DOIT)
def doit(session: nox.Session, version: str) -> None:
    """The doit adapter with one release of doit."""
    session.install("-e", ".[test-core,doit]", "tomlkit", _release("doit", version))
    session.run("pytest", "-q", "tests/doit", *session.posargs)


@nox.session
@nox.parametrize("version", SNAKEMAKE)
def snakemake(session: nox.Session, version: str) -> None:
    """The Snakemake plugins with one release of Snakemake."""
    notebooks = ("nbconvert", "papermill")  # newer releases take the latter
    session.install(
        *("-e", ".[test-core,notebook,snakemake]", *notebooks), _release("snakemake", version)
    )
    session.run("pytest", "-q", "tests/snakemake", *session.posargs)


@nox.session
@nox.parametrize("version", PREFECT)
def prefect(session: nox.Session, version: str) -> None:
    """The Prefect runner in an older client, with a server of the newest release."""
    server = session.create_tmp()
    session.run("python", "-m", "venv", f"{server}/venv", external=True)
    session.run(f"{server}/venv/bin/pip", "install", "-q", "prefect", external=True)
    undeclared = ("importlib_metadata",)  # what 3.4 imports, and had from others in its time
    session.install(
        "-e", ".[test-core,prefect]", "numpy", *undeclared, _release("prefect", version)
    )
    session.env["GRN_TEST_PREFECT"] = f"{server}/venv/bin/prefect"
    session.run("pytest", "-q", "tests/prefect", *session.posargs)


@nox.session
def frameworks(session: nox.Session) -> None:
    """Leases inside Dask, Optuna, Ray and Jupyter: some hundred MB, so no part of `tests`."""
    session.install("-e", ".[test,frameworks]", "ray>=2.60")
    names = ("dask", "notebook", "optuna", "ray", "slurm")
    session.run("pytest", "-q", *(f"tests/python/test_{n}.py" for n in names), *session.posargs)


# -- other projects' own tests --------------------------------------------------------------------


@nox.session
def conformance_snakemake(session: nox.Session) -> None:
    """Snakemake's own suite under our executor: `nox -s conformance_snakemake -- --source PATH`."""
    session.install("-e", ".[test]")
    session.run("python", "-m", "tests.conformance.snakemake", *session.posargs)


@nox.session
def conformance_prefect(session: nox.Session) -> None:
    """Prefect's own runner tests with our runner; `-- --source PATH` reads them from a checkout."""
    session.install(
        "-e", ".[prefect]", "pytest>=8,<9.2", "pytest-asyncio>=1", "pytest-timeout>=2.3"
    )
    session.run("python", "-m", "tests.conformance.prefect", *session.posargs)
