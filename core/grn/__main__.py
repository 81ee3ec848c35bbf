"""`python -m grn`: the same as the `grn` command, also where no script was installed."""

from __future__ import annotations

import sys

from grn.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
