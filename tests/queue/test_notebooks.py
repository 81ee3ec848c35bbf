"""Notebooks: executed for real, kept whatever happens, and nothing of a kernel is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.env import ROOT, eventually, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.queue.conftest import QueueEnv

    Make = Callable[..., QueueEnv]

pytest.importorskip("nbclient", reason="notebooks need nbclient")
pytest.importorskip("ipykernel", reason="notebooks need a kernel")
nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")

HELD = "import os, time; open('{0}.on', 'w').close()\nwhile not os.path.exists('{0}.off'): time.sleep(0.02)"


def notebook(q: QueueEnv, name: str, *cells: str, tags: tuple[str, ...] = ()) -> str:
    """Write a notebook of these cells; `tags` are those of the first."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.cells[0].metadata["tags"] = list(tags)
    path = os.path.join(q.folder, name)
    nbformat.write(made, path)
    return path


def kernel(q: QueueEnv, name: str, words: list[str], **env: str) -> str:
    """Make a kernelspec below `jupyter/`; return its folder."""
    folder = os.path.join(q.folder, "jupyter", "kernels", name)
    os.makedirs(folder)
    spec = {"argv": words, "display_name": name, "language": "python", "env": env}
    with open(os.path.join(folder, "kernel.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)
    return folder


def executed(q: QueueEnv, name: str) -> Any:
    """Read the executed notebook that belongs to one."""
    path = os.path.join(q.folder, name.replace(".ipynb", ".out.ipynb"))
    return nbformat.read(path, as_version=4)


def text_of(cell: Any) -> str:
    """Return what a cell printed."""
    return "".join(output.get("text", "") for output in cell.outputs)


def test_each_way_of_ending_and_the_queue_goes_on(queue: Make) -> None:
    """A name with blanks, a killed kernel, a raising cell, a slow one, an exit: each as what it is."""
    q = queue("sim:2x10000MiB")
    notebook(q, "my notebook 1.ipynb", "print('one')", "import os; print(os.environ['GRN_LEASE'])")
    notebook(q, "kill.ipynb", "1", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "2")
    notebook(q, "raise.ipynb", "print('before')", "1 / 0", "print('after')")
    notebook(q, "exit.ipynb", "import os; os._exit(0)")
    notebook(q, "ok.ipynb", "print('two')")
    notebook(q, "slow.ipynb", "import time; time.sleep(1000)")
    q.add("my notebook 1.ipynb", "kill.ipynb", "raise.ipynb", "exit.ipynb", "ok.ipynb")
    q.add("--cell-timeout", "1s", "slow.ipynb")
    q.drain()
    eventually(lambda: q.owner is None, 240, "all is done")
    jobs = {job["name"]: job for job in q.ls()["jobs"]}
    assert {name: (job["state"], job["exit_code"]) for name, job in jobs.items()} == {
        "my notebook 1.ipynb": ("ok", 0),
        "kill.ipynb": ("failed", 3),
        "raise.ipynb": ("failed", 1),
        "exit.ipynb": ("failed", 3),
        "ok.ipynb": ("ok", 0),
        "slow.ipynb": ("failed", 124),
    }
    assert "killed by SIGKILL" in jobs["kill.ipynb"]["last_words"]
    assert "cell 2" in jobs["raise.ipynb"]["last_words"]
    assert "ZeroDivisionError" in jobs["raise.ipynb"]["last_words"]
    assert "ended with status 0" in jobs["exit.ipynb"]["last_words"]
    assert "longer than 1s" in jobs["slow.ipynb"]["last_words"]
    one = executed(q, "my notebook 1.ipynb")
    assert text_of(one.cells[0]) == "one\n"
    assert text_of(one.cells[1]).strip() == one.metadata["grn"]["lease"]
    failed = executed(q, "raise.ipynb")
    assert text_of(failed.cells[0]) == "before\n"
    assert failed.cells[1].outputs[0]["ename"] == "ZeroDivisionError"
    assert failed.cells[2].outputs == []
    assert failed.metadata["grn"]["exit_code"] == 1
    assert "[1/3] cell 1" in q.log(jobs["raise.ipynb"]["id"])


def test_parameters_and_the_variables_of_the_lease(queue: Make) -> None:
    """-p overrides the defaults; the lease's mask wins over the kernelspec's."""
    q = queue("sim:2x10000MiB")
    words = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel(q, "odd", words, CUDA_VISIBLE_DEVICES="7", OWN="kept")
    show = "import os; print(lr, name, os.environ['CUDA_VISIBLE_DEVICES'], os.environ['OWN'])"
    notebook(q, "a.ipynb", "lr, name = 0.1, 'none'", show, tags=("parameters",))
    with_spec = {"JUPYTER_PATH": os.path.join(q.folder, "jupyter")}
    (job,) = q.add("-p", "lr", "3", "-p", "name", "x y", "--kernel", "odd", "a.ipynb", **with_spec)
    q.drain()
    assert q.ended(job)["state"] == "ok", q.log(job)
    made = executed(q, "a.ipynb")
    assert text_of(made.cells[2]) == "3 x y 0 kept\n"
    assert "injected-parameters" in made.cells[1].metadata["tags"]


def test_a_cancelled_notebook_leaves_no_kernel(queue: Make) -> None:
    """Kernel and its children are gone, what was done is kept, the device is free."""
    q = queue("sim:1x10000MiB")
    child = (
        "import subprocess; print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid)"
    )
    notebook(q, "a.ipynb", "import os; print(os.getpid())", child, HELD.format("a"))
    (job,) = q.add("a.ipynb")
    q.start()
    q.wait_on("a")
    made = executed(q, "a.ipynb")
    pids = [int(text_of(cell)) for cell in made.cells[:2]]
    q.run("cancel", str(job))
    assert q.job(job)["state"] == "cancelled"
    for pid in pids:
        wait_gone(pid)
    assert q.env.status()["leases"] == []
    assert executed(q, "a.ipynb").metadata["grn"]["state"] == "failed"


def test_run_by_itself(queue: Make) -> None:
    """`grn run-notebook` waits, runs, and ends as the notebook did."""
    q = queue("sim:1x10000MiB")
    notebook(q, "a.ipynb", "1 / 0")
    argv = [sys.executable, "-m", "grn", "run-notebook", "a.ipynb", "-o", "b.ipynb"]
    env = {**q.env.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(argv, cwd=q.folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert nbformat.read(os.path.join(q.folder, "b.ipynb"), as_version=4).cells[0].outputs
    assert q.env.status()["leases"] == []


def _run_alone(q: QueueEnv, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "grn", "run-notebook", *words]
    env = {**q.env.environ, "PYTHONPATH": ROOT}
    return subprocess.run(argv, cwd=q.folder, env=env, capture_output=True, text=True, check=False)


def test_where_it_cannot_be_written_nothing_is_run(queue: Make) -> None:
    """What fails should fail before the first cell, not after hours; a missing folder is made."""
    q = queue("sim:1x10000MiB")
    notebook(q, "a.ipynb", "open('ran', 'w').close(); print(7)")
    open(os.path.join(q.folder, "file"), "w", encoding="ascii").close()
    done = _run_alone(q, "a.ipynb", "-o", "file/b.ipynb")
    assert (done.returncode, os.path.exists(os.path.join(q.folder, "ran"))) == (2, False)
    assert "cannot write the notebook" in done.stderr
    done = _run_alone(q, "a.ipynb", "-o", "new/folder/b.ipynb")
    assert done.returncode == 0, done.stderr
    made = nbformat.read(os.path.join(q.folder, "new/folder/b.ipynb"), as_version=4)
    assert made.cells[0].outputs


def test_what_cannot_be_written_any_more_is_kept_elsewhere(queue: Make) -> None:
    """All cells run on, the result is where it is said to be, and the status tells of it."""
    q = queue("sim:1x10000MiB")
    away = "import os, shutil; shutil.rmtree('out'); open('out', 'w').close()"
    notebook(q, "a.ipynb", away, "print('still', 'here')")
    done = _run_alone(q, "a.ipynb", "-o", "out/b.ipynb")
    assert done.returncode == 125
    assert done.stderr.count("for now") == 1
    kept = done.stderr.partition("it is in ")[2].split()[0]
    assert "still here" in nbformat.read(kept, as_version=4).cells[1].outputs[0].text
    os.unlink(kept)


@pytest.mark.parametrize(
    ("text", "words", "named"),
    [
        ("{half", ["a.ipynb"], "not JSON"),
        ("{}", ["a.ipynb"], "no list of cells"),
        ('{"cells": [], "metadata": {}}', ["a.ipynb"], "nbformat is None"),
        ('{"cells": [], "nbformat": "4"}', ["a.ipynb"], "nbformat is '4'"),
        ('{"cells": [], "nbformat": 4, "metadata": []}', ["a.ipynb"], "metadata is no table"),
        ('{"cells": ["x"], "nbformat": 4}', ["a.ipynb"], "its cell 1 is no cell"),
        (
            '{"cells": [{"cell_type": "code", "source": 3}], "nbformat": 4}',
            ["a.ipynb"],
            "the source of its cell 1",
        ),
        ("[" * 100_000, ["a.ipynb"], "not JSON"),
        (None, ["a.ipynb", "-p", "x"], "-p needs a name and a value"),
        (None, ["a.ipynb", "-p", "a-b", "1"], "a-b"),
        (None, ["a.ipynb", "--cell-timeout", "soon"], "soon"),
        (None, ["a.ipynb", "--inplace", "-o", "b.ipynb"], "not both"),
    ],
)
def test_what_is_no_notebook_is_refused_when_it_is_added(
    queue: Make, text: str | None, words: list[str], named: str
) -> None:
    """One line that names it, and nothing in the queue."""
    q = queue()
    path = notebook(q, "a.ipynb", "1")
    if text is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    said = q.run("add", *words, status=2)
    assert named in said.stderr
    assert q.jobs() == {}


def test_an_unknown_kernel_is_refused_and_one_that_is_gone_fails_the_job(queue: Make) -> None:
    """The known ones are listed, when it is added and when its turn comes; the queue goes on."""
    q = queue()
    folder = kernel(
        q, "odd", [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )
    where = {"JUPYTER_PATH": os.path.join(q.folder, "jupyter")}
    notebook(q, "a.ipynb", "1")
    said = q.run("add", "--kernel", "nosuch", "a.ipynb", status=2, **where).stderr
    assert "nosuch" in said
    assert "odd" in said
    (job,) = q.add("--kernel", "odd", "a.ipynb", **where)
    shutil.rmtree(folder)
    q.drain()
    failed = q.ended(job)
    assert failed["exit_code"] == 2
    assert "odd" in failed["last_words"]
    assert "python3" in failed["last_words"]


def test_a_day_of_the_older_scheduler(queue: Make) -> None:
    """Three notebooks, one put in front, one removed, a stranger on the card, a fourth, the end."""
    q = queue("sim:1x10000MiB")
    stranger = q.env.foreign(0, 3000)
    for name in ("first", "second", "third", "urgent", "fourth"):
        notebook(q, f"{name}.ipynb", HELD.format(name))
    q.add("--memory", "6000", "first.ipynb", "second.ipynb", "third.ipynb")
    q.start("--idle")
    q.wait_on("first")
    q.add("--first", "--memory", "6000", "urgent.ipynb")
    q.run("rm", "second.ipynb")
    q.off("first")
    q.wait_on("urgent")
    assert not q.is_on("third")
    q.off("urgent")
    q.wait_on("third")
    q.off("third")
    q.ended(3)
    q.add("--memory", "6000", "fourth.ipynb")
    q.wait_on("fourth")
    q.off("fourth")
    q.run("wait")
    assert "3000 MiB held by others" in q.run("protect", str(stranger.pid)).stdout
    q.run("stop")
    assert stranger.poll() is None
    assert not q.is_on("second")
    stranger.send_signal(signal.SIGKILL)


def test_out_of_memory_in_a_cell_is_retried(queue: Make) -> None:
    """The error is in the notebook, not in what the kernel writes; it is recognised all the same."""
    q = queue("sim:1x10000MiB")
    code = (
        "raise type('OutOfMemoryError', (RuntimeError,), {})('CUDA out of memory.\\nTried 2 GiB')"
    )
    notebook(q, "a.ipynb", code)
    (job,) = q.add("--memory", "1000", "--retries-on-oom", "1", "a.ipynb")
    q.drain()
    ended = q.ended(job)
    assert (ended["state"], ended["tries"]) == ("oom", 2)
    assert "cell 1 raised OutOfMemoryError: CUDA out of memory. Tried 2 GiB" in ended["last_words"]


def test_a_kernel_that_does_not_start(queue: Make) -> None:
    """Its program is missing, or ends at once: status 3, and what was tried to start."""
    q = queue()
    kernel(q, "missing", ["/none/python", "{connection_file}"])
    kernel(q, "ends", [sys.executable, "-c", "raise SystemExit('no ipykernel here')"])
    notebook(q, "a.ipynb", "1")
    notebook(q, "b.ipynb", "1")
    where = {"JUPYTER_PATH": os.path.join(q.folder, "jupyter")}
    q.add("--kernel", "missing", "a.ipynb", **where)
    q.add("--kernel", "ends", "b.ipynb", **where)
    q.drain()
    for number, said in ((1, "/none/python"), (2, "died")):
        ended = q.ended(number)
        assert (ended["state"], ended["exit_code"]) == ("failed", 3)
        assert "did not start" in ended["last_words"]
        assert said in ended["last_words"]
        assert "Traceback" not in q.log(number)


def test_parameters_are_for_python(queue: Make) -> None:
    """They would be set in a language that the notebook is not written in."""
    q = queue(start=False)
    path = notebook(q, "a.ipynb", "1")
    made = nbformat.read(path, as_version=4)
    made.metadata["kernelspec"] = {"name": "ir", "language": "R", "display_name": "R"}
    nbformat.write(made, path)
    assert "written in r" in q.run("add", "-p", "x", "1", "a.ipynb", status=2).stderr
    assert "-o" in q.run("add", "a.ipynb", "b.ipynb", "-o", "c.ipynb", status=2).stderr.replace(
        "--output", "-o"
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("a b", "a b"),
        ("{[]: 1}", "{[]: 1}"),
        ("None", None),
        ("'3'", "3"),
        ("(" * 999, "(" * 999),
    ],
)
def test_values_are_read_as_python_or_kept_as_text(text: str, value: object) -> None:
    """Nothing that is typed makes it fail."""
    from grn.notebook.parameters import value_of

    assert value_of(text) == value


def test_without_the_extra_the_error_says_what_to_install(queue: Make) -> None:
    """When it is added, when it is run by hand, and when its turn comes."""
    q = queue(start=False)
    path = notebook(q, "a.ipynb", "1")
    shadow = os.path.join(q.folder, "shadow")
    os.mkdir(shadow)
    with open(os.path.join(shadow, "sitecustomize.py"), "w", encoding="utf-8") as file:
        file.write("import sys\nsys.modules['nbclient'] = None\nimport importlib.util as u\n")
        file.write(
            "f = u.find_spec\nu.find_spec = lambda n, *a: None if n == 'nbclient' else f(n, *a)\n"
        )
    env = {**q.env.environ, "PYTHONPATH": f"{shadow}:{ROOT}"}
    for words in (
        ["grn", "queue", "add", path],
        ["grn", "run-notebook", path],
        ["grn.notebook", path],
    ):
        argv = [sys.executable, "-m", *words]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "grn-plugins[notebook]" in done.stderr
        assert done.stderr.count("\n") == 1
