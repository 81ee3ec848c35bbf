"""The arguments of `grn run`: options, then a command in one of its forms.

Design note. argparse would take longer than the rest of a start, abbreviates options, and cannot
say what is wrong with `grn run python train.py --lr 1`: that the command needs `--` before it. One
table of options serves the parser and the help.

Promises: options may stand before and between quoted commands; after `--` every word is the
command's; whatever is wrong is a `UsageError` with one line that says what to write instead.
"""

from __future__ import annotations

import os

from grn.errors import UsageError
from grn.policies import checked
from grn.rules.units import parse_count, parse_duration_s, parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RunOptions", "help_text", "parse", "takes_value"]

_USAGE = """\
usage: grn run [OPTION ...] -- COMMAND [ARGUMENT ...]
       grn run [OPTION ...] 'COMMAND LINE' ['COMMAND LINE' ...]
       grn run [OPTION ...] --file FILE

Run a command with a share of a device, or several, each with its own. After `--` the words are run
as they are; a quoted line is given to /bin/sh. One command has the terminal and standard input, and
`grn run` ends as it ended. Of several, each line of output carries a label, and the status is 0 only
if all were 0. Nothing has to be said about memory: the first run of a command is measured.
"""

_EXITS = """\
status: the command's own, or its signal; 2 usage, 75 not granted within --wait, 124 time limit,
        125 GRN itself failed, 126 command not executable, 127 command not found
"""

_WHOLE = 100  # percent
_SHELL_CHARACTERS = frozenset(" \t\n|&;<>()$`\\\"'*?[#~=%{}!")
_BUILTINS = frozenset({":", "cd", "exit", "export", "ulimit", "umask", "unset", "wait", "exec"})


class RunOptions:
    """What was asked for, checked. Either `words` (run as they are) or `lines` (for a shell)."""

    __slots__ = (
        "affinity",
        "compute",
        "cpus",
        "devices",
        "die_with_parent",
        "env",
        "explain",
        "file",
        "flavor",
        "given",
        "gpus",
        "grace",
        "group",
        "group_size",
        "help",
        "if_unavailable",
        "ignore_args",
        "json",
        "label",
        "leftovers",
        "lines",
        "log_dir",
        "memory",
        "no_rules",
        "policy",
        "priority",
        "processes",
        "quiet",
        "ram",
        "retries_on_oom",
        "shows_type",
        "socket",
        "status_fd",
        "time_limit",
        "type",
        "wait",
        "words",
    )

    def __init__(self) -> None:
        self.given: set[str] = set()
        """The fields that the command line gave: they win over a flavor, and that over rules."""
        self.words: list[str] = []
        self.lines: list[str] = []
        self.memory: int | str | None = None
        self.gpus: int | None = 1
        self.policy: str | None = None
        self.type: str | None = None
        self.ignore_args: list[str] = []
        self.priority = 0
        self.cpus: int | None = None
        self.ram: int | None = None
        self.compute: int | None = None
        self.processes: int | None = None
        self.affinity = False
        self.group: str | None = None
        self.group_size: int | None = None
        self.env: dict[str, str] = {}
        self.flavor: str | None = None
        self.wait: float | None = None
        self.time_limit: float | None = None
        self.grace: str | None = None
        self.leftovers = "keep"
        self.retries_on_oom = 0
        self.if_unavailable = "fail"
        self.label: str | None = None
        self.devices: str | None = None
        self.socket: str | None = None
        self.log_dir: str | None = None
        self.status_fd: int | None = None
        self.file: str | None = None
        self.json = self.quiet = self.explain = self.die_with_parent = self.help = False
        self.no_rules = False
        self.shows_type = False
        """Whether types differ from the commands, so that the summary shows them."""

    @property
    def single(self) -> bool:
        """Whether there is one command, which gets the terminal."""
        return self.file is None and (bool(self.words) or len(self.lines) == 1)


class _Option:
    """One row of the table; without a `metavar` it is a switch."""

    __slots__ = ("field", "help", "metavar", "name", "read")

    def __init__(
        self,
        name: str,
        metavar: str,
        help_text: str,
        read: Callable[[str], object] = str,
        *,
        field: str = "",
    ) -> None:
        self.name = name
        self.metavar = metavar
        self.help = help_text
        self.read = read
        self.field = field or name.removeprefix("--").replace("-", "_")

    def apply(self, options: RunOptions, text: str | None) -> None:
        """Put what was given into the options."""
        options.given.add(self.field)
        if text is None:
            setattr(options, self.field, True)
            return
        value = self.read(text)
        present = getattr(options, self.field)
        if isinstance(present, list):
            present.append(value)
        elif isinstance(present, dict) and isinstance(value, tuple):
            present[value[0]] = value[1]
        else:
            setattr(options, self.field, value)


def _memory(text: str) -> int | str:
    return "whole" if text == "whole" else parse_size_mib(text, what="--memory")


