"""`grn COMMAND …`: choose a command, and turn the way it ends into what a shell expects.

Promises: only the chosen command's module is imported, so that `grn run` starts a job quickly; every
error that GRN raises on purpose becomes one line on standard error and its exit status; Ctrl-C and a
closed pipe end the process by their signal, as they end other programs.
Must not: parse a command's own options, or import anything heavy.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys

from grn.errors import GrnError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

__all__ = ["main", "main_broker", "main_queue", "main_run"]

HELP = """\
usage: grn COMMAND [OPTION ...]

Share the devices of this machine out to jobs whose need is only known once they have run.

commands:
  run        run a command, or many, each with a share of a device
  status     show devices, leases, and what every waiting job waits for
  top        the same live: who runs where, who waits for what and until when
  explain    say why a job waits or where it would go, when, and what is known of its type
  history    what ran here, when, with what memory, and how it ended
  report     one page about what ran: devices over time, memory, waits; a trace for Perfetto
  events     show what happens, as it happens
  run-notebook  execute a notebook with a share of a device
  queue      keep a list of commands and notebooks on disk, and work it off
  profiles   show, set or forget what was learnt about job types
  metrics    print figures for Prometheus, or keep them in a file for node_exporter
  devices    show the devices as GRN sees them, with or without a broker
  config     show settings, flavors and rules for commands, and the files that they are from
  doctor     look at driver, devices, broker and machine; say what is wrong and what to do
  selftest   check on these devices that GRN does what it promises; a report to send
  broker     run the broker in the foreground, or stop it (`grn broker stop`)

options:
  --help     show this text; `grn COMMAND --help` tells more
  --version  show the version

Nothing needs to be started first: `grn run` starts the broker if there is none.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `grn` with these arguments (default: those of the process); return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    first = words[0] if words else ""
    if first in COMMANDS:
        return _guarded(first, words[1:])
    if first in {"help", "--help", "-h"}:
        return _print(HELP)
    if first in {"--version", "-V"}:
        return _print(_version())
    _open_closed_streams()
    _complain(_advice(first))
    return UsageError.exit_status


def main_run() -> int:
    """Entry point of `grn-run`."""
    return _guarded("run", sys.argv[1:])


def main_broker() -> int:
    """Entry point of `grn-broker` and `grn-start`."""
    return _guarded("broker", sys.argv[1:])


def _run(argv: list[str]) -> int:
    # All that is imported stays: the garbage collector need not go through it, now or at the end.
    gc.disable()
    from grn.cli.run import main as command

    gc.freeze()
    gc.enable()
    return command(argv)


def _broker(argv: list[str]) -> int:
    from grn.cli.broker import main as command

    return command(argv)


def main_queue() -> int:
    """Entry point of `grn-queue`."""
    return _guarded("queue", sys.argv[1:])


def _queue(argv: list[str]) -> int:
    from grn.cli.queue import main as command

    return command(argv)


def _run_notebook(argv: list[str]) -> int:
    from grn.cli.notebook import main as command

    return command(argv)


def _status(argv: list[str]) -> int:
    from grn.cli.status import main as command

    return command(argv)


def _top(argv: list[str]) -> int:
    from grn.cli.top.command import main as command

    return command(argv)


def _explain(argv: list[str]) -> int:
    from grn.cli.why import main as command

    return command(argv)


def _events(argv: list[str]) -> int:
    from grn.cli.events import main as command

    return command(argv)


def _history(argv: list[str]) -> int:
    from grn.cli.history import main as command

    return command(argv)


def _profiles(argv: list[str]) -> int:
    from grn.cli.profiles import main as command

    return command(argv)


def _metrics(argv: list[str]) -> int:
    from grn.cli.metrics import main as command

    return command(argv)


def _devices(argv: list[str]) -> int:
    from grn.cli.devices import main as command

    return command(argv)


def _config(argv: list[str]) -> int:
    from grn.cli.config import main as command

    return command(argv)


def _report(argv: list[str]) -> int:
    from grn.cli.report import main as command

    return command(argv)


def _doctor(argv: list[str]) -> int:
    from grn.cli.doctor import main as command

    return command(argv)


def _selftest(argv: list[str]) -> int:
    from grn.cli.selftest import main as command

    return command(argv)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "broker": _broker,
    "queue": _queue,
    "run-notebook": _run_notebook,
    "status": _status,
    "top": _top,
    "explain": _explain,
    "history": _history,
    "events": _events,
    "profiles": _profiles,
    "metrics": _metrics,
    "devices": _devices,
    "config": _config,
    "report": _report,
    "doctor": _doctor,
    "selftest": _selftest,
}


def _guarded(name: str, argv: list[str]) -> int:
    """Run one command and give each way of ending the form that a shell knows."""
    _open_closed_streams()
    try:
        try:
            return COMMANDS[name](argv)
        finally:
            # Here, not in the interpreter's last moments: what cannot be written shows only now.
            # Also where argparse leaves, after its help.
            sys.stdout.flush()
    except GrnError as error:
        _complain(f"grn {name}: {error.message}\n")
        return error.exit_status
    except KeyboardInterrupt:
        _die_by(signal.SIGINT)
    except BrokenPipeError:
        _die_by(signal.SIGPIPE)
    except OSError as error:
        _fail(f"grn {name}", error)


def _open_closed_streams() -> None:
    """Give each standard stream that the caller has closed to /dev/null, which nobody inherits.

    The lowest number that is free is the stream's own; no file of ours must take it, or what is
    printed would go into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def _complain(text: str) -> None:
    """Say something on standard error, where that can be written; the exit status says it, too."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - or it is tried again


def _fail(who: str, error: OSError) -> NoReturn:
    """Say what the system refused, in one line; nothing more is written to standard output."""
    what = "cannot write its output: " if error.errno == errno.ENOSPC else ""
    _complain(f"{who}: {what}{error.strerror if what else error}\n")
    os._exit(GrnError.exit_status)  # the interpreter would try once more, and fail aloud


def _die_by(number: signal.Signals) -> NoReturn:
    """End by this signal's default action, so that the caller sees what ended us."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # only if the signal is blocked


def _print(text: str) -> int:
    _open_closed_streams()
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _die_by(signal.SIGPIPE)
    except OSError as error:
        _fail("grn", error)
    return 0


def _version() -> str:
    from grn import __version__

    return f"grn {__version__}\n"


def _advice(word: str) -> str:
    """Say what is wrong with the first word, and what it may have been meant to be."""
    if not word:
        return HELP
    from difflib import get_close_matches

    close = get_close_matches(word, COMMANDS, n=2, cutoff=0.5)
    meant = " or ".join(f"`grn {name}`" for name in close)
    question = f"did you mean {meant}? " if close else ""
    kind = "option" if word.startswith("-") else "command"
    return f"grn: no such {kind}: {word!r}; {question}`grn --help` lists what there is\n"
