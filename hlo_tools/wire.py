"""Protobuf wire format, read by tables: bytes -> nested dicts of the fields a table names.

A message is a run of (tag, payload) with tag = field number << 3 | wire type: 0 varint, 1 eight bytes,
2 length and bytes, 5 four bytes.  Fields that the table does not name are skipped; zero fields are absent
in proto3, so the caller supplies defaults.  Every length is checked against the enclosing message, so that
damaged input ends in `HloError` and never in a large allocation.

A module has tens of thousands of small messages, many of them equal (shapes, dimension numbers): a field
marked `shared` is decoded once for equal bytes, and its dict must not be changed; of one marked `inner` only
the one text that its table names is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
import struct
from typing import Any, Literal

from hlo_tools.errors import HloError


Kind = Literal[
    "int", "ints", "float", "floats", "text", "bytes", "message", "messages", "shared", "inner",
    "present",
]  # fmt: skip
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
# Wire types a kind may come in; numbers may be packed into one payload.
_WIRES: Mapping[Kind, tuple[int, ...]] = {
    "int": (_VARINT,), "ints": (_VARINT, _LENGTH),
    "float": (_EIGHT_BYTES, _FOUR_BYTES), "floats": (_EIGHT_BYTES, _FOUR_BYTES, _LENGTH),
    **dict.fromkeys(("text", "bytes", "message", "messages", "shared", "inner", "present"), (_LENGTH,)),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One field to read; `table` is that of a nested message."""

    name: str
    kind: Kind
    table: "Table | None" = None


class Table:
    """Fields of one kind of message by number; `by_tag` finds them by number and wire type at once."""

    def __init__(self, fields: Mapping[int, Field]):
        """A table of `fields`; more can be added, as a message that nests itself needs."""
        self.numbers: set[int] = set()
        self.by_tag: dict[int, Field] = {}
        for number, field in fields.items():
            self.add(number, field)

    def add(self, number: int, field: Field) -> None:
        """One more field."""
        self.numbers.add(number)
        for wire in _WIRES[field.kind]:
            self.by_tag[number << 3 | wire] = field


_MAX_DEPTH = 64


def parse(data: bytes, table: Table) -> dict[str, Any]:
    """Fields of one message by name. Raises `HloError` on malformed bytes."""
    try:
        return _Reader(data).message(0, len(data), table, 0)
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


