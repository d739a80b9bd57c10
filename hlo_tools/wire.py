"""Protobuf wire format, read by tables: bytes -> nested dicts of the fields a table names.

A message is a run of (tag, payload) with tag = field number << 3 | wire type: 0 varint, 1 eight bytes,
2 length and bytes, 5 four bytes.  Fields that the table does not name are skipped; zero fields are absent
in proto3, so the caller supplies defaults.  Every length is checked against the enclosing message, so that
damaged input ends in `HloError` and never in a large allocation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import struct
from typing import Any, Literal

from hlo_tools.errors import HloError


Kind = Literal["int", "ints", "float", "floats", "text", "bytes", "message", "messages", "present"]


@dataclass(frozen=True, slots=True)
class Field:
    """One field to read; `table` is that of a nested message."""

    name: str
    kind: Kind
    table: "Mapping[int, Field] | None" = None


Table = Mapping[int, Field]
_MAX_DEPTH = 64


def parse(data: bytes, table: Table) -> dict[str, Any]:
    """Fields of one message by name. Raises `HloError` on malformed bytes."""
    try:
        return _message(data, 0, len(data), table, 0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise HloError(f"truncated or damaged protobuf ({error}); dump the module again") from error


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte, at
    value, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise HloError(
                "damaged protobuf: a number of more than ten bytes; dump the module again"
            )


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _message(data: bytes, at: int, end: int, table: Table, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise HloError(f"protobuf messages nested over {_MAX_DEPTH} deep; this is no HLO module")
    result: dict[str, Any] = {}
    while at < end:
        tag, at = _varint(data, at)
        field = table.get(tag >> 3)
        wire = tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            if field is not None:
                _put_number(result, field, _signed(value))
        elif wire == 2:
            length, at = _varint(data, at)
            stop = at + length
            if stop > end:
                raise HloError(
                    f"truncated protobuf: {length} bytes announced at offset {at}, {end - at} left; "
                    "dump the module again"
                )
            if field is not None:
                _put_payload(result, field, data, at, stop, depth)
            at = stop
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            if field is not None and field.kind in ("float", "floats"):
                (number,) = struct.unpack_from("<d" if wire == 1 else "<f", data, at)
                _put_number(result, field, number)
            at += size
        else:
            raise HloError(
                f"damaged protobuf: wire type {wire} at offset {at}; dump the module again"
            )
    if at != end:
        raise HloError("truncated protobuf: a field runs past its message; dump the module again")
    return result


def _put_number(result: dict[str, Any], field: Field, value: int | float) -> None:
    if field.kind in ("ints", "floats"):
        result.setdefault(field.name, []).append(value)
    elif field.kind in ("int", "float"):
        result[field.name] = value
    else:
        raise HloError(f"damaged protobuf: {field.name} is no number; dump the module again")


def _put_payload(
    result: dict[str, Any], field: Field, data: bytes, at: int, stop: int, depth: int
) -> None:
    match field.kind:
        case "text":
            result[field.name] = data[at:stop].decode("utf-8", "replace")
        case "bytes":
            result[field.name] = data[at:stop]
        case "present":
            result[field.name] = True
        case "message" | "messages" if field.table is not None:
            inner = _message(data, at, stop, field.table, depth + 1)
            if field.kind == "message":
                result[field.name] = inner
            else:
                result.setdefault(field.name, []).append(inner)
        case "ints":
            numbers = result.setdefault(field.name, [])
            while at < stop:
                value, at = _varint(data, at)
                numbers.append(_signed(value))
        case "floats":
            count = (stop - at) // 4
            result.setdefault(field.name, []).extend(struct.unpack_from(f"<{count}f", data, at))
        case _:
            raise HloError(f"damaged protobuf: {field.name} is a number; dump the module again")
