"""From facts to findings, topic by topic. Pure: the same facts give the same findings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from grn.doctor import on_broker, on_devices, on_driver, on_machine, on_python, on_shell
from grn.doctor.finding import Finding, problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from grn.doctor.facts import Facts

__all__ = ["findings"]


def findings(facts: Facts) -> list[Finding]:
    """Draw all findings, in a fixed order of topics."""
    found = [
        *on_python.findings(facts),
        *_driver(facts),
        *on_devices.choice(facts),
        *on_shell.findings(facts),
        *on_broker.findings(facts),
        *on_machine.findings(facts),
    ]
    found += [problem(about, f"cannot be looked at: {why}") for about, why in facts.failed]
    return list(dict.fromkeys(found))


def _driver(facts: Facts) -> Iterator[Finding]:
    """What is wrong with a driver that nobody wants to use is only worth knowing."""
    for one in (*on_driver.findings(facts), *on_devices.findings(facts)):
        spared = one.level == "problem" and not facts.uses_driver
        yield replace(one, level="note") if spared else one