def _gpus(text: str) -> int | None:
    return None if text == "none" else parse_count(text, what="--gpus")


def _cpus(text: str) -> int:
    return parse_count(text, what="--cpus", minimum=1)


def _count(what: str) -> Callable[[str], int]:
    return lambda text: parse_count(text, what=what)


def _duration(what: str) -> Callable[[str], float]:
    return lambda text: parse_duration_s(text, what=what)


def _compute(text: str) -> int:
    percent = parse_count(text.removesuffix("%"), what="--compute", minimum=1)
    if percent <= _WHOLE:
        return percent
    raise UsageError(f"--compute {text!r} is a percentage of a device, from 1 to {_WHOLE}")


def _group_size(text: str) -> int:
    return parse_count(text, what="--group-size", minimum=1)


def _processes(text: str) -> int:
    return parse_count(text, what="--processes", minimum=1)


def _time_limit(text: str) -> float:
    limit_s = parse_duration_s(text, what="--time-limit")
    if limit_s > 0:
        return limit_s
    raise UsageError("--time-limit must be more than 0; leave it out for no limit")


def _grace(text: str) -> str:
    parse_duration_s(text, what="--grace")
    return text


def _ram(text: str) -> int:
    return parse_size_mib(text, what="--ram")


def _priority(text: str) -> int:
    negative = text.startswith("-")
    try:
        size = parse_count(text.removeprefix("-"), what="--priority")
    except UsageError:
        raise UsageError(f"--priority {text!r} is not a whole number") from None
    return -size if negative else size


def _policy(text: str) -> str:
    return checked(text, what="--policy ")


