"""Which cores a lease is bound to: the least used ones, whole physical cores first.

Only leases that ask for cores of their own are bound, and only among themselves are cores counted:
what is not bound runs anywhere, also there. Cores of two leases are distinct as long as there are
enough; then the least used are shared, and nobody waits for it (CPUs that were declared are booked
by number, and can always be given distinct cores unless a fair share came first).

Nothing is kept here: who holds which cores is said by the leases, so it ends with them, and survives
the broker in their records.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

__all__ = ["Core", "choose_cores"]


class Core(NamedTuple):
    """A logical core, by the kernel's number, and the physical one that it is a part of."""

    id: int
    physical: int
    """The lowest number among those that share it; its own where the kernel does not say."""


def choose_cores(
    cores: Sequence[Core],
    wanted: int,
    *,
    held: Iterable[Collection[int]],
    allowed: Collection[int] | None = None,
) -> tuple[int, ...]:
    """Choose up to `wanted` cores, in the order of their numbers.

    Args:
        cores: those that the broker may use.
        wanted: how many; fewer are returned if fewer are allowed.
        held: the cores of each lease that is bound.
        allowed: those that the client may use; `None`: it may use all.
    """
    uses = Counter(core for lease in held for core in lease)
    siblings: Counter[int] = Counter()
    for core in cores:
        siblings[core.physical] += uses[core.id]
    able = [core for core in cores if allowed is None or core.id in allowed]
    # A physical core of which one half is taken comes after the free ones, before taken halves.
    able.sort(key=lambda core: (uses[core.id], siblings[core.physical], core.physical, core.id))
    return tuple(sorted(core.id for core in able[:wanted]))
