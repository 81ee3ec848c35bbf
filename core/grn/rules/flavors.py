"""Named sizes (`[flavors.NAME]`) and rules for commands (`[[job]]`): what their tables may say.

Promises: what is returned can be put into a request as it is; an unknown key or a malformed value is
a `UsageError` that names file, table and key, and what is allowed. The stronger of several layers
(command line, flavor, rule) wins key by key, see `merged`.
Must not: read files or look at commands (`rules/commands.py` does).
"""

from __future__ import annotations

import re

from grn.errors import UsageError
from grn.rules.jobtype import LONGEST_NAME
from grn.rules.policyname import NAMES, canonical
from grn.rules.units import parse_count, parse_size_mib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence
    from typing import Any

    Values = dict[str, Any]
    Layer = tuple[str, Mapping[str, Any]]

__all__ = ["Flavor", "Rule", "flavor_from", "is_flavor_name", "merged", "rule_from"]

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_WHOLE_COMPUTE = 100
_OF_DEVICES = {"memory_mib": "memory", "compute": "compute"}
"""What only makes sense with a device, and what it is called in a file."""


class Flavor:
    """A named size. `values` has the keys of a request: `memory_mib`, `gpus`, and so on."""

    __slots__ = ("line", "name", "path", "values", "where")

    def __init__(self, name: str, values: Values, path: str, line: int | None, where: str) -> None:
        self.name = name
        self.values = values
        self.path = path
        self.line = line
        self.where = where
        """File, line and table, for people."""


class Rule:
    """What commands that match one of `patterns` are given."""

    __slots__ = ("line", "number", "path", "patterns", "values", "where")

    def __init__(
        self,
        number: int,
        patterns: Sequence[str],
        values: Values,
        path: str,
        line: int | None,
        where: str,
    ) -> None:
        self.number = number
        self.patterns = patterns
        self.values = values
        self.path = path
        self.line = line
        self.where = where


def is_flavor_name(name: str) -> bool:
    """Tell whether a flavor may be called so."""
    return _NAME.fullmatch(name) is not None  # `$` would let a line break pass


def flavor_from(
    name: str,
    table: object,
    *,
    path: str,
    line: int | None,
    title: str,
    policies: Container[str] = NAMES,
) -> Flavor:
    """Check the table of a flavor; `title` is what it is called in its file.

    `policies`: those that there are.

    Raises:
        UsageError: its name, a key or a value is not allowed.
    """
    where = _place(path, line, title)
    if not is_flavor_name(name):
        raise UsageError(
            f"{where}: {name!r} cannot be a flavor's name; a lower-case letter, then such letters,"
            " digits, - and _ are possible"
        )
    values = _values(table, where, _SIZE_KEYS, policies)
    if not values:
        raise UsageError(f"{where}: the flavor says nothing; known keys: {', '.join(_SIZE_KEYS)}")
    return Flavor(name, values, path, line, where)


def rule_from(
    number: int,
    table: object,
    *,
    path: str,
    line: int | None,
    title: str,
    policies: Container[str] = NAMES,
) -> Rule:
    """Check the table of the rule that stands at this place of its file, counted from 1.

    Raises:
        UsageError: it matches nothing, or a key or a value is not allowed.
    """
    where = _place(path, line, f"{title} number {number}")
    values = _values(table, where, _RULE_KEYS, policies)
    patterns = values.pop("match", None)
    if patterns is None:
        raise UsageError(f"{where}: there is no match = 'PATTERN', so it is for no command")
    if not values:
        raise UsageError(f"{where}: it gives nothing to what matches; add one of {_rest()}")
    if "type" in values and "ignore_args" in values:
        raise UsageError(
            f"{where}: type names the type outright, so ignore_args is without effect; keep one"
        )
    return Rule(number, patterns, values, path, line, where)


def merged(layers: Sequence[Layer]) -> Values:
    """Merge layers, the strongest first, each with what it is called.

    The strongest layer that has a key wins it; only `env` is merged by variable, and `ignore_args` is the
    union. What is said of devices goes with them: a layer that asks for none drops what weaker ones say
    of memory and compute. Options to ignore name a type, too, so they replace that of a weaker layer.

    Raises:
        UsageError: a layer says something of devices, and a weaker one asks for none.
    """
    values: Values = {}
    without_device = ""
    for name, given in reversed(layers):
        if "gpus" in given:
            without_device = "" if given["gpus"] else name
            if without_device:
                values = {key: value for key, value in values.items() if key not in _OF_DEVICES}
        elif without_device and not _OF_DEVICES.keys().isdisjoint(given):
            raise UsageError(
                f"{name} says how much of a device is wanted, but {without_device} asks for none; say"
                " how many devices (gpus) in the same place"
            )
        if "ignore_args" in given and "type" not in given:
            values.pop("type", None)
        for key, value in given.items():
            values[key] = _combined(values.get(key), value)
    return values