def _one_of(what: str, *choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text in choices:
            return text
        raise UsageError(f"{what} {text!r} is not one of: {', '.join(choices)}")

    return read


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or "\0" in text:
        raise UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, value


def _text(what: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.strip():
            return text
        raise UsageError(f"{what} needs a value that is not empty")

    return read


_OPTIONS = (
    _Option(
        "--memory", "SIZE", "device memory, such as 4GiB, or `whole`; default: learnt", _memory
    ),
    _Option("--gpus", "N", "devices (default 1); 0 hides them; `none` asks for none", _gpus),
    _Option("--policy", "P", "spread, pack, or one that a package brings", _policy),
    _Option("--type", "NAME", "learn memory under this name", _text("--type")),
    _Option(
        "--ignore-arg",
        "NAME",
        "an argument that does not change the memory (repeatable)",
        _text("--ignore-arg"),
        field="ignore_args",
    ),
    _Option("--priority", "N", "higher goes first (default 0)", _priority),
    _Option("--cpus", "N", "CPUs to book", _cpus),
    _Option("--ram", "SIZE", "main memory to book", _ram),
    _Option("--affinity", "", "bind the command to cores of its own"),
    _Option("--compute", "PERCENT", "of each device's multiprocessors to book", _compute),
    _Option("--group", "NAME", "start together with all that name it", _text("--group")),
    _Option("--group-size", "N", "how many those are (default: the commands here)", _group_size),
    _Option("--processes", "N", "of the command that use a device; MPS limits each", _processes),
    _Option("--flavor", "NAME", "a named size of the configuration; options win over it"),
    _Option("--no-rules", "", "do as if no rule for commands ([[job]]) were configured"),
    _Option("--env", "NAME=VALUE", "set a variable for the command (repeatable)", _assignment),
    _Option(
        "--wait", "TIME", "give up after so long without a share: status 75", _duration("--wait")
    ),
    _Option(
        "--time-limit",
        "TIME",
        "stop a command that runs longer: status 124",
        _time_limit,
    ),
    _Option("--grace", "TIME", "time between TERM and KILL (default 5 s)", _grace),
    _Option(
        "--leftovers",
        "WHAT",
        "background processes at the end: keep (default), kill or wait",
        _one_of("--leftovers", "keep", "kill", "wait"),
    ),
    _Option(
        "--retries-on-oom",
        "N",
        "when device memory ran out, run again with more, at last alone on the largest device",
        _count("--retries-on-oom"),
    ),
    _Option(
        "--if-unavailable",
        "WHAT",
        "without a broker: fail (default, status 125) or run without a share",
        _one_of("--if-unavailable", "run", "fail"),
    ),
    _Option("--label", "TEXT", "name of the job in `grn status` (one command)", _text("--label")),
    _Option(
        "--log-dir", "DIR", "keep each command's output in DIR/<number>.log", _text("--log-dir")
    ),
    _Option("--file", "FILE", "one command a line, # for comments; - is standard input"),
    _Option("--json", "", "a JSON object on stdout at the end; commands' output goes to stderr"),
    _Option("--status-fd", "N", "write that JSON object to descriptor N", _count("--status-fd")),
    _Option("--explain", "", "show what would be asked and set, and run nothing"),
    _Option("--die-with-parent", "", "stop when the process that started this one ends"),
    _Option("--devices", "SPEC", "devices of a broker that is started, such as sim:2x16GiB"),
    _Option("--socket", "PATH", "the broker's socket"),
    _Option("--quiet", "", "only say what went wrong"),
    _Option("--help", "", "show this text"),
)
_BY_NAME = {option.name: option for option in _OPTIONS}
_SHORT = {"-q": "--quiet", "-h": "--help"}


def help_text() -> str:
    """Return what `grn run --help` shows."""
    rows = [(f"{option.name} {option.metavar}".rstrip(), option.help) for option in _OPTIONS]
    width = max(len(left) for left, _ in rows)
    table = "\n".join(f"  {left:<{width}}  {right}" for left, right in rows)
    return f"{_USAGE}\noptions:\n{table}\n\n{_EXITS}"


def parse(argv: Sequence[str]) -> RunOptions:
    """Read the arguments.

    Raises:
        UsageError: they make no sense together or by themselves.
    """
    options = RunOptions()
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            options.words = words
            break
        if word.startswith("-") and word != "-":
            _take_option(word, words, options)
        else:
            options.lines.append(word)
    if not options.help:
        _check(options)
    return options


def takes_value(word: str) -> bool:
    """Whether the word after this one is the value of this option."""
    option = _BY_NAME.get(_SHORT.get(word, word))
    return option is not None and bool(option.metavar)


def _take_option(word: str, rest: list[str], options: RunOptions) -> None:
    name, equals, value = word.partition("=")
    option = _BY_NAME.get(_SHORT.get(name, name))
    if option is None:
        raise UsageError(_unknown(word, options))
    if not option.metavar:
        if equals:
            raise UsageError(f"{name} takes no value")
        option.apply(options, None)
        return
    if not equals:
        if not rest or rest[0] == "--":
            raise UsageError(f"{name} needs a value: {name} {option.metavar}")
        value = rest.pop(0)
    option.apply(options, value)


def _unknown(word: str, options: RunOptions) -> str:
    if options.lines:
        return f"there is no option {word}; {_hint([*options.lines, word])}"
    import difflib  # noqa: PLC0415 - only to explain a mistake

    close = difflib.get_close_matches(word.partition("=")[0], _BY_NAME, n=1)
    meant = f"; did you mean {close[0]}?" if close else "; `grn run --help` lists them"
    return f"there is no option {word}{meant}"


def _hint(words: Sequence[str]) -> str:
    first = " ".join(words[:3])
    return f"if it belongs to the command, put -- before the command: grn run -- {first} ..."


def _check(options: RunOptions) -> None:
    if options.words and (options.lines or options.file is not None):
        raise UsageError("either words after --, or quoted commands and --file, not both")
    if options.file is None and not options.words and not options.lines:
        raise UsageError("no command; write: grn run -- COMMAND [ARGUMENT ...]")
    if options.words and not options.words[0]:
        raise UsageError("the command's name is empty")
    if not all(line.strip() for line in options.lines):
        raise UsageError("an empty command")
    if options.label is not None and not options.single:
        raise UsageError("--label is for one command; several are told apart by number and words")
    if options.gpus in {0, None} and options.memory is not None:
        raise UsageError("--memory is device memory, and no device is asked for; see --ram")
    if options.gpus in {0, None} and options.compute is not None:
        raise UsageError("--compute is a part of a device, and no device is asked for")
    _check_group(options)
    _check_status_fd(options)
    if len(options.lines) > 1:
        _check_lines(options.lines)


def _check_group(options: RunOptions) -> None:
    if options.group_size is not None and options.group is None:
        raise UsageError("--group-size is of a group: give it a name with --group")
    if options.group is not None and options.group_size is None and options.single:
        raise UsageError(f"--group {options.group!r}: how many start together? add --group-size")


def _check_status_fd(options: RunOptions) -> None:
    if options.status_fd is None:
        return
    try:
        os.fstat(options.status_fd)
    except (OSError, OverflowError):
        raise UsageError(
            f"--status-fd {options.status_fd} is not an open descriptor; open it with"
            f" {options.status_fd}>FILE"
        ) from None


def _check_lines(lines: Sequence[str]) -> None:
    """Refuse what looks like one command whose words were not quoted."""
    for line in lines:
        if _SHELL_CHARACTERS.isdisjoint(line) and not _is_program(line):
            raise UsageError(
                f"{line!r} is not a command of its own; for one command put -- before it:"
                f" grn run -- {' '.join(lines[:3])} ... (several commands are quoted each)"
            )


def _is_program(name: str) -> bool:
    if "/" in name:
        return os.access(name, os.X_OK) and not os.path.isdir(name)
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(folder or ".", name) for folder in folders)
    return name in _BUILTINS or any(os.access(path, os.X_OK) for path in paths)
