"""The names of policies. Without imports: a job's way to its request passes here."""

from __future__ import annotations

__all__ = ["ALIASES", "NAMES", "canonical"]

NAMES = ("spread", "pack")

ALIASES = {"high-performance": "spread", "cost-saving": "pack"}
"""Names under which some know the two."""


def canonical(name: str) -> str:
    """Return a policy's one name; others than ours stay as they are."""
    return ALIASES.get(name, name)
