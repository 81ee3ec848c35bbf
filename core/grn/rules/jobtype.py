"""What kind of job a command is: the name under which its memory need is learnt.

Two commands are of one type if their words are equal, apart from the options that the user declared
irrelevant (a seed, a time stamp). Batch size, model and data stay in the name, because they change
what a job needs.

Promises: the same command has the same type whether it came as words or as a shell line; a type is
text that UTF-8 can carry and has at most `LONGEST_TYPE` characters.
Must not import shlex for a command given as words: that is the start of every job.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LONGEST_NAME", "LONGEST_TYPE", "command_type", "shell_command_type", "varying_args"]

LONGEST_TYPE = 4096
LONGEST_NAME = 64 * 1024
"""Of a type that somebody chose; the broker takes no longer one."""
_DIGEST_CHARACTERS = 32

_NUMBER_STARTS = "0123456789."
# Words of these characters alone mean the same to a shell bare and quoted (as in shlex.quote).
_PLAIN = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-",
)


def command_type(words: Sequence[str], ignore_args: Iterable[str] = ()) -> str:
    """Name the type of a command given as words.

    `ignore_args` are names of options (`seed` or `--seed`) to leave out with their values, as
    `--seed 3`, `--seed=3` or `seed=3`. A word that follows such an option is its value unless it
    is an option itself; a negative number is a value.
    """
    ignored = {name.lstrip("-") for name in ignore_args} - {""}
    kept = _without(words, ignored) if ignored else words
    return _bounded(_joined(kept or words))


def shell_command_type(text: str, ignore_args: Iterable[str] = ()) -> str:
    """Name the type of a shell line: that of its words, or the bare text if it has no words."""
    import shlex  # noqa: PLC0415 - only shell lines need it, and it is not free

    try:
        words = shlex.split(text)
    except ValueError:  # an open quote: the shell will say so; the type only has to be stable
        words = []
    return command_type(words, ignore_args) if words else _bounded(text.strip())


def varying_args(commands: Sequence[Sequence[str]]) -> list[str]:
    """Name the options whose values differ between commands that are equal otherwise.

    The names come bare (`seed`), ready for `--ignore-arg`, in the order of their appearance.
    """
    seen: dict[tuple[str, ...], dict[str, str]] = {}
    varying: dict[str, None] = {}
    for words in commands:
        skeleton, values = _split_values(words)
        first = seen.setdefault(skeleton, values)
        for name, value in values.items():
            if first[name] != value:
                varying[name] = None
    return list(varying)


def _without(words: Sequence[str], ignored: set[str]) -> list[str]:
    kept: list[str] = []
    is_value = False
    for position, word in enumerate(words):
        name, assigns = _option(word)
        if is_value:
            is_value = False
        elif name in ignored:
            is_value = not assigns and _is_value(words, position + 1)
        else:
            kept.append(word)
    return kept


def _split_values(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Part a command into what must be equal and the values of its options.

    An option that comes twice has both values under its name.
    """
    skeleton: list[str] = []
    values: dict[str, str] = {}
    name = ""
    for position, word in enumerate(words):
        if name:
            values[name] = f"{values.get(name, '')}\0{word}"
            name = ""
            continue
        option, assigns = _option(word)
        before, _, inside = word.partition("=")
        skeleton.append(before + "=" if option and assigns else word)
        if option and assigns:
            values[option] = f"{values.get(option, '')}\0{inside}"
        elif option and _is_value(words, position + 1):
            skeleton.append("=")  # an option with a value is not the same as a bare one
            name = option
    return tuple(skeleton), values


def _option(word: str) -> tuple[str, bool]:
    """Read `--seed`, `--seed=3` or `seed=3` as (name, has its value inside); else ("", False).

    Bare `seed=3` must look like a name (`train.seed`), since a URL has its `=`, too.
    """
    name, equals, _ = word.partition("=")
    if word.startswith("-"):
        return name.lstrip("-"), bool(equals)
    if equals and name.replace(".", "_").isidentifier():
        return name, True
    return "", False


def _is_value(words: Sequence[str], position: int) -> bool:
    if position >= len(words):
        return False
    word = words[position]
    return not word.startswith("-") or word == "-" or word[1] in _NUMBER_STARTS


def _joined(words: Sequence[str]) -> str:
    return " ".join(word if word and _PLAIN.issuperset(word) else _quoted(word) for word in words)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _bounded(text: str) -> str:
    """Make text that the wire and the store can carry, still different for different commands."""
    if not text.isascii():  # bytes of a file name that are not UTF-8 arrive as lone surrogates
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= LONGEST_TYPE:
        return text
    import hashlib  # noqa: PLC0415 - only endless commands need it, and it is heavy

    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{text[: LONGEST_TYPE - _DIGEST_CHARACTERS - 2]} #{digest}"
