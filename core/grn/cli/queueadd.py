"""`grn queue add`: take jobs in, with all that they need to run as if they were started here and now.

Promises: everything that can be seen to be wrong is refused before anything is added; when an id is
printed, its job is on disk.
Must not: import anything heavy: people add jobs in loops.
"""

from __future__ import annotations

import os
import sys

from grn.cli.numbers import LARGEST
from grn.cli.runargs import parse
from grn.errors import UsageError
from grn.queue.entry import Spec
from grn.queue.places import Places
from grn.queue.store import NewJob, Store
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from grn.cli.runargs import RunOptions
    from grn.notebook.arguments import NotebookOptions

__all__ = ["ADD_HELP", "Wish", "add", "command_job", "notebook_job", "notebook_jobs", "refuse"]

ADD_HELP = """\
usage: grn queue add [OPTION ...] -- COMMAND [ARGUMENT ...]
       grn queue add [OPTION ...] 'COMMAND LINE' ['COMMAND LINE' ...]
       grn queue add [OPTION ...] NOTEBOOK.ipynb [NOTEBOOK.ipynb ...]
       grn queue add [OPTION ...] --file FILE      (a command a line)
       grn queue add --json FILE                   (- is standard input)

Add jobs to the queue; the number of each is printed. They run in this folder with this environment,
which is kept on disk until the job is forgotten, in a file that only you can read (0600).

options:
  --after ID         start it only after job ID has ended well (repeatable)
  --priority N       before all that wait with a lower one (default 0), also at the broker
  --first            add it as the next one, whatever the priorities
  --held             add it, and do not start it until `grn queue release`
  --quiet            only say what went wrong
  --name NAME        its name in the list, instead of the program's
  --json FILE        jobs as JSON: an object, or a list of them, with the keys command (a line for a
                     shell, or a list of words) or notebook, and options, cwd, env, name, after
  and the options of `grn run` that are about a job: see `grn run --help`
"""

_REFUSED = {
    "explain": "--explain belongs to `grn run`",
    "log_dir": "each job has a log of its own: `grn queue log ID`",
    "status_fd": "`grn queue ls --json` tells how jobs end",
    "die_with_parent": "a queue is there to go on",
    "devices": "set GRN_DEVICES for the broker instead",
}
_NOT_KEPT = frozenset({"OLDPWD", "SHLVL", "_"})
_NOT_FOR_JOBS = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "WATCHDOG_USEC")
"""What systemd says to the process that it has started, and to no other."""
_SWITCHES = {"--first": "first", "--held": "held", "--quiet": "quiet", "-q": "quiet"}
_NOTEBOOK = ".ipynb"
_LOOKED_AT = 50
"""So many jobs of a name are compared with a new one: thousands would take a while."""
_SPECIAL = frozenset(" \t\n'\"\\$;|&<>()*?")


class Wish:
    """What of the arguments is about the queue; the rest is about the job."""

    def __init__(self) -> None:
        self.after: list[int] = []
        self.first = self.held = self.quiet = False
        self.name: str | None = None
        self.json: str | None = None
        self.rest: list[str] = []


def add(argv: Sequence[str]) -> int:
    """Add jobs; return the exit status."""
    own = argv[: argv.index("--")] if "--" in argv else argv
    if "--help" in own or own[:1] == ["-h"]:
        sys.stdout.write(ADD_HELP)
        return 0
    wish = _read(argv)
    jobs = _from_json(wish) if wish.json is not None else _from_words(wish)
    places = Places(load({}).state_dir)
    if not jobs:
        raise UsageError("there is nothing to add: no command, no notebook")
    with Store(places) as store:
        twice = _twice(store, jobs)
        ids = store.add(jobs, held=wish.held, first=wish.first)
        sys.stdout.write("".join(f"{number}\n" for number in ids))
        sys.stdout.flush()  # they are on disk; closing the list takes longer
    for name in twice:
        said = f"grn queue: {name} is in the queue already; it is added once more\n"
        sys.stderr.write(said)
    if not wish.held and not wish.quiet:
        _tell_if_nobody_works(places)
    return 0


def _from_json(wish: Wish) -> list[NewJob]:
    from grn.cli.queuejson import from_json  # noqa: PLC0415 - few do this

    return from_json(wish)


def _tell_if_nobody_works(places: Places) -> None:
    from grn.queue.lock import owner_of  # noqa: PLC0415 - after the jobs are safe

    if owner_of(places) is None:
        sys.stderr.write("grn queue: nobody works the queue off yet: `grn queue start`\n")


def _twice(store: Store, jobs: Sequence[NewJob]) -> list[str]:
    """Name what is in the queue already: allowed, but seldom meant."""
    if len(jobs) > 1:
        return []
    (job,) = jobs
    own = (job.spec.command, job.spec.cwd)
    same = any(
        (each.spec.command, each.spec.cwd) == own
        for each in store.named(job.name, limit=_LOOKED_AT)
    )
    return [job.name] if same else []


# -- arguments ------------------------------------------------------------------------------------


def _read(argv: Sequence[str]) -> Wish:
    """Take the queue's options out, up to the command."""
    wish = Wish()
    words = list(argv)
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            wish.rest += [word, *words]
            break
        if word in _SWITCHES:
            setattr(wish, _SWITCHES[word], True)
        elif name in {"--after", "--name", "--json"}:
            if not equals:
                if not words:
                    raise UsageError(f"{name} needs a value")
                value = words.pop(0)
            _set(wish, name, value)
        else:
            wish.rest.append(word)
    return wish


def _set(wish: Wish, name: str, value: str) -> None:
    if name == "--after":
        if not value.isdecimal() or int(value) > LARGEST:
            raise UsageError(f"--after {value!r} is not the number of a job")
        wish.after.append(int(value))
    elif name == "--name":
        wish.name = value
    else:
        wish.json = value


