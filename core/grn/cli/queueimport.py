"""`grn queue import FOLDER`: take in the control files of the older notebook scheduler.

Such a file is a JSON object whose keys are commands:

    ipynb_names_add, ipynb_names_next, ipynb_names_del   a notebook, or a list of them
    ipynb_names_read, info                               show the list
    nvidia_base_pids_add, nvidia_base_pids_del           nothing to do: see `grn queue protect`
    background_mode                                      true: `start --idle`, false: `start --drain`
    exit                                                 `stop`

Promises: files are taken in the order in which they were written; each as a whole or not at all; one
that was taken goes to `taken/`, one that cannot be to `rejected/`, beside a text that says why. A file
that is younger than a second and no JSON yet is left for the next time: it may be being written.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from grn.cli.queueadd import notebook_jobs
from grn.errors import UsageError
from grn.queue.entry import shown
from grn.queue.places import Places
from grn.queue.store import Store
from grn.rules import queueing as q
from grn.settings import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

__all__ = ["import_"]

_BEING_WRITTEN_S = 1.0
_NOT_STARTED = (q.QUEUED, q.HELD, q.STARTING, q.WAITING)
_LISTS = ("ipynb_names_next", "ipynb_names_add", "ipynb_names_del")
_PIDS = ("nvidia_base_pids_add", "nvidia_base_pids_del")
_SWITCHES = ("background_mode", "exit", "info", "ipynb_names_read")
_KNOWN = (*_LISTS, *_PIDS, *_SWITCHES)


def import_(argv: Sequence[str]) -> int:
    """Take all control files of a folder in; return 1 if one was rejected."""
    parser = argparse.ArgumentParser(
        prog="grn queue import",
        description="Take in a folder of control files (JSON) of the older notebook scheduler.",
        allow_abbrev=False,
    )
    parser.add_argument("folder", metavar="FOLDER")
    args = parser.parse_args(argv)
    rejected = 0
    for path in _files(args.folder):
        try:
            commands = _read(path)
            if commands is None:
                sys.stderr.write(f"grn queue: {path} is left: it may be being written\n")
                continue
            _take(path, commands, args.folder)
        except UsageError as error:
            rejected += 1
            _put_away(path, "rejected", error.message)
            sys.stderr.write(f"grn queue: {path} is rejected: {error.message}\n")
        else:
            _put_away(path, "taken")
    return int(bool(rejected))


def _files(folder: str) -> list[str]:
    """List the control files of a folder, the oldest first.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        with os.scandir(folder) as found:
            files = [(e.stat().st_mtime_ns, e.path) for e in found if e.is_file()]
    except OSError as error:
        raise UsageError(f"cannot read the folder {folder}: {error.strerror}") from error
    return [path for _, path in sorted(files) if path.endswith(".json")]


def _read(path: str) -> dict[str, Any] | None:
    """Read one file; `None` if it may not be complete yet.

    Raises:
        UsageError: it is no JSON object, or has a key that is not known.
    """
    try:
        with open(path, encoding="utf-8") as file:
            read = json.load(file)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        if time.time() - os.stat(path).st_mtime < _BEING_WRITTEN_S:
            return None
        raise UsageError(f"no JSON: {error}") from error
    if not isinstance(read, dict):
        raise UsageError("no JSON object")
    unknown = sorted(set(read) - set(_KNOWN))
    if unknown:
        raise UsageError(f"the key {unknown[0]!r} is not known; known are: {', '.join(_KNOWN)}")
    return read


def _take(path: str, commands: Mapping[str, Any], folder: str) -> None:
    """Carry out one file; what is wrong with it shows before anything is changed."""
    names = {key: _names(commands.get(key), key) for key in _LISTS}
    paths = {key: [os.path.join(folder, name) for name in names[key]] for key in names}
    control = {"stop": "stop"} if commands.get("exit") else {}
    if "background_mode" in commands:
        control["mode"] = "idle" if commands["background_mode"] else "drain"
    with Store(Places(load({}).state_dir)) as store:
        waiting = {e.name: e.id for e in store.entries(_NOT_STARTED) if e.spec.notebook}
        ahead = paths["ipynb_names_next"]
        store.take_in(
            what=_file_id(path),
            leave=[_known(waiting, name) for name in names["ipynb_names_del"]],
            ahead=notebook_jobs([p for p in ahead if shown(os.path.basename(p)) not in waiting]),
            behind=notebook_jobs(paths["ipynb_names_add"]),
            first=[waiting[name] for p in ahead if (name := shown(os.path.basename(p))) in waiting],
            control=control,
        )
    for key in _PIDS:
        if commands.get(key):
            sys.stderr.write(
                f"grn queue: {key}: no process needs protection, see `grn queue protect`\n"
            )
    if commands.get("ipynb_names_read") or commands.get("info"):
        from grn.cli.queueshow import ls  # noqa: PLC0415 - only when asked for

        ls([])


def _file_id(path: str) -> str:
    """Name a file for good: who is killed before it is put away does not take it in twice."""
    found = os.stat(path)
    return f"import {found.st_dev}:{found.st_ino}:{found.st_mtime_ns}"


def _names(value: Any, key: str) -> list[str]:
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{key}: a notebook or a list of them is expected")
    return names


def _known(waiting: Mapping[str, int], name: str) -> int:
    job = waiting.get(shown(os.path.basename(name)))
    if job is None:
        raise UsageError(f"ipynb_names_del: no notebook {name!r} waits in the queue")
    return job


def _put_away(path: str, where: str, why: str = "") -> None:
    folder = os.path.join(os.path.dirname(path), where)
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, os.path.basename(path))
    number = 1
    while os.path.lexists(target):
        number += 1
        target = os.path.join(folder, f"{number}-{os.path.basename(path)}")
    os.rename(path, target)
    if why:
        with open(f"{target}.reason", "w", encoding="utf-8") as file:
            file.write(f"{why}\n")
