"""`grn queue add`: take jobs in, with all that they need to run as if they were started here and now.

Promises: everything that can be seen to be wrong is refused before anything is added; when an id is
printed, its job is on disk.
Must not: import anything heavy: people add jobs in loops.
"""

from __future__ import annotations

import os
import sys

from grn.cli.runargs import parse
from grn.errors import UsageError
from grn.queue.entry import Spec
from grn.queue.places import Places
from grn.queue.store import Store
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.cli.runargs import RunOptions
    from grn.notebook.arguments import NotebookOptions

__all__ = ["ADD_HELP", "add", "notebook_jobs"]

ADD_HELP = """\
usage: grn queue add [OPTION ...] -- COMMAND [ARGUMENT ...]
       grn queue add [OPTION ...] 'COMMAND LINE' ['COMMAND LINE' ...]
       grn queue add [OPTION ...] NOTEBOOK.ipynb [NOTEBOOK.ipynb ...]
       grn queue add [OPTION ...] --file FILE      (a command a line)
       grn queue add --json FILE                   (- is standard input)

Add jobs to the queue; the number of each is printed. They run in this folder with this environment.

options:
  --after ID         start it only after job ID has ended well (repeatable)
  --first            add it as the next one, not as the last
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
_NOT_KEPT = frozenset({"GRN_LEASE", "GRN_DEVICES_GRANTED", "OLDPWD", "SHLVL", "_"})
_SWITCHES = {"--first": "first", "--held": "held", "--quiet": "quiet", "-q": "quiet"}
_NOTEBOOK = ".ipynb"
_SPECIAL = frozenset(" \t\n'\"\\$;|&<>()*?")


class _Wish:
    """What of the arguments is about the queue; the rest is about the job."""

    def __init__(self) -> None:
        self.after: list[int] = []
        self.first = self.held = self.quiet = False
        self.name: str | None = None
        self.json: str | None = None
        self.rest: list[str] = []


def add(argv: Sequence[str]) -> int:
    """Add jobs; return the exit status."""
    if argv and argv[0] in {"--help", "-h"}:
        sys.stdout.write(ADD_HELP)
        return 0
    wish = _read(argv)
    jobs = _from_json(wish) if wish.json is not None else _from_words(wish)
    places = Places(load({}).state_dir)
    with Store(places) as store:
        twice = _twice(store, jobs)
        ids = store.add(jobs, held=wish.held, first=wish.first)
    sys.stdout.write("".join(f"{number}\n" for number in ids))
    for name in twice:
        sys.stderr.write(f"grn queue: {name} is in the queue already; it is added once more\n")
    if not wish.held and not wish.quiet:
        _tell_if_nobody_works(places)
    return 0


def _tell_if_nobody_works(places: Places) -> None:
    from grn.queue.lock import owner_of  # noqa: PLC0415 - after the jobs are safe

    if owner_of(places) is None:
        sys.stderr.write("grn queue: nobody works the queue off yet: `grn queue start`\n")


def _twice(store: Store, jobs: Sequence[tuple[str, Spec]]) -> list[str]:
    """Name what is in the queue already: allowed, but seldom meant."""
    if len(jobs) > 1:
        return []
    ((name, spec),) = jobs
    same = [
        entry
        for entry in store.named(name)
        if (entry.spec.command, entry.spec.cwd) == (spec.command, spec.cwd)
    ]
    return [name] if same else []


# -- arguments ------------------------------------------------------------------------------------


def _read(argv: Sequence[str]) -> _Wish:
    """Take the queue's options out, up to the command."""
    wish = _Wish()
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


def _set(wish: _Wish, name: str, value: str) -> None:
    if name == "--after":
        if not value.isdigit():
            raise UsageError(f"--after {value!r} is not the number of a job")
        wish.after.append(int(value))
    elif name == "--name":
        wish.name = value
    else:
        wish.json = value


def _from_words(wish: _Wish) -> list[tuple[str, Spec]]:
    """Make the jobs that the arguments ask for.

    Raises:
        UsageError: they make no sense, or a notebook is not there.
    """
    notebooks = _notebooks(wish)
    if notebooks is not None:
        return notebooks
    options = parse(wish.rest)
    _refuse(options)
    own = _options(wish.rest, options)
    if options.words:
        return [_job(wish, own, words=options.words)]
    lines = list(options.lines)
    if options.file is not None:
        from grn.cli.runjobs import read_lines  # noqa: PLC0415 - few read a file

        lines += read_lines(options.file)
    return [_job(wish, own, line=line) for line in lines]


def _refuse(options: RunOptions) -> None:
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


def _notebooks(wish: _Wish) -> list[tuple[str, Spec]] | None:
    """Make jobs of notebooks, if the arguments name some."""
    if "--" in wish.rest or not any(word.endswith(_NOTEBOOK) for word in wish.rest):
        return None
    from grn.notebook.arguments import split  # noqa: PLC0415 - only who has some

    shared, paths, rest = split(wish.rest)
    _refuse(parse([*rest, "--", "notebook"]))
    return [_notebook(wish, rest, path, shared) for path in paths]


