"""What the broker knows, for tests of Python calls."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.python import decorated

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.env import BrokerEnv

    Here = Callable[..., BrokerEnv]

pytestmark = pytest.mark.filterwarnings("ignore:type '")  # that a job used no device


MODULE = os.path.realpath(decorated.__file__)


def profiles(env: BrokerEnv) -> dict[str, dict[str, Any]]:
    """Return what was learnt, by the function's name."""
    return {profile["type"].rpartition("::")[2]: profile for profile in env.client().profiles()}


def free(env: BrokerEnv) -> bool:
    """Whether no lease is left."""
    return not env.status()["leases"]
