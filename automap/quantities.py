"""Seconds, bytes and counts as text, in the unit that suits them; of a column in one unit, that of
its middle value, with as many decimals as the smallest needs.
"""

from collections.abc import Sequence
from decimal import ROUND_CEILING, Decimal
import math
from typing import Final


_BYTE_UNITS: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_COUNT_UNITS: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SECOND_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns"))
_DIGITS: Final = 3


def seconds_text(seconds: float) -> str:
    """Seconds in the unit that suits them: `12.3 ms`."""
    # The last size is 0, so that everything has a unit; it stands for nanoseconds.
    size, unit = next(row for row in _SECOND_UNITS if seconds >= row[0])
    return f"{seconds / (size or 1e-9):.4g} {unit}"


def bytes_text(count: int) -> str:
    """Bytes in the unit that suits them: `12.3 GiB`."""
    fitting = (row for row in _BYTE_UNITS if count >= row[0])
    size, unit = next(fitting, (1, "B"))
    return f"{count / size:.4g} {unit}"


def seconds_column(column: Sequence[float | None]) -> list[str]:
    """Seconds in one unit for all, so that rows compare at a glance; `-` of None."""
    return _column(column, (*_SECOND_UNITS[:-1], (1e-9, "ns")))


def bytes_column(column: Sequence[float | None]) -> list[str]:
    """Bytes in one unit for all, so that rows compare at a glance; `-` of None."""
    return _column(column, (*_BYTE_UNITS, (1, "B")))


def _column(column: Sequence[float | None], units: Sequence[tuple[float, str]]) -> list[str]:
    known = sorted(number for number in column if number)
    middle, least = (known[len(known) // 2], known[0]) if known else (0.0, 0.0)
    size, unit = next((row for row in units if middle >= row[0]), units[-1])
    whole_digits = math.floor(math.log10(least / size)) + 1 if least else _DIGITS
    # Numbers of bytes are whole ones.
    decimals = 0 if unit == "B" else min(max(_DIGITS - whole_digits, 0), 6)
    return ["-" if n is None else f"{n / size:,.{decimals}f} {unit}" for n in column]


def gib_at_least(count: int) -> str:
    """Bytes as a number of GiB, as `--memory-limit` takes it: three digits, rounded up."""
    gib = Decimal(count) / 2**30
    last_digit = Decimal(1).scaleb(gib.adjusted() - 2)
    return f"{gib.quantize(last_digit, ROUND_CEILING).normalize():f}"


def count_text(count: float) -> str:
    """A count with four digits, and a prefix of the decimal system if it is large: `12.3 k`."""
    size, prefix = next((row for row in _COUNT_UNITS if count >= row[0]), (1, ""))
    return f"{count / size:.4g} {prefix}".rstrip()


def number_text(number: int, thing: str, things: str | None = None) -> str:
    """`1 device`, `2 devices`; `things` where more than one is no `s` at the end."""
    return f"{number:,} {thing if number == 1 else things or thing + 's'}"