def notebook_jobs(paths: Sequence[str]) -> list[tuple[str, Spec]]:
    """Make jobs of notebooks, as they are.

    Raises:
        UsageError: one is not there, or is no notebook.
    """
    from grn.notebook.arguments import NotebookOptions  # noqa: PLC0415 - only who has some

    return [_notebook(_Wish(), [], path, NotebookOptions()) for path in paths]


def _notebook(
    wish: _Wish, options: Sequence[str], path: str, shared: NotebookOptions
) -> tuple[str, Spec]:
    """Make the job of one notebook; it is looked at now, and read when its turn comes.

    Raises:
        UsageError: it is not there, is no notebook, or what runs it is not installed.
    """
    import copy  # noqa: PLC0415 - only who has notebooks
    import importlib.util  # noqa: PLC0415 - the same

    from grn.notebook.arguments import job_type  # noqa: PLC0415 - the same

    if importlib.util.find_spec("nbclient") is None:
        raise UsageError(
            f"notebooks need nbclient, which {sys.executable} does not have:"
            " pip install 'grn-plugins[notebook]'"
        )
    own = copy.copy(shared)
    own.path = os.path.abspath(path)
    own.output = None if shared.output is None else os.path.abspath(shared.output)
    own.check()
    typed = any(word.partition("=")[0] == "--type" for word in options)
    options = [*options, *([] if typed else ["--type", job_type(own)])]
    words = [sys.executable, "-m", "grn.notebook", *own.words()]
    return wish.name or os.path.basename(path), _spec(wish, options, words=words, notebook=own.path)


def _job(
    wish: _Wish, options: Sequence[str], *, words: Sequence[str] = (), line: str | None = None
) -> tuple[str, Spec]:
    command = _joined(words) if line is None else line
    return wish.name or _shown(command), _spec(wish, options, words=words, line=line)


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word and not _SPECIAL & set(word) else repr(word) for word in words)


def _shown(command: str) -> str:
    program, blank, rest = command.strip().partition(" ")
    return os.path.basename(program) + blank + rest


def _spec(
    wish: _Wish,
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
    )


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
    return {name: value for name, value in environ.items() if name not in _NOT_KEPT}


# -- JSON -----------------------------------------------------------------------------------------

_KEYS = {
    "command", "notebook", "parameters", "output", "kernel", "cell_timeout", "options", "cwd", "env",
    "name", "after",
}  # fmt: skip


def _from_json(wish: _Wish) -> list[tuple[str, Spec]]:
    """Read jobs from JSON; all of them are checked before one is added.

    Raises:
        UsageError: it is no JSON, or one of them makes no sense; which one is said.
    """
    import json  # noqa: PLC0415 - few do this

    if wish.rest:
        raise UsageError("with --json the jobs are in the JSON; options go there, too")
    shown = "standard input" if wish.json == "-" else str(wish.json)
    try:
        with open(0 if wish.json == "-" else str(wish.json), encoding="utf-8") as file:
            read = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot read the jobs in {shown}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{shown} is no JSON: {error}") from error
    jobs = read if isinstance(read, list) else [read]
    if not jobs:
        raise UsageError(f"there are no jobs in {shown}")
    return [_job_from(wish, job, f"job {n} in {shown}") for n, job in enumerate(jobs, 1)]


def _job_from(wish: _Wish, job: Any, where: str) -> tuple[str, Spec]:
    if not isinstance(job, dict):
        raise UsageError(f"{where} is not an object")
    unknown = sorted(set(job) - _KEYS)
    if unknown:
        raise UsageError(
            f"{where} has the key {unknown[0]!r}; known are: {', '.join(sorted(_KEYS))}"
        )
    options = _texts(job.get("options", []), f"options of {where}")
    command = job.get("command")
    one = _Wish()
    one.after = [*wish.after, *_numbers(job.get("after", []), where)]
    one.name = job.get("name")
    if (command is None) == (job.get("notebook") is None):
        raise UsageError(f"{where} needs either a command or a notebook")
    if command is None:
        name, spec = _notebook(one, options, str(job["notebook"]), _parameters(job, where))
    elif isinstance(command, str):
        name, spec = _job(one, options, line=command)
    else:
        name, spec = _job(one, options, words=_texts(command, f"command of {where}"))
    try:
        parsed = parse(spec.arguments)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error
    _refuse(parsed)
    spec.cwd = os.path.abspath(job.get("cwd", spec.cwd))
    spec.environ.update(job.get("env", {}))
    return name, spec


def _parameters(job: Any, where: str) -> NotebookOptions:
    from grn.notebook.arguments import NotebookOptions  # noqa: PLC0415 - only who has notebooks

    options = NotebookOptions()
    parameters = job.get("parameters", {})
    if not isinstance(parameters, dict):
        raise UsageError(f"parameters of {where}: an object is expected")
    options.parameters = {str(name): str(value) for name, value in parameters.items()}
    for key in ("output", "kernel", "cell_timeout", "cwd"):
        setattr(options, key, job.get(key))
    return options


def _texts(value: Any, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UsageError(f"{what}: a list of texts is expected")
    return value


def _numbers(value: Any, where: str) -> list[int]:
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        raise UsageError(f"after of {where}: a list of job numbers is expected")
    return value
