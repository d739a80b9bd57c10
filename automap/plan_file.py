"""The plan file: bytes to JSON values and back.

Reading runs no code. Writing is atomic: a new file is written beside the old one and put in its
place, so that a failure, or Ctrl-C, leaves the old file as it was    -> in: `write_atomically`
The layout is for people and for `diff`: one line per input, collective, decision
                                                                      -> in: `layout`
"""

from collections.abc import Mapping
import contextlib
from dataclasses import dataclass
import json
import os
from pathlib import Path
import secrets
from typing import Any, Final

from automap.errors import InputError, PlanError
from automap.plan_checks import repeated


_MAX_FILE_BYTES: Final = 2**28
# What the system, a name with a null byte, and a loop of links raise.
_CANNOT: Final = (OSError, ValueError, RuntimeError)
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

    `remedy` says in a message what is allowed. Raises `PlanError` for what is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_object_of)
    except RecursionError:
        raise PlanError(f"lists and objects are nested too deeply; {remedy}") from None
    except ValueError as error:
        raise PlanError(f"no valid JSON: {error}; {remedy}") from None


def _object_of(pairs: list[tuple[str, Any]]) -> object:
    again = repeated(key for key, _ in pairs)
    return RepeatedKey(again[1]) if again else dict(pairs)


def read(path: str | Path, remedy: str = _REMEDY) -> object:
    """JSON values of a file, as `parse`; raises `PlanError` for one that cannot be read, or is not JSON."""
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PlanError(f"{_reason(error)}; {remedy}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise PlanError(f"over {_MAX_FILE_BYTES} bytes; {remedy}")
    return parse(content, remedy)


def layout(table: Mapping[str, Any]) -> str:
    """JSON text of an object: a line per field, and per entry of a list of objects or texts."""
    lines = []
    for key, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | str):
            rows = ",\n".join(f"  {_compact(row)}" for row in value)
            lines.append(f"{_compact(key)}: [\n{rows}\n ]")
        else:
            lines.append(f"{_compact(key)}: {_compact(value)}")
    return "{" + ",\n ".join(lines) + "}\n"


def _compact(value: object) -> str:
    return json.dumps(value, allow_nan=False)


def write_atomically(path: str | Path, content: str | bytes) -> None:
    """Put `content` (text as UTF-8) at `path`, whole or not at all; raises `PlanError` when it cannot be written."""
    try:
        target, beside = _places(path)
        try:
            with open(beside, "xb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
    except _CANNOT as error:
        raise PlanError(
            f"{str(path)!r}: cannot be written: {_reason(error)}; nothing was changed there; "
            "choose a folder that exists and has room"
        ) from error


def check_can_be_written(option: str, path: str | Path) -> None:
    """Raise `InputError` now rather than `PlanError` after long work, where `write_atomically` would fail."""
    folder = Path(path).absolute().parent
    try:
        if not folder.is_dir():
            raise InputError(
                f"{option} {path}: there is no folder {Path(path).parent}; make it first"
            )
        _, beside = _places(path)
        with open(beside, "xb"):
            pass
        beside.unlink()
    except PlanError as error:
        raise InputError(f"{option} {error}") from error
    except _CANNOT as error:
        raise InputError(
            f"{option} {path}: cannot be written: {_reason(error)}; choose a folder that you may write to"
        ) from error


def _places(path: str | Path) -> tuple[Path, Path]:
    """The file that is replaced, and a new one beside it; raises `PlanError` for what is no regular file."""
    # Where `path` is a link, the file it points to is replaced.
    target = Path(path).resolve()
    if target.is_symlink():  # Python 3.13 hands a loop of links on as it is.
        raise PlanError(f"{str(path)!r}: is a loop of links; allowed: the name of a file")
    if target.exists() and not target.is_file():
        raise PlanError(f"{str(path)!r}: is no regular file; allowed: the name of a file")
    return target, target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
