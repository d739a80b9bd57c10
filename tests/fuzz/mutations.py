"""Changes to valid inputs that keep most of their structure: texts, JSON values, protos, bytes.

Each takes a `random.Random` and gives a changed copy. Numbers become those at the edges of types,
names become other names of the same input, parts are left out, doubled, or put in the place of
others.
"""

from collections.abc import Callable, Iterator
import copy
import json
from random import Random
import re
from typing import Any


NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    127,
    255,
    256,
    65535,
    10**6,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    10**12,
    2**62,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64 - 1,
)
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "x",
    "x" * 5000,
    "\x1b[31m",
    "a\0b",
    "\ud800",
    "0",
    [],
    {},
    [[]],
    [None],
    {"": 1},
    0.5,
    -0.0,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    10**5000,
    *NUMBERS,
)
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_HUGE = "9" * 5000


def several(random: Random, value: Any, change: Callable[[Random, Any], Any]) -> Any:
    """Up to four changes after another, one most often, seldom none."""
    for _ in range(random.choice((1, 1, 1, 1, 1, 2, 2, 3, 4, 0))):
        value = change(random, value)
    return value


def changed_bytes(random: Random, data: bytes) -> bytes:
    """Bytes with bits flipped, or parts cut, doubled, moved or overwritten."""
    if not data:
        return bytes([random.randrange(256)])
    at, length = random.randrange(len(data)), random.choice((1, 1, 2, 4, 8, 64))
    match random.randrange(6):
        case 0:
            return data[:at] + bytes([data[at] ^ (1 << random.randrange(8))]) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + length :]
        case 2:
            return data[:at] + data[at : at + length] * random.choice((2, 3, 50)) + data[at:]
        case 3:
            return data[:at]
        case 4:
            other = random.randrange(len(data))
            return data[:at] + data[other : other + length] + data[at + length :]
        case _:
            edge = random.choice((b"\0", b"\xff", b"\x7f", b"\x80")) * length
            return data[:at] + edge + data[at + length :]


def changed_text(random: Random, text: str) -> str:
    """Text with tokens or lines changed."""
    if not text:
        return random.choice(("(", "\0", _HUGE))
    if random.randrange(3) == 0:
        lines = text.split("\n")
        at, other = random.randrange(len(lines)), random.randrange(len(lines))
        match random.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(other, lines[at])
            case 2:
                lines[at], lines[other] = lines[other], lines[at]
            case _:
                lines = lines[: at + 1]
        return "\n".join(lines)
    tokens = _TOKEN.findall(text)
    at = random.randrange(len(tokens))
    for _ in range(20):  # most tokens are spaces and punctuation, which say the least
        if tokens[at][0].isalnum():
            break
        at = random.randrange(len(tokens))
    if tokens[at].isdigit():
        choices = (str(random.choice(NUMBERS)), str(int(tokens[at][:18]) + 1), _HUGE, "")
        tokens[at] = random.choice((*choices[:2], *choices[:2], *choices))
    else:
        match random.randrange(6):
            case 0:
                del tokens[at]
            case 1:
                tokens[at] = "x" * random.choice((1, 5000))
            case 2:
                tokens.insert(at, random.choice("([{}])=,:%\"'\\\0\u2028"))
            case _:
                tokens[at] = random.choice(tokens)
    return "".join(tokens)


def changed_json(random: Random, value: Any) -> Any:
    """A JSON value with a node left out, replaced by junk or another node, or given a neighbour."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return random.choice(JUNK)
    parent, key = random.choice(places)
    if random.randrange(2):
        # In the place of what is alike a value is wrong more subtly.
        alike = [(p, k) for p, k in places if type(p[k]) is type(parent[key])]
        if isinstance(parent[key], int) and random.randrange(2):
            parent[key] = parent[key] + random.choice((-1, 1, 2, 2**31))
        else:
            other, other_key = random.choice(alike)
            parent[key] = copy.deepcopy(other[other_key])
        return value
    other, other_key = random.choice(places)
    match random.randrange(5):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, list):
            parent.insert(key, copy.deepcopy(other[other_key]))
        case 2:
            parent[key] = copy.deepcopy(other[other_key])
        case 3 if isinstance(parent, dict):
            parent[random.choice(("", "x", "x" * 5000, "__class__"))] = parent.pop(key)
        case _:
            parent[key] = copy.deepcopy(random.choice(JUNK))
    return value


def json_text(random: Random, value: Any) -> bytes:
    """JSON of a value, rarely nested beyond reason, with a key twice, or damaged as text."""
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of more digits than Python writes
        text = json.dumps(_written(value)).replace(f'"{_HUGE}"', _HUGE)
    match random.randrange(30):
        case 0:
            depth = random.choice((100, 2000, 100_000))
            text = text.replace(random.choice((":", "[")), ":" + "[" * depth, 1)
        case 1:
            text = text.replace("{", '{"x": 1, "x": 1, ', 1)
        case 2 | 3:
            text = changed_text(random, text)
    return text.encode("utf-8", "surrogatepass")


def _written(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written(item) for item in value]
    is_huge = isinstance(value, int) and abs(value) > 10**4000
    return _HUGE if is_huge else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of all nodes below a JSON value."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield value, key
            yield from _places(value[key])


Field = list[Any]
"""[number, wire type, value]: an integer, bytes, or a list of fields that the bytes stand for."""


def changed_proto(random: Random, data: bytes) -> bytes:
    """A proto with a field, at any depth, changed, left out, doubled or exchanged."""
    message = _fields(data)
    if not message:
        return changed_bytes(random, data)
    places = list(_field_places(message))
    siblings, at = random.choice(places)
    others, other = random.choice(places)
    field = siblings[at]
    match random.randrange(8):
        case 0:
            del siblings[at]
        case 1:
            siblings.insert(at, copy.deepcopy(field))
        case 2:
            siblings.insert(random.randrange(len(siblings)), copy.deepcopy(others[other]))
        case 3:
            same = [s[i] for s, i in places if s[i][:2] == field[:2]]
            field[2] = copy.deepcopy(random.choice(same)[2])
        case 4:
            siblings.reverse()
        case _ if field[1] == 0:
            step = field[2] + random.choice((-1, 1, 2))
            field[2] = random.choice((step, random.choice(NUMBERS))) % 2**64
        case _ if isinstance(field[2], bytes):
            field[2] = changed_bytes(random, field[2])
        case _:
            field[2] = []
    return _serialized(message)


def _fields(data: bytes) -> list[Field] | None:
    """The fields of a message; None for bytes that are none."""
    fields: list[Field] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            return None
        if kind == 0:
            value, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, at = data[at : at + size], at + size
        elif kind == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            return None
        if at > len(data) or at < 0:
            return None
        if kind == 2 and isinstance(value, bytes) and value and not value.isascii():
            value = _fields(value) or value
        elif kind == 2 and isinstance(value, bytes) and not value.decode("latin1").isprintable():
            value = _fields(value) or value
        fields.append([number, kind, value])
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends), (0, -1) if it does not."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    return 0, -1


def _field_places(fields: list[Field]) -> Iterator[tuple[list[Field], int]]:
    for at, field in enumerate(fields):
        yield fields, at
        if isinstance(field[2], list):
            yield from _field_places(field[2])


def _serialized(fields: list[Field]) -> bytes:
    parts = []
    for number, kind, value in fields:
        parts.append(_as_varint(number << 3 | kind))
        if kind == 0:
            parts.append(_as_varint(value))
        else:
            content = _serialized(value) if isinstance(value, list) else value
            parts += [_as_varint(len(content)), content] if kind == 2 else [content]
    return b"".join(parts)


def _as_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