class _Reader:
    """The bytes with what was decoded of them already."""

    def __init__(self, data: bytes):
        self.data = data
        self.shared: dict[tuple[str, bytes], dict[str, Any]] = {}

    def message(self, at: int, end: int, table: Table, depth: int) -> dict[str, Any]:
        if depth > _MAX_DEPTH:
            raise HloError(
                f"protobuf messages nested over {_MAX_DEPTH} deep; this is no HLO module"
            )
        data, find = self.data, table.by_tag.get
        result: dict[str, Any] = {}
        while at < end:
            tag = data[at]
            at += 1
            if tag >= 0x80:  # two bytes are written out, as calls would dominate
                byte = data[at]
                at += 1
                if byte < 0x80:
                    tag += (byte << 7) - 0x80
                else:
                    tag, at = _varint(data, at - 2)
            field = find(tag)
            if tag & 7 == _LENGTH:
                length = data[at]
                at += 1
                if length >= 0x80:
                    length, at = _varint(data, at - 1)
                stop = at + length
                if stop > end:
                    raise HloError(
                        f"truncated protobuf: {length} bytes announced at offset {at}, {end - at} "
                        "left; dump the module again"
                    )
                if field is not None:
                    kind = field.kind
                    if kind == "text":
                        result[field.name] = str(data[at:stop], "utf-8", "replace")
                    elif kind == "shared":
                        result[field.name] = self.shared_message(field, at, stop, depth)
                    else:
                        self.put(result, field, at, stop, depth)
                elif tag >> 3 in table.numbers:
                    raise _of_another_type(tag, at)
                at = stop
            elif field is None:
                at = self.skipped(tag, at, table)
            else:
                at = self.put_number(result, field, tag & 7, at)
        if at != end:
            raise HloError(
                "truncated protobuf: a field runs past its message; dump the module again"
            )
        return result

    def put(self, result: dict[str, Any], field: Field, at: int, stop: int, depth: int) -> None:
        """Add the payload of a field with a length."""
        data, name, kind, table = self.data, field.name, field.kind, field.table
        if kind == "inner" and table is not None:
            result[name] = self.inner_text(at, stop, table)
        elif kind == "ints":
            result.setdefault(name, []).extend(_packed(data, at, stop))
        elif kind == "messages" and table is not None:
            result.setdefault(name, []).append(self.message(at, stop, table, depth + 1))
        elif kind == "message" and table is not None:
            result[name] = self.message(at, stop, table, depth + 1)
        elif kind == "bytes":
            result[name] = data[at:stop]
        elif kind == "present":
            result[name] = True
        else:
            count = (stop - at) // 4
            result.setdefault(name, []).extend(struct.unpack_from(f"<{count}f", data, at))

    def shared_message(self, field: Field, at: int, stop: int, depth: int) -> dict[str, Any]:
        """A message that is decoded once for equal bytes."""
        key = (field.name, self.data[at:stop])
        known = self.shared.get(key)
        if known is None and field.table is not None:
            known = self.shared[key] = self.message(at, stop, field.table, depth + 1)
        return known or {}

    def inner_text(self, at: int, end: int, table: Table) -> str:
        """The text of the table's field, "" if it is not there; what follows it is not looked at."""
        data, by_tag = self.data, table.by_tag
        while at < end:
            tag, at = _varint(data, at)
            if tag & 7 != _LENGTH:
                at = self.skipped(tag, at, table)
                continue
            length, at = _varint(data, at)
            if at + length > end:
                break
            if tag in by_tag:
                return str(data[at : at + length], "utf-8", "replace")
            at += length
        if at != end:
            raise HloError(
                "truncated protobuf: a field runs past its message; dump the module again"
            )
        return ""

    def put_number(self, result: dict[str, Any], field: Field, wire: int, at: int) -> int:
        """Add one number; returns where the next field starts."""
        if wire == _VARINT:
            value, at = _varint(self.data, at)
            value = _signed(value)
        else:
            is_double = wire == _EIGHT_BYTES
            (value,) = struct.unpack_from("<d" if is_double else "<f", self.data, at)
            at += 8 if is_double else 4
        if field.kind in ("ints", "floats"):
            result.setdefault(field.name, []).append(value)
        else:
            result[field.name] = value
        return at

    def skipped(self, tag: int, at: int, table: Table) -> int:
        """Where the number after one that is not read starts."""
        if tag >> 3 in table.numbers:
            raise _of_another_type(tag, at)
        wire = tag & 7
        if wire == _VARINT:
            return _varint(self.data, at)[1]
        if wire in (_EIGHT_BYTES, _FOUR_BYTES):
            return at + (8 if wire == _EIGHT_BYTES else 4)
        raise HloError(f"damaged protobuf: wire type {wire} at offset {at}; dump the module again")


def _of_another_type(tag: int, at: int) -> HloError:
    return HloError(
        f"damaged protobuf: field {tag >> 3} at offset {at} is of another type; dump the module again"
    )


def _packed(data: bytes, at: int, stop: int) -> list[int]:
    numbers = []
    while at < stop:
        value, shift = 0, 0
        byte = data[at]
        while byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            byte = data[at]
            if shift > 63:
                raise HloError(
                    "damaged protobuf: a number of more than ten bytes; dump the module again"
                )
        value |= byte << shift
        at += 1
        numbers.append(value if value < 1 << 63 else _signed(value & 0xFFFFFFFFFFFFFFFF))
    return numbers
