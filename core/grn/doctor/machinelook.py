"""Looks at CPUs, RAM, limits, namespaces, the state folder and MPS."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sqlite3
import stat
from typing import TYPE_CHECKING
from urllib.parse import quote

from grn import hostcpu, procs
from grn.broker.store import FILE_NAME, SCHEMA_VERSION
from grn.doctor.asking import ask
from grn.doctor.disk import free_files, free_mib, obstacle_to_writing
from grn.doctor.facts import MachineFacts, MpsFacts, StateFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["look", "mps_of", "state_of"]

_MPS_WITHIN_S = 3.0
_MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks by default
_MPS_CONTROL = "nvidia-cuda-mps-control"
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"


def look() -> MachineFacts:
    """Find what this process may use of the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineFacts(
        cpus=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)),
        usable_cpus=hostcpu.usable_cpus(reserve=0),
        ram_mib=_ram_mib(),
        usable_ram_mib=hostcpu.memory_total_mib(reserve_mib=0),
        cgroups=_cgroup_versions(),
        first_pid_namespace=procs.in_first_pid_namespace(),
        wsl=os.path.exists("/dev/dxg")
        or "microsoft" in _text("/proc/sys/kernel/osrelease").lower(),
        files_soft=None if soft == resource.RLIM_INFINITY else soft,
        files_hard=None if hard == resource.RLIM_INFINITY else hard,
    )


def _ram_mib() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) >> 10
    return None


def _cgroup_versions() -> str:
    """Say which versions of control groups are mounted here."""
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in _lines("/proc/self/mountinfo")}
    versions = [text for kind, text in (("cgroup", "v1"), ("cgroup2", "v2")) if kind in kinds]
    return "cgroup " + " and ".join(versions) if versions else "no cgroup mount"


def _lines(path: str) -> list[str]:
    return _text(path).splitlines()


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def state_of(folder: str) -> StateFacts:
    """Look at the state folder and count the profiles in it, without writing a byte."""
    path = os.path.join(folder, FILE_NAME)
    try:
        size_mib = -(-os.stat(path).st_size >> 20)
    except OSError:
        size_mib = None
    profiles, problem = (None, "") if size_mib is None else _profiles(path)
    return StateFacts(
        folder,
        obstacle_to_writing(folder),
        free_mib(folder),
        free_files(folder),
        size_mib,
        profiles,
        problem,
    )


def _profiles(path: str) -> tuple[int | None, str]:
    # Without a log of changes beside it nobody writes, and the file alone is all there is;
    # `immutable` keeps SQLite from making files beside it.
    alone = "" if os.path.exists(f"{path}-wal") else "&immutable=1"
    if not os.path.isfile(path):  # SQLite would wait for the writer of a pipe
        return None, f"{path} is not a regular file: move it away; the broker makes a new one"
    try:
        with contextlib.closing(
            sqlite3.connect(f"file:{quote(path)}?mode=ro{alone}", uri=True, timeout=1.0)
        ) as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA_VERSION:
                return None, (
                    f"{path} has schema {version} and this GRN knows {SCHEMA_VERSION}: use the newer"
                    " GRN, or set GRN_STATE_DIR to another folder"
                )
            return int(db.execute("SELECT count(*) FROM profiles").fetchone()[0]), ""
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not _is_readable(path):
            return (
                None,
                f"{path} may not be read by this user: set GRN_STATE_DIR to a folder of yours",
            )
        return None, (
            f"{path} cannot be read ({error}): a broker sets a damaged one aside and begins anew;"
            " move it away yourself if it does not"
        )


def _is_readable(path: str) -> bool:
    return os.access(path, os.R_OK)


def mps_of(environ: Mapping[str, str]) -> MpsFacts:
    """Ask the MPS daemon, if there is a trace of one, which servers it has."""
    chosen = environ.get(_PIPE)
    folder = chosen or _MPS_FOLDER
    control = os.path.join(folder, "control")
    try:
        mode = os.stat(control).st_mode
    except OSError:
        return MpsFacts(folder, chosen is not None)
    facts = MpsFacts(folder, chosen is not None, present=True)
    program = shutil.which(_MPS_CONTROL)
    if program is None or not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
        text = f"{control} is there, and {_MPS_CONTROL} is not: it cannot be asked for its servers"
        return MpsFacts(folder, facts.chosen, present=True, problem=text if program is None else "")
    answer = ask(
        [program], _MPS_WITHIN_S, said="get_server_list\n", environ={**environ, _PIPE: folder}
    )
    if answer is None:
        text = f"the MPS daemon in {folder} does not answer within {_MPS_WITHIN_S:g} s"
        return MpsFacts(folder, facts.chosen, present=True, problem=text)
    return MpsFacts(folder, facts.chosen, present=True, answer=answer)