def _from_words(wish: Wish) -> list[NewJob]:
    """Make the jobs that the arguments ask for.

    Raises:
        UsageError: they make no sense, or a notebook is not there.
    """
    notebooks = _notebooks(wish)
    if notebooks is not None:
        return notebooks
    options = parse(wish.rest)
    refuse(options)
    own = _options(wish.rest, options)
    if options.words:
        return [command_job(wish, own, options.priority, words=options.words)]
    lines = list(options.lines)
    if options.file is not None:
        from grn.cli.runjobs import read_lines  # noqa: PLC0415 - few read a file

        lines += read_lines(options.file)
    return [command_job(wish, own, options.priority, line=line) for line in lines]


def refuse(options: RunOptions) -> None:
    """Refuse what belongs to `grn run` alone.

    Raises:
        UsageError: that is among the options.
    """
    for field, why in _REFUSED.items():
        if field in options.given:
            raise UsageError(f"--{field.replace('_', '-')}: {why}")


def _options(rest: Sequence[str], options: RunOptions) -> list[str]:
    """Return the options of `grn run` alone, without commands and the file of them."""
    upto = rest.index("--") if "--" in rest else len(rest)
    kept: list[str] = []
    words = list(rest[:upto])
    lines = list(options.lines)
    while words:
        word = words.pop(0)
        if lines and word == lines[0]:
            lines.pop(0)
        elif word == "--file":
            words.pop(0)
        elif not word.startswith("--file="):
            kept.append(word)
            if _takes_value(word):
                kept.append(words.pop(0))
    return kept


def _takes_value(word: str) -> bool:
    from grn.cli.runargs import takes_value  # noqa: PLC0415

    return takes_value(word)


def _notebooks(wish: Wish) -> list[NewJob] | None:
    """Make jobs of notebooks, if the arguments name some."""
    if "--" in wish.rest or not any(word.endswith(_NOTEBOOK) for word in wish.rest):
        return None
    from grn.notebook.arguments import split  # noqa: PLC0415 - only who has some

    shared, paths, rest = split(wish.rest)
    options = parse([*rest, "--", "notebook"])
    if options.lines:
        raise UsageError(f"{options.lines[0]!r} is no notebook: add commands by themselves")
    refuse(options)
    if len(paths) > 1 and shared.output is not None:
        raise UsageError("--output is for one notebook: each of several is written beside itself")
    return [notebook_job(wish, rest, path, shared, options.priority) for path in paths]


def notebook_jobs(paths: Sequence[str]) -> list[NewJob]:
    """Make jobs of notebooks, as they are.

    Raises:
        UsageError: one is not there, or is no notebook.
    """
    from grn.notebook.arguments import NotebookOptions  # noqa: PLC0415 - only who has some

    return [notebook_job(Wish(), [], path, NotebookOptions(), 0) for path in paths]


def notebook_job(
    wish: Wish, options: Sequence[str], path: str, shared: NotebookOptions, priority: int
) -> NewJob:
    """Make the job of one notebook; it is looked at now, and read when its turn comes.

    Raises:
        UsageError: it is not there, is no notebook, or what runs it is not installed.
    """
    import copy  # noqa: PLC0415 - only who has notebooks

    from grn.notebook.arguments import job_type, require  # noqa: PLC0415 - the same
    from grn.notebook.kernels import require_kernel  # noqa: PLC0415 - the same

    require()
    own = copy.copy(shared)
    own.path = os.path.abspath(path)
    own.output = None if shared.output is None else os.path.abspath(shared.output)
    own.cwd = None if shared.cwd is None else os.path.abspath(shared.cwd)
    own.check()
    require_kernel(own)
    typed = any(word.partition("=")[0] == "--type" for word in options)
    options = [*options, *([] if typed else ["--type", job_type(own)])]
    words = [sys.executable, "-m", "grn.notebook", *own.words()]
    spec = _spec(wish, options, words=words, notebook=own.path)
    return NewJob(wish.name or os.path.basename(path), spec, priority)


def command_job(
    wish: Wish,
    options: Sequence[str],
    priority: int,
    *,
    words: Sequence[str] = (),
    line: str | None = None,
) -> NewJob:
    """Make the job of one command: words as they are, or a line for a shell."""
    command = _joined(words) if line is None else line
    spec = _spec(wish, options, words=words, line=line)
    return NewJob(wish.name or _shown(command), spec, priority)


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word and not _SPECIAL & set(word) else repr(word) for word in words)


def _shown(command: str) -> str:
    program, blank, rest = command.strip().partition(" ")
    return os.path.basename(program) + blank + rest


def _spec(
    wish: Wish,
    options: Sequence[str],
    *,
    words: Sequence[str] = (),
    line: str | None = None,
    notebook: str | None = None,
) -> Spec:
    return Spec(
        words=words,
        line=line,
        options=options,
        cwd=_here(),
        environ=_environment(os.environ),
        after=wish.after,
        notebook=notebook,
        umask=_umask(),
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _here() -> str:
    """Return this folder as the shell calls it, symbolic links and all."""
    named = os.environ.get("PWD", "")
    return named if os.path.isabs(named) and _same(named) else os.getcwd()


def _same(folder: str) -> bool:
    try:
        return os.path.samefile(folder, ".")
    except OSError:
        return False


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a job gets: it has a lease of its own, so nothing of one that we may be in."""
    left = {*_NOT_KEPT, *_NOT_FOR_JOBS}
    if "GRN_LEASE" in environ:
        from grn.rules.environment_table import TABLE  # noqa: PLC0415 - seldom in a lease

        left |= {row.name for row in TABLE if row.kind != "composed"}
    return {name: value for name, value in environ.items() if name not in left}
