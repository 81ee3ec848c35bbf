"""A dodo folder that is also looked at with plain doit: what ours and plain doit make of one file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.doit.dodofolder import DodoFolder, Done

if TYPE_CHECKING:
    from pathlib import Path

    from tests.env import BrokerEnv

__all__ = ["Project"]

_PLAIN = """\
def grn(action, **_):
    return action


def grn_task(creator=None, /, **_):
    return creator if creator else grn_task
"""
"""What stands for our names where plain doit is looked at."""


class Project(DodoFolder):
    """One project. What doit says with the JSON reporter is returned by task."""

    def __init__(self, env: BrokerEnv, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(env, folder)

    def plain_dodo(self, text: str) -> None:
        """Write a dodo file for which `grn` and `grn_task` do nothing; doit forgets earlier runs."""
        self.dodo(text, head=_PLAIN)
        self.forget()

    def our_dodo(self, text: str) -> None:
        """Write it for us; doit forgets earlier runs."""
        self.dodo(text)
        self.forget()

    def run(self, *words: str, status: int = 0, **environ: str) -> Done:
        """Run doit to its end, which must be as expected."""
        done = self.doit(*words, environ=environ)
        assert done.code == status, f"{done}\n{self.env.log()[-2000:]}"
        return done

    def results(self, *words: str, status: int = 0, **environ: str) -> dict[str, Any]:
        """Run doit with the JSON reporter; return what it says of each task."""
        self.run("run", "-r", "json", "-o", "report.json", *words, status=status, **environ)
        report = json.loads(self.read("report.json"))
        return {task["name"]: task for task in report["tasks"]}

    def forget(self) -> None:
        """Remove what doit remembers of earlier runs."""
        for path in self.folder.glob(".doit.db*"):
            path.unlink()
