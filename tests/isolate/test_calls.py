"""A call in a fresh process: what it gets, what it finds around it, and what comes back."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from grn.errors import UsageError
from grn.isolate import CannotStart, ForkServer, StillRunning
from tests.isolate import bodies

if TYPE_CHECKING:
    from pathlib import Path


def test_a_call_runs_in_another_process(server: ForkServer, env: dict[str, str]) -> None:
    """What a function returns comes back from a process that is gone by then."""
    child = server.run(bodies.pid, env=env)
    assert child.result() == child.pid != os.getpid()
    assert not os.path.exists(f"/proc/{child.pid}")
    assert child.exit_code == 0
    assert child.result() == child.pid


def test_arguments_arrive(server: ForkServer, env: dict[str, str]) -> None:
    """Positional and named arguments arrive as they were given."""
    assert server.run(bodies.echo, (1, [2]), {"a": {3}}, env=env).result() == ((1, [2]), {"a": {3}})


def test_closures_travel(server: ForkServer, env: dict[str, str]) -> None:
    """A function without a name, and what it refers to, travel; so does one that it returns."""
    base = 40
    add = server.run(lambda: lambda more: base + more, env=env).result()
    assert add(2) == 42


def test_the_environment_is_exact_and_early(server: ForkServer) -> None:
    """A body has the environment it was given, all of it and no more, before its first import."""
    env = {"MINE": "one", "PATH": os.environ["PATH"], "ODD": "\udcff"}
    seen = server.run(bodies.environment, env=env).result()
    assert seen["python"] == env
    assert seen["at_import"] == env
    assert seen["c"] == {
        "MINE": b"one",
        "PATH": os.environ["PATH"].encode(),
        "HOME": None,
        "GRN_ISOLATE_PAD": None,
    }
    assert "MINE=one" in seen["child"]


def test_no_call_sees_the_environment_of_another(server: ForkServer) -> None:
    """Each call has its own environment."""
    first = server.run(lambda: os.environ.get("MINE"), env={"MINE": "one"})
    second = server.run(lambda: os.environ.get("MINE"), env={})
    assert (first.result(), second.result()) == ("one", None)


@pytest.mark.parametrize("env", [{"A=B": "1"}, {"": "1"}, {"A": "\0"}, {"A": 1}])
def test_an_impossible_environment_is_refused(server: ForkServer, env: dict[str, str]) -> None:
    """An environment that no process can have is refused before a process is made."""
    with pytest.raises(UsageError, match="environment"):
        server.run(bodies.pid, env=env)


def test_a_body_is_where_its_caller_is(
    server: ForkServer, env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder, arguments, import path and CPUs are the caller's at the time of the call."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["prog", "--flag"])
    monkeypatch.syspath_prepend(str(tmp_path / "more"))
    seen = server.run(bodies.surroundings, env=env, name="a body").result()
    assert seen["cwd"] == str(tmp_path)
    assert seen["argv"] == ["prog", "--flag"]
    assert seen["path"][0] == str(tmp_path / "more")
    assert seen["affinity"] == os.sched_getaffinity(0)
    assert seen["comm"] == "a body"


def test_a_body_is_like_a_program_just_started(server: ForkServer, env: dict[str, str]) -> None:
    """It leads a session, has one thread, an empty input, and the caller's limit of files."""
    seen = server.run(bodies.surroundings, env=env).result()
    assert seen["session"] == seen["pid"]
    assert seen["threads"] == 1
    assert seen["stdin"] == ""


