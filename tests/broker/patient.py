"""A broker that waits for the driver as long as a test likes: `python -m tests.broker.patient broker …`.

Others give a look some seconds, which a busy machine may need for what a test does meanwhile.
"""

from __future__ import annotations

import sys

from grn.cli.main import main
from grn.devices.nvml import backend

if __name__ == "__main__":
    backend.open_nvml.__kwdefaults__ = {"within_s": 600.0}
    sys.exit(main())
