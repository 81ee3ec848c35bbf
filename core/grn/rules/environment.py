"""What a job is told through its environment: decided row by row over `environment_table`.

Each variable belongs to one class, which decides between our value and one that is there already:

- authority: ours wins, and a request that wants another value is refused it. A mask that the user
  set has already narrowed the request by the time a grant arrives here;
- ceiling: the smaller of the two wins;
- default: the user's value stays; one that undoes the sharing earns a warning;
- composed: strings that the user puts together (allocator options, flags) stay as they are, or get
  one key of ours merged in where the user asked for it.

So a value comes from the inherited environment, then from what the lease implies, then from what
the request says, in this order of strength; nothing outranks a device mask.

The user's value is the one that the request names in `env`, else the one in the job's environment;
a variable that is set and empty there counts as unset, as the programs that read it see it.

Promises: nothing is said about devices to a job that asked for none; deriving twice changes nothing.
Must not read os.environ, nor import anything heavy: it runs in front of every job.
"""

from __future__ import annotations

from grn.rules.environment_table import TABLE
from grn.rules.environment_values import ALSO_TELL, Facts, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

    from grn.rules.environment_table import Row
    from grn.rules.environment_values import Grant

    Verdict = Literal["set", "kept", "merged", "refused", "untouched"]

__all__ = ["TABLE", "Setting", "derive", "explain_lines", "job_environment"]


_OF_BACKEND = "for this machine's devices"


class Setting:
    """What was decided about one variable; `value` is what the job finds, None is unset."""

    __slots__ = ("name", "reason", "value", "verdict", "warning")

    def __init__(
        self, name: str, value: str | None, reason: str, verdict: Verdict, warning: str = ""
    ) -> None:
        self.name = name
        self.value = value
        self.reason = reason
        self.verdict = verdict
        self.warning = warning

    def __repr__(self) -> str:
        return f"Setting({self.name!r}, {self.value!r}, {self.reason!r}, {self.verdict!r})"


def derive(grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]) -> list[Setting]:
    """Decide about every variable that the grant, the table or the request's `env` touches.

    Args:
        grant: the broker's answer (lease, mask, devices, memory_mib, fraction, threads, cpus, probe;
            mps, compute and processes, where a daemon limits the lease; and extra: variables of the
            device backend, with authority, and what else the broker's setting has jobs told).
        environ: the environment that the job would have without us.
        explicit: the request's `env`.
    """
    facts = Facts(grant, environ, explicit)
    settings = [setting for row in TABLE if (setting := _decide(row, facts, explicit)) is not None]
    extra: Mapping[str, str] = grant.get("extra") or {}
    settings += [
        _authority(name, value, _OF_BACKEND, explicit)
        for name, value in extra.items()
        if name != ALSO_TELL
    ]
    decided = {setting.name for setting in settings}
    settings.extend(
        Setting(name, value, "asked for by the request", "set")
        for name, value in explicit.items()
        if name not in decided
    )
    return settings


def job_environment(
    grant: Grant, environ: Mapping[str, str], explicit: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Build the job's whole environment, and the warnings to show to its user."""
    env = dict(environ)  # once: each look-up in os.environ decodes
    settings = derive(grant, env, explicit)
    for setting in settings:
        if setting.value is not None:
            env[setting.name] = setting.value
        else:
            env.pop(setting.name, None)
    return env, [setting.warning for setting in settings if setting.warning]


def explain_lines(settings: list[Setting]) -> list[str]:
    """Lay settings out in columns: name, value, reason, verdict."""
    cells = [("NAME", "VALUE", "REASON", "VERDICT")]
    cells += [(each.name, _shown(each.value), each.reason, each.verdict) for each in settings]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return [
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  {reason:<{widths[2]}}  {verdict}"
        for name, value, reason, verdict in cells
    ]


def _shown(value: str | None) -> str:
    if value is None:
        return "(unset)"
    return value if value and value.isprintable() else repr(value)


# How each class decides.


def _decide(row: Row, facts: Facts, explicit: Mapping[str, str]) -> Setting | None:
    if other := facts.replaced_by(row.name):
        return Setting(row.name, None, f"the request sets {other} in its place", "set")
    ours = row.ours(facts)
    if ours is None:
        setting = _untouched(row, facts)
    elif row.kind == "authority":
        return _authority(row.name, ours, row.why, explicit)
    elif row.kind == "default":
        return _default(row, ours, facts, explicit)
    else:
        setting = _combined(row, ours, facts, explicit)
    if setting is not None and row.warning is not None:
        setting.warning = setting.warning or row.warning(facts)
    return setting


def _untouched(row: Row, facts: Facts) -> Setting | None:
    user = facts.user(row.name)
    if user is None:
        return None
    why = row.idle or ("the device is not shared" if facts.devices else "no device was asked for")
    return Setting(row.name, user, f"left as you set it: {why}", "untouched")


def _authority(name: str, ours: str, why: str, explicit: Mapping[str, str]) -> Setting:
    wanted = explicit.get(name)
    if wanted is None or wanted == ours:
        return Setting(name, ours, why, "set")
    return Setting(
        name,
        ours,
        f"GRN decides this one; the request wanted {wanted!r}",
        "refused",
        f"{name}={wanted} of the request was refused: GRN decides it, and it is {ours!r} here ({why})",
    )


def _combined(row: Row, ours: str, facts: Facts, explicit: Mapping[str, str]) -> Setting:
    """Decide about a ceiling, or about a string into which one key of ours goes."""
    user = facts.user(row.name)
    if not user:
        return Setting(row.name, ours, row.why, "set")
    both = row.combine(facts, user, ours)
    if both == user:
        return Setting(row.name, user, f"yours is within the share of {ours}", "kept")
    if row.kind == "composed":
        return Setting(row.name, both, f"yours, with {ours} merged in", "merged")
    return Setting(
        row.name,
        both,
        f"the smaller of the share and your {user!r}",
        "refused" if explicit.get(row.name) else "merged",
        f"{row.name}={user} is lowered to {both}, this job's share of the device",
    )


def _default(row: Row, ours: str, facts: Facts, explicit: Mapping[str, str]) -> Setting:
    user = facts.user(row.name)
    if user is None or (not user and row.name not in explicit):
        return Setting(row.name, ours, row.why, "set")
    if user == ours:
        return Setting(row.name, user, "yours is the same", "kept")
    reason = "asked for by the request" if row.name in explicit else "yours stays"
    return Setting(row.name, user, reason, "kept", _harm(row.name, user, ours, facts.threads))


def _harm(name: str, user: str, ours: str, threads: int) -> str:
    """Say what a kept value does to the sharing; nothing if it does no harm."""
    if ours.isdecimal():
        if count(user) <= threads:
            return ""
        return (
            f"{name}={user} stays as you set it, but this job's share is {threads} of the machine's "
            f"CPUs: it may slow its neighbours down"
        )
    if {"0": "false"}.get(user, user.lower()) == ours:  # jaxlib reads 0 as false, too
        return ""
    return (
        f"{name}={user} stays as you set it, but only {ours!r} lets jobs share a device: this one "
        f"may take memory that it does not need, and will be learnt as that large"
    )
