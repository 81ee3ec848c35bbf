"""Whose turn it is, and how many of a kind may run: fairness between submitters, and limits.

Fair shares (`user` or `client`; `off` by default): submitters take turns, one request each, so that a
sweep of five thousand does not bury a colleague's single job. It is start-time fair queuing with equal
weights (Goyal, Vin, Cheng, 1996): whoever has not waited for a while begins where the others are, and
gains nothing from having asked for nothing.

Aging: waiting for `aging_s` is worth one step of priority. As all age alike, the order of two requests
never changes, so that it is a key and needs no clock.

Limits: at most so many jobs of a type or label, or of a user, at once; who is over one waits, and
holds nobody up.

Must not: know devices or memory.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from grn.errors import UsageError
from grn.rules.model import LeaseState
from grn.rules.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from grn.rules.model import Lease, Request

__all__ = ["Limit", "Limits", "Turns", "parse_limits"]

_Submitter = tuple[int, ...]
_MOST_REMEMBERED = 4096


class Turns:
    """How many turns each submitter has had; for requests of which the first of each is the next."""

    def __init__(self, share: str = "off") -> None:
        self.share = share
        self._had: dict[_Submitter, int] = {}
        self._waiting: dict[_Submitter, int] = {}

    def submitter(self, request: Request) -> _Submitter:
        """Name who asks: a user, or one process with all that it asks for."""
        owner = request.owner
        return (owner.uid,) if self.share == "user" else (owner.uid, owner.pid, owner.start)

    def joined(self, request: Request) -> None:
        """Take a request in."""
        who = self.submitter(request)
        count = self._waiting.get(who, 0)
        if not count:
            now = min((self._had[other] for other in self._waiting), default=0)
            self._had[who] = max(self._had.get(who, 0), now)
        self._waiting[who] = count + 1

    def left(self, request: Request, *, granted: bool) -> None:
        """Take note that a request waits no more; it was a turn if it was granted."""
        who = self.submitter(request)
        self._had[who] += granted
        self._waiting[who] -= 1
        if not self._waiting[who]:
            del self._waiting[who]
        if not self._waiting:
            self._had.clear()
        elif len(self._had) > _MOST_REMEMBERED:
            self._had = {other: had for other, had in self._had.items() if other in self._waiting}

    def copied(self, waiting: Iterable[Request]) -> Turns:
        """Return turns of their own, in which these requests wait."""
        twin = Turns(self.share)
        twin._had = dict(self._had)
        for request in waiting:
            who = self.submitter(request)
            twin._waiting[who] = twin._waiting.get(who, 0) + 1
        return twin

    def in_turn(self, requests: Sequence[Request], *, priorities: bool) -> list[Request]:
        """Order requests, each submitter's in the order given, so that submitters take turns.

        With `priorities` turns are taken among requests of one priority only.
        """
        nth: dict[_Submitter, int] = {}
        keyed: list[tuple[int, int, int]] = []
        for position, request in enumerate(requests):
            who = self.submitter(request)
            turn = nth[who] = nth.get(who, self._had.get(who, 0) - 1) + 1
            keyed.append((-request.priority if priorities else 0, turn, position))
        return [requests[position] for _, _, position in sorted(keyed)]


class Limit:
    """At most `most` jobs at once whose type, label or user (`of`) matches a pattern.

    A user's pattern is their number, or `*`: then each user may have so many.
    """

    __slots__ = ("most", "of", "pattern")

    def __init__(self, pattern: str, most: int, of: str = "type") -> None:
        self.pattern = pattern
        self.most = most
        self.of = of

    def __str__(self) -> str:
        return f"{'' if self.of == 'type' else self.of + ':'}{self.pattern}={self.most}"

    def meets(self, request: Request) -> bool:
        """Whether the limit is about this request."""
        if self.of == "user":
            return self.pattern in ("*", str(request.owner.uid))
        return fnmatchcase(request.label if self.of == "label" else request.type, self.pattern)


def parse_limits(text: str, uid_of: Callable[[str], int] | None = None) -> tuple[Limit, ...]:
    """Read `train*=2, label:night*=4, user:*=8`.

    `uid_of` returns the number of the user who is called so, and raises `UsageError` if nobody is;
    without it, users are numbers.

    Raises:
        UsageError: a part has no number of at least 1, no pattern, or a user who is unknown.
    """
    return tuple(_limit(part.strip(), uid_of) for part in text.split(",") if part.strip())


def _limit(part: str, uid_of: Callable[[str], int] | None) -> Limit:
    name, equals, number = part.rpartition("=")
    of, colon, pattern = name.partition(":")
    if not colon or of not in ("label", "user"):
        of, pattern = "type", name
    pattern = pattern.strip()
    if not equals or not pattern:
        raise UsageError(
            f"limit {part!r} is not PATTERN=N, label:PATTERN=N or user:NAME=N, such as train*=2,"
            " label:night*=4 or user:*=8"
        )
    if of == "user" and pattern != "*" and not pattern.isdecimal():
        if uid_of is None:
            raise UsageError(f"limit {part!r}: a user's number, or * for each, is expected")
        pattern = str(uid_of(pattern))
    return Limit(pattern, parse_count(number.strip(), what=f"the limit of {name}", minimum=1), of)


class Limits:
    """The limits with what runs now. `count` begins a round of decisions, `add` follows it."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._limits = tuple(limits)
        self._running: dict[tuple[int, int | None], int] = {}
        """Limit, and the user where each counts by themselves -> how many run."""
        self._met: dict[tuple[str, str, int], tuple[int, ...]] = {}

    @property
    def given(self) -> bool:
        """Whether there are any limits."""
        return bool(self._limits)

    def count(self, leases: Iterable[Lease]) -> None:
        """Count what runs; a lease whose job has ended counts no more."""
        if not self._limits:
            return
        self._running.clear()
        self._met.clear()
        for lease in leases:
            if lease.state is not LeaseState.DRAINING:
                self.add(lease.request)

    def add(self, request: Request) -> None:
        """Count a job that starts."""
        for number in self._about(request) if self._limits else ():
            key = self._key(number, request)
            self._running[key] = self._running.get(key, 0) + 1

    def _key(self, number: int, request: Request) -> tuple[int, int | None]:
        return number, request.owner.uid if self._limits[number].of == "user" else None

    def reached(self, request: Request) -> str:
        """Say which limit a request would exceed, with numbers; "" if none."""
        if not self._limits:
            return ""
        for number in self._about(request):
            key = self._key(number, request)
            running = self._running.get(key, 0)
            if running >= self._limits[number].most:
                return f"{running} of {self._most(key)} run already"
        return ""

    def reached_together(self, requests: Collection[Request]) -> str:
        """Say which limit these would exceed if all of them started now; "" if none."""
        found = self._exceeded(requests, self._running)
        if found is None:
            return ""
        return (
            f"{self._running.get(found, 0)} of {self._most(found)} run already, and the {len(requests)}"
            " members of the group start together"
        )

    def never(self, requests: Sequence[Request]) -> str | None:
        """Say which limit forbids that these ever run at once; `None` if none does."""
        found = self._exceeded(requests, {})
        if found is None:
            return None
        return (
            f"group {requests[0].group!r} wants its {len(requests)} members to run at once, and"
            f" {self._most(found)} may (limits)"
        )

    def _most(self, key: tuple[int, int | None]) -> str:
        limit, uid = self._limits[key[0]], key[1]
        return f"at most {limit.most} jobs of {limit.of} {limit.pattern if uid is None else uid}"

    def _exceeded(
        self, requests: Iterable[Request], running: Mapping[tuple[int, int | None], int]
    ) -> tuple[int, int | None] | None:
        """Return the first limit that these exceed beside what runs, and the user if it is theirs."""
        more: dict[tuple[int, int | None], int] = {}
        for request in requests if self._limits else ():
            for number in self._about(request):
                key = self._key(number, request)
                more[key] = more.get(key, 0) + 1
                if running.get(key, 0) + more[key] > self._limits[number].most:
                    return key
        return None

    def _about(self, request: Request) -> tuple[int, ...]:
        key = (request.type, request.label, request.owner.uid)
        met = self._met.get(key)
        if met is None:
            met = tuple(n for n, limit in enumerate(self._limits) if limit.meets(request))
            self._met[key] = met
        return met