def test_folder_and_cpus_can_be_chosen(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """A call may ask for another folder and for some of the CPUs."""
    cpu = min(os.sched_getaffinity(0))
    child = server.run(bodies.surroundings, env=env, cwd=str(tmp_path), affinity=[cpu])
    seen = child.result()
    assert (seen["cwd"], seen["affinity"]) == (str(tmp_path), {cpu})


def test_a_missing_folder_is_told(server: ForkServer, env: dict[str, str]) -> None:
    """A call in a folder that is not there does not run, and says which folder it is."""
    with pytest.raises(CannotStart, match="/no/such/folder"):
        server.run(bodies.pid, env=env, cwd="/no/such/folder").result()


def test_signals_do_what_they_do_by_default(server: ForkServer, env: dict[str, str]) -> None:
    """What the server ignores, a body does not."""
    assert server.run(bodies.signals, env=env).result() == {
        "default": ["SIGTERM", "SIGHUP", "SIGCHLD"],
        "interrupts": True,
        "blocked": set(),
    }


def test_a_body_holds_no_descriptor_of_others(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Beside its standard ones a body has no descriptors but those of its own call and result."""
    with server.run(bodies.touch_and_sleep, (str(tmp_path / "up"),), env=env):
        files = server.run(bodies.open_files, env=env).result()
    others = [target for number, target in files.items() if int(number) > 2]
    assert [target for target in others if "grn-" not in target] == []


def test_output_goes_where_it_is_sent(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Standard output and error can be sent to descriptors, and are flushed at the end."""
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        child = server.run(
            bodies.say, ("hello", "oh"), env=env, stdout=out.fileno(), stderr=err.fileno()
        )
        child.result()
    assert (tmp_path / "out").read_text() == "hello\n"
    assert (tmp_path / "err").read_text() == "oh\n"


def test_output_goes_where_the_callers_goes(
    server: ForkServer, env: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Without descriptors, output goes where the caller's goes now, not when the server began."""
    server.run(bodies.say, ("hello", "oh"), env=env).result()
    assert capfd.readouterr() == ("hello\n", "oh\n")


def test_input_can_be_given(server: ForkServer, env: dict[str, str], tmp_path: Path) -> None:
    """Standard input can be read from a descriptor."""
    (tmp_path / "in").write_text("words")
    with open(tmp_path / "in", "rb") as file:
        seen = server.run(bodies.surroundings, env=env, stdin=file.fileno()).result()
    assert seen["stdin"] == "words"


def test_a_body_can_be_given_descriptors(server: ForkServer, env: dict[str, str]) -> None:
    """A socket to the caller can go with the call."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = server.run(bodies.answer, env=env, fds=[theirs.fileno()])
        ours.send(b"well?")
        assert ours.recv(100) == b"WELL?"
        assert ours.recv(100) == b""  # nobody else holds the other end
        child.result()


def test_each_body_has_its_own_chance(server: ForkServer, env: dict[str, str]) -> None:
    """Random numbers differ between bodies and from the caller's."""
    drawn = {server.run(bodies.chance, env=env).result() for _ in range(3)} | {bodies.chance()}
    assert len(drawn) == 4


def test_a_generator_is_consumed_if_asked(server: ForkServer, env: dict[str, str]) -> None:
    """With `collect` what a generator yields comes back as a list."""
    assert server.run(bodies.count, (3,), env=env, collect=True).result() == [0, 1, 2]


@pytest.mark.parametrize("leave", [False, True])
def test_a_forked_copy_of_a_body_returns_nothing(
    server: ForkServer,
    env: dict[str, str],
    leave: bool,  # noqa: FBT001 - a case
) -> None:
    """A copy that a body forks, and that returns or leaves as the body does, is no second result."""

    def fork() -> int:
        pid = os.fork()
        if pid == 0:
            if leave:
                raise SystemExit(5)
            return 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 100

    assert server.run(fork, env=env).result() == (105 if leave else 100)


def test_multiprocessing_works_in_a_body(server: ForkServer, env: dict[str, str]) -> None:
    """A body may use a pool of processes."""
    assert server.run(bodies.own_children, env=env).result() == [1, 2, 3]


def test_a_body_may_call_in_turn(server: ForkServer, env: dict[str, str]) -> None:
    """A body can have a fork server of its own."""
    outer, inner = server.run(bodies.nested, env=env).result()
    assert len({outer, inner, os.getpid()}) == 3


def test_threads_and_exit_handlers_come_to_their_end(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """A result comes when the body's threads are done and its exit handlers have run."""
    path = tmp_path / "log"
    assert server.run(bodies.finish_later, (str(path),), env=env).result() == "done"
    assert path.read_text() == "thread exit"


def test_a_result_does_not_come_before_its_time(
    server: ForkServer, env: dict[str, str], tmp_path: Path
) -> None:
    """Who does not want to wait is told that the body still runs, and may wait again."""
    path = tmp_path / "go"
    child = server.run(bodies.wait_for, (str(path),), env=env)
    with pytest.raises(StillRunning, match="still runs"):
        child.result(timeout_s=0.01)
    assert not child.wait(0)
    path.touch()
    assert child.result() == child.pid
