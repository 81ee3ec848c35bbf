"""CUDA_VISIBLE_DEVICES means to GRN what it means to the CUDA driver."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grn.rules.mask import mask_style, parse_mask, render_mask

EIGHT = [f"GPU-{digit * 8}-0000-0000-0000-{digit * 12}" for digit in "01234567"]
MIXED = ["GPU-aaaa1111", "GPU-aaaa2222", "GPU-bbbb3333", "MIG-cccc4444", "MIG-cccc4444-2"]

ENTRIES = st.one_of(
    st.integers(min_value=-2, max_value=9).map(str),
    st.sampled_from(["+1", "-0", " 2 ", "1gpu2", "", "x", "NoDevFiles", "²", "--1", *EIGHT]),
    st.sampled_from(EIGHT).map(lambda uuid: uuid[:6]),
    st.just("GPU-"),
    st.text(alphabet=" +-0123456789GPUMI", max_size=6),
)
MASKS = st.lists(ENTRIES, max_size=10).map(",".join)


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        (None, [0, 1, 2, 3, 4, 5, 6, 7]),
        ("", []),
        ("1,0", [1, 0]),
        (" 1 , 0 ", [1, 0]),
        ("0,2,-1,1", [0, 2]),
        ("0,1,2,3,-1,5,6,7", [0, 1, 2, 3]),
        ("0,9,1", [0]),
        ("-1", []),
        ("0,1,2,1", []),
        ("2, +3, -0, 5", [2, 3, 0, 5]),
        ("1gpu2,2ampere", [1, 2]),
        ("one,two,3,4", []),
        ("4,3,two,one", [4, 3]),
    ],
)
def test_numbers_count_as_the_driver_counts_them(value: str | None, indices: list[int]) -> None:
    """Order is kept, the first bad entry ends the list, a repetition voids it."""
    assert parse_mask(value, EIGHT).indices == indices


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("NoDevFiles", []),
        ("0,NoDevFiles,1", [0]),
        ("0,,1", [0]),
        ("0,1,", [0, 1]),
        (",0", []),
        (" ", []),
        ("007", [7]),
        ("0x1", [0]),
        ("1 2", [1]),
        ("--1", []),
        ("+", []),
        ("²", []),
        ("9" * 5000, []),
        ("-18446744073709551615", []),
        ("0,8,0", [0]),
        ("1,01", []),
    ],
)
def test_odd_spellings_never_show_more(value: str, indices: list[int]) -> None:
    """What is no number of a device ends the list, however it is written."""
    assert parse_mask(value, EIGHT).indices == indices


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("GPU-bbbb3333,GPU-aaaa1111", [2, 0]),
        ("GPU-bbbb", [2]),
        ("GPU-aaaa2", [1]),
        ("GPU-aaaa", []),
        ("GPU-b,GPU-aaaa,GPU-aaaa1111", [2]),
        ("GPU-dddd,GPU-aaaa1111", []),
        ("GPU-bbbb,GPU-bbbb3333", []),
        (" GPU-bbbb3333 , GPU-aaaa1111", [2, 0]),
        ("MIG-cccc4444", [3]),
        ("MIG-cccc4444-", [4]),
        ("MIG-cccc", []),
        ("GPU-aaaa1111,MIG-cccc4444", [0, 3]),
        ("gpu-bbbb3333", []),
        ("GPU-", []),
    ],
)
def test_uuids_and_unique_prefixes_name_devices(value: str, indices: list[int]) -> None:
    """A UUID, or a prefix that fits one device only, is an entry; any other ends the list."""
    assert parse_mask(value, MIXED).indices == indices


def test_numbers_and_uuids_do_not_mix() -> None:
    """The first entry decides the kind; one of the other kind ends the list."""
    assert parse_mask("0,GPU-bbbb3333", MIXED).indices == [0]
    assert parse_mask("GPU-bbbb3333,0", MIXED).indices == [2]


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("0,2,-1,1", "entry 3 of CUDA_VISIBLE_DEVICES, '-1', is negative"),
        ("0,9,1", "entry 2 of CUDA_VISIBLE_DEVICES, '9', is past the last device (0 to 7 exist)"),
        ("0,1,2,1", "entry 4 of CUDA_VISIBLE_DEVICES, '1', names a device twice"),
        ("4,3,two", "entry 3 of CUDA_VISIBLE_DEVICES, 'two', is neither a number nor a UUID"),
        ("0,,1", "entry 2 of CUDA_VISIBLE_DEVICES, '', is blank"),
        ("GPU-", "entry 1 of CUDA_VISIBLE_DEVICES, 'GPU-', fits 8 devices"),
        ("GPU-x", "entry 1 of CUDA_VISIBLE_DEVICES, 'GPU-x', is the UUID of no device here"),
        ("0,GPU-x", "is a UUID, but the first entry is a number"),
        ("", "set and empty"),
        ("NoDevFiles", "NoDevFiles"),
    ],
)
def test_the_reason_names_the_entry_that_cut_the_list(value: str, named: str) -> None:
    """Whoever wonders where a device went can read which entry hid it."""
    reason = parse_mask(value, EIGHT).reason
    assert reason is not None
    assert named in reason


def test_the_reason_says_what_is_left() -> None:
    """A list that was cut tells how much of it counts."""
    assert "after 2 devices" in (parse_mask("4,3,two", EIGHT).reason or "")
    assert "after 1 device" in (parse_mask("4,two", EIGHT).reason or "")
    assert "no device is left" in (parse_mask("two", EIGHT).reason or "")


def test_a_mask_on_a_machine_without_devices_says_so() -> None:
    """A number is past the end of an empty list, too."""
    result = parse_mask("0", [])
    assert result.indices == []
    assert "there is none here" in (result.reason or "")


def test_a_list_that_counts_in_full_needs_no_reason() -> None:
    """No reason means that nothing was hidden against the words of the mask."""
    assert parse_mask(None, EIGHT).reason is None
    assert parse_mask("3,1", EIGHT).reason is None


@given(MASKS)
def test_a_mask_never_shows_a_device_twice_or_one_that_is_not_there(value: str) -> None:
    """Positions are distinct and exist; fewer than entries means that there is a reason."""
    result = parse_mask(value, EIGHT)
    assert len(set(result.indices)) == len(result.indices)
    assert set(result.indices) <= set(range(8))
    assert len(result.indices) <= len(value.split(","))
    assert (result.reason is None) == (len(result.indices) == len(value.split(",")))


@given(MASKS, ENTRIES)
def test_a_longer_mask_keeps_the_order_or_loses_all(value: str, more: str) -> None:
    """An entry at the end adds a device, changes nothing, or voids the list by repetition."""
    before = parse_mask(value, EIGHT).indices if value else []
    after = parse_mask(f"{value},{more}" if value else more, EIGHT).indices
    assert after in ([], before) or after[:-1] == before


@given(st.lists(st.integers(min_value=-3, max_value=10), min_size=1, max_size=10))
def test_numbers_agree_with_the_rule_in_three_lines(numbers: list[int]) -> None:
    """The parser does what the driver's manual says, for any list of numbers."""
    good: list[int] = []
    for number in numbers:
        if not 0 <= number < 8:
            break
        good.append(number)
    expected = good if len(set(good)) == len(good) else []
    assert parse_mask(",".join(map(str, numbers)), EIGHT).indices == expected


