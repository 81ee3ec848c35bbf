"""Which `[[job]]` rule is for a command, and what it gives.

One command has one rule: the first that matches, those of the project's file before those of the
user's. So reading from the top tells what happens, and a special rule stands before a general one.
"""

from __future__ import annotations

from grn.errors import UsageError
from grn.rules.commands import first_match, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from grn.config.tables import Configured
    from grn.rules.flavors import Layer, Rule

__all__ = ["first_rule", "layers_of"]


def first_rule(
    configured: Configured, commands: Sequence[Sequence[str]]
) -> tuple[Rule, str] | None:
    """Return the rule for a command (or several of one shell line) with the pattern that matched."""
    if not configured.rules:
        return None
    texts = names(commands)
    for rule in configured.rules:
        pattern = first_match(rule.patterns, texts)
        if pattern is not None:
            return rule, pattern
    return None


def layers_of(configured: Configured, rule: Rule, *, flavor: bool = True) -> list[Layer]:
    """Return what a rule gives, the strongest first: its own keys, then its flavor's."""
    own = {key: value for key, value in rule.values.items() if key != "flavor"}
    found: list[Layer] = [(rule.where, own)]
    name = rule.values.get("flavor")
    if flavor and name is not None:
        try:
            chosen = configured.flavor(name)
        except UsageError as error:
            raise UsageError(f"{rule.where}: {error.message}") from error
        found.append((chosen.where, chosen.values))
    return found
