"""The ways in which a call can end, told apart."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from grn.isolate import BodyDied, ForkServer, Unpicklable
from tests.env import eventually, wait_gone
from tests.isolate import bodies
from tests.isolate.conftest import written_pid

if TYPE_CHECKING:
    from pathlib import Path


def test_an_exception_comes_back_as_itself(server: ForkServer, env: dict[str, str]) -> None:
    """A body's exception is raised in the caller, with the text of its traceback as a note."""
    child = server.run(bodies.fail, (ValueError("no", 3),), env=env, name="tries")
    with pytest.raises(ValueError, match="no") as caught:
        child.result()
    assert caught.value.args == ("no", 3)
    assert f"raised in process {child.pid} (tries)" in caught.value.__notes__[-1]
    assert "bodies.py" in caught.value.__notes__[-1]
    assert child.outcome().kind == "raised"
    assert child.exit_code == 1


def test_an_exception_with_a_constructor_of_its_own_comes_back(
    server: ForkServer, env: dict[str, str]
) -> None:
    """An exception that pickle could not rebuild comes back as what it was."""
    with pytest.raises(bodies.CustomError) as caught:
        server.run(bodies.fail_custom, env=env).result()
    assert (caught.value.code, caught.value.why, str(caught.value)) == (
        7,
        "just so",
        "code 7: just so",
    )


def test_cause_context_and_notes_come_back(server: ForkServer, env: dict[str, str]) -> None:
    """What led to an exception, and what was noted on it, is kept."""
    with pytest.raises(ValueError, match="second") as caught:
        server.run(bodies.fail_with_cause, env=env).result()
    assert repr(caught.value.__cause__) == "KeyError('first')"
    assert caught.value.__context__ is caught.value.__cause__
    assert caught.value.__suppress_context__
    assert caught.value.__notes__[0] == "mind the gap"


def test_the_exception_of_the_system_keeps_its_errno(
    server: ForkServer, env: dict[str, str]
) -> None:
    """An OSError comes back with errno and file name."""
    with pytest.raises(FileNotFoundError) as caught:
        server.run(open, ("/no/such/file",), env=env).result()
    assert (caught.value.errno, caught.value.filename) == (2, "/no/such/file")


def test_an_exception_that_cannot_travel_is_told_in_words(
    server: ForkServer, env: dict[str, str]
) -> None:
    """An exception that holds a lock becomes an error that names it and shows its traceback."""
    child = server.run(bodies.fail_unspeakable, env=env)
    with pytest.raises(Unpicklable, match="UnspeakableError: no way") as caught:
        child.result()
    assert caught.value.what == "exception"
    assert caught.value.type_name.endswith("bodies.UnspeakableError")
    assert "raise UnspeakableError" in caught.value.traceback_text
    assert child.outcome().kind == "unpicklable"


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (3, 3), ("oh", 1)])
def test_sys_exit_is_an_exception(
    server: ForkServer, env: dict[str, str], code: Any, status: int
) -> None:
    """`sys.exit` in a body is seen as SystemExit with its code, and sets the exit status."""
    child = server.run(bodies.leave, (code,), env=env)
    error = child.outcome().error
    assert isinstance(error, SystemExit)
    assert error.code == code
    assert child.exit_code == status


def test_the_code_of_sys_exit_survives_odd_pickling(
    server: ForkServer, env: dict[str, str]
) -> None:
    """Libraries that pickle exceptions without their constructor (tblib, with Dask) do not lose it."""
    error = server.run(bodies.leave_with_a_reducer, (3,), env=env).outcome().error
    assert isinstance(error, SystemExit)
    assert error.code == 3


