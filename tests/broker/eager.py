"""A broker that looks for devices at each request that needs one: `python -m tests.broker.eager broker …`.

Others look at most every few seconds; nothing else is changed.
"""

from __future__ import annotations

import sys

from grn.broker import lookout
from grn.cli.main import main

if __name__ == "__main__":
    lookout.PAUSE_S = 0.0
    sys.exit(main())