def _combined(weaker: object, value: object) -> object:
    if isinstance(weaker, dict) and isinstance(value, dict):
        return {**weaker, **value}
    if isinstance(weaker, list) and isinstance(value, list):
        return list(dict.fromkeys([*weaker, *value]))
    return value


def _place(path: str, line: int | None, title: str) -> str:
    return f"{path}:{line}, {title}" if line else f"{path}, {title}"


def _values(
    table: object, where: str, keys: Mapping[str, _Key], policies: Container[str]
) -> Values:
    if not isinstance(table, dict):
        raise UsageError(f"{where}: a table is expected, not {table!r}")
    values: Values = {}
    for key, given in table.items():
        known = keys.get(key)
        if known is None:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(keys)}")
        try:
            values[known.field] = known.read(given)
        except UsageError as error:
            raise UsageError(f"{where}, key {key}: {error.message}") from error
    policy = values.get("policy", NAMES[0])
    if policy not in policies:
        raise UsageError(f"{where}, key policy: {policy!r} is not one of: {', '.join(NAMES)}")
    for field, key in _OF_DEVICES.items():
        if field in values and not values.get("gpus", 1):
            raise UsageError(f"{where}, key {key}: it is of a device, but gpus asks for none")
    return values


class _Key:
    """A key of a table, and what it becomes in a request."""

    __slots__ = ("field", "read")

    def __init__(self, read: Callable[[object], object], field: str) -> None:
        self.read = read
        self.field = field


def _text(given: object) -> str:
    if isinstance(given, str) and given.strip():
        return given
    raise UsageError(f"{given!r} is not a text, or an empty one")


def _written(given: object) -> str:
    """Return a number or a text as the command line would have it."""
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise UsageError(f"{given!r} is neither a whole number nor a text")
    return str(given)


def _size(given: object) -> int:
    return parse_size_mib(_written(given))


def _memory(given: object) -> int | str:
    return "whole" if given == "whole" else _size(given)


def _gpus(given: object) -> int | None:
    return None if given == "none" else parse_count(_written(given), what="number of devices")


def _cpus(given: object) -> int:
    return parse_count(_written(given), what="number of CPUs", minimum=1)


def _compute(given: object) -> int:
    percent = parse_count(_written(given).removesuffix("%"), what="percentage", minimum=1)
    if percent <= _WHOLE_COMPUTE:
        return percent
    raise UsageError(f"{given!r} is more than the whole, {_WHOLE_COMPUTE} percent")


def _processes(given: object) -> int:
    return parse_count(_written(given), what="number of processes", minimum=1)


def _switch(given: object) -> bool:
    if isinstance(given, bool):
        return given
    raise UsageError(f"{given!r} is neither true nor false")


def _priority(given: object) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    raise UsageError(f"{given!r} is not a whole number")


def _policy(given: object) -> str:
    if isinstance(given, str):
        return canonical(given)
    raise UsageError(f"{given!r} is not the name of a policy, such as spread or pack")


def _type(given: object) -> str:
    name = _text(given)
    if len(name) > LONGEST_NAME:
        raise UsageError(f"{len(name)} characters; at most {LONGEST_NAME} are possible")
    return name


def _texts(given: object) -> list[str]:
    """Read a list of texts, or a single one."""
    texts = given if isinstance(given, list) else [given]
    if not texts:
        raise UsageError("an empty list")
    return [_text(text) for text in texts]


def _flavor(given: object) -> str:
    name = _text(given)
    if not is_flavor_name(name):
        raise UsageError(f"{name!r} cannot be a flavor's name")
    return name


def _env(given: object) -> dict[str, str]:
    if not isinstance(given, dict):
        raise UsageError(f"{given!r} is not a table of variables: {{ NAME = 'value' }}")
    variables: dict[str, str] = {}
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise UsageError(f"{name}: {value!r} is neither a text nor a whole number; quote it")
        if not name or "=" in name or "\0" in f"{name}{value}":
            raise UsageError(f"{name!r} cannot be a variable with this value")
        variables[name] = str(value)
    return variables


_SIZE_KEYS = {
    "gpus": _Key(_gpus, "gpus"),
    "memory": _Key(_memory, "memory_mib"),
    "cpus": _Key(_cpus, "cpus"),
    "ram": _Key(_size, "ram_mib"),
    "policy": _Key(_policy, "policy"),
    "priority": _Key(_priority, "priority"),
    "compute": _Key(_compute, "compute"),
    "processes": _Key(_processes, "processes"),
    "affinity": _Key(_switch, "affinity"),
    "env": _Key(_env, "env"),
}
_RULE_KEYS = {
    "match": _Key(_texts, "match"),
    "type": _Key(_type, "type"),
    "ignore_args": _Key(_texts, "ignore_args"),
    "flavor": _Key(_flavor, "flavor"),
    **_SIZE_KEYS,
}


def _rest() -> str:
    return ", ".join(key for key in _RULE_KEYS if key != "match")
