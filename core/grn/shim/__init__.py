"""The shim: a small process around one command, for callers that start their commands themselves.

    [sys.executable, -I, -S, main.py, options, --, the command]

The caller executes `command(argv)` in place of `argv`, and finds the command as it was: the same process
group, session, terminal and descriptors, the same exit status, the same signal. What is new: all that
the command has started is gone when the shim ends (unless `leftovers` says otherwise), and when the
caller dies, even by SIGKILL, its command and all below it go too.

Promises: nothing is signalled that is not provably the command's; signals to the shim reach the command.
Must not: know of leases, but for the marker that a command's processes carry; import anything heavy.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    Leftovers = Literal["kill", "wait", "keep"]

__all__ = ["GRACE_S", "MAIN", "command"]

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL, unless the caller says otherwise."""
MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "main.py")


def command(
    argv: Sequence[str],
    *,
    watch_caller: bool = True,
    control_fd: int | None = None,
    status_fd: int | None = None,
    leftovers: Leftovers = "kill",
    grace_s: float = GRACE_S,
    lease: str | None = None,
    executable: str | None = None,
    cores: Sequence[int] = (),
) -> list[str]:
    """Return the words that run `argv` under a shim. Start them as a child, however you like.

    Args:
        argv: the command; its first word is looked for in the PATH of the environment given to it.
        watch_caller: end the command when this process dies.
        control_fd: a descriptor that the shim inherits and reads: its end, or `b"T"`, ends the command
            (SIGTERM, after `grace_s` SIGKILL); `b"I"` interrupts it first, as Ctrl-C would.
        status_fd: one that it inherits and writes lines to: `pid SHIM COMMAND` at the start,
            `exit CODE CPU KIB`, `signal NUMBER CPU KIB` (seconds of CPU, and the largest resident
            memory of a process) or `exec ERRNO` when the command has ended, `left PID...` for
            what could not be killed, `note TEXT` for people. Its end is the shim's end. It may be the same as `control_fd`.
        leftovers: what becomes of processes that the command leaves behind: "kill" them, "wait" for
            them, or "keep" them.
        grace_s: how long a process that was told to end may take.
        lease: the id in the GRN_LEASE of the command's environment, if that lease is this command's
            alone: its processes are then also recognised by it.
        executable: the file to execute, where it is not what `argv[0]` names.
        cores: what to bind the command to, before it can count them.
    """
    words = [sys.executable, "-I", "-S", MAIN]
    if watch_caller:
        words.append(f"--caller={_caller()}")
    options = (
        ("control", control_fd),
        ("status", status_fd),
        ("leftovers", None if leftovers == "kill" else leftovers),
        ("grace", None if grace_s == GRACE_S else f"{grace_s:g}"),
        ("lease", lease),
        ("executable", executable),
        ("cores", ",".join(map(str, cores)) or None),
    )
    words += [f"--{name}={value}" for name, value in options if value is not None]
    return [*words, "--", *argv]


def _caller() -> str:
    from grn import procs  # noqa: PLC0415 - the shim itself imports this module

    pid = os.getpid()
    return f"{pid}:{procs.start_time(pid) or 0}"
