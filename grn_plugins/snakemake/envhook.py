"""The place in Snakemake where a job's process is started, made ours for the threads that want it.

Design note. Snakemake starts shell commands, scripts, wrappers and notebooks by `sp.Popen` in its module
`snakemake.shell`, in the thread that runs the job. That name is replaced here by one that looks into a
thread-local: a thread that is inside `around(launcher)` has its processes started by the launcher, all
others get the real `Popen`. Rejected: `os.environ`, which all threads share; the resource `shell_exec`,
which breaks Python scripts; a prefix to the command, which comes too late for its first process.

It is no public interface. So `install` tries it out, and says why it would not work; what then remains
is a child Snakemake per job.

Promises: who is not inside gets what Snakemake has without us; installing twice changes nothing.
Must not: know of leases.
"""

from __future__ import annotations

import contextlib
import importlib
import subprocess
import threading
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Process = subprocess.Popen[Any]

__all__ = ["Launcher", "around", "current", "install", "installed", "remove"]

_MODULE = "snakemake.shell"
_NAME = "sp"


class Launcher(Protocol):
    """Starts the processes of one job."""

    def launch(self, popen: Callable[..., Process], args: Any, options: dict[str, Any]) -> Process:
        """Start a process as `popen(args, **options)` would."""
        ...


class _Thread(threading.local):
    """What this thread is inside of."""

    launcher: Launcher | None = None


_here = _Thread()
_lock = threading.Lock()


@contextlib.contextmanager
def around(launcher: Launcher) -> Iterator[None]:
    """Have the processes that Snakemake starts in this thread started by `launcher`."""
    before, _here.launcher = _here.launcher, launcher
    try:
        yield
    finally:
        _here.launcher = before


def current() -> Launcher | None:
    """Return what starts this thread's processes, `None` if it is nothing of ours."""
    return _here.launcher


class _Subprocess:
    """The module `subprocess`, but for `Popen`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    @staticmethod
    def Popen(args: Any, **options: Any) -> Process:  # noqa: N802 - the name that is looked up
        """Start a process, by the launcher that this thread is inside of."""
        launcher = _here.launcher
        if launcher is None:
            return subprocess.Popen(args, **options)  # noqa: S603 - what Snakemake starts
        return launcher.launch(subprocess.Popen, args, options)


def installed() -> bool:
    """Whether it is in place."""
    return isinstance(getattr(_module(), _NAME, None), _Subprocess)


def install() -> str:
    """Put it in place and try it out; return why it does not work, "" if it does."""
    with _lock:
        try:
            module = _module()
        except ImportError as error:
            return str(error)
        if getattr(module, _NAME, None) is None:
            return f"{_MODULE} has no {_NAME}"
        if not installed():
            setattr(module, _NAME, _Subprocess())
        problem = _tried(module)
        if problem:
            setattr(module, _NAME, subprocess)
        return problem


def remove() -> None:
    """Take it out again."""
    with _lock:
        if installed():
            setattr(_module(), _NAME, subprocess)


def _module() -> Any:
    # `import snakemake.shell as module` would give the class of that name.
    return importlib.import_module(_MODULE)


# -- the self-test --------------------------------------------------------------------------------


class _SeenError(Exception):
    """The process that Snakemake was about to start."""


class _Probe:
    """Starts nothing."""

    @staticmethod
    def launch(popen: Callable[..., Process], args: Any, options: dict[str, Any]) -> Process:
        """Tell what would be started."""
        del popen
        raise _SeenError(args, options)


def _tried(module: Any) -> str:
    """Have Snakemake start a command, without a process, and look at what reaches us."""
    try:
        with around(_Probe()):
            module.shell("echo grn")
    except _SeenError as seen:
        args, options = seen.args
        if isinstance(args, str) and "echo grn" in args and isinstance(options.get("env"), dict):
            return ""
        return "its commands do not come with an environment of their own"
    except Exception as error:  # noqa: BLE001 - whatever it is, the way round it is the same
        return f"{type(error).__name__}: {error}"
    return "its commands are started elsewhere"
