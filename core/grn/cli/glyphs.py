"""Whether the terminal shows more than ASCII: blocks, lines and dots.

What Python encodes its output with does not tell: under `LC_ALL=C` it writes UTF-8 all the same, to a
terminal that was told otherwise.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["shows_unicode"]


def shows_unicode(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell by the locale's variables, the strongest first: without any it is C, which is ASCII."""
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    locale = next((value for name in names if (value := environ.get(name))), "")
    if environ.get("TERM") == "linux":  # the kernel's console has no eighths of a block
        return False
    return "utf8" in locale.lower().replace("-", "")
