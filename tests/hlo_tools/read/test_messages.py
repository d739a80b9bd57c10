"""Messages that name some fields: what is read, what is skipped, and bytes that are no message."""

from google.protobuf import descriptor_pool
from hypothesis import given, strategies as st
import pytest

from hlo_tools.errors import HloError
from hlo_tools.read.messages import Message, text


INNER = Message(number=(2, int))
OUTER = Message(
    name=(1, bytes), numbers=(3, [int]), floats=(4, [float]), inner=(5, INNER), inners=(6, [INNER])
)
NEST = Message(number=(1, int))
NEST.fields["nested"] = (2, [NEST])


def _varint(value: int) -> bytes:
    value %= 1 << 64
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, payload: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(payload)) + payload


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_repeated_numbers_packed_or_not(numbers):
    packed = OUTER.parse(_bytes(3, b"".join(map(_varint, numbers))))
    unpacked = OUTER.parse(b"".join(_number(3, n) for n in numbers))
    assert list(packed.numbers) == list(unpacked.numbers) == numbers


def test_fields_that_are_not_listed_are_skipped():
    known = _bytes(1, b"x") + _bytes(6, _number(2, -5))
    group = _varint(99 << 3 | 3) + _number(1, 7) + _varint(99 << 3 | 4)
    unknown = _number(7, 1) + _bytes(200, b"\xff" * 99) + _varint(8 << 3 | 5) + b"1234" + group
    message = OUTER.parse(unknown + known + unknown)
    assert (message.name, [inner.number for inner in message.inners]) == (b"x", [-5])


def test_a_field_of_another_type_is_skipped():
    message = OUTER.parse(_number(1, 5) + _bytes(3, b"\x07") + _bytes(6, _bytes(2, b"abc")))
    assert (message.name, list(message.numbers), message.inners[0].number) == (b"", [7], 0)


def test_an_empty_message_is_not_an_absent_one():
    assert OUTER.parse(_bytes(5, b"")).HasField("inner")
    assert not OUTER.parse(b"").HasField("inner")
    assert OUTER.parse(b"").inner.number == 0


def test_text_need_not_be_utf8():
    assert text(OUTER.parse(_bytes(1, b"a\xffb")).name) == "a\ufffdb"


def _nested(depth: int) -> bytes:
    data = _number(1, 1)
    for _ in range(depth):
        data = _bytes(2, data)
    return data


def test_messages_nest_but_not_without_end():
    message = NEST.parse(_nested(50))
    for _ in range(50):
        (message,) = message.nested
    assert message.number == 1
    with pytest.raises(HloError):
        NEST.parse(_nested(5000))


@pytest.mark.parametrize(
    "data",
    [
        _bytes(1, b"abc")[:-1],
        _varint(1 << 3 | 2) + _varint(1 << 62),
        _bytes(6, _bytes(2, b"abc")[:-1]),
        _bytes(3, b"\x80"),
        b"\x80" * 11,
        b"\x0f",
        _varint(99 << 3 | 3) * 100_000,
        _varint(99 << 3 | 4),
    ],
    ids=[
        "cut off",
        "huge length",
        "cut off inside",
        "number cut off",
        "endless number",
        "no such wire type",
        "groups without end",
        "end of no group",
    ],
)
def test_damaged_bytes_are_refused(data):
    with pytest.raises(HloError, match="damaged protobuf"):
        OUTER.parse(data)


@given(st.binary(max_size=60))
def test_random_bytes_never_raise_anything_else(data):
    try:
        message = OUTER.parse(data)
    except HloError:
        return
    assert sum(len(inner.ListFields()) for inner in message.inners) <= len(data)


def test_no_other_pool_is_touched():
    OUTER.parse(b"")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName("hlo_tools.read.proto")
