"""`python -m grn.notebook NOTEBOOK.ipynb …`: execute one notebook, inside the lease that this process has."""

from __future__ import annotations

import os
import sys

from grn.errors import GrnError
from grn.notebook.arguments import options_of, require


def main() -> int:
    """Execute; return the exit status."""
    try:
        options = options_of(sys.argv[1:])
        options.check()
        require()
        from grn.notebook.executing import execute  # noqa: PLC0415 - it needs the extra

        return execute(options)
    except GrnError as error:
        sys.stderr.write(f"grn run-notebook: {error.message}\n")
        return error.exit_status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through atexit: nbclient's own handler fails there where a kernel never started.
    os._exit(status)