def test_an_interrupt_is_an_exception(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """SIGINT raises KeyboardInterrupt in the body, which may handle it; else the caller sees it."""
    child = server.run(bodies.interruptible, (str(tmp_path / "a"),), env=env)
    written_pid(tmp_path / "a")
    child.kill(signal.SIGINT)
    assert child.result() == "interrupted"
    child = server.run(bodies.touch_and_sleep, (str(tmp_path / "b"),), env=env)
    written_pid(tmp_path / "b")
    child.kill(signal.SIGINT)
    outcome = child.outcome()
    assert outcome.kind == "raised"
    assert isinstance(outcome.error, KeyboardInterrupt)


def test_os_exit_is_a_death(server: ForkServer, env: dict[str, str], tmp_path: Path) -> None:
    """A body that leaves without a result is told with its status and its last words."""
    with open(tmp_path / "err", "ab") as err:
        err.write(b"older words\n")
        err.flush()
        child = server.run(
            bodies.say_and_leave, ("CUDA out of memory", 3), env=env, stderr=err.fileno()
        )
    with pytest.raises(BodyDied, match="exit status 3") as caught:
        child.result()
    assert (caught.value.status, caught.value.signal) == (3, None)
    assert caught.value.tail == "CUDA out of memory"
    assert child.outcome().kind == "died"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_is_a_death(server: ForkServer, env: dict[str, str], number: int) -> None:
    """A body that was killed is told with the signal."""
    child = server.run(bodies.kill_myself, (number,), env=env)
    with pytest.raises(BodyDied, match=signal.Signals(number).name) as caught:
        child.result()
    assert (caught.value.signal, caught.value.status) == (number, None)
    assert child.exit_code == -number


def test_a_death_harms_no_other_call(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """While one body dies, others go on, and later calls work."""
    path = tmp_path / "go"
    other = server.run(bodies.wait_for, (str(path),), env=env)
    with pytest.raises(BodyDied):
        server.run(bodies.kill_myself, (signal.SIGKILL,), env=env).result()
    path.touch()
    assert other.result() == other.pid
    assert server.run(bodies.echo, env=env).result() == ((), {})


def test_a_result_outlives_a_crash_at_the_end(server: ForkServer, env: dict[str, str]) -> None:
    """A body that dies in its exit handlers has returned all the same."""
    child = server.run(bodies.die_at_exit, env=env)
    assert child.result() == "done"
    assert child.exit_code == -signal.SIGKILL


def test_an_unpicklable_argument_is_named(server: ForkServer, env: dict[str, str]) -> None:
    """What cannot be sent is refused before a process is made, and is named."""
    with pytest.raises(Unpicklable, match=r"argument 2 \(lock\).*cannot pickle") as caught:
        server.run(bodies.echo, (1, threading.Lock()), env=env)
    assert caught.value.what == "arguments"
    lock = threading.Lock()
    with pytest.raises(Unpicklable, match="something that it refers to"):
        server.run(lambda: lock, env=env)


def test_an_argument_that_cannot_be_rebuilt_is_told(
    server: ForkServer, env: dict[str, str]
) -> None:
    """What can be sent but not rebuilt fails as an argument, with the reason."""
    with pytest.raises(Unpicklable, match="invalid literal for int") as caught:
        server.run(bodies.echo, (bodies.Stubborn(),), env=env).result()
    assert caught.value.what == "arguments"


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (threading.Lock, "lock"),
        (bodies.Stubborn, "invalid literal for int"),
        (bodies.soon, "asyncio.run"),
        (lambda: (number for number in "ab"), "return a list"),
    ],
)
def test_an_unpicklable_result_is_told(
    server: ForkServer, env: dict[str, str], fn: Any, says: str
) -> None:
    """A result that cannot come back fails as a result, with the reason and what may help."""
    with pytest.raises(Unpicklable, match=says) as caught:
        server.run(fn, env=env).result()
    assert caught.value.what == "result"


def test_stop_ends_all_that_a_body_has_started(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """`stop` ends the body, its children, those in other sessions, and orphans."""
    child = server.run(bodies.with_family, (str(tmp_path),), env=env)
    pids = [written_pid(tmp_path / name) for name in ("child", "session", "orphan", "body")]
    assert child.stop(grace_s=30) == []
    for pid in pids:
        wait_gone(pid)
    with pytest.raises(BodyDied, match="was stopped") as caught:
        child.result()
    assert caught.value.signal == signal.SIGTERM


def test_stop_kills_after_the_grace(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Who ignores SIGTERM is killed."""
    child = server.run(bodies.ignore_and_sleep, (str(tmp_path / "up"),), env=env)
    written_pid(tmp_path / "up")
    assert child.stop(grace_s=0.1) == []
    with pytest.raises(BodyDied) as caught:
        child.result()
    assert caught.value.signal == signal.SIGKILL


def test_what_stays_behind_can_be_stopped(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """A normal end leaves the body's background processes alone; `stop` ends them."""
    path = str(tmp_path / "left")

    def leave_one_behind() -> None:
        pid = os.fork()
        if pid == 0:
            bodies.touch_and_sleep(path)

    child = server.run(leave_one_behind, env=env)
    child.result()
    left = written_pid(path)
    assert os.path.exists(f"/proc/{left}")
    child.stop(grace_s=30)
    wait_gone(left)


def test_a_shell_is_stopped_before_its_command(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """What stays behind is named, and ends parents first: a shell goes on to none of its next lines."""
    begun, over = tmp_path / "begun", tmp_path / "over"
    line = f"touch {begun}; sleep 1000; touch {over}"

    def leave_a_shell_behind() -> None:
        subprocess.Popen(["sh", "-c", line], start_new_session=True)

    child = server.run(leave_a_shell_behind, env={**env, "GRN_LEASE": f"own-{os.getpid()}"})
    assert child.outcome().kind == "returned"
    eventually(lambda: begun.exists() and len(child.left()) == 2, what="shell and command run")
    assert child.stop(grace_s=30) == []
    assert child.left() == []
    assert not over.exists()


def test_a_broker_that_a_body_has_started_stays(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """A broker serves others too: it is not stopped with the body that needed it first."""
    child = server.run(bodies.with_broker, (str(tmp_path),), env=env)
    broker = written_pid(tmp_path / "broker")
    try:
        written_pid(tmp_path / "body")
        assert child.stop(grace_s=30) == []
        assert procs.start_time(broker) is not None
    finally:
        os.kill(broker, signal.SIGKILL)


def test_leaving_the_block_ends_the_body(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """A child that is closed while it runs is killed first."""
    with server.run(bodies.touch_and_sleep, (str(tmp_path / "up"),), env=env) as child:
        pid = written_pid(tmp_path / "up")
    assert not os.path.exists(f"/proc/{pid}")
    with pytest.raises(ValueError, match="closed"):
        child.fileno()


def test_a_dropped_child_is_killed(server: ForkServer, env: dict[str, str], tmp_path: Path) -> None:
    """A child that nobody refers to any more ends: nobody could have its result."""
    child = server.run(bodies.touch_and_sleep, (str(tmp_path / "up"),), env=env)
    pid = written_pid(tmp_path / "up")
    del child
    wait_gone(pid)
    eventually(lambda: not os.path.exists(f"/proc/{pid}"))
