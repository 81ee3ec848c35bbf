"""Label values: printable, of bounded length, and few of a kind.

Each new value of a label is a new time series for as long as Prometheus keeps it. So the first so many
names get values of their own, all later ones share `other`.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["OTHER", "Names", "label_value"]

OTHER = "other"
_LONGEST = 120
_SIGN = 8


def label_value(name: str) -> str:
    """Return the name as a label's value: long ones are cut, and stay apart by a digest."""
    # A command may hold bytes that are no text; those travel as lone surrogates.
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= _LONGEST:
        return text
    sign = sha256(text.encode()).hexdigest()[:_SIGN]
    return f"{text[: _LONGEST - _SIGN - 3]}...{sign}"


class Names:
    """Names of one kind: the first `most` as they are."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Return the label's value for a name."""
        known = self._known.get(name)
        if known is not None:
            return known
        if len(self._known) >= self._most:
            return OTHER
        value = self._known[name] = label_value(name)
        return value

    def has_own(self, name: str) -> bool:
        """Whether the name has a value of its own."""
        return name in self._known
