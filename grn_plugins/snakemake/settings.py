"""The flags `--grn-…` of the executor, which are environment variables and keys of a profile, too.

Snakemake makes all three from the fields here: `no_broker` is `--grn-no-broker`, `SNAKEMAKE_GRN_NO_BROKER`
and `grn-no-broker:`. What nobody gives is left to GRN's own settings (`GRN_SOCKET`, `GRN_DEVICES`, …).

Must not: import GRN: this is imported at each start of Snakemake, whichever executor it uses. Nor may
its annotations be texts: Snakemake reads the fields' types.
"""

from dataclasses import dataclass, field
from typing import Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase

__all__ = ["ExecutorSettings"]


def _words(help_text: str, metavar: str) -> dict[str, object]:
    return {"help": help_text, "type": str, "metavar": metavar, "env_var": True, "required": False}


def _one_of(help_text: str, *choices: str) -> dict[str, object]:
    return {"help": help_text, "type": str, "choices": choices, "env_var": True, "required": False}


# Made at each start of Snakemake: what nobody calls of a data class is a fifth of the time.
@dataclass(eq=False, repr=False)
class ExecutorSettings(ExecutorSettingsBase):  # type: ignore[misc]  # Snakemake ships no types
    """What `--executor grn` can be told."""

    rules: Optional[str] = field(  # noqa: UP045 - Snakemake's registry knows this spelling
        default=None,
        metadata=_words(
            "Rules that need a GPU though they declare none: names or patterns, such as 'train,eval_*'."
            " Each gets one GPU, unless its resources say otherwise.",
            "NAMES",
        ),
    )
    policy: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_words(
            "Choose the fitting device with most room (spread) or least (pack), or by a policy that an"
            " installed package brings. Default: the broker's.",
            "NAME",
        ),
    )
    wait: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_words(
            "Let a job fail that gets no device within this time, such as 90, 10m or 2h."
            " Default: wait as long as it takes.",
            "TIME",
        ),
    )
    no_broker: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_one_of(
            "When no broker can be reached or started: fail (default), or run without leases.",
            "fail",
            "run",
        ),
    )
    groups: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_one_of(
            "Rules of one group (group: or --groups) share a lease that is held until the last of them"
            " has ended (together, default), or get one each, as Snakemake runs them here (apart).",
            "together",
            "apart",
        ),
    )
    kill_grace: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_words(
            "Time between SIGTERM and SIGKILL for a job that is stopped. Default: GRN_GRACE, or 5 s.",
            "TIME",
        ),
    )
    exec_mode: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_one_of(
            "Start GPU jobs as the local executor does (direct), or each by a Snakemake of its own"
            " (spawn: slower, by Snakemake's public interface only). Default: auto, which is direct"
            " where that works.",
            "auto",
            "direct",
            "spawn",
        ),
    )
    socket: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_words("The broker's socket. Default: GRN_SOCKET, or found by itself.", "PATH"),
    )
    devices: Optional[str] = field(  # noqa: UP045
        default=None,
        metadata=_words(
            "Devices for a broker that is started by this run, such as sim:2x16GiB (simulated) or none."
            " Default: GRN_DEVICES, or this machine's.",
            "SPEC",
        ),
    )
