"""Reading and writing frozen records as JSON, driven by their type hints; no code is ever run.

    record          <-> object with exactly the record's fields (a trailing underscore is left out);
                        one marked `ADDED_LATER` may be missing, and has its default then
    tuple[X, ...]   <-> list;   tuple[X, Y] <-> list of that length
    X | None        <-> null or X;   Literal <-> one of its strings
    Mapping         <-> object, handed over as it is (its owner checks it)
    None            <-> null: a field kept for a later version

`decode` checks types and names the field's path; the records check their values when made.
`schema` says the same as a JSON Schema, for other programs and for editors: what it refuses
`decode` refuses too, and what both let pass the records still check.
"""

from collections.abc import Callable, Mapping
import copy
import dataclasses
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from automap.errors import PlanError
from automap.plan.checks import refuse, within


ADDED_LATER: Final = {"added_later": True}
"""Metadata of a field that files of the same version may lack, since older ones were written
without it.
"""


def encode(value: Any) -> Any:
    """The JSON values of a record; shares nothing with it that could change."""
    # Most values by far, and so first.
    if value is None or isinstance(value, str | int | float):
        return value
    if dataclasses.is_dataclass(value):
        return {
            key: encode(getattr(value, name))
            for key, (name, _) in _record_fields(type(value)).items()
        }
    # Lists in JSON; records have tuples only, so that they are hashable.
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return copy.deepcopy(value)
    raise refuse("plan", value, "records of text, numbers, true, false and null")


def decode(hint: Any, node: object, path: str) -> Any:
    """The value of type `hint` that JSON values stand for; `PlanError` names the field's path."""
    if dataclasses.is_dataclass(hint):
        return _record(hint, node, path)
    # `tuple[int, ...]` is read as a tuple, `X | None` as a union, a plain type as itself.
    kind = get_origin(hint) or hint
    return _READERS[kind](hint, node, path)


@cache
def _record_fields(record: type) -> dict[str, tuple[str, Any]]:
    """JSON key -> (attribute, type hint)."""
    hints = get_type_hints(record)
    # A field whose name is a keyword of Python has an underscore behind it.
    names = [field.name for field in dataclasses.fields(record)]
    return {name.rstrip("_"): (name, hints[name]) for name in names}


def _record(record: Any, node: object, path: str) -> Any:
    fields = _record_fields(record)
    known = ", ".join(fields)
    if not isinstance(node, Mapping):
        raise refuse(path, node, f"an object with the fields {known}")
    prefix = f"{path}." if path else ""
    # Before what is missing: a name that is spelled wrong is both, and this says more.
    for key in node:
        if key not in fields:
            raise PlanError(f"{prefix}{str(key)[:80]}: unknown field; allowed: {known}")
    # Older files of the same version lack these: the record has a default for each.
    later = {f.name for f in dataclasses.fields(record) if f.metadata == ADDED_LATER}
    for key, (name, _) in fields.items():
        if key not in node and name not in later:
            raise PlanError(f"{prefix}{key}: missing; required: {known}")
    values = {
        name: decode(hint, node[key], prefix + key)
        for key, (name, hint) in fields.items()
        if key in node
    }
    # The record checks its values when it is made, and knows nothing of where it stands.
    with within(path):
        return record(**values)


def _tuple(hint: Any, node: object, path: str) -> tuple[Any, ...]:
    items = get_args(hint)
    if not isinstance(node, list):
        raise refuse(path, node, "a list")
    # tuple[X, ...]: as many as there are.
    if items[-1] is Ellipsis:
        items = items[:1] * len(node)
    if len(items) != len(node):
        raise refuse(path, node, f"a list of {len(items)} entries")
    pairs = zip(items, node, strict=True)
    return tuple(decode(item, x, f"{path}[{i}]") for i, (item, x) in enumerate(pairs))


def _optional(hint: Any, node: object, path: str) -> Any:
    (inner,) = (item for item in get_args(hint) if item is not NoneType)
    return None if node is None else decode(inner, node, path)


