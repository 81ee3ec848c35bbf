"""`python -m grn.replay`."""

from __future__ import annotations

import sys

from grn.replay.cli import main

if __name__ == "__main__":
    sys.exit(main())
