"""What similar job types lend a type of which nothing is known: a prior, if the settings allow it.

Similar are runs of one program with other arguments, or one function or rule with other parameters.
Their need is a guess, so the margin is wide; and whoever died once of any cause is measured alone.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from grn.rules.estimate import OTHER_MODEL_FACTOR, PROVISIONAL_FACTOR

if TYPE_CHECKING:
    from grn.rules.profiles import ProfileBook

__all__ = ["prior_mib", "stem"]

_MODULE = "-m"


def stem(job_type: str) -> str | None:
    """Return what similar types have in common; `None` if the type has no part that could differ.

    `python train.py --lr 0.1` begins with `python train.py`, `python -m pkg.train x` with
    `python -m pkg.train`, and `FILE::NAME batch=4` with `FILE::NAME`.
    """
    words = job_type.split()
    if not words:
        return None
    if "::" in words[0]:
        count = 1
    elif len(words) > 1 and words[1] == _MODULE:
        count = 3
    else:
        count = 2
    if len(words) < count or any(
        word.startswith("-") for word in words[1:count] if word != _MODULE
    ):
        return None
    return " ".join(words[:count])


def prior_mib(profiles: ProfileBook, job_type: str, model: str) -> int | None:
    """Return what to book for the first run of a type on this device model; `None`: measure it alone.

    It is the largest estimate of a similar type, and half of it on top.
    """
    begins = stem(job_type)
    if begins is None or profiles.failures(job_type):
        return None
    known = [
        mib
        for other in list(profiles.types())
        if other != job_type
        and other.startswith(begins)
        and stem(other) == begins
        and (mib := profiles.estimate_mib(other, model, factor=OTHER_MODEL_FACTOR)) is not None
    ]
    return ceil(max(known) * PROVISIONAL_FACTOR) if known else None
