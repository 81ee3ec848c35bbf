"""What is known of a job type, and how its estimate is made, for people to check.

Pure; the numbers are those of the profiles, the words say which rule makes the booking of them.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from grn.rules.estimate import (
    ALONE_AFTER_OOMS,
    OTHER_MODEL_FACTOR,
    PROVISIONAL_FACTOR,
    WINDOW,
)
from grn.rules.expected import typical_s
from grn.rules.report import profiles_report

if TYPE_CHECKING:
    from grn.rules.estimate import Margin, Profile
    from grn.rules.model import Request
    from grn.rules.profiles import ProfileBook

__all__ = ["estimate_how", "knowledge", "need_how"]


def knowledge(profiles: ProfileBook, job_type: str) -> list[dict[str, Any]]:
    """Describe what was learnt of a type on each device model: an entry of `profiles`, and more.

    `how` says how the estimate is made, `typical_s` how long a run takes (`None`: nobody knows).
    """
    found = [p for p in profiles.of_type(job_type) if p.known or p.outcomes]
    reports = profiles_report(found, profiles.margin)
    return [
        {
            **report,
            "how": estimate_how(profile, profiles.margin),
            "typical_s": typical_s(profile.durations_s),
        }
        for profile, report in zip(found, reports, strict=True)
    ]


def estimate_how(profile: Profile, margin: Margin) -> str:
    """Say of what the next booking is made."""
    if profile.ooms >= ALONE_AFTER_OOMS:
        return f"alone on a device, since {profile.ooms} runs in a row died of device memory"
    mib = profile.estimate_mib(margin)
    if mib is None:
        return _unknown(profile)
    measured = max([*profile.peaks, profile.raised_mib])
    if mib == profile.bump_mib:
        times = f"{profile.ooms} runs" if profile.ooms > 1 else "a run"
        return f"more than was booked before, since {times} died of device memory"
    if profile.set_mib is not None and mib == profile.set_mib:
        return "as it was set by hand (`grn profiles set`)"
    if measured and mib == margin.on(measured):
        of = _of_peaks(profile, measured)
        return f"{of}, {measured} MiB, and a margin of {mib - measured} MiB"
    peak = profile.provisional_mib or 0
    wide = ceil(peak * PROVISIONAL_FACTOR)
    return (
        f"{PROVISIONAL_FACTOR:g} times the {peak} MiB that its first run, which still runs, has held so"
        f" far, and a margin of {mib - wide} MiB"
    )


def _of_peaks(profile: Profile, measured: int) -> str:
    if measured not in profile.peaks:
        return "the peak of a run that has outgrown its booking"
    runs = len(profile.peaks)
    if runs == 1:
        return "the one peak that was measured"
    return f"the largest of the last {runs} peaks (at most {WINDOW} count)"


def _unknown(profile: Profile) -> str:
    if profile.unmeasured:
        return (
            f"{profile.unmeasured} run{'s' if profile.unmeasured > 1 else ''} could not be"
            " measured, so the next one has a device to itself"
        )
    return "no run has succeeded yet, so the next one is measured alone on a device"


def need_how(profiles: ProfileBook, request: Request, model: str) -> str:
    """Say where what a request takes on a device of this model comes from."""
    if request.whole:
        return "a whole device was asked for"
    if request.memory_mib is not None:
        peak = profiles.peak_mib(request.type, model) or 0
        if peak > request.memory_mib:
            return f"{request.memory_mib} MiB were declared, and a peak of {peak} MiB was seen"
        return "as declared"
    own = profiles.find(request.type, model)
    if own is not None and own.known:
        return estimate_how(own, profiles.margin)
    others = [p.device_model for p in profiles.of_type(request.type) if p.known]
    if others:
        known = ", ".join(sorted(others))
        return f"{OTHER_MODEL_FACTOR:g} times the estimate of another model ({known})"
    if own is not None:
        return estimate_how(own, profiles.margin)
    return "no run is known, so the first one is measured alone on a device"
