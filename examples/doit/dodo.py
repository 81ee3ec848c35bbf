"""One download, then three trainings in each of the frameworks that are installed.

doit -n 9 -P thread          # what is not up to date
doit -n 9 -P thread epochs=8 # longer
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from doit import get_var

from grn_plugins.doit import grn_task
from timeline import show

if TYPE_CHECKING:
    from collections.abc import Iterator

DOIT_CONFIG = {"default_tasks": ["timeline"], "verbosity": 2}
DATA = "data/digits.npz"
EPOCHS = get_var("epochs", "4")
SEEDS = (0, 1, 2)
FRAMEWORKS = ["numpy", "sklearn", *(name for name in ("torch", "jax") if find_spec(name))]
if len(FRAMEWORKS) == 2:  # noqa: PLR2004 - neither is installed: a second model of scikit-learn
    FRAMEWORKS.append("forest")


def metrics(framework: str, seed: int) -> str:
    """Return where a training writes its metrics."""
    return f"runs/{framework}-{seed}.json"


def task_download() -> dict[str, Any]:
    """Fetch the data."""
    return {"actions": [[sys.executable, "digits.py"]], "targets": [DATA], "uptodate": [True]}


@grn_task(gpus=1)
def task_train() -> Iterator[dict[str, Any]]:
    """Train: the one word that GRN needs is the line above."""
    for framework in FRAMEWORKS:
        for seed in SEEDS:
            out = metrics(framework, seed)
            words = ["--data", DATA, "--epochs", EPOCHS, "--seed", str(seed), "--out", out]
            yield {
                "basename": f"train_{framework}",
                "name": str(seed),
                "actions": [[sys.executable, f"train_{framework}.py", *words]],
                "file_dep": [DATA, f"train_{framework}.py"],
                "targets": [out],
            }


def task_timeline() -> dict[str, Any]:
    """Show when and where each training ran."""
    files = [metrics(framework, seed) for framework in FRAMEWORKS for seed in SEEDS]
    return {"actions": [show], "file_dep": files}
