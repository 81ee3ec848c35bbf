"""The command line: one module per command, and nothing that decides anything about devices."""

from __future__ import annotations
