"""By what names a command is known, for the patterns of `[[job]]` rules.

A pattern is compared with the whole command (its words joined by blanks), and with every program in it:
the program itself, and the script or module that an interpreter or a launcher runs. A program counts
by its name as written and by its base name, each alone and with the words that follow. So `train.py`
and `train.py --big*` both match `python -u src/train.py --big 1`, and so do `python*` and `*--big*`.

The tables below name the interpreters and launchers that are looked into. Of others only the program
itself has names; `*` at the start of a pattern reaches the rest.
Must not: know what a match is good for.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from os.path import basename

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["first_match", "names", "split_line"]

_SEPARATORS = frozenset({"&&", "||", ";", "|", "&"})
_SCRIPT_ENDINGS = (".py", ".sh", ".R", ".r", ".jl", ".pl", ".rb", ".js", ".lua")

_PYTHON = ("c", frozenset({"-W", "-X", "--check-hash-based-pycs"}))
_SHELL = ("c", frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file"}))
_INTERPRETERS = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "sh": _SHELL,
    "bash": _SHELL,
    "dash": _SHELL,
    "zsh": _SHELL,
    "ksh": _SHELL,
    "perl": ("eE", frozenset({"-I"})),
    "ruby": ("e", frozenset({"-I", "-r"})),
    "node": ("ep", frozenset({"-r", "--require", "--import"})),
    "Rscript": ("e", frozenset[str]()),
    "julia": ("eE", frozenset({"-p", "-t", "-L", "-J"})),
}
"""Each with the letters of its options that bring code, and the options that take the next word."""
_LAUNCHERS = frozenset(
    [
        "accelerate",
        "conda",
        "coverage",
        "deepspeed",
        "env",
        "exec",
        "hatch",
        "horovodrun",
        "ionice",
        "mamba",
        "micromamba",
        "mpiexec",
        "mpirun",
        "ncu",
        "nice",
        "nohup",
        "nsys",
        "numactl",
        "pdm",
        "pipenv",
        "pixi",
        "poetry",
        "stdbuf",
        "strace",
        "taskset",
        "time",
        "timeout",
        "torchrun",
        "uv",
    ]
)
_LAUNCHING_MODULES = frozenset(
    [
        "accelerate.commands.launch",
        "cProfile",
        "coverage",
        "debugpy",
        "kernprof",
        "pdb",
        "torch.distributed.launch",
        "torch.distributed.run",
    ]
)


def first_match(patterns: Sequence[str], texts: Sequence[str]) -> str | None:
    """Return the first of the patterns that one of the texts matches."""
    for pattern in patterns:
        if any(fnmatchcase(text, pattern) for text in texts):
            return pattern
    return None


def names(commands: Sequence[Sequence[str]]) -> list[str]:
    """List every text that may match, for a command given as words, or several of one line."""
    texts = [" ".join(word for words in commands for word in words)]
    for words in commands:
        texts.append(" ".join(words))
        for position, name in _programs(words, _after_assignments(words)):
            rest = words[position + 1 :]
            texts += [name, " ".join([name, *rest])]
    return list(dict.fromkeys(texts))


def split_line(line: str) -> list[list[str]]:
    """Split a shell line into the words of its commands: `cd x && python train.py` has two."""
    import shlex  # noqa: PLC0415 - only shell lines need it

    try:
        words = shlex.split(line)
    except ValueError:  # an open quote: the shell will say so
        return [[line.strip()]]
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _SEPARATORS:
            commands.append([])
        elif word.endswith(";"):
            commands[-1].append(word[:-1])
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


def _after_assignments(words: Sequence[str]) -> int:
    """Skip `NAME=value` words, with which a shell sets variables of one command."""
    position = 0
    while position < len(words) - 1 and words[position].partition("=")[0].isidentifier():
        if "=" not in words[position]:
            break
        position += 1
    return position


def _programs(words: Sequence[str], position: int) -> Iterator[tuple[int, str]]:
    """Yield position and name of the program there, and of what it runs in turn."""
    if position >= len(words):
        return
    yield from _named(words, position)
    program = basename(words[position])
    if _family(program) in _INTERPRETERS:
        yield from _interpreted(words, position)
    elif program in _LAUNCHERS:
        yield from _launched(words, position)


def _named(words: Sequence[str], position: int) -> Iterator[tuple[int, str]]:
    yield position, words[position]
    yield position, basename(words[position])


def _family(program: str) -> str:
    """`python3.12` is a python."""
    return program.rstrip("0123456789.") or program


def _interpreted(words: Sequence[str], position: int) -> Iterator[tuple[int, str]]:
    """Find the script or module that an interpreter runs; code on its command line has no name."""
    program = _family(basename(words[position]))
    code, with_value = _INTERPRETERS[program]
    position += 1
    while position < len(words) and words[position].startswith(("-", "+")):
        word = words[position]
        position += 1
        if word == "--":
            break
        if _INTERPRETERS[program] is _PYTHON and _asks_for(word, "m"):
            yield from _module(words, position)
            return
        if any(_asks_for(word, letter) for letter in code):
            return
        if word in with_value or _is_cluster_with_value(word, with_value):
            position += 1
    if position < len(words):
        yield from _named(words, position)


def _asks_for(word: str, letter: str) -> bool:
    """Tell whether a word is `-m`, or ends a cluster of flags with it, as `-um` does."""
    is_cluster = word[:1] == "-" and word[1:].isalpha() and word[1] not in "WX"
    return is_cluster and word.endswith(letter)


def _is_cluster_with_value(word: str, with_value: frozenset[str]) -> bool:
    """`bash -euo pipefail` is one."""
    return any(_asks_for(word, option[1]) for option in with_value if option[2:] == "")


def _module(words: Sequence[str], position: int) -> Iterator[tuple[int, str]]:
    if position >= len(words):
        return
    yield position, words[position]
    if words[position] in _LAUNCHING_MODULES:
        yield from _launched(words, position)


def _launched(words: Sequence[str], position: int) -> Iterator[tuple[int, str]]:
    """Find what a launcher starts: it has options of its own, so only clear words count."""
    for later in range(position + 1, len(words)):
        word = words[later]
        if _family(basename(word)) in _INTERPRETERS:
            yield from _programs(words, later)
            return
        if word.endswith(_SCRIPT_ENDINGS):
            yield from _named(words, later)
            return
        if words[later - 1] in {"-m", "--module"} and word.replace(".", "_").isidentifier():
            yield later, word
            return
