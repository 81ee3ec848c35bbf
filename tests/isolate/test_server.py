"""The fork server: shared, warmed, robust, and without a trace when it is gone."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from grn import procs
from grn.isolate import CannotStart, ForkServer, Unpicklable
from tests.env import eventually, wait_gone
from tests.isolate import bodies
from tests.isolate.conftest import written_pid

if TYPE_CHECKING:
    from pathlib import Path

CALLS = 200
AT_ONCE = 64


def descriptors(pid: int | str = "self") -> int:
    """Count the open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def lines(server: int) -> int:
    """Count the sockets that a server holds beside the one to its caller."""
    folder = f"/proc/{server}/fd"
    return sum("socket" in os.readlink(f"{folder}/{name}") for name in os.listdir(folder)) - 1


def test_a_process_shares_its_servers() -> None:
    """The same modules and initializer give the same server; others give others."""
    server = ForkServer.shared()
    assert ForkServer.shared() is server
    assert ForkServer.shared(preload=("json",)) is not server
    assert ForkServer.shared(initializer=bodies.warm) is ForkServer.shared((), bodies.warm)


def test_preloading_is_done_once(env: dict[str, str]) -> None:
    """Modules are imported, and the initializer is called, in the server and not for each call."""
    with ForkServer(preload=["tests.isolate.bodies"], initializer=bodies.warm) as server:
        seen = [server.run(bodies.warmed, env=env).result() for _ in range(2)]
        assert seen == [[server.pid]] * 2


def test_threads_in_the_server_are_refused(env: dict[str, str]) -> None:
    """A server in which preloading has left a thread starts no process, and says what it was."""
    with ForkServer(preload=["json"], initializer=bodies.start_thread) as server:
        with pytest.raises(CannotStart, match=r"1 thread.*json, the initializer.*lingerer"):
            server.run(bodies.pid, env=env)
        with pytest.raises(CannotStart, match="lingerer"):
            server.run(bodies.pid, env=env)


def test_a_preloaded_numpy_obeys_the_bodys_caps(env: dict[str, str]) -> None:
    """With numpy preloaded, its threads and its random numbers are the body's own."""
    pytest.importorskip("numpy")
    with ForkServer(preload=["numpy"]) as server:
        for cap in (1, 2):
            caps = {**env, "OMP_NUM_THREADS": str(cap)}
            child = server.run(bodies.numpy_threads, env={**caps, "OPENBLAS_NUM_THREADS": str(cap)})
            assert child.result() == cap
        assert len({server.run(bodies.numpy_chance, env=env).result() for _ in range(3)}) == 3


def test_a_failed_preload_is_told(env: dict[str, str]) -> None:
    """A module that is not there, or an initializer that fails, is named with its traceback."""
    with (
        ForkServer(preload=["no_such_module"]) as server,
        pytest.raises(CannotStart, match="No module named 'no_such_module'"),
    ):
        server.run(bodies.pid, env=env)
    with (
        ForkServer(initializer=bodies.fail_to_warm) as server,
        pytest.raises(CannotStart, match="RuntimeError: cold"),
    ):
        server.run(bodies.pid, env=env)


def test_an_initializer_that_cannot_travel_is_told(env: dict[str, str]) -> None:
    """An initializer that cannot be sent is told so when the server is needed."""
    lock = threading.Lock()
    with ForkServer(initializer=lambda: lock) as server, pytest.raises(Unpicklable):
        server.run(bodies.pid, env=env)


def test_a_server_that_was_killed_is_replaced(env: dict[str, str]) -> None:
    """The next call gets a new server."""
    with ForkServer() as server:
        server.run(bodies.pid, env=env).result()
        first = server.pid
        os.kill(first, signal.SIGKILL)
        eventually(lambda: procs.start_time(first) is None)
        assert server.run(bodies.echo, env=env).result() == ((), {})
        assert server.pid not in {0, first}


def test_a_closed_server_leaves_nothing_and_can_be_used_again(
    env: dict[str, str], tmp_path: Path
) -> None:
    """Closing ends the server and its processes at once; another call starts another server."""
    server = ForkServer()
    child = server.run(bodies.touch_and_sleep, (str(tmp_path / "up"),), env=env)
    pid, first = written_pid(tmp_path / "up"), server.pid
    server.close()
    assert procs.start_time(pid) is None
    assert not os.path.exists(f"/proc/{first}")
    assert child.outcome().kind == "died"
    assert server.run(bodies.echo, env=env).result() == ((), {})
    server.close()
    assert not procs.children(os.getpid()) or first not in procs.children(os.getpid())


