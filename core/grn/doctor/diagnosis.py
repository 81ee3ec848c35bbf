"""From facts to findings, topic by topic. Pure: the same facts give the same findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grn.doctor import on_broker, on_devices, on_driver, on_machine, on_python, on_shell
from grn.doctor.finding import Finding, problem

if TYPE_CHECKING:
    from grn.doctor.facts import Facts

__all__ = ["findings"]

_TOPICS = (on_python, on_driver, on_devices, on_shell, on_broker, on_machine)


def findings(facts: Facts) -> list[Finding]:
    """Draw all findings, in a fixed order of topics."""
    found = [one for topic in _TOPICS for one in topic.findings(facts)]
    found += [problem(about, f"cannot be looked at: {why}") for about, why in facts.failed]
    return list(dict.fromkeys(found))
