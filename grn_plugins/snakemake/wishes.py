"""What the jobs of a workflow wish for: from Snakemake's rules and jobs to an `Ask`.

Design note. Snakemake rounds a resource such as `gpu=0.5` to 0 before any plugin sees it, so the rule would
run without its GPU and without a word. What was written is kept in two places: a rule's `ruleinfo` has
the numbers of the Snakefile, and functions (also expressions of the command line and of profiles) can be
wrapped, to look at what they return.

Promises: a fraction of a GPU is an error that says what to write instead; so is a limit that would cut
a wish, at least a warning. Must not: change what a rule's resources are.
"""

from __future__ import annotations

import fnmatch
import functools
from typing import TYPE_CHECKING, Any

from grn_plugins.snakemake.request import COUNTS, Ask, ask_of, check_count, check_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_EVALUATOR = "_evaluator"
"""Where Snakemake 9 keeps a resource's function; nothing public leads there."""

__all__ = ["Chosen", "ask_of_job", "cut_by_limits", "watch_fractions", "written"]


class Chosen:
    """The rules of which the user said that they need a device: names or patterns."""

    def __init__(self, patterns: str | None) -> None:
        self._patterns = (patterns or "").replace(",", " ").split()

    def __contains__(self, rule: object) -> bool:
        return any(fnmatch.fnmatchcase(str(rule), pattern) for pattern in self._patterns)

    def unknown(self, rules: Iterable[str]) -> list[str]:
        """Return the patterns that fit no rule."""
        names = list(rules)
        return [each for each in self._patterns if not fnmatch.filter(names, each)]


def ask_of_job(job: Any, chosen: Chosen) -> Ask | None:
    """Read what one job wishes for.

    Raises:
        UsageError: if a wish makes no sense.
    """
    resources = dict(job.resources.items())
    for name in COUNTS:
        raw = written(job.rule, name)
        if isinstance(raw, float) and name in resources:
            check_count(name, raw)
    return ask_of(resources, chosen=job.rule.name in chosen)


def written(rule: Any, name: str) -> object:
    """Return a resource as the Snakefile has it, `None` if it is not from there."""
    said = getattr(getattr(rule, "ruleinfo", None), "resources", None)
    raw = said[1].get(name) if said else None
    now = _value(_resources_of(rule).get(name))
    if isinstance(raw, float) and now is not None and now != round(raw):
        return None  # --set-resources has another one
    return raw


def _value(resource: Any) -> object:
    return getattr(resource, "_value", resource)


def _resources_of(rule: Any) -> Any:
    return getattr(rule, "resources", None) or {}


def cut_by_limits(rules: Iterable[Any], limits: Any) -> list[str]:
    """Return a warning for each wish that a limit such as `--resources gpu=1` would cut."""
    bounds = {name: _value(limits.get(name)) for name in limits}
    found = []
    for rule in rules:
        wished = {name: _value(_resources_of(rule).get(name)) for name in bounds}
        found += [f"rule {rule.name}: {text}" for text in check_limits(wished, bounds)]
    return found


def watch_fractions(rules: Iterable[Any]) -> None:
    """Look at what functions return for a number of GPUs, before it is rounded."""
    for rule in rules:
        resources = _resources_of(rule)
        for name in COUNTS:
            resource: Any = resources.get(name) if name in resources else None
            function = resource if callable(resource) else getattr(resource, _EVALUATOR, None)
            if function is None or hasattr(function, "__grn_watched__"):
                continue
            watched = _watched(name, function)
            if resource is function:
                resources[name] = watched
            elif resource is not None:
                setattr(resource, _EVALUATOR, watched)


def _watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        if isinstance(value, float):
            check_count(name, value)
        return value

    watched.__grn_watched__ = True  # type: ignore[attr-defined]  # a mark for ourselves
    return watched
