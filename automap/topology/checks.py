"""Checks of single fields, shared by the dataclasses and by the readers of JSON and TOML.

Every check raises `TopologyError` whose message starts with the field, so that a reader can put the
path of the enclosing table before it (`within`): "levels[1].size: got 0; allowed: ...".
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
import math
from typing import Any

from automap.errors import TopologyError


# Far below any rate there is, and quotients by it are still finite.
_LEAST = 1e-100


def refuse(field: str, got: object, allowed: str) -> TopologyError:
    """The error for one field: what was got and what is allowed."""
    # What was got may be a whole file's table: a message is one line.
    shown = repr(got)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return TopologyError(f"{field}: got {shown}; allowed: {allowed}")


@contextmanager
def within(path: str) -> Iterator[None]:
    """Put `path` before the field named by a `TopologyError` raised inside the block."""
    try:
        yield
    except TopologyError as error:
        # A file's name ends with a colon, a table's is joined to its field by a dot.
        joint = "" if path.endswith(": ") else "."
        raise TopologyError(f"{path}{joint}{error}") from None


def check_text(field: str, value: object) -> None:
    """Refuse what is not a non-empty string."""
    if not isinstance(value, str) or not value:
        raise refuse(field, value, "a non-empty string")


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is not one of `choices`."""
    if value not in choices:
        raise refuse(field, value, " | ".join(choices))


def check_integer(field: str, value: object, *, low: int, high: int) -> None:
    """Refuse what is not an integer in [low, high]; True and 2.0 are no integers."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise refuse(field, value, f"an integer from {low} to {high}")


def check_positive(field: str, value: object) -> None:
    """Refuse what is not a finite number above zero, or so small that it divides to infinity."""
    if not (_is_finite(value) and value >= _LEAST):  # type: ignore[operator]
        raise refuse(field, value, f"a finite number > 0, of at least {_LEAST:g}")


def check_not_negative(field: str, value: object) -> None:
    """Refuse what is not a finite number of at least zero."""
    if not (_is_finite(value) and value >= 0):  # type: ignore[operator]
        raise refuse(field, value, "a finite number >= 0")


def check_fraction(field: str, value: object) -> None:
    """Refuse what is not a number in (0, 1]."""
    if not (_is_finite(value) and 0 < value <= 1):  # type: ignore[operator]
        raise refuse(field, value, "a fraction > 0 and <= 1")


def check_keys(
    table: object, *, required: Sequence[str], optional: Sequence[str] = ()
) -> Mapping[str, Any]:
    """The table itself, refused when it is none, lacks a required key or has an unknown one."""
    known = [*required, *optional]
    if not isinstance(table, Mapping):
        raise refuse("value", table, f"a table with the fields {', '.join(known)}")
    for key in table:
        if key not in known:
            raise TopologyError(f"{key}: unknown field; allowed: {', '.join(known)}")
    for key in required:
        if key not in table:
            raise TopologyError(f"{key}: missing; the fields {', '.join(required)} are required")
    return table


def check_list(field: str, value: object) -> Sequence[Any]:
    """The list itself, refused when it is none."""
    if not isinstance(value, list | tuple):
        raise refuse(field, value, "a list")
    return value


def _is_finite(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:  # an integer may be too large for a float
        return math.isfinite(value)
    except OverflowError:
        return False
