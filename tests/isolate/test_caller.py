"""What becomes of bodies when their caller ends or is interrupted."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.env import ROOT, wait_gone
from tests.isolate.conftest import written_pid

if TYPE_CHECKING:
    from pathlib import Path

    from tests.isolate.conftest import Scripts

CALLER = """
import os, signal, sys, threading, time
from grn.isolate import ForkServer
from tests.isolate import bodies

folder = sys.argv[1]
server = ForkServer.shared()
env = {**os.environ, **dict(zip(["GRN_LEASE"], sys.argv[2:]))}
child = server.run(bodies.with_family, (folder,), env=env)
with open(folder + "/server.new", "w") as file:
    file.write(str(server.pid))
os.rename(folder + "/server.new", folder + "/server")
"""
ALL = ("child", "session", "orphan", "body", "server")


def pids(folder: Path) -> list[int]:
    """Wait for all processes of a caller; return their pids."""
    return [written_pid(folder / name) for name in ALL]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_caller_that_is_killed_takes_all_with_it(
    script: Scripts, tmp_path: Path, number: int
) -> None:
    """However a caller is killed, its server, its bodies and what they started are gone."""
    caller = script(CALLER + "child.result()", str(tmp_path))
    everybody = pids(tmp_path)
    caller.send_signal(number)
    caller.wait()
    for pid in everybody:
        wait_gone(pid)


def test_a_caller_that_ends_takes_all_with_it(script: Scripts, tmp_path: Path) -> None:
    """When a caller is done, bodies that nobody waited for are ended, and it says nothing."""
    ending = "while not os.path.exists(folder + '/end'): time.sleep(0.01)"
    caller = script(CALLER + ending, str(tmp_path))
    everybody = pids(tmp_path)
    (tmp_path / "end").touch()
    assert caller.communicate(timeout=60) == ("", "")
    for pid in everybody:
        wait_gone(pid)


def test_a_caller_that_becomes_another_program_takes_all_with_it(
    script: Scripts, tmp_path: Path
) -> None:
    """A caller that replaces itself by another program has ended as far as its bodies go."""
    ending = "while not os.path.exists(folder + '/end'): time.sleep(0.01)\n"
    script(CALLER + ending + "os.execvp('sleep', ['sleep', '600'])", str(tmp_path))
    everybody = pids(tmp_path)
    (tmp_path / "end").touch()
    for pid in everybody:
        wait_gone(pid)


def test_a_fork_of_a_dead_caller_keeps_nobody_alive(script: Scripts, tmp_path: Path) -> None:
    """A process that the caller has forked behind Python's back does not keep its bodies alive."""
    ending = """
import ctypes
if ctypes.PyDLL(None).fork() == 0:
    ctypes.PyDLL(None).pause()
child.result()
"""
    options = {"start_new_session": True, "stdout": None, "stderr": None}
    caller = script(CALLER + ending, str(tmp_path), **options)
    everybody = pids(tmp_path)
    caller.kill()
    caller.wait()
    for pid in everybody:
        wait_gone(pid)
    os.killpg(caller.pid, signal.SIGKILL)


def test_a_server_that_is_killed_takes_all_with_it(script: Scripts, tmp_path: Path) -> None:
    """When the server itself is killed, the caller is told, and ends what carries the lease."""
    ending = """
from grn.isolate import BodyDied
try:
    child.result()
except BodyDied as error:
    print(error)
"""
    caller = script(CALLER + ending, str(tmp_path), f"lease-{os.getpid()}")
    everybody = pids(tmp_path)
    os.kill(everybody[-1], signal.SIGKILL)
    out, err = caller.communicate(timeout=60)
    assert "together with the fork server" in out
    assert err == ""
    for pid in everybody:
        wait_gone(pid)


def test_a_caller_under_a_lease_does_not_end_what_shares_it(
    script: Scripts, tmp_path: Path
) -> None:
    """A caller whose body shares its own lease survives the end of the body's family."""
    lease = f"lease-{os.getpid()}"
    text = """
import os, sys
from grn.isolate import ForkServer
from tests.isolate import bodies

child = ForkServer.shared().run(bodies.touch_and_sleep, (sys.argv[1],), env=os.environ)
bodies.wait_for(sys.argv[1])
os.kill(ForkServer.shared().pid, 9)
print(child.outcome().kind, child.stop(0))
"""
    environ = {**os.environ, "PYTHONPATH": ROOT, "GRN_LEASE": lease}
    caller = script(text, str(tmp_path / "up"), env=environ)
    assert caller.communicate(timeout=60) == ("died []\n", "")
    assert caller.returncode == 0


def test_an_interrupt_of_the_group_does_not_reach_bodies(script: Scripts, tmp_path: Path) -> None:
    """Ctrl-C is for the caller: a body goes on until the caller ends it."""
    text = """
import os, sys
from grn.isolate import ForkServer
from tests.isolate import bodies

folder = sys.argv[1]
child = ForkServer.shared().run(bodies.interruptible, (folder + "/body",), env=os.environ)
try:
    child.result()
except KeyboardInterrupt:
    print("interrupted", child.wait(0), flush=True)
    print(child.stop(30), child.outcome().kind)
"""
    caller = script(text, str(tmp_path), start_new_session=True)
    pid = written_pid(tmp_path / "body")
    os.killpg(caller.pid, signal.SIGINT)
    assert caller.communicate(timeout=60) == ("interrupted False\n[] died\n", "")
    assert not os.path.exists(f"/proc/{pid}")


def test_a_caller_without_standard_descriptors_can_call(script: Scripts, tmp_path: Path) -> None:
    """A caller whose standard descriptors are closed calls as any other does."""
    text = """
import os, sys
os.closerange(0, 3)
from grn.isolate import ForkServer
value = ForkServer.shared().run(lambda: print("lost") or 42, env=os.environ).result()
with open(sys.argv[1], "w") as file:
    file.write(str(value))
"""
    assert script(text, str(tmp_path / "value")).wait(60) == 0
    assert (tmp_path / "value").read_text() == "42"


def test_an_event_loop_can_wait(script: Scripts) -> None:
    """The end of a body can be awaited through its descriptor."""
    text = """
import asyncio, os
from grn.isolate import ForkServer

async def main():
    child = ForkServer.shared().run(lambda: 42, env=os.environ)
    gone = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(child.fileno(), gone.set)
    await gone.wait()
    loop.remove_reader(child.fileno())
    print(child.result(0))
    child.close()

asyncio.run(main())
"""
    assert script(text).communicate(timeout=60) == ("42\n", "")


def test_no_warning_and_no_zombie_at_the_end(script: Scripts) -> None:
    """A caller in development mode ends without a warning about anything left open."""
    text = """
import os, subprocess, sys
from grn.isolate import ForkServer
if sys.flags.dev_mode:
    print(ForkServer.shared().run(lambda: sys.flags.dev_mode, env=os.environ).result())
else:
    sys.exit(subprocess.call([sys.executable, "-X", "dev", "-W", "error", __file__]))
"""
    assert script(text).communicate(timeout=60) == ("True\n", "")


def test_nothing_is_started_before_it_is_needed(script: Scripts) -> None:
    """A caller that calls nothing has no server."""
    text = "from grn.isolate import ForkServer\nprint(ForkServer.shared().pid)"
    assert script(text).communicate(timeout=60) == ("0\n", "")
