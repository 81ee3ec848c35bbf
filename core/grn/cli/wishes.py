"""What each command of `grn run` asks for: the command line, then its flavor, then rules, then defaults.

Promises: where there is no configuration file and no `--flavor`, nothing is imported and nothing read
but a few folder entries; each wish remembers where it is from, for `--explain`.
"""

from __future__ import annotations

import os

from grn.config import files
from grn.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from grn.cli.runargs import RunOptions
    from grn.config.tables import Configured
    from grn.rules.flavors import Layer

__all__ = ["Wish", "Wishes", "rules_wanted"]

_FROM_OPTIONS = {
    "gpus": "gpus",
    "memory_mib": "memory",
    "policy": "policy",
    "cpus": "cpus",
    "ram_mib": "ram",
    "priority": "priority",
    "compute": "compute",
    "processes": "processes",
    "affinity": "affinity",
    "type": "type",
    "ignore_args": "ignore_args",
    "env": "env",
}
"""The keys of a wish, and the options that give them."""
_DEFAULTS: dict[str, Any] = {
    "gpus": 1,
    "memory_mib": None,
    "policy": None,
    "cpus": None,
    "ram_mib": None,
    "priority": 0,
    "compute": None,
    "processes": None,
    "affinity": False,
    "type": None,
    "ignore_args": (),
    "env": {},
}
_SWITCH = "GRN_RULES"
_OFF = frozenset({"0", "no", "false", "off"})
_ON = frozenset({"", "1", "yes", "true", "on"})


class Wish:
    """What one command asks for. `origins` says, for people, what else than options it is from."""

    __slots__ = ("origins", "values")

    def __init__(self, values: dict[str, Any], origins: Sequence[str]) -> None:
        self.values = values
        self.origins = origins


class Wishes:
    """Makes the wish of each command of one run."""

    def __init__(self, options: RunOptions, environ: Mapping[str, str]) -> None:
        self._own = {
            key: getattr(options, option)
            for key, option in _FROM_OPTIONS.items()
            if option in options.given
        }
        self._flavor = options.flavor
        self._ruled = not options.no_rules and rules_wanted(environ)
        self._configured: Configured | None = None
        self.made: list[Wish] = []
        """The wishes so far, in the order of the commands."""
        self.passed_over: Sequence[str] = ()
        """Files of strangers that were not read, each with the reason."""
        if self._ruled or self._flavor is not None:
            self._look(environ)

    @property
    def names_types(self) -> bool:
        """Whether any type is not just its command."""
        return any(wish.values["type"] or wish.values["ignore_args"] for wish in self.made)

    def wish(self, words: Sequence[str] | None, line: str) -> Wish:
        """Return what a command asks for; it is given as words, or as a line for a shell."""
        values, origins = self._own, list[str]()
        if self._configured is not None:
            from grn.rules.flavors import merged  # noqa: PLC0415 - only with a configuration file

            layers, origins = self._layers(self._configured, words, line)
            values = merged(layers)
        self.made.append(Wish({**_DEFAULTS, **values}, origins))
        return self.made[-1]

    def _look(self, environ: Mapping[str, str]) -> None:
        """Read the configuration files, if there is one; a wrong flavor is told at once."""
        found = files.find_project(None, environ)
        self.passed_over = found.passed_over
        there_is_none = found.path is None and not os.path.exists(files.user_path(environ))
        if there_is_none and self._flavor is None:
            return
        from grn.config.tables import load  # noqa: PLC0415 - only with a configuration file

        self._configured = load(None, environ)
        if self._flavor is not None:
            self._configured.flavor(self._flavor)

    def _layers(
        self, configured: Configured, words: Sequence[str] | None, line: str
    ) -> tuple[list[Layer], list[str]]:
        """Return what the wish is made of, the strongest first, and for people where it is from."""
        layers: list[Layer] = [("the command line", self._own)]
        origins: list[str] = []
        if self._flavor is not None:
            flavor = configured.flavor(self._flavor)
            layers.append((flavor.where, flavor.values))
            origins.append(f"flavor {flavor.name}: {flavor.where}")
        if not self._ruled or not configured.rules:
            return layers, origins
        from grn.config.rules import first_rule, layers_of  # noqa: PLC0415 - only with rules
        from grn.rules.commands import split_line  # noqa: PLC0415

        matched = first_rule(configured, split_line(line) if words is None else [words])
        if matched is None:
            return layers, origins
        rule, pattern = matched
        origins.append(f"rule: {rule.where}, match {pattern!r}")
        own, *of_flavor = layers_of(configured, rule, flavor=self._flavor is None)
        origins += [f"flavor {rule.values['flavor']}: {where}" for where, _ in of_flavor]
        return [*layers, own, *of_flavor], origins


def rules_wanted(environ: Mapping[str, str]) -> bool:
    """Tell whether `GRN_RULES` lets rules be used.

    Raises:
        UsageError: it says neither yes nor no.
    """
    word = environ.get(_SWITCH, "").strip().lower()
    if word in _OFF | _ON:
        return word in _ON
    raise UsageError(f"{_SWITCH}: {word!r} is neither yes nor no; 0 switches the rules off")
