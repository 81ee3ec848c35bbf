"""GRN: a negotiator that shares the GPUs of one machine out to jobs whose need is not known beforehand."""

from __future__ import annotations

__version__ = "0.1.0"
