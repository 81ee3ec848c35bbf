"""Configuration files: where they are, what they hold, and what they say about one command.

Must not import anything here: every start of a job imports `grn.config.files` and `grn.config.rows`, and
nothing else of this package where there is no file.
"""

from __future__ import annotations
