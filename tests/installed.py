"""Skips tests of what is not installed, without the second that it takes to import some packages."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

__all__ = ["installed_or_skip"]


def installed_or_skip(package: str, extra: str) -> None:
    """Skip the module that calls this unless the package is there.

    Args:
        package: how it is imported.
        extra: the extra of ours that brings it.
    """
    if find_spec(package) is None:
        reason = f"{package} is missing: pip install 'grn-plugins[{extra}]'"
        pytest.skip(reason, allow_module_level=True)
