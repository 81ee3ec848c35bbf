"""A broker whose minute is over when a file says so: `python -m tests.reports.hasty broker …`.

A card is tested again a minute after its last error, and its health is read twice a minute while
nobody waits. Here that minute lasts until the file that `$MINUTE_IS_OVER` names is there, and
health is read at each look; nothing else is changed.
"""

from __future__ import annotations

import os
import sys

from grn.broker import sampler
from grn.cli.main import main
from grn.rules import health

__all__ = ["VARIABLE"]

VARIABLE = "MINUTE_IS_OVER"


class _Minute(float):
    """A span of time that is over when a file exists."""

    def __le__(self, age_s: float) -> bool:
        return os.path.exists(os.environ[VARIABLE])


if __name__ == "__main__":
    health.WAIT_S = _Minute(60.0)
    sampler._HEALTH_EVERY_S = sampler._HEALTH_BEFORE_LEASE_S = 0.0
    sys.exit(main())
