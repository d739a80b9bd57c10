"""The plan file: bytes to JSON values and back.

Reading runs no code. Writing is `automap.atomic_file`'s.
The layout is for people and for `diff`: one line per input, collective, decision
                                                                      -> in: `layout`
"""

from collections.abc import Mapping
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, Final

from automap.errors import PlanError
from automap.plan.checks import repeated
from hlo_tools.errors import FileError
from hlo_tools.files import read_file


# The plan of T5-11B takes 1 MB; a value, some hundred bytes in memory.
_MOST_BYTES: Final = 2**26
_MOST_VALUES: Final = 4_000_000
_REMEDY: Final = "allowed: a file written by `automap plan -o`"


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """Stands for an object with a key twice, so that it is refused where it stands."""

    key: str

    def __repr__(self) -> str:
        """What the message of a refusal shows."""
        return f"an object that has the key {self.key[:80]!r} twice"


def parse(text: str | bytes, remedy: str = _REMEDY) -> object:
    """JSON values of a text, with a `RepeatedKey` for an object that repeats a key.

    `remedy` says in a message what is allowed. Raises `PlanError` for what is not JSON, has too
    many values, or is nested too deeply.
    """
    # Counted in the text, before anything of its size is in memory.
    marks = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    if len(text) > _MOST_VALUES and sum(map(text.count, marks)) > _MOST_VALUES:  # type: ignore[arg-type]
        raise PlanError(f"over {_MOST_VALUES} values; {remedy}")
    try:
        return json.loads(text, object_pairs_hook=_object_or_repeated_key)
    # The parser calls itself for each level of brackets.
    except RecursionError:
        raise PlanError(f"lists and objects are nested too deeply; {remedy}") from None
    except ValueError as error:
        raise PlanError(f"no valid JSON: {error}; {remedy}") from None


def _object_or_repeated_key(pairs: list[tuple[str, Any]]) -> object:
    # Python's parser would keep the last of two equal keys without a word.
    again = repeated(key for key, _ in pairs)
    return RepeatedKey(again[1]) if again else dict(pairs)


def read(path: str | Path, remedy: str = _REMEDY) -> object:
    """JSON values of a file, as `parse`; raises `PlanError` for one that cannot be read, or is not
    JSON.
    """
    try:
        content = read_file(path, _MOST_BYTES)
    except FileError as error:
        raise PlanError(f"{error}; {remedy}") from error
    return parse(content, remedy)


def layout(table: Mapping[str, Any]) -> str:
    """JSON text of an object: a line per field, and per entry of a list of objects or texts."""
    lines = []
    for key, value in table.items():
        # One line for each entry, so that `diff` of two files shows entries.
        if isinstance(value, list) and value and isinstance(value[0], dict | str):
            rows = ",\n".join(f"  {_compact(row)}" for row in value)
            lines.append(f"{_compact(key)}: [\n{rows}\n ]")
        else:
            lines.append(f"{_compact(key)}: {_compact(value)}")
    return "{" + ",\n ".join(lines) + "}\n"


def _compact(value: object) -> str:
    return json.dumps(value, allow_nan=False)
