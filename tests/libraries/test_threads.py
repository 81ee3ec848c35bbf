"""Libraries start as many threads as the share says, and as the user says where he does.

Each is asked itself, in a process of its own: a row of the table is a claim about somebody else's
program, and the next version of that may read another variable.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.libraries.conftest import Look

POOL = """
from threadpoolctl import threadpool_info
found = sorted({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == %r})
"""
BLAS = "import numpy; numpy.ones((2, 2)) @ numpy.ones((2, 2))" + POOL % "blas"
OPENMP = "import sklearn.ensemble" + POOL % "openmp"
NUMEXPR = "import numexpr; numexpr.evaluate('1 + 1'); found = numexpr.nthreads"
NUMBA = "import numba; found = [numba.get_num_threads(), numba.config.NUMBA_NUM_THREADS]"
JOBLIB = "import joblib; found = [joblib.cpu_count(), joblib.effective_n_jobs(-1)]"
LOKY = """
import joblib, os
pids = joblib.Parallel(n_jobs=-1)(joblib.delayed(os.getpid)() for _ in range(32))
found = len(set(pids))
"""
POLARS = "import polars; found = polars.thread_pool_size()"
TORCH = "import torch; found = torch.get_num_threads()"
needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@needs_two
@pytest.mark.parametrize(
    ("threads", "user", "expected"),
    [
        (1, {}, 1),
        (2, {}, 2),
        (2, {"OPENBLAS_NUM_THREADS": "1"}, 1),
        (2, {"OMP_NUM_THREADS": "1"}, 1),
    ],
)
def test_numpy(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """OpenBLAS, which NumPy brings along."""
    assert look(BLAS, "numpy", "threadpoolctl", threads=threads, user=user) == [expected]


@needs_two
def test_numpy_prefers_its_own_variable(look: Look) -> None:
    """A user's OMP_NUM_THREADS does not outrank the share that OpenBLAS is told."""
    user = {"OMP_NUM_THREADS": "2"}
    assert look(BLAS, "numpy", "threadpoolctl", threads=1, user=user) == [1]


@needs_two
@pytest.mark.parametrize(
    ("threads", "user", "expected"),
    [(1, {}, 1), (2, {}, 2), (2, {"OMP_NUM_THREADS": "1"}, 1), (1, {"OMP_NUM_THREADS": "2"}, 2)],
)
def test_openmp(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """The OpenMP runtime of scikit-learn."""
    assert look(OPENMP, "sklearn", "threadpoolctl", threads=threads, user=user) == [expected]


@pytest.mark.parametrize(
    ("threads", "user", "expected"),
    [
        (3, {}, 3),
        (2, {"NUMEXPR_NUM_THREADS": "6"}, 6),
        (4, {"NUMEXPR_MAX_THREADS": "2"}, 2),
        (100, {}, 100),
        (2, {"OMP_NUM_THREADS": "4,2"}, 2),
    ],
)
def test_numexpr(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """It imports without a word in each case, also with what makes its import fail elsewhere."""
    assert look(NUMEXPR, "numexpr", threads=threads, user=user, quiet=True) == expected


@pytest.mark.parametrize(
    ("threads", "user", "expected"), [(1, {}, 1), (3, {}, 3), (3, {"NUMBA_NUM_THREADS": "2"}, 2)]
)
def test_numba(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """Both what it uses and what it could use."""
    assert look(NUMBA, "numba", threads=threads, user=user) == [expected, expected]


@needs_two
@pytest.mark.parametrize(
    ("threads", "user", "expected"), [(1, {}, 1), (2, {}, 2), (2, {"LOKY_MAX_CPU_COUNT": "1"}, 1)]
)
def test_joblib(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """`n_jobs=-1` means the share, and not the machine."""
    assert look(JOBLIB, "joblib", threads=threads, user=user) == [expected, expected]


def test_joblibs_processes(look: Look) -> None:
    """There really are no more worker processes than that."""
    assert look(LOKY, "joblib", threads=1) == 1


@pytest.mark.parametrize(
    ("threads", "user", "expected"), [(1, {}, 1), (3, {}, 3), (3, {"POLARS_MAX_THREADS": "2"}, 2)]
)
def test_polars(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """Its thread pool is sized at the import."""
    assert look(POLARS, "polars", threads=threads, user=user) == expected


@needs_two
@pytest.mark.parametrize(
    ("threads", "user", "expected"), [(1, {}, 1), (2, {}, 2), (2, {"OMP_NUM_THREADS": "1"}, 1)]
)
def test_pytorch(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """Operations on the CPU."""
    assert look(TORCH, "torch", threads=threads, user=user) == expected


@pytest.mark.skipif(sys.version_info < (3, 13), reason="read by Python 3.13 and newer")
@pytest.mark.parametrize(
    ("threads", "user", "expected"), [(1, {}, 1), (3, {}, 3), (3, {"PYTHON_CPU_COUNT": "2"}, 2)]
)
def test_python(look: Look, threads: int, user: dict[str, str], expected: int) -> None:
    """`os.cpu_count()`, and with it every pool that is sized by it."""
    assert look("import os; found = os.cpu_count()", threads=threads, user=user) == expected
