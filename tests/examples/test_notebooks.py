"""The notebook example, run as its README says, with a queue and a broker of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from tests.installed import installed_or_skip

installed_or_skip("sklearn", "examples")
installed_or_skip("nbclient", "notebook")
installed_or_skip("ipykernel", "notebook")

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "..", "..", "examples", "notebooks")


def test_four_trainings_and_a_comparison() -> None:
    """All end well; the first is measured, the others are booked at its peak; the last has its table."""
    left_out = ("GRN_", "CUDA_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    env["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), env["PATH"]])
    done = subprocess.run(
        ["sh", os.path.join(FOLDER, "run.sh")],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "queue: 5 ok" in done.stdout
    rows = re.findall(r"^ \d  ok +([01-]) +(\d+ MiB|-) ", done.stdout, re.MULTILINE)
    assert min(device for device, _ in rows) == "-"
    assert sum(size != "-" for _, size in rows) == 4
    profile = re.search(r"\d+ MiB +\d+ MiB +4  settled", done.stdout)
    assert profile is not None, done.stdout
    assert len(re.findall(r"[1357] neighbours  0\.9\d\d  #+", done.stdout)) == 4


def test_the_readme_names_its_files() -> None:
    """Every file of the example is in its README."""
    with open(os.path.join(FOLDER, "README.md"), encoding="utf-8") as file:
        readme = file.read()
    files = [name for name in os.listdir(FOLDER) if name.endswith((".ipynb", ".sh"))]
    assert files
    assert all(f"`{name}`" in readme for name in files)
