"""GRN: a negotiator that shares the GPUs of one machine out to jobs whose need is not known beforehand.

Importing it loads nothing: each public name is fetched from its module when it is first used, so
that a job's start does not pay for what it does not need.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from grn.aclient import AsyncClient, AsyncLease
    from grn.client import Client, Lease
    from grn.errors import (
        BrokerGone,
        BrokerUnavailable,
        Cancelled,
        GrnError,
        Impossible,
        JournalError,
        LeaseError,
        PathError,
        ProtocolError,
        Refused,
        UsageError,
        WaitExpired,
    )
    from grn.jobs import JobFunction, job
    from grn.leasing import HeldLease, lease, lease_async
    from grn.reporting import report_peak

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "BrokerGone",
    "BrokerUnavailable",
    "Cancelled",
    "Client",
    "GrnError",
    "HeldLease",
    "Impossible",
    "JobFunction",
    "JournalError",
    "Lease",
    "LeaseError",
    "PathError",
    "ProtocolError",
    "Refused",
    "UsageError",
    "WaitExpired",
    "__version__",
    "job",
    "lease",
    "lease_async",
    "report_peak",
]

__version__ = "0.1.0"

_MODULES = {
    "AsyncClient": "grn.aclient",
    "AsyncLease": "grn.aclient",
    "Client": "grn.client",
    "HeldLease": "grn.leasing",
    "JobFunction": "grn.jobs",
    "Lease": "grn.client",
    "job": "grn.jobs",
    "lease": "grn.leasing",
    "lease_async": "grn.leasing",
    "report_peak": "grn.reporting",
}


if not TYPE_CHECKING:  # a checker that saw it would let any misspelt name pass

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import sys  # noqa: PLC0415 - see above

        module = _MODULES.get(name, "grn.errors")
        __import__(module)
        value = globals()[name] = getattr(sys.modules[module], name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