@given(st.permutations(range(8)), st.integers(min_value=1, max_value=8))
def test_what_is_rendered_is_read_back_in_both_styles(order: list[int], count: int) -> None:
    """A lease's mask shows its devices in the lease's order."""
    lease = [(index, EIGHT[index]) for index in order[:count]]
    for style in (mask_style("0"), mask_style("GPU-0")):
        value = render_mask(lease, style)
        assert parse_mask(value, EIGHT).indices == order[:count]
        assert mask_style(value) == style


@pytest.mark.parametrize(
    ("value", "style"),
    [(None, "index"), ("", "index"), ("3,2", "index"), (" GPU-a", "uuid"), ("MIG-a", "uuid")],
)
def test_the_style_of_a_mask_is_that_of_its_first_entry(value: str | None, style: str) -> None:
    """A mask can be handed down in the style in which it came."""
    assert mask_style(value) == style


def test_a_slice_in_the_list_makes_all_entries_uuids() -> None:
    """A slice has no number, and the kinds do not mix in one mask."""
    assert render_mask([(0, "GPU-a"), (1, "MIG-b")], "index") == "GPU-a,MIG-b"
    assert render_mask([(3, "GPU-a"), (1, "GPU-b")], "index") == "3,1"
    assert render_mask([], "index") == ""
