"""Leases in force in this process: its environment says what they say, until they end.

A process has one environment and, once it has started a device, one set of devices. So leases with
different devices cannot be in force at once, whichever threads hold them; and a process that may have
a device open keeps it for its later leases.

Must not: ask the broker for anything.
"""

from __future__ import annotations

import contextlib
import os
import threading

from grn.errors import Impossible, LeaseError
from grn.loaded import may_hold_device, too_late
from grn.saying import warn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from grn.rules.environment import Setting

__all__ = ["Applied", "apply", "bound", "changes", "kept_devices", "mask_of_kept", "take_back"]

_CHANGES = frozenset({"set", "merged", "refused"})
_CURE = (
    "Threads of one process cannot have different devices: give each its own process"
    " (`@grn.job` with isolate=True does that, `@leased` in a worker of Prefect, or a process pool)"
)


class Applied:
    """One lease in force: its variables (None: unset), its devices, and the thread that applied it."""

    __slots__ = ("env", "lease", "thread", "uuids")

    def __init__(self, lease: str, uuids: Sequence[str], env: Mapping[str, str | None]) -> None:
        self.lease = lease
        self.uuids = frozenset(uuids)
        self.env = dict(env)
        self.thread = threading.current_thread().name


_lock = threading.RLock()
_in_force: list[Applied] = []
_before: dict[str, str | None] = {}
"""What the variables were that leases in force have changed."""
_kept: list[frozenset[str]] = []
"""The devices that this process may have open."""


def apply(applied: Applied) -> None:
    """Put a lease into force; warn of what it comes too late for.

    Raises:
        LeaseError: if another one is in force, or was, that has other devices.
    """
    with _lock:
        _refuse_other_devices(applied)
        changed = [name for name, value in applied.env.items() if os.environ.get(name) != value]
        for name in applied.env:
            _before.setdefault(name, os.environ.get(name))
        _in_force.append(applied)
        _settle()
    late = too_late(name for name in changed if not name.startswith("GRN_"))
    if late and not _is_kept(applied):
        # Without the lease's name: said once for a line, not once for each of a thousand leases.
        warn(f"{late}. Ask for the lease before the import, or leave @grn.job its own process")


def take_back(applied: Applied) -> None:
    """Undo what a lease has set; where others are in force still, theirs counts."""
    with _lock:
        if applied not in _in_force:
            return  # a forked child: the environment is the job's to the end
        _in_force.remove(applied)
        if applied.uuids and may_hold_device() and not _kept:
            _kept.append(applied.uuids)
        _settle()
        if not _in_force:
            _before.clear()


def kept_devices() -> frozenset[str] | None:
    """Return the UUIDs of the devices to which this process is bound, if it is."""
    with _lock:
        return _kept[0] if _kept else None


def mask_of_kept() -> str | None:
    """Return a mask of the devices to which this process is bound, if it is."""
    kept = kept_devices()
    return ",".join(sorted(kept)) if kept else None


@contextlib.contextmanager
def bound() -> Iterator[None]:
    """Name the reason where a request of this process can never be met since it is bound.

    Raises:
        Impossible: with that reason.
    """
    try:
        yield
    except Impossible as error:
        kept = mask_of_kept()
        if kept is None:
            raise
        raise Impossible(
            f"{error}. Only {kept} can be had by this process, which may have it open since an"
            " earlier lease: use isolate=True, or another process"
        ) from error


def changes(settings: Iterable[Setting], explicit: Mapping[str, str]) -> dict[str, str | None]:
    """Return what a lease or its request's `env` sets or unsets (None), not what stays as it was."""
    return {x.name: x.value for x in settings if x.verdict in _CHANGES or x.name in explicit}


def _settle() -> None:
    """Give each variable the value of the newest lease in force, else what it was before.

    In one step: another thread that asks for a lease meanwhile must find the outer one's name.
    """
    for name, before in _before.items():
        value = next((x.env[name] for x in reversed(_in_force) if name in x.env), before)
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value


def _is_kept(applied: Applied) -> bool:
    return bool(_kept) and applied.uuids <= _kept[0]


def _refuse_other_devices(applied: Applied) -> None:
    for other in _in_force:
        if other.uuids != applied.uuids:
            raise LeaseError(
                f"lease {applied.lease} cannot be put into force: lease {other.lease} is (by thread"
                f" {other.thread!r}), with other devices. {_CURE}"
            )
    if _kept and applied.uuids and not applied.uuids <= _kept[0]:
        kept = ", ".join(sorted(_kept[0]))
        raise LeaseError(
            f"lease {applied.lease} cannot be put into force: this process may have {kept} open"
            " since an earlier lease, and cannot move to other devices. Use isolate=True, or a"
            " process for each"
        )


def _forked() -> None:
    global _lock  # noqa: PLW0603 - the parent's lock may be held for ever in a child
    _lock = threading.RLock()
    _in_force.clear()
    _before.clear()
    _kept.clear()  # an open device does not survive a fork


os.register_at_fork(after_in_child=_forked)
