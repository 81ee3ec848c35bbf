"""`grn run-notebook`: a notebook as the one command of `grn run`.

Promises: the device is waited for before the kernel starts; the status is the notebook's own.
"""

from __future__ import annotations

import sys

from grn.cli.run import main as run
from grn.errors import UsageError
from grn.notebook.arguments import job_type, require, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

HELP = """\
usage: grn run-notebook [OPTION ...] NOTEBOOK.ipynb

Wait for a share of a device, then execute the notebook in a kernel of its own. The executed notebook is
written beside it after every cell, as NOTEBOOK.out.ipynb.

options:
  -o, --output FILE     write the executed notebook here
  --inplace             write it over the notebook
  -p NAME VALUE         set a parameter, in a cell after the one tagged `parameters` (repeatable)
  --kernel NAME         the kernel (default: the notebook's own)
  --cell-timeout TIME   stop when one cell takes longer: status 124
  --cwd FOLDER          the kernel's folder (default: the notebook's)
  and the options of `grn run`

status: 0 all cells ran, 1 a cell raised, 3 the kernel died, 124 a time limit; else as `grn run` has it
"""


def main(argv: Sequence[str]) -> int:
    """Run a notebook; return the exit status, or end by a signal."""
    options, paths, rest = split(argv)
    if {"--help", "-h"} & set(rest):
        sys.stdout.write(HELP)
        return 0
    if len(paths) != 1:
        raise UsageError(f"one notebook is expected, {len(paths)} are given; see `grn queue add`")
    options.path = paths[0]
    options.check()
    require()
    named = (
        []
        if any(word.partition("=")[0] == "--type" for word in rest)
        else ["--type", job_type(options)]
    )
    leftovers = [] if any(w.startswith("--leftovers") for w in rest) else ["--leftovers", "kill"]
    words = [sys.executable, "-m", "grn.notebook", *options.words()]
    return run([*rest, *named, *leftovers, "--", *words], engine="notebook")
