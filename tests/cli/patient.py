"""A machine that `grn doctor` is asked about, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.env import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fakenvml.box import Box

    NewBox = Callable[..., Box]


LONG_S = 600.0


class Report:
    """What `grn doctor --json` printed."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        assert done.returncode in (0, 1), done.stderr
        assert done.stderr == ""
        self.status = done.returncode
        self.answer: dict[str, Any] = json.loads(done.stdout)
        assert self.answer["schema"] == 1
        assert self.answer["problems"] == len(self.of("problem"))
        assert self.status == (1 if self.answer["problems"] else 0)

    def of(self, *levels: str, about: str = "") -> list[dict[str, str]]:
        """The findings of these levels, about one topic or all."""
        return [
            finding
            for finding in self.answer["findings"]
            if finding["level"] in levels and about in ("", finding["about"])
        ]

    def text(self, *levels: str, about: str = "") -> str:
        """The same as one text."""
        return "\n".join(f"{f['what']} -> {f['do']}" for f in self.of(*levels, about=about))


class Machine:
    """A home and a socket's place of the test's own, in which `grn doctor` is run."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.socket = os.path.join(folder, "broker.sock")
        self.environ = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": folder,
            "COLUMNS": "80",
            "GRN_SOCKET": self.socket,
        }

    def run(
        self, *words: str, box: Box | None = None, cwd: str | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        driver = box.environ if box is not None else {}
        return subprocess.run(
            [sys.executable, "-m", "grn", "doctor", *words],
            env={**self.environ, **driver, **variables},
            cwd=cwd,
            capture_output=True,
            check=False,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=4 * PATIENCE_S,
        )

    def report(
        self, *words: str, box: Box | None = None, cwd: str | None = None, **variables: str
    ) -> Report:
        """Run it with `--json`."""
        return Report(self.run("--json", *words, box=box, cwd=cwd, **variables))


def files_of(folder: str) -> set[str]:
    """All that there is below a folder."""
    return {
        os.path.join(at, name)
        for at, folders, files in os.walk(folder)
        for name in (*folders, *files)
    }
