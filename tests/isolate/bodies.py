"""Functions that tests have called in processes of their own. Imports little: each process does."""

# ruff: noqa: D103, TRY301, S311, T201 - each is as short as what a user would write

from __future__ import annotations

import copyreg
import ctypes
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

IMPORTED_WITH = dict(os.environ)
"""The environment at the time of this module's import."""


def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


def pid() -> int:
    return os.getpid()


def surroundings() -> dict[str, Any]:
    """Tell what a body finds around it."""
    return {
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "path": sys.path,
        "affinity": os.sched_getaffinity(0),
        "session": os.getsid(0),
        "pid": os.getpid(),
        "threads": len(os.listdir("/proc/self/task")),
        "stdin": sys.stdin.read(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "comm": open("/proc/self/comm").read().strip(),
    }


def environment() -> dict[str, Any]:
    """Tell the environment as Python, C and a child see it."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return {
        "python": dict(os.environ),
        "c": {name: getenv(name.encode()) for name in ("MINE", "PATH", "HOME", "GRN_ISOLATE_PAD")},
        "child": subprocess.check_output(["/usr/bin/env"]).decode(errors="replace").split(),
        "at_import": IMPORTED_WITH,
    }


def signals() -> dict[str, Any]:
    """Tell what signals do here."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE)
    return {
        "default": [
            number.name for number in numbers if signal.getsignal(number) == signal.SIG_DFL
        ],
        "interrupts": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }


def answer() -> None:
    """Answer over a socket that came with the call."""
    from socket import socket

    from grn.isolate import given_fds

    (fd,) = given_fds()
    with socket(fileno=fd) as line:
        line.send(line.recv(100).upper())


def open_files() -> dict[str, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return found


def say(out: str, err: str) -> None:
    print(out)
    print(err, file=sys.stderr)


def say_and_leave(words: str, status: int) -> None:
    print(words, file=sys.stderr)
    os._exit(status)


def chance() -> float:
    return random.random()


def kill_myself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def fail(error: BaseException) -> None:
    raise error


def leave(code: Any) -> None:
    sys.exit(code)


class CustomError(Exception):
    """Its constructor does not fit its arguments."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"code {code}: {why}")
        self.code = code
        self.why = why


class UnspeakableError(Exception):
    """It holds what cannot travel."""

    def __init__(self) -> None:
        super().__init__("no way")
        self.lock = threading.Lock()


def fail_custom() -> None:
    raise CustomError(7, why="just so")


def fail_unspeakable() -> None:
    raise UnspeakableError


def fail_with_cause() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        second = ValueError("second")
        second.add_note("mind the gap")
        raise second from error


class Stubborn:
    """It can leave, but cannot be rebuilt."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def count(to: int) -> Iterator[int]:
    yield from range(to)


async def soon() -> int:
    return 1


def touch_and_sleep(path: str) -> None:
    """Say in a file who we are, when we are set up, and stay."""
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    time.sleep(600)


def ignore_and_sleep(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    touch_and_sleep(path)


def with_family(folder: str) -> None:
    """Start a child, one in a session of its own, and an orphan; stay."""
    code = f"from tests.isolate.bodies import touch_and_sleep as stay; stay({folder!r} + '/%s')"
    subprocess.Popen([sys.executable, "-c", code % "child"])
    subprocess.Popen([sys.executable, "-c", code % "session"], start_new_session=True)
    subprocess.run(["/bin/sh", "-c", f'"{sys.executable}" -c "{code % "orphan"}" &'], check=True)
    touch_and_sleep(folder + "/body")


def with_broker(folder: str) -> None:
    """Start what looks like a broker that was started on demand; stay."""
    code = f"from tests.isolate.bodies import touch_and_sleep as stay; stay({folder!r} + '/broker')"
    subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "GRN_BROKER": "1"})
    touch_and_sleep(folder + "/body")


def interruptible(path: str) -> str:
    try:
        touch_and_sleep(path)
    except KeyboardInterrupt:
        return "interrupted"
    return "slept"


def wait_for(path: str) -> int:
    while not os.path.exists(path):
        time.sleep(0.01)
    return os.getpid()


def own_children() -> list[int]:
    """Use multiprocessing as programs do."""
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sorted(pool.map(abs, [-1, 2, -3]))


def finish_later(path: str) -> str:
    """Leave work to a thread and to an exit handler."""
    import atexit

    def write(text: str) -> None:
        with open(path, "a") as file:
            file.write(text)

    def work() -> None:
        time.sleep(0.05)
        write("thread ")

    atexit.register(write, "exit")
    threading.Thread(target=work).start()
    return "done"


def die_at_exit() -> str:
    import atexit

    atexit.register(os.kill, os.getpid(), signal.SIGKILL)
    return "done"


def nested() -> tuple[int, int]:
    """Call in a process of its own from a process of its own."""
    from grn.isolate import ForkServer

    return os.getpid(), ForkServer.shared().run(pid, env=os.environ).result()


def start_thread() -> None:
    threading.Thread(target=time.sleep, args=(600,), name="lingerer", daemon=True).start()


WARM: list[int] = []


def warm() -> None:
    WARM.append(os.getpid())


def warmed() -> list[int]:
    return WARM


def fail_to_warm() -> None:
    raise RuntimeError("cold")


def numpy_threads() -> int:
    """Return how many threads numpy's OpenBLAS would use."""
    import numpy as np  # noqa: F401

    with open("/proc/self/maps") as file:
        library = next(line.split()[-1] for line in file if "openblas" in line)
    blas = ctypes.CDLL(library)
    for name in ("openblas_get_num_threads", "scipy_openblas_get_num_threads64_"):
        if hasattr(blas, name):
            return int(getattr(blas, name)())
    raise LookupError(library)


def numpy_chance() -> float:
    import numpy as np

    return float(np.random.rand())  # noqa: NPY002


def leave_with_a_reducer(code: int) -> None:
    """Leave where a library has registered how exceptions are pickled: without their constructor."""
    copyreg.pickle(SystemExit, lambda error: (SystemExit.__new__, (SystemExit, *error.args)))
    raise SystemExit(code)
