"""What goes wrong around a queue: no broker, a full disk, odd bytes, a queue inside a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgpack
import pytest

from grn.errors import JournalError
from grn.queue.entry import Spec
from grn.queue.store import NewJob, Store
from tests.env import ROOT, eventually
from tests.queue.conftest import QueueEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.env import BrokerEnv

    Make = Callable[..., QueueEnv]


def test_a_job_whose_broker_cannot_be_had_is_tried_again_and_others_run(queue: Make) -> None:
    """It has not failed: the list says what is wrong; once there is one, it runs."""
    q = queue()
    gone = os.path.join(q.folder, "devices")
    own = {"GRN_SOCKET": os.path.join(q.folder, "s"), "GRN_DEVICES": f"sim:1x1000MiB,dir={gone}/x"}
    (job,) = q.add("true", **own)
    open(gone, "w", encoding="ascii").close()  # a file where a folder is needed
    (other,) = q.add("true")
    q.start()
    assert q.ended(other)["state"] == "ok"
    q.eventually(
        lambda: "simulated devices" in (q.job(job)["reason"] or ""), "it says why it waits"
    )
    assert q.job(job)["state"] in {"queued", "waiting"}
    os.unlink(gone)
    os.mkdir(gone)
    assert q.ended(job)["state"] == "ok"
    stop = [sys.executable, "-m", "grn", "broker", "stop"]
    subprocess.run(stop, env={**q.env.environ, **own, "PYTHONPATH": ROOT}, check=True)


def test_without_a_broker_where_that_is_allowed(queue: Make) -> None:
    """`--if-unavailable run` holds in the queue, too."""
    q = queue()
    (job,) = q.add("--if-unavailable", "run", "--", "true", GRN_SOCKET="/proc/none/sock")
    q.start()
    ended = q.ended(job)
    assert ended["state"] == "ok"
    assert "without a share" in ended["notes"][0]


def test_a_queue_is_not_started_inside_a_job(queue: Make) -> None:
    """It would end with the job; adding is possible, and what is added has a lease of its own."""
    q = queue()
    inside = {
        "GRN_LEASE": "l1",
        "GRN_DEVICES": "GPU-1",
        "CUDA_VISIBLE_DEVICES": "7",
        "XLA_FLAGS": "x",
    }
    said = q.run("start", status=2, **inside)
    assert "l1" in said.stderr
    assert q.owner is None
    (job,) = q.add("echo $GRN_LEASE $CUDA_VISIBLE_DEVICES $XLA_FLAGS", "--memory", "1000", **inside)
    q.start()
    assert q.ended(job)["state"] == "ok"
    lease, device, flags = q.log(job).split()
    assert lease != "l1"
    assert device != "7"
    assert flags == "x"


@pytest.mark.parametrize("words", [["--", "echo", b"a\xff\n"], [b"echo a\xff"]])
def test_bytes_that_are_no_text(queue: Make, words: list[str | bytes]) -> None:
    """Commands, names and folders may hold any; the list shows them escaped."""
    q = queue()
    folder = os.path.join(os.fsencode(q.folder), b"f\xfe")
    os.mkdir(folder)
    argv = [sys.executable, "-m", "grn", "queue", "add", "--name", b"n\xff\nx", *words]
    env = {**q.env.environ, "PYTHONPATH": ROOT}
    subprocess.run(argv, env=env, cwd=folder, check=True, capture_output=True)
    q.start()
    ended = q.ended(1)
    assert ended["state"] == "ok", ended
    assert "n\\xff\\nx" in q.run("ls").stdout
    with open(ended["log"], "rb") as file:
        assert b"a\xff" in file.read()


def test_a_missing_folder_of_odd_bytes_is_a_reason_like_any_other(queue: Make) -> None:
    """What is written down about it can be written down."""
    q = queue()
    folder = os.path.join(os.fsencode(q.folder), b"f\xfe")
    os.mkdir(folder)
    argv = [sys.executable, "-m", "grn", "queue", "add", "true"]
    env = {**q.env.environ, "PYTHONPATH": ROOT}
    subprocess.run(argv, env=env, cwd=folder, check=True, capture_output=True)
    os.rmdir(folder)
    q.start()
    failed = q.ended(1)
    assert failed["state"] == "failed"
    assert "folder of the job" in failed["text"]


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"command": ["a\0b"]}, "zero byte"),
        ({"command": ["\ud800"]}, "half a character"),
        ({"command": "x", "env": {"A": 1}}, "A in env of job 1"),
        ({"command": "x", "env": {"A=B": "1"}}, "no name of a variable"),
        ({"command": "x", "name": 7}, "name of job 1"),
        ({"command": "x", "cwd": 7}, "cwd of job 1"),
        ({"command": "x", "notebook": "y.ipynb"}, "either a command or a notebook"),
        ({"command": "x", "colour": "red"}, "colour"),
        ({"command": "x", "after": [10**30]}, "after of job 1"),
    ],
)
def test_what_no_process_can_be_given_is_refused(
    queue: Make, job: dict[str, object], named: str
) -> None:
    """Better when it is added than in the night."""
    q = queue(start=False)
    path = os.path.join(q.folder, "jobs.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(job, file)
    assert named in q.run("add", "--json", path, status=2).stderr
    assert q.jobs() == {}


def test_json_as_deep_as_a_well_is_refused(queue: Make) -> None:
    """No traceback of a reader that gave up."""
    q = queue(start=False)
    path = os.path.join(q.folder, "jobs.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write("[" * 100_000)
    assert "is no JSON that can be read" in q.run("add", "--json", path, status=2).stderr


@pytest.mark.parametrize("words", [["add", "--after"], ["info"], ["rm"], ["protect"]])
def test_numbers_that_no_job_or_process_has(queue: Make, words: list[str]) -> None:
    """One line that says so, however long the number is."""
    q = queue(start=False)
    said = q.run(*words, "9" * 30, *(["--", "true"] if words[0] == "add" else []), status=2)
    assert "999" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_state_folder_of_odd_bytes_is_refused(queue: Make) -> None:
    """The list has no room for such a name, and its owner would die with the first job."""
    q = queue(start=False)
    odd = os.fsdecode(os.path.join(os.fsencode(q.folder), b"state-\xff"))
    said = q.run("add", "--", "true", status=125, GRN_STATE_DIR=odd)
    assert "GRN_STATE_DIR" in said.stderr


def test_the_mask_for_new_files_is_the_submitter_s(queue: Make) -> None:
    """It is part of how a command runs."""
    q = queue()
    before = os.umask(0o027)
    try:
        q.add("umask")
    finally:
        os.umask(before)
    q.start()
    q.ended(1)
    assert int(q.log(1), 8) == 0o027


def test_a_job_that_a_newer_release_has_queued_is_known() -> None:
    """What it says beyond that is left out."""
    dumped = msgpack.unpackb(Spec(line="true", cwd="/", environ={"A": "1"}).dump())
    spec = Spec.load(msgpack.packb({**dumped, "mood": "good"}))
    assert (spec.line, spec.cwd, spec.environ) == ("true", "/", {"A": "1"})


def test_the_list_is_one_screen_however_long_it_is(queue: Make) -> None:
    """Twenty of those that are queued, and how many more; at 60 columns, too."""
    q = queue(start=False)
    with Store(q.places) as store:
        spec = Spec(line="true", cwd="/", environ={})
        store.add([NewJob("x" * 90, spec)] * 500)
    shown = q.run("ls", COLUMNS="60").stdout
    assert max(map(len, shown.splitlines())) <= 60
    assert len(shown.splitlines()) < 30
    assert "480 more" in shown
    assert len(q.run("ls", "--all").stdout.splitlines()) > 500
    assert len(json.loads(q.run("ls", "--json").stdout)["jobs"]) == 500


def test_each_job_that_is_queued_has_a_reason(queue: Make) -> None:
    """Nobody works, the limit, the pause, those that ask already: in numbers where there are some."""
    q = queue()
    q.holder("a", "--gpus", "0")
    q.add("true")
    assert "nobody" in q.job(2)["reason"]
    q.start("--limit", "1")
    q.wait_on("a")
    assert q.job(2)["reason"] == "1 run or wait at the broker, the limit is 1"
    q.run("pause")
    assert "paused" in q.job(2)["reason"]
    q.run("resume")
    q.off("a")
    q.ended(2)


def test_the_time_to_wait_is_the_whole_time(queue: Make) -> None:
    """Changes of the list do not begin it anew; what was taken off is not waited for."""
    q = queue()
    q.holder("a", "--gpus", "0")
    q.start()
    q.wait_on("a")
    waits = q.env.popen(
        [sys.executable, "-m", "grn", "queue", "wait", "--timeout", "2s"], cwd=q.folder, stderr=-3
    )
    while waits.poll() is None:  # each is a change
        q.add("--held", "true")
    assert waits.returncode == 75
    q.off("a")


def test_what_is_taken_off_is_not_waited_for(queue: Make) -> None:
    """`wait` ends, and not well: that job never ran."""
    q = queue()
    (job,) = q.add("true")
    argv = [sys.executable, "-m", "grn", "queue", "wait", str(job)]
    waits = q.env.popen(argv, cwd=q.folder, stderr=subprocess.PIPE)
    assert waits.stderr is not None
    assert b"nobody works the queue off" in waits.stderr.readline()
    q.run("rm", str(job))
    assert waits.wait(60) == 1


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """Return a folder on a disk of its own that is soon full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a small disk")
    yield str(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_notebook_in_place_that_cannot_be_written_is_not_run(
    small: str, new_env: Callable[..., BrokerEnv]
) -> None:
    """It is told before the first cell runs, and the outputs that it has stay."""
    pytest.importorskip("ipykernel", reason="notebooks need a kernel")
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    env = new_env("sim:1x10000MiB")
    ran, path = os.path.join(env.folder, "ran"), os.path.join(small, "a.ipynb")
    cell = nbformat.v4.new_code_cell(f"open({ran!r}, 'w').close()")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    argv = [sys.executable, "-m", "grn", "run-notebook", "--inplace", path]
    environ = {**env.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, os.path.exists(ran)) == (2, False)
    assert f"cannot write the notebook {path}: Read-only file system" in done.stderr


def test_a_full_disk_loses_nothing(small: str, new_env: Callable[..., BrokerEnv]) -> None:
    """An add is refused, the owner lives, ends are written once there is room, nothing runs twice."""
    q = QueueEnv(new_env("sim:1x10000MiB", state_dir=os.path.join(small, "state")))
    q.holder("a", "--memory", "whole")
    q.add("--memory", "whole", "echo x >> ran")
    pid = q.start()
    q.wait_on("a")
    q.until(2, "waiting")
    fill = os.path.join(small, "fill")
    with open(fill, "wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break
    said = q.run("add", "true", status=125).stderr
    assert "KiB free" in said
    q.off("a")
    assert q.owner == pid
    os.unlink(fill)
    assert q.ended(2)["state"] == "ok"
    assert [job["state"] for job in q.jobs().values()] == ["ok", "ok"]
    with open(os.path.join(q.folder, "ran"), encoding="ascii") as file:
        assert file.read() == "x\n"
    q.close()


def _job(q: QueueEnv, number: int) -> dict[str, object]:
    """Look at a job; on a full disk nobody can."""
    try:
        return q.job(number)
    except JournalError as error:
        raise AssertionError(error.message) from error


def test_a_log_that_fills_the_disk_can_be_removed(
    small: str, new_env: Callable[..., BrokerEnv]
) -> None:
    """Its job has ended, and that is written once there is room: nobody keeps the file open."""
    q = QueueEnv(new_env("sim:1x10000MiB", state_dir=os.path.join(small, "state")))
    q.add("--gpus", "0", "head -c 3000000 /dev/zero; echo > done")
    q.start()
    q.eventually(lambda: os.path.exists(os.path.join(q.folder, "done")), "it has written")
    os.unlink(q.places.log_of(1, 1))
    # With all the room taken not even a look at the list is possible.
    assert eventually(lambda: _job(q, 1)["log_incomplete"], what="its end is written")
    q.close()
