"""From the arguments of `grn run` to its jobs: commands, types, labels, requests.

Promises: a command has the same type however it was given; what goes to the broker or into a label
can be encoded and shown, whatever bytes the command holds.
"""

from __future__ import annotations

import os

from grn.cli.wishes import Wishes
from grn.connection import own_cores
from grn.errors import UsageError
from grn.rules.jobtype import LONGEST_NAME, command_type, shell_command_type
from grn.supervise.job import Job

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.cli.runargs import RunOptions
    from grn.cli.wishes import Wish

__all__ = ["build_jobs", "read_lines", "shortened"]

_LABEL_LENGTH = 24
_COMMAND_LENGTH = 1000
_ASKED_IF_SET = ("compute", "processes")
_ASKED = ("gpus", "memory_mib", "policy", "cpus", "ram_mib", "priority")
"""What of a wish goes to the broker as it is."""
_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"


def build_jobs(
    options: RunOptions, environ: Mapping[str, str], wishes: Wishes | None = None
) -> list[Job]:
    """Make the jobs that the arguments ask for, together with the configuration.

    Raises:
        UsageError: the file of commands cannot be read, or holds none; the type is too long; a
            configuration file is wrong, or has no such flavor.
    """
    wishes = wishes or Wishes(options, environ)
    if options.words:
        return [_job_of_words(options, environ, wishes)]
    lines = list(options.lines)
    if options.file is not None:
        lines += read_lines(options.file)
    jobs = [
        _job_of_line(number, line, options, environ, wishes) for number, line in enumerate(lines, 1)
    ]
    if options.group is not None and options.group_size is None:
        for job in jobs:
            job.request["group_size"] = len(jobs)
    return jobs


def _job_of_words(options: RunOptions, environ: Mapping[str, str], wishes: Wishes) -> Job:
    words = options.words
    wish = wishes.wish(words, "")
    job_type = wish.values["type"] or command_type(words, wish.values["ignore_args"])
    return _job(1, options, environ, " ".join(words), words, job_type, wish)


def _job_of_line(
    number: int, line: str, options: RunOptions, environ: Mapping[str, str], wishes: Wishes
) -> Job:
    wish = wishes.wish(None, line)
    job_type = wish.values["type"] or shell_command_type(line, wish.values["ignore_args"])
    words = ["/bin/sh", "-c", "--", line]
    return _job(number, options, environ, line, words, job_type, wish)


def shortened(text: str, length: int) -> str:
    """Put a command on one line of at most `length` characters, all of them printable."""
    flat = " ".join(text.split())
    shown = "".join(character if character.isprintable() else "?" for character in flat)
    return shown if len(shown) <= length else shown[: length - 2] + ".."


def _job(
    number: int,
    options: RunOptions,
    environ: Mapping[str, str],
    command: str,
    words: Sequence[str],
    job_type: str,
    wish: Wish,
) -> Job:
    label = shortened(options.label or _name(command), _LABEL_LENGTH)
    job_type = _encodable(job_type)
    if len(job_type) > LONGEST_NAME:
        raise UsageError(f"--type: {len(job_type)} characters; at most {LONGEST_NAME} are possible")
    request: dict[str, Any] = {
        "type": job_type,
        "label": label,
        "engine": "run",
        **{key: wish.values[key] for key in _ASKED},
        "mask": _value(environ, "CUDA_VISIBLE_DEVICES"),
        "outer": _value(environ, "GRN_LEASE"),
        "cores": own_cores(),
        "command": _encodable(command[:_COMMAND_LENGTH]),
    }
    request.update((key, wish.values[key]) for key in _ASKED_IF_SET if wish.values[key])
    if options.group is not None:
        request |= {"group": options.group, "group_size": options.group_size}
    if wish.values["affinity"]:
        from grn.affinity import request_fields  # noqa: PLC0415 - seldom asked for

        request.update(request_fields())
    job = Job(number, command=command, words=words, label=label, request=request)
    job.explicit = wish.values["env"]
    return job


def _name(command: str) -> str:
    """Drop the folder of the program: it would fill a label."""
    program, blank, rest = command.strip().partition(" ")
    return os.path.basename(program) + blank + rest


def _value(environ: Mapping[str, str], name: str) -> str | None:
    value = environ.get(name)
    return None if value is None else _encodable(value)


def _encodable(text: str) -> str:
    """Replace what UTF-8 cannot carry: bytes of a file name that were no UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def read_lines(path: str) -> list[str]:
    """Read commands, one a line; blank lines and lines that begin with # are skipped."""
    shown = "standard input" if path == "-" else path
    try:
        text = os.fsdecode(_read(path)).removeprefix(_BOM)
    except OSError as error:
        raise UsageError(f"cannot read the commands in {shown}: {error.strerror}") from error
    lines = [line.strip() for line in text.split("\n")]  # a file from Windows ends lines with CR LF
    commands = [line for line in lines if line and not line.startswith("#")]
    if not commands:
        raise UsageError(f"there are no commands in {shown}")
    if "\0" in text:
        raise UsageError(f"{shown} is not a text file: it has a zero byte")
    return commands


def _read(path: str) -> bytes:
    with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
        return file.read()
