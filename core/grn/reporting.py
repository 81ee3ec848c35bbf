"""A job tells its broker how much device memory it took: `grn.report_peak()`.

Samples miss what comes and goes between two looks; a job that keeps count knows better. Promises:
outside a lease nothing happens; a broker that is away or refuses the figure is a `RuntimeWarning`,
never the end of a job; no framework is loaded, and none is made to start its device.

Must not: need anything that a job does not have anyway; it runs in the job's own process.
"""

from __future__ import annotations

import os
import sys
import warnings
from math import ceil, isfinite

from grn.errors import GrnError, ProtocolError, UsageError, from_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from grn.connection import Connection

__all__ = ["report_peak"]

_MIB = 1 << 20
_ANSWER_WITHIN_S = 5.0


def report_peak(
    mib: float | None = None,
    *,
    bytes: float | None = None,  # noqa: A002 - what frameworks count in
) -> bool:
    """Tell the broker the most device memory that this job has held, on its fullest device.

    Call it at the end of the work, or whenever a new maximum was reached: the largest figure
    counts, and only if GRN itself saw no more. Without a figure it is asked of PyTorch, JAX and CuPy
    (on its current device), as far as the process has loaded them and uses a device: the most that
    their allocators had reserved. That leaves out the CUDA context (some 300 to 600 MiB) and what
    libraries take beside the allocator; give a figure of your own to count them in.

    A job that is not run by GRN may call it all the same: nothing happens.

    Args:
        mib: the peak in MiB.
        bytes: the peak in bytes, as `torch.cuda.max_memory_reserved()` gives it.

    Returns:
        Whether a broker has taken the figure in. `False` outside a lease, or without any figure.

    Raises:
        UsageError: if both are given, or a figure is negative or no number.
    """
    peak = whole_mib(mib, bytes)
    lease = os.environ.get("GRN_LEASE")
    if not lease:
        return False
    if peak is None:
        peak = of_frameworks()
    if not peak:
        return False
    try:
        _tell(lease, peak)
    except GrnError as error:
        _warn(f"the peak of {peak} MiB was not reported to GRN: {error}", of=3)
        return False
    return True


def _warn(text: str, *, of: int) -> None:
    """Warn of the line that called `report_peak`, so many calls above this one."""
    warnings.warn(text, RuntimeWarning, stacklevel=of)


def whole_mib(mib: float | None, size: float | None) -> int | None:
    """Return the figure that was given in MiB, rounded up; `None` if none was.

    Raises:
        UsageError: see `report_peak`.
    """
    if mib is not None and size is not None:
        raise UsageError("report_peak: give mib or bytes, not both")
    given = mib if size is None else size
    if given is None:
        return None
    name = "mib" if size is None else "bytes"
    try:
        number = float(given)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"report_peak: {name}={given!r} is not a number") from error
    if isinstance(given, str | bool) or not isfinite(number) or number < 0:
        raise UsageError(f"report_peak: {name}={given!r} is not a number of 0 or more")
    return ceil(number if size is None else number / _MIB)


def _tell(lease: str, peak: int) -> None:
    from grn.connection import connect  # noqa: PLC0415 - not for jobs that GRN does not run
    from grn.settings import load  # noqa: PLC0415 - the same

    connection = connect(load())
    try:
        request_id = connection.next_id()
        connection.send({"op": "peak", "id": request_id, "lease": lease, "mib": peak})
        _check(connection, request_id)
    finally:
        connection.close()


def _check(connection: Connection, request_id: int) -> None:
    answer = connection.recv(_ANSWER_WITHIN_S)
    if answer is None:
        raise ProtocolError(f"the broker did not answer within {_ANSWER_WITHIN_S:g} s")
    if answer.get("op") in ("error", "refused"):
        raise from_code(str(answer.get("code")), str(answer.get("message")))
    if answer.get("id") != request_id:
        raise ProtocolError(f"the broker answered {answer.get('op')!r} to a report")


# -- frameworks -----------------------------------------------------------------------------------


def of_frameworks() -> int | None:
    """Return the peak on the fullest device, MiB; `None` if no framework here uses a device.

    What several frameworks of one process reserved adds up, device by device.
    """
    by_device: dict[int, int] = {}
    for name, figures in _FRAMEWORKS.items():
        module = sys.modules.get(name)
        if module is None:
            continue
        try:
            found = list(figures(module))
        except (AttributeError, RuntimeError, TypeError) as error:  # a version that we do not know
            _warn(f"the peak of {name} cannot be read ({error}): give report_peak a figure", of=4)
            continue
        for device, size in found:
            by_device[device] = by_device.get(device, 0) + size
    return ceil(max(by_device.values()) / _MIB) if by_device else None


def _torch(torch: Any) -> Iterator[tuple[int, int]]:
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            yield device, int(torch.cuda.max_memory_reserved(device))


def _cupy(cupy: Any) -> Iterator[tuple[int, int]]:
    """CuPy's pool keeps what it took until it is told to free it, so its size is its peak.

    It tells that of the current device; to switch to another one would start that.
    """
    size = int(cupy.get_default_memory_pool().total_bytes())
    if size:
        yield cupy.cuda.runtime.getDevice(), size


def _jax(jax: Any) -> Iterator[tuple[int, int]]:
    # Asking for its devices would start them; whether they are, only this private place knows.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return
    for device in jax.local_devices():
        figures = device.memory_stats() or {}  # none for a CPU
        peaks = [figures.get(key, 0) for key in ("peak_pool_bytes", "peak_bytes_in_use")]
        if any(peaks):
            yield device.local_hardware_id, int(max(peaks))


_FRAMEWORKS: dict[str, Callable[[Any], Iterator[tuple[int, int]]]] = {
    "torch": _torch,
    "cupy": _cupy,
    "jax": _jax,
}
