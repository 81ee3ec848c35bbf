"""Sizes, durations and counts as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.errors import UsageError
from grn.rules.units import format_mib, parse_count, parse_duration_s, parse_size_mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("4GiB", 4096),
        ("4G", 4096),
        ("4g", 4096),
        ("4Gi", 4096),
        ("4096MiB", 4096),
        ("4096M", 4096),
        ("4096", 4096),
        (" 4 GiB ", 4096),
        ("1.5GiB", 1536),
        (".5GiB", 512),
        ("2TiB", 2 * 1024**2),
        ("1048576B", 1),
    ],
)
def test_sizes_are_binary_and_plain_numbers_are_mib(text: str, mib: int) -> None:
    """A size may carry a unit or be a plain number of MiB."""
    assert parse_size_mib(text) == mib


@pytest.mark.parametrize(
    ("text", "mib"),
    [("512KiB", 1), ("1025KiB", 2), ("4GB", 3815), ("1MB", 1), ("1B", 1), ("0.0001", 1)],
)
def test_a_broken_mib_is_rounded_up(text: str, mib: int) -> None:
    """A wish is never made smaller by its unit."""
    assert parse_size_mib(text) == mib


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "-4GiB",
        "+4",
        "nan",
        "inf",
        "4GiBs",
        "GiB",
        "4,5GiB",
        "1e3",
        "1.2.3",
        ".",
        "٤",
        "4²",
    ],
)
def test_garbage_is_refused_with_the_text_and_an_example(text: str) -> None:
    """An unreadable size names itself and shows what would do."""
    with pytest.raises(UsageError) as caught:
        parse_size_mib(text, what="--memory")
    assert f"--memory {text!r}" in caught.value.message
    assert "4GiB" in caught.value.message


def test_zero_is_a_size_only_where_it_is_allowed() -> None:
    """Zero memory is a mistake unless the caller has a use for it."""
    assert parse_size_mib("0GiB", allow_zero=True) == 0
    with pytest.raises(UsageError, match="is zero"):
        parse_size_mib("0")


@pytest.mark.parametrize("text", ["9" * 18 + "T", "9" * 5000])
def test_absurd_sizes_are_refused(text: str) -> None:
    """A size that no machine has is an error, whatever its length."""
    with pytest.raises(UsageError):
        parse_size_mib(text)


@pytest.mark.parametrize(
    ("mib", "shown"),
    [
        (0, "0 MiB"),
        (512, "512 MiB"),
        (1024, "1 GiB"),
        (1536, "1.5 GiB"),
        (1280, "1.25 GiB"),
        (4096, "4 GiB"),
        (10240, "10 GiB"),
        (102400, "100 GiB"),
        (6000, "6000 MiB"),
        (8193, "8193 MiB"),
        (-2048, "-2 GiB"),
    ],
)
def test_sizes_are_shown_in_the_unit_that_fits(mib: int, shown: str) -> None:
    """Round sizes are shown in GiB, others in MiB."""
    assert format_mib(mib) == shown


@given(st.integers(min_value=1, max_value=2**40))
def test_what_is_shown_reads_back_as_the_same_size(mib: int) -> None:
    """Two different sizes never print the same."""
    assert parse_size_mib(format_mib(mib)) == mib


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("0", 0)],
)
def test_durations_are_seconds_or_carry_a_unit(text: str, seconds: float) -> None:
    """A duration may carry a unit or be a plain number of seconds."""
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "soon", "1w", "1h30m", "nan", "inf", "9" * 400])
def test_unreadable_durations_are_refused(text: str) -> None:
    """An unreadable duration names itself and shows what would do."""
    with pytest.raises(UsageError) as caught:
        parse_duration_s(text, what="--wait")
    assert f"--wait {text!r}" in caught.value.message
    assert "10m" in caught.value.message


def test_counts_are_whole_numbers_from_the_minimum_on() -> None:
    """A count at its minimum is read."""
    assert parse_count("0", what="--gpus") == 0
    assert parse_count(" 12 ", what="--jobs", minimum=12) == 12


@pytest.mark.parametrize("text", ["", "-1", "1.5", "one", "0x2", "²", "9" * 5000])
def test_anything_else_is_no_count(text: str) -> None:
    """An unreadable count names itself and the minimum."""
    with pytest.raises(UsageError, match="whole number of 0 or more"):
        parse_count(text, what="--gpus")


def test_a_count_below_the_minimum_is_refused() -> None:
    """The minimum is part of the message."""
    with pytest.raises(UsageError, match=r"--jobs '0' is not a whole number of 1 or more"):
        parse_count("0", what="--jobs", minimum=1)
