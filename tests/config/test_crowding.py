"""Too many jobs at once: a warning, never a clamp."""

from __future__ import annotations

import pytest

from grn.rules.crowding import crowding


@pytest.mark.parametrize(("jobs", "cores"), [(None, 1), (1, 1), (4, 1), (64, 16), (16, 64)])
def test_what_is_usual_is_not_warned_of(jobs: int | None, cores: int) -> None:
    """Up to four jobs for each core are a choice like any other."""
    assert crowding(jobs, cores) is None


def test_far_more_than_the_cores_is_told_with_numbers() -> None:
    """The number, the cores, and what would do."""
    text = crowding(9, 2)
    assert text is not None
    assert "jobs_at_once is 9" in text
    assert "2 usable CPU cores" in text
    assert "1 usable CPU core:" in str(crowding(5, 1))
