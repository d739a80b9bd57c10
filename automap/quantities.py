"""Seconds and bytes as text, in the unit that suits them."""

from typing import Final


_BYTE_UNITS: Final = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_SECOND_UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (0.0, "ns"))


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
