"""All checks in their order, within the time that there is, each with its result.

Promises: a check that fails, or cannot be made, does not keep the others from being made; nothing
that was started is left behind.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from grn.errors import GrnError
from grn.selftest import checks
from grn.selftest.bench import Bench
from grn.selftest.frameworks import FRAMEWORKS
from grn.selftest.verdict import FAILED, OK, SKIPPED, FailedError, Result, SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grn.selftest.ground import Ground

__all__ = ["BUDGET_S", "FOR_THE_END_S", "NAMES", "run"]

BUDGET_S = 180.0
FOR_THE_END_S = 25.0
"""What the ends of the last jobs and of the broker may take, whatever hangs."""

_LEAST_S = 5.0

Check = tuple[str, str, "Callable[[Bench], tuple[str, dict[str, Any]]]"]

_CHECKS: tuple[Check, ...] = (
    ("lands", "a job runs on the device that was booked", checks.lands),
    ("peak", "a known peak is measured", checks.peak),
    ("share", "two jobs share a device", checks.share),
    ("kill", "a killed job gives its memory back", checks.kill),
    ("masks", "devices come in the order of the mask", checks.masks),
    ("oom", "running out of memory is recognised", checks.out_of_memory),
    *(
        (module, f"memory of {name} is measured", partial(checks.framework, module=module))
        for module, (name, _) in FRAMEWORKS.items()
    ),
)
NAMES = tuple(name for name, _, _ in _CHECKS)


def run(
    ground: Ground,
    names: Sequence[str],
    *,
    until_s: float,
    begins: Callable[[str], None],
    ended: Callable[[Result], None],
) -> tuple[list[Result], dict[str, Any]]:
    """Make the checks; return their results and what was learnt of the machine on the way.

    Args:
        ground: the broker to test.
        names: of the checks to make; none: all.
        until_s: when all must be over, on the monotonic clock.
        begins: told the title of a check before it is made.
        ended: told its result.
    """
    bench = Bench(ground, until_s - FOR_THE_END_S)
    results: list[Result] = []
    try:
        bench.meet_driver()
        hindrance = _first_job(bench)
        for name, title, check in _CHECKS:
            if names and name not in names:
                continue
            begins(title)
            results.append(_one(bench, name, title, check, hindrance))
            ended(results[-1])
        facts = bench.driver.facts if bench.driver is not None else {}
        return results, {**facts, "libcuda": bench.cuda, "driver_problem": bench.driver_problem}
    finally:
        bench.close()


def _first_job(bench: Bench) -> FailedError | SkippedError | None:
    """Run a first job; return what keeps all of them from running."""
    try:
        bench.first_job()
    except (FailedError, SkippedError) as error:
        return error
    except GrnError as error:  # the broker went away, or hangs
        return FailedError(error.message)
    finally:
        bench.tidy()
    return None


def _one(
    bench: Bench,
    name: str,
    title: str,
    check: Callable[[Bench], tuple[str, dict[str, Any]]],
    hindrance: FailedError | SkippedError | None,
) -> Result:
    begun = time.monotonic()
    numbers: dict[str, Any] = {}
    try:
        if hindrance is not None:
            raise hindrance
        if bench.left_s < _LEAST_S:
            raise SkippedError("no time left")  # noqa: TRY301 - one way for all that is skipped
        text, numbers = check(bench)
        state = OK
    except SkippedError as error:
        state, text = SKIPPED, str(error)
    except FailedError as error:
        state, text = FAILED, str(error)
    except GrnError as error:  # the broker went away, or refused what it should not
        state, text = FAILED, error.message
    finally:
        bench.tidy()
    return Result(name, title, state, text, round(time.monotonic() - begun, 2), numbers)