def _choice(hint: Any, node: object, path: str) -> Any:
    if node not in get_args(hint):
        raise refuse(path, node, " | ".join(get_args(hint)))
    return node


def _object(_: Any, node: object, path: str) -> Mapping[str, Any]:
    if not isinstance(node, Mapping):
        raise refuse(path, node, "an object")
    return copy.deepcopy(node)


def _reserved(_: Any, node: object, path: str) -> None:
    if node is not None:
        raise PlanError(
            f"{path}: written by a newer automap: this one reads null only; upgrade automap"
        )


def _text(_: Any, node: object, path: str) -> str:
    # A lone surrogate is legal JSON, but no terminal and no file could take it.
    if not isinstance(node, str) or any("\ud800" <= c <= "\udfff" for c in node):
        raise refuse(path, node, "a text")
    return node


def _flag(_: Any, node: object, path: str) -> bool:
    if not isinstance(node, bool):
        raise refuse(path, node, "true | false")
    return node


def _integer(_: Any, node: object, path: str) -> int:
    if not isinstance(node, int) or isinstance(node, bool):
        raise refuse(path, node, "an integer")
    return node


def _number(_: Any, node: object, path: str) -> float:
    if not isinstance(node, int | float) or isinstance(node, bool):
        raise refuse(path, node, "a finite number")
    # JSON has integers of any length, floats do not.
    try:
        return float(node)
    except OverflowError:
        raise refuse(path, node, "a finite number") from None


_READERS: Final[Mapping[Any, Callable[[Any, object, str], Any]]] = {
    tuple: _tuple,
    UnionType: _optional,
    Union: _optional,  # what get_type_hints makes of `Literal[...] | None` before Python 3.14
    Literal: _choice,
    Mapping: _object,
    NoneType: _reserved,
    str: _text,
    bool: _flag,
    int: _integer,
    float: _number,
}


def schema(record: type, title: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a file: a record's fields behind those of `constants`."""
    definitions: dict[str, Any] = {}
    top = _object_schema(record, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        **top,
        "properties": {
            **{key: {"const": value} for key, value in constants.items()},
            **top["properties"],
        },
        "required": [*constants, *top["required"]],
        "$defs": definitions,
    }


def _object_schema(record: type, definitions: dict[str, Any]) -> dict[str, Any]:
    later = {f.name for f in dataclasses.fields(record) if f.metadata == ADDED_LATER}
    fields = _record_fields(record)
    return {
        "type": "object",
        "description": (record.__doc__ or "").partition("\n")[0],
        "properties": {key: _type_schema(hint, definitions) for key, (_, hint) in fields.items()},
        "required": [key for key, (name, _) in fields.items() if name not in later],
        "additionalProperties": False,
    }


def _type_schema(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of one type; records go to `definitions`, once each."""
    if dataclasses.is_dataclass(hint):
        name = hint.__name__  # type: ignore[union-attr]
        if name not in definitions:
            # Before its fields are looked at: a record may hold itself.
            definitions[name] = {}
            definitions[name] = _object_schema(hint, definitions)  # type: ignore[arg-type]
        return {"$ref": f"#/$defs/{name}"}
    arguments, kind = get_args(hint), get_origin(hint) or hint
    if kind is Literal:
        return {"enum": list(arguments)}
    if kind in (Union, UnionType):
        return {"anyOf": [_type_schema(part, definitions) for part in arguments]}
    if kind is tuple and arguments[-1] is Ellipsis:
        return {"type": "array", "items": _type_schema(arguments[0], definitions)}
    if kind is tuple:
        # Neither fewer nor more entries than have a type.
        entries = [_type_schema(part, definitions) for part in arguments]
        size = len(entries)
        return {"type": "array", "prefixItems": entries, "minItems": size, "maxItems": size}
    return {"type": _JSON_TYPES[kind]}


_JSON_TYPES: Final[Mapping[Any, str]] = {
    Mapping: "object",
    NoneType: "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
}
