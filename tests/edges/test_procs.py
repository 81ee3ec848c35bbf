"""What /proc says: proof of death, lease markers, family, memory."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from grn import procs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

NOBODY = 65534
EXIT_SYSCALL = {"x86_64": 60, "aarch64": 93}


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def launch(words: Sequence[str], env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def python(code: str) -> list[str]:
    """Build the command line of a Python program."""
    return [sys.executable, "-c", code]


def said(process: subprocess.Popen[str]) -> str:
    """Wait for a line."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def as_nobody(check: Callable[[], bool]) -> bool:
    """Run the check in a child without privileges."""
    pid = os.fork()
    if pid == 0:
        good = False
        try:
            if os.geteuid() == 0:
                os.setuid(NOBODY)
            good = check()
        finally:
            os._exit(0 if good else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def ended_pid() -> int:
    """Return the pid of a process that is over."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_running_process_keeps_its_start_time() -> None:
    """The start time is the same at each look and proves that the process lives."""
    began = procs.start_time(os.getpid())
    assert began is not None
    assert procs.start_time(os.getpid()) == began
    assert procs.is_alive(os.getpid(), began)
    assert procs.is_alive(os.getpid(), None)


def test_a_reaped_process_is_gone() -> None:
    """After its parent took notice of its end, nothing is known of a process."""
    pid = ended_pid()
    assert procs.start_time(pid) is None
    assert not procs.is_alive(pid, None)
    assert (procs.parent(pid), procs.marker(pid), procs.rss_mib(pid), procs.uid(pid)) == (
        None, None, None, None,
    )  # fmt: skip
    assert procs.children(pid) == []


def test_a_zombie_counts_as_gone() -> None:
    """A process that ended but was not waited for holds nothing, so it is gone."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert procs.start_time(process.pid) is None
    assert not procs.is_alive(process.pid, None)
    process.wait()


@pytest.mark.skipif(platform.machine() not in EXIT_SYSCALL, reason="needs the number of exit(2)")
def test_a_process_lives_as_long_as_one_of_its_threads(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """The end of the first thread alone makes it look like a zombie, but it holds its memory."""
    process = start(
        python(
            "import ctypes, threading, sys\n"
            "threading.Thread(target=sys.stdin.read).start()\n"
            f"ctypes.CDLL(None).syscall({EXIT_SYSCALL[platform.machine()]}, 0)"
        )
    )
    stat = f"/proc/{process.pid}/stat"
    while " Z " not in open(stat).read():  # noqa: SIM115
        time.sleep(0.01)
    assert procs.start_time(process.pid) is not None
    assert procs.is_alive(process.pid, procs.start_time(process.pid))


def test_a_reused_number_is_another_process() -> None:
    """A process with another start time under the same number is not the one that was meant."""
    began = procs.start_time(os.getpid())
    assert began is not None
    assert not procs.is_alive(os.getpid(), began - 1)


@pytest.mark.parametrize("pid", [0, -1])
def test_numbers_that_name_no_process_are_never_asked(pid: int) -> None:
    """0 and negative numbers mean groups to kill(2), so they are gone without asking."""
    assert not procs.is_alive(pid, None)


def test_birth_is_start_time_and_parent() -> None:
    """Both come from one read; of a process that is gone nothing is known."""
    assert procs.birth(os.getpid()) == (procs.start_time(os.getpid()), os.getppid())
    assert procs.birth(ended_pid()) is None


def test_ancestors_begin_with_the_parent() -> None:
    """Init is left out, and of a process that is gone nothing is known."""
    process = subprocess.Popen(["sleep", "600"])
    above = procs.ancestors(process.pid)
    process.kill()
    process.wait()
    assert above[0] == os.getpid()
    assert 1 not in above
    assert procs.ancestors(process.pid) == ()


def test_a_zombie_keeps_its_number() -> None:
    """Until it is waited for it has its start time and parent, and nobody else has its pid."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    born = procs.birth(process.pid)
    assert born is not None
    assert born[1] == os.getpid()
    assert procs.exists(process.pid)
    process.wait()
    assert not procs.exists(process.pid)


def test_another_users_process_exists_even_if_it_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a number names a process does not depend on what /proc shows."""
    monkeypatch.setattr(procs, "_PROC", str(tmp_path))
    assert as_nobody(lambda: procs.exists(1) and procs.birth(1) is None)
    assert not procs.exists(0)
    assert not procs.exists(-1)


def test_another_users_process_is_alive() -> None:
    """EPERM means alive: init may not be signalled, yet it runs."""
    assert as_nobody(lambda: procs.is_alive(1, procs.start_time(1)))


def test_a_hidden_process_of_another_user_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc hides other users' processes, kill(2) tells: EPERM is alive, ESRCH is gone."""
    gone = ended_pid()
    monkeypatch.setattr(procs, "_PROC", str(tmp_path))
    assert as_nobody(lambda: procs.is_alive(1, 12))
    assert not procs.is_alive(gone, 12)


def test_a_program_may_have_brackets_in_its_name(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """A name such as 'a) Z 1 (b' does not shift the fields behind it."""
    program = tmp_path / "a) Z 1 (b"
    shutil.copy("/bin/cat", program)
    process = start([str(program)])
    assert procs.parent(process.pid) == os.getpid()
    assert procs.is_alive(process.pid, procs.start_time(process.pid))


def test_the_marker_is_read_from_the_initial_environment(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """The lease id stays with a process even if the program changes its own environment."""
    code = (
        "import os, sys; os.environ['GRN_LEASE'] = 'other'; print(1, flush=True); sys.stdin.read()"
    )
    process = start(python(code), env={"A": "1", "GRN_LEASE": "L-7", "Z": "2"})
    said(process)
    assert procs.marker(process.pid) == "L-7"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"GRN_LEASE": "first"}, "first"),
        ({"MY_GRN_LEASE": "x"}, None),
        ({"A": "GRN_LEASE=x"}, None),
        ({"GRN_LEASE": ""}, None),
        ({}, None),
    ],
)
def test_only_the_variable_itself_is_a_marker(
    environ: dict[str, str], expected: str | None, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """Neither a longer name nor a value that looks like it is taken for the marker."""
    process = start(["/bin/sh", "-c", "echo; read x"], env=environ)
    said(process)
    assert procs.marker(process.pid) == expected


def test_a_process_is_never_missed_while_it_executes_another_program(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """In the instant of exec there is no environment to read, yet the process is the lease's."""
    script = tmp_path / "again"
    script.write_text('#!/bin/sh\nexec "$0"\n')
    script.chmod(0o700)
    process = start([str(script)], env={"GRN_LEASE": "L-9"})
    assert {procs.marker(process.pid) for _ in range(3000)} == {"L-9"}


def test_an_unreadable_environment_has_no_marker() -> None:
    """Another user's environment is unknown, not an error."""
    assert as_nobody(lambda: procs.marker(1) is None)


def test_the_cgroup_is_told_once_if_all_hierarchies_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each path is told; a path may have colons."""
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/a.slice/x:y.scope\n")
    (tmp_path / "8").mkdir()
    (tmp_path / "8" / "cgroup").write_text(
        "3:cpu,cpuacct:/\n2:memory:/docker/9f\n1:name=systemd:/\n"
    )
    monkeypatch.setattr(procs, "_PROC", str(tmp_path))
    assert procs.cgroups(7) == ("/a.slice/x:y.scope",)
    assert procs.cgroups(8) == ("/", "/docker/9f")
    assert procs.cgroups(9) == ()


def test_another_users_cgroup_can_be_read() -> None:
    """It tells of containers whose environment is not for everybody."""
    paths = procs.cgroups(1)
    assert paths
    assert as_nobody(lambda: procs.cgroups(1) == paths)


FAMILY = (
    "import subprocess, sys, threading\n"
    "def go(): print(subprocess.Popen(['sh', '-c', 'sleep 600 & echo $!; wait'],"
    " stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).pid, flush=True)\n"
    "go()\n"
    "t = threading.Thread(target=lambda: (go(), sys.stdin.read())); t.start(); t.join()"
)


def kill_all(pids: list[int]) -> None:
    """Kill what a test started in the background."""
    for pid in pids:
        os.kill(pid, 9)


def test_children_of_all_threads_are_found(start: Callable[..., subprocess.Popen[str]]) -> None:
    """A child counts whichever thread started it; descendants include the children's children."""
    process = start(python(FAMILY))
    direct = {int(said(process)), int(said(process))}
    assert set(procs.children(process.pid)) == direct
    while len(family := procs.descendants(process.pid)) < 4:  # their `sleep` starts a bit later
        time.sleep(0.01)
    assert set(family[:2]) == direct
    assert process.pid not in family
    kill_all(family)


def test_children_are_found_without_the_kernels_list(
    start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that does not list children costs a scan, not the answer."""
    process = start(["/bin/sh", "-c", "sleep 600 & echo $!; wait"])
    child = int(said(process))
    read = procs._read
    monkeypatch.setattr(procs, "_read", lambda p: None if p.endswith("children") else read(p))
    monkeypatch.setattr(procs, "_kernel_lists_children", lambda: False)
    assert procs.children(process.pid) == [child]
    kill_all([child])


def test_resident_memory_counts_what_was_touched(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """A program that fills 100 MiB has at least these, and not twice as much."""
    code = "x = b'x' * (100 << 20); print(1, flush=True); input()"
    process = start(python(code))
    said(process)
    rss = procs.rss_mib(process.pid)
    assert rss is not None
    assert 100 <= rss < 200


def test_the_user_is_the_one_who_runs_it() -> None:
    """The real user id of a process is known to everyone."""
    assert procs.uid(os.getpid()) == os.getuid()
    assert procs.uid(1) == 0


def test_a_detached_process_is_found_by_its_marker(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    """Double forks and new sessions do not hide a lease's processes."""
    lease = f"L-{os.getpid()}"
    process = start(
        ["/bin/sh", "-c", "(setsid sleep 600 >/dev/null & echo $!); read x"],
        env={**os.environ, "GRN_LEASE": lease},
    )
    detached = int(said(process))
    while set(procs.with_marker()[lease]) != {process.pid, detached}:  # a subshell ends first
        time.sleep(0.01)
    kill_all([detached])


def test_the_table_answers_like_the_functions() -> None:
    """The table object is the module's functions, for whoever wants to pass in another one."""
    table = procs.ProcessTable()
    pid = os.getpid()
    assert table.start_time(pid) == procs.start_time(pid)
    assert table.is_alive(pid, table.start_time(pid))
    assert set(procs.__all__) - {"BROKER_SIGN", "ProcessTable"} == {
        n for n in vars(type(table)) if n[0] != "_"
    }


def test_an_identity_stays_with_its_process() -> None:
    """The same number for as long as a process lives, none after its end, another one for others."""
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        mine = procs.identity(first.pid)
        assert mine is not None
        assert mine != procs.identity(second.pid)
        assert procs.identity(first.pid) == mine
        first.kill()
        second.kill()
        first.wait()
        assert procs.identity(first.pid) is None
