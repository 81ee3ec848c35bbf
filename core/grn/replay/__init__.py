"""A replay: other people's days on a simulated machine, decided by the very rules of the broker.

A trace says when jobs came, how long they ran and what they asked for. A world (`world`) plays that:
memory that appears some time after the start, compute that is shared, out-of-memory. Who may start is
decided by the broker's own rules (`ours`), or by a baseline that is written beside them
(`baselines`), and both are measured alike (`figures`).

Promises: the same trace, seed and options give the same figures to the last digit; failures are
charged, not left out.
"""

from __future__ import annotations

__all__: list[str] = []