def test_many_calls_leave_no_trace(env: dict[str, str]) -> None:
    """After many calls there are as many descriptors and processes as before, here and there."""
    gc.collect()  # children of other tests that are held by tracebacks
    with ForkServer() as server:
        server.run(bodies.pid, env=env).result()
        eventually(lambda: lines(server.pid) == 0, what="the server has let go of the first call")
        before = descriptors(), descriptors(server.pid), procs.descendants(os.getpid())
        for _ in range(CALLS // 4):
            children = [server.run(bodies.echo, (bytes(10_000),), env=env) for _ in range(4)]
            for child in children:
                child.result()
        del child, children
        eventually(lambda: lines(server.pid) == 0, what="the server has let go of all calls")
        assert (descriptors(), descriptors(server.pid), procs.descendants(os.getpid())) == before


def test_a_failed_call_keeps_no_descriptor(env: dict[str, str]) -> None:
    """A call that raised has let go of everything when its error has been dealt with."""
    with ForkServer() as server:
        server.run(bodies.pid, env=env).result()
        gc.collect()
        gc.disable()
        try:
            before = descriptors()
            for _ in range(5):
                with pytest.raises(ValueError, match="no"):
                    server.run(bodies.fail, (ValueError("no"),), env=env).result()
            assert descriptors() == before
        finally:
            gc.enable()


def test_many_threads_call_at_once(env: dict[str, str], tmp_path: Path) -> None:
    """Sixty-four bodies that were started by as many threads run at the same time."""
    go = tmp_path / "go"
    with ForkServer() as server, ThreadPoolExecutor(AT_ONCE) as pool:
        pids = [
            pool.submit(lambda: server.run(bodies.wait_for, (str(go),), env=env).result())
            for _ in range(AT_ONCE)
        ]
        eventually(
            lambda: server.pid and len(procs.children(server.pid)) == AT_ONCE, what="all are there"
        )
        go.touch()
        assert len({future.result() for future in pids}) == AT_ONCE


def test_ends_are_told_apart_in_a_crowd(env: dict[str, str]) -> None:
    """Each of many bodies that end in different ways at the same time is told as what it was."""
    ways: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("returned", bodies.echo, (b"x" * 100_000,)),
        ("raised", bodies.fail, (ValueError("no"),)),
        ("raised", bodies.leave, (3,)),
        ("died", os._exit, (3,)),
        ("died", bodies.kill_myself, (signal.SIGKILL,)),
        ("unpicklable", threading.Lock, ()),
    ]
    with ForkServer() as server, ThreadPoolExecutor(16) as pool:

        def call(way: tuple[str, Any, tuple[Any, ...]]) -> tuple[str, str]:
            return way[0], server.run(way[1], way[2], env=env).outcome().kind

        seen = list(pool.map(call, ways * 16))
    assert [expected for expected, _ in seen] == [kind for _, kind in seen]


def test_a_body_outlives_the_thread_that_started_it(env: dict[str, str], tmp_path: Path) -> None:
    """Neither the server nor its processes end with the thread that started them."""
    children = []
    with ForkServer() as server:

        def start() -> None:
            children.append(server.run(bodies.wait_for, (str(tmp_path / "go"),), env=env))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        tasks = f"/proc/self/task/{thread.native_id}"
        eventually(lambda: not os.path.exists(tasks), what="the thread is gone for the kernel")
        assert not children[0].wait(0)
        (tmp_path / "go").touch()
        assert children[0].result() == children[0].pid


def test_a_forked_process_does_not_use_its_parents_server(env: dict[str, str]) -> None:
    """A process that was forked from a caller has servers of its own, and leaves its parent's be."""
    server = ForkServer.shared()
    server.run(bodies.pid, env=env).result()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        own = ForkServer.shared()
        own.run(bodies.pid, env=env).result()
        theirs.send(f"{own is server} {own.pid}".encode())
        own.close()
        os._exit(0)
    os.waitpid(pid, 0)
    same, number = ours.recv(100).decode().split()
    ours.close()
    theirs.close()
    assert same == "False"
    assert int(number) not in {0, server.pid}
    assert server.run(bodies.echo, env=env).result() == ((), {})


def test_proc_shows_the_lease_of_a_body(env: dict[str, str], tmp_path: Path) -> None:
    """A body, and what it forks, carries the lease of its environment as a started program does."""
    with (
        ForkServer() as server,
        server.run(
            bodies.touch_and_sleep, (str(tmp_path / "up"),), env={**env, "GRN_LEASE": "lease-7"}
        ) as child,
    ):
        written_pid(tmp_path / "up")
        assert procs.marker(child.pid) == "lease-7"
        assert procs.marker(server.pid) == os.environ.get("GRN_LEASE")
        assert procs.start_time(child.pid) == child.start


def test_an_orphan_in_another_session_is_found_by_its_lease(
    env: dict[str, str], tmp_path: Path
) -> None:
    """What has left session and parents is stopped with the body whose lease it carries."""
    path = str(tmp_path / "left")

    def daemonize() -> None:
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                bodies.touch_and_sleep(path)
            os._exit(0)

    with ForkServer() as server:
        child = server.run(daemonize, env={**env, "GRN_LEASE": "lease-8"})
        child.result()
        left = written_pid(path)
        child.stop(grace_s=30)
        wait_gone(left)
