"""Which file a command's name means, and what it means that it could not be executed.

Must not import anything heavy: it runs in front of every job.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["NOT_EXECUTABLE", "NOT_FOUND", "candidates", "exec_failure", "exec_first"]

NOT_FOUND = 127
NOT_EXECUTABLE = 126


def candidates(name: str, env: Mapping[str, str]) -> list[str]:
    """List the files that `name` may mean, as execvp(3) looks for them."""
    if "/" in name:
        return [name]
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    return [os.path.join(folder or ".", name) for folder in folders]


def exec_first(paths: Sequence[str], words: Sequence[str], env: Mapping[str, str]) -> int:
    """Execute the first file that can be; return the errno that says most about the failure."""
    problem = errno.ENOENT
    for path in paths:
        try:
            os.execve(path, list(words), env)  # noqa: S606 - no shell is the point
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR}:
                continue
            problem = error.errno or errno.EIO
            if problem != errno.EACCES:
                break
    return problem


def exec_failure(number: int, name: str) -> str:
    """Say why a program could not be started."""
    if number == errno.ENOENT:
        return f"{name}: not found"
    if number == errno.ENOEXEC:
        return f"{name}: not a program (a script needs a first line such as #!/bin/sh)"
    return f"{name}: {os.strerror(number).lower()}"
