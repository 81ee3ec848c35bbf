"""`grn queue` and `grn-queue`: the queue of scripts and notebooks, on the command line.

Promises: what changes the list is on disk when the command ends; looking starts nothing; only the
chosen command's module is loaded.
"""

from __future__ import annotations

import sys

from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["main"]

HELP = """\
usage: grn queue COMMAND [OPTION ...]

Work a list of commands and notebooks off, as many at a time as the devices have room for. The list is
on disk: it survives whatever is killed, and nothing in it runs twice.

the list:
  add        add commands or notebooks
  ls         show the list: what runs, what waits and why, what has ended
  info       show all that is known of one job
  log        show what a job wrote; -f follows it
  wait       wait until jobs have ended; ends with their status
  next       move jobs to the head; a command or notebook that is not in the list is added there
  move       move a job before another one, or to the end
  hold       keep a job from starting; release lets it go
  rm         take jobs off the list that have not started
  cancel     end jobs, also those that run
  retry      add a job once more that has ended
  clear      forget the jobs that have ended
  import     take in a folder of control files of the older notebook scheduler

working it off:
  start      work the list off: --idle (default) waits for more, --drain ends when all is done
  stop       take no more jobs; --now ends those that run
  pause      start nothing until resume
  limit      run at most so many at a time
  reap       end what ended jobs of the queue have left behind; --dry-run shows it
  protect    why no process needs to be protected, and a list of those that are not GRN's
"""


def main(argv: Sequence[str]) -> int:
    """Run one command of the queue; return the exit status."""
    words = list(argv)
    first = words[0] if words else ""
    if first in {"", "--help", "-h", "help"}:
        sys.stdout.write(HELP)
        return 0 if first else UsageError.exit_status
    command = _COMMANDS.get(first)
    if command is None:
        raise UsageError(f"there is no command {first!r}; `grn queue --help` lists what there is")
    return command(words[1:])


def _add(argv: Sequence[str]) -> int:
    from grn.cli.queueadd import add  # noqa: PLC0415 - only what was chosen

    return add(argv)


def _of(module: str, name: str) -> Callable[[Sequence[str]], int]:
    def call(argv: Sequence[str]) -> int:
        import importlib  # noqa: PLC0415 - only what was chosen

        command: Callable[[Sequence[str]], int] = getattr(
            importlib.import_module(f"grn.cli.{module}"), name
        )
        return command(argv)

    return call


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "add": _add,
    "ls": _of("queueshow", "ls"),
    "info": _of("queueshow", "info"),
    "log": _of("queuefollow", "log"),
    "wait": _of("queuefollow", "wait"),
    "next": _of("queuechange", "next_"),
    "move": _of("queuechange", "move"),
    "hold": _of("queuechange", "hold"),
    "release": _of("queuechange", "release"),
    "rm": _of("queuechange", "rm"),
    "cancel": _of("queuechange", "cancel"),
    "retry": _of("queuechange", "retry"),
    "clear": _of("queuechange", "clear"),
    "import": _of("queueimport", "import_"),
    "start": _of("queuework", "start"),
    "stop": _of("queuework", "stop"),
    "pause": _of("queuework", "pause"),
    "resume": _of("queuework", "resume"),
    "limit": _of("queuework", "limit"),
    "reap": _of("queuereap", "reap"),
    "protect": _of("queuereap", "protect"),
}
