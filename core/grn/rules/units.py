"""Sizes, durations and counts as people write them.

Promises: what cannot be read is a `UsageError` that quotes the text and shows what would do; a size
that is not a whole number of MiB is rounded up, so that a wish is never silently made smaller; two
different sizes never print the same. The arithmetic is exact: no size passes through a float.
"""

from __future__ import annotations

from grn.errors import UsageError

__all__ = ["format_mib", "parse_count", "parse_duration_s", "parse_size_mib"]

_MIB = 1024**2
# Without a suffix `B` the unit is binary, as GPU people mean it; `GB` is what is printed on the box.
_SIZE_UNITS = {
    "": _MIB,
    "b": 1,
    "k": 1024,
    "ki": 1024,
    "kib": 1024,
    "kb": 1000,
    "m": _MIB,
    "mi": _MIB,
    "mib": _MIB,
    "mb": 1000**2,
    "g": 1024**3,
    "gi": 1024**3,
    "gib": 1024**3,
    "gb": 1000**3,
    "t": 1024**4,
    "ti": 1024**4,
    "tib": 1024**4,
    "tb": 1000**4,
}
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_EXAMPLES = "write a number with a unit, such as 4GiB, 1.5GiB, 512MiB or 4096 (MiB)"
_DURATION_EXAMPLES = "write seconds or a number with a unit, such as 90, 1.5s, 10m, 2h or 1d"

# More digits than any machine needs, and few enough that int() never meets its own limit.
_MOST_DIGITS = 18
_MOST_MIB = 2**40  # one EiB
_QUARTER_GIB = 256


def parse_size_mib(text: str, *, what: str = "size", allow_zero: bool = False) -> int:
    """Read a size in MiB: `4GiB`, `4G`, `1.5GiB`, `512KiB`, `4GB` (10^9) or plain `4096`.

    Raises:
        UsageError: `text` is not a size, is zero without `allow_zero`, or exceeds one EiB.
    """
    read = _number_and_unit(text, _SIZE_UNITS)
    if read is None:
        raise UsageError(f"{what} {text!r} is not a size: {_SIZE_EXAMPLES}")
    digits, scale, unit = read
    mib = -(-digits * unit // (scale * _MIB))
    if mib == 0 and not allow_zero:
        raise UsageError(f"{what} {text!r} is zero: {_SIZE_EXAMPLES}")
    if mib > _MOST_MIB:
        raise UsageError(f"{what} {text!r} is more than one EiB: {_SIZE_EXAMPLES}")
    return mib


def format_mib(mib: int) -> str:
    """Show a size to people, exactly: in GiB where that takes two decimals or fewer."""
    if abs(mib) < 4 * _QUARTER_GIB or mib % _QUARTER_GIB:
        return f"{mib} MiB"
    return f"{mib / 1024:.2f}".rstrip("0").rstrip(".") + " GiB"


def parse_duration_s(text: str, *, what: str = "duration") -> float:
    """Read a duration in seconds: `90`, `1.5`, `90s`, `10m`, `2h` or `1d`; zero is a duration.

    Raises:
        UsageError: `text` is not a duration.
    """
    read = _number_and_unit(text, _DURATION_UNITS)
    if read is None:
        raise UsageError(f"{what} {text!r} is not a duration: {_DURATION_EXAMPLES}")
    digits, scale, unit = read
    return digits * unit / scale


def parse_count(text: str, *, what: str, minimum: int = 0) -> int:
    """Read a whole number of at least `minimum`.

    Raises:
        UsageError: `text` is not one.
    """
    stripped = text.strip()
    if _is_digits(stripped) and int(stripped) >= minimum:
        return int(stripped)
    raise UsageError(f"{what} {text!r} is not a whole number of {minimum} or more")


def _number_and_unit(text: str, units: dict[str, int]) -> tuple[int, int, int] | None:
    """Split `1.5GiB` into (15, 10, bytes per GiB): digits, their scale, and the unit's factor."""
    stripped = text.strip()
    number = stripped.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = units.get(stripped[len(number) :].lower())
    whole, _, fraction = number.rstrip().partition(".")
    if unit is None or not _is_digits(whole + fraction):
        return None
    return int(whole + fraction), 10 ** len(fraction), unit


def _is_digits(text: str) -> bool:
    """Tell whether `text` is ASCII digits only; str.isdigit alone would let '²' through."""
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
