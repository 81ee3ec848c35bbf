"""A command under the shim is the command: its end, its descriptors, its environment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT

if TYPE_CHECKING:
    from tests.shim.shimmed import Shimmed


@pytest.mark.parametrize("status", [0, 3, 125, 255])
def test_an_exit_status_is_the_commands(shimmed: Shimmed, status: int):
    """The shim exits as the command has."""
    assert shimmed.run("sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "INT", "USR1"])
def test_a_signal_is_the_commands(shimmed: Shimmed, name: str):
    """The shim dies by the signal that the command has died of, and leaves no core file."""
    ended = shimmed.run("sh", "-c", f"kill -{name} $$")
    assert ended.returncode == -getattr(signal, f"SIG{name}")
    assert os.listdir(shimmed.folder) == []


def test_what_is_not_there_is_127(shimmed: Shimmed):
    """A command that is not found is 127, and said in one line."""
    ended = shimmed.run("no-such-program")
    assert (ended.returncode, ended.stderr) == (127, b"grn: no-such-program: not found\n")


def test_what_cannot_be_executed_is_126(shimmed: Shimmed):
    """A file that is no program is 126."""
    path = shimmed.path("data")
    with open(path, "w", encoding="ascii") as file:
        file.write("no program\n")
    assert shimmed.run(path).returncode == 126
    os.chmod(path, 0o700)
    ended = shimmed.run(path)
    assert ended.returncode == 126
    assert b"not a program" in ended.stderr


def test_words_arrive_as_they_are(shimmed: Shimmed):
    """Blanks, empty words, options, dashes and bytes that are no text pass through."""
    words = ["a b", "", "--", "-x", "$HOME", b"\xff\xfe".decode("utf-8", "surrogateescape")]
    code = "import os, sys; print([os.fsencode(word) for word in sys.argv[1:]])"
    ended = shimmed.run(sys.executable, "-c", code, *words)
    assert ended.stdout.decode().strip() == str([os.fsencode(word) for word in words])


def test_input_and_output_pass_through(shimmed: Shimmed):
    """Standard input, output and error are the command's."""
    ended = shimmed.run("sh", "-c", "cat; echo err >&2", input=b"in\n")
    assert (ended.stdout, ended.stderr) == (b"in\n", b"err\n")


def test_inherited_descriptors_pass_and_the_shims_do_not(shimmed: Shimmed):
    """What the caller hands down arrives; of the shim's own descriptors none does."""
    told, tell = os.pipe()
    reads, writes = os.pipe()
    code = "import os; print([fd for fd in range(3, 99) if os.path.exists(f'/proc/self/fd/{fd}')])"
    ended = shimmed.run(
        sys.executable,
        "-c",
        code,
        pass_fds=[tell, writes],
        of_shim={"status_fd": writes},
    )
    for fd in (told, tell, reads, writes):
        os.close(fd)
    assert ended.stdout.decode().strip() == f"[{tell}]"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors_stay_closed(shimmed: Shimmed, closed: str):
    """A command whose caller has closed one finds it closed, and runs."""
    code = "seen = [fd for fd in (0, 1, 2) if ok(fd)]; open('seen', 'w').write(str(seen))"
    tell = "def ok(fd):\n try: return bool(os.fstat(fd))\n except OSError: return False\n"
    open_ones = {"<&-": [1, 2], ">&-": [0, 2], "2>&-": [0, 1]}.get(closed, [])
    from grn import shim

    words = shim.command([sys.executable, "-c", f"import os\n{tell}{code}"], watch_caller=False)
    quoted = " ".join(f'"${{{number}}}"' for number in range(1, len(words) + 1))
    argv = ["sh", "-c", f"exec {quoted} {closed}", "sh", *words]
    assert (
        subprocess.run(argv, env=shimmed.environ, cwd=shimmed.folder, check=False).returncode == 0
    )
    with open(shimmed.path("seen"), encoding="ascii") as file:
        assert file.read() == str(open_ones)


def test_the_environment_is_the_callers(shimmed: Shimmed):
    """Nothing is added to the environment, in the C locale neither."""
    environ = {"PATH": shimmed.environ["PATH"], "LANG": "C", "X": "1"}
    ended = shimmed.run("env", "-0", env=environ)
    given = dict(word.decode().split("=", 1) for word in ended.stdout.split(b"\0") if word)
    assert given == environ


