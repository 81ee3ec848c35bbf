"""What the tests of the shim share: processes that carry a sign, of which none may be left."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.shim.shimmed import Shimmed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def shimmed(tmp_path: Path, clean_environ: None) -> Iterator[Shimmed]:
    """Return what starts commands under a shim; at the end nothing of them may live."""
    del clean_environ
    runner = Shimmed(str(tmp_path), dict(os.environ))
    yield runner
    runner.close()