def test_the_search_path_is_that_of_the_environment(shimmed: Shimmed):
    """A name is looked for in the PATH that the command is given."""
    path = shimmed.path("tool")
    with open(path, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\necho mine\n")
    os.chmod(path, 0o700)
    ended = shimmed.run("tool", env={**shimmed.environ, "PATH": shimmed.folder})
    assert ended.stdout == b"mine\n"


def test_an_executable_may_have_another_name(shimmed: Shimmed):
    """The file that is executed may be another than the first word, as with Popen."""
    ended = shimmed.run("other", "-c", "echo $0", of_shim={"executable": "/bin/sh"})
    assert ended.stdout == b"other\n"


def test_ignored_signals_stay_ignored_and_others_are_default(shimmed: Shimmed):
    """The command has the dispositions and the mask that the caller had, SIGPIPE the usual one."""
    code = "grep -E 'Sig(Ign|Blk|Cgt)' /proc/self/status | tr -d '\\n\\t' "
    plain = subprocess.run(["sh", "-c", code], capture_output=True, check=True)
    assert shimmed.run("sh", "-c", code).stdout == plain.stdout
    under_nohup = f"trap '' HUP INT; {code}"
    nohup = subprocess.run(["sh", "-c", under_nohup], capture_output=True, check=True)
    from grn import shim

    words = " ".join(f"'{word}'" for word in shim.command(["cat", "/proc/self/status"]))
    shown = subprocess.run(
        ["sh", "-c", f"trap '' HUP INT; exec {words}"], capture_output=True, check=True
    ).stdout
    lines = b"".join(x for x in shown.splitlines() if x[:6] in {b"SigIgn", b"SigBlk", b"SigCgt"})
    assert lines.replace(b"\t", b"")[:46] == nohup.stdout[:46]


def test_it_stays_in_the_callers_group_and_session(shimmed: Shimmed):
    """Group, session and folder are the caller's."""
    code = "import os; print(os.getpgrp(), os.getsid(0), os.getcwd())"
    ended = shimmed.run(sys.executable, "-c", code)
    assert ended.stdout.split()[:2] == [str(os.getpgrp()).encode(), str(os.getsid(0)).encode()]
    assert ended.stdout.split()[2] == os.path.realpath(shimmed.folder).encode()


def test_it_can_be_bound_to_cores(shimmed: Shimmed):
    """The command is bound before it can count its cores."""
    core = min(os.sched_getaffinity(0))
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    ended = shimmed.run(sys.executable, "-c", code, of_shim={"cores": [core]})
    assert ended.stdout.decode().strip() == str([core])


def test_what_it_tells(shimmed: Shimmed):
    """The status descriptor names both processes, then the end, and then ends itself."""
    for argv, end in (
        (["sh", "-c", "exit 4"], b"exit 4"),
        (["sh", "-c", "kill -9 $$"], b"signal 9"),
        (["no-such-program"], b"exec 2"),
    ):
        told, tell = os.pipe()
        ended = shimmed.run(*argv, pass_fds=[tell], of_shim={"status_fd": tell})
        os.close(tell)
        with open(told, "rb") as file:
            began, said = file.read().splitlines()
        assert began.startswith(b"pid ")
        assert said.split()[:2] == end.split()
        if not end.startswith(b"exec"):
            _, _, cpu_s, rss_kib = said.split()
            assert float(cpu_s) >= 0
            assert int(rss_kib) > 0
        assert not ended.stderr


def test_it_loads_little():
    """A command that ends by itself has paid for nothing that takes long to load."""
    heavy = "ctypes signal enum subprocess threading typing dataclasses pathlib re struct site"
    code = (
        "import sys\n"
        "import os\n"
        "end = os._exit\n"
        f"os._exit = lambda code: (print(sorted(set(sys.modules) & set({heavy.split()}))), end(code))\n"
        f"sys.path.insert(0, {os.path.join(ROOT, 'core')!r})\n"
        "from grn.shim.run import main\n"
        "main(['--', 'true'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-u", "-c", code], capture_output=True, check=False
    )
    assert ended.stdout == b"[]\n", ended.stderr


def test_another_python_takes_the_longer_way():
    """Where the short way to the kernel's calls is closed, the usual one is taken."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {os.path.join(ROOT, 'core')!r})\n"
        "from grn.shim import kernel\n"
        "from grn.shim.run import main\n"
        "kernel._calls = None\n"
        "main(['--', 'sh', '-c', 'sleep 600 & exit 3'])\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (3, b"")


def test_children_from_before_are_left_alone(shimmed: Shimmed):
    """Who replaces itself by a shim keeps its children; the command's are known by their lease then."""
    from grn import shim

    words = shim.command(["sh", "-c", "sleep 600 & exit 0"], lease="test-lease")
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"sleep 600 & echo $! > before; export GRN_LEASE=test-lease; exec {quoted}"
    ended = subprocess.run(["sh", "-c", code], env=shimmed.environ, cwd=shimmed.folder, check=False)
    assert ended.returncode == 0
    with open(shimmed.path("before"), encoding="ascii") as file:
        before = int(file.read())
    assert shimmed.left() == [before]
    os.kill(before, signal.SIGKILL)
    shimmed.none_left()
