"""Protobuf messages of which only some fields are read; the library `protobuf` decodes them.

A `Message` lists fields by name and number, and the library is told of those only: it skips all
others. Its classes live in a descriptor pool of their own, so another hlo.proto in the process
(TensorFlow's) does not clash. Whole numbers of any kind, booleans and enumerations are read as
int64, text as bytes, since a damaged name need not be UTF-8. A nested message may also be listed as
bytes and parsed by whoever needs it, so that equal ones are parsed once and large ones not at all.

Importing the library takes 12 ms, which only those pay who read a proto.
"""

from functools import cached_property
from typing import Any, TypeAlias

from hlo_tools.errors import HloError


Element: TypeAlias = "type[int] | type[float] | type[bytes] | Message"
# A list of one element is a repeated field.
Kind: TypeAlias = "Element | list[Element]"
_ROOT = "Root"


class Message:
    """One kind of message; fields may be added to `fields` (a message that nests itself) until it
    is used.
    """

    def __init__(self, **fields: tuple[int, Kind]):
        """The message with these `fields`: number and kind by name."""
        self.fields = fields

    @cached_property
    def message_class(self) -> Any:
        """The library's class."""
        return self._classes[_ROOT]

    @cached_property
    def _classes(self) -> dict[str, Any]:
        # All are held, as the library makes a nested message's class anew when it is not.
        return _message_classes(self)

    def parse(self, data: bytes) -> Any:
        """An object with the fields as attributes; absent ones are 0, b"" or empty.

        Raises `HloError` on malformed bytes.
        """
        from google.protobuf.message import DecodeError

        try:
            return self.message_class.FromString(data)
        except (DecodeError, RecursionError) as error:
            raise HloError(
                f"truncated or damaged protobuf ({len(data)} bytes); dump the module again"
            ) from error


def text(raw: bytes) -> str:
    """A name; bytes that are not UTF-8 do no harm."""
    return str(raw, "utf-8", "replace")


def _message_classes(root: Message) -> dict[str, Any]:
    """Classes of a message and all that it nests, by name."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    types = {int: kinds.TYPE_INT64, float: kinds.TYPE_FLOAT, bytes: kinds.TYPE_BYTES}
    # Syntax 2 tells a message that is absent from an empty one, and does not check text.
    file = descriptor_pb2.FileDescriptorProto(name="hlo_tools.proto", syntax="proto2")
    names = {root: _ROOT}
    waiting = [root]
    while waiting:
        message = waiting.pop()
        declared = file.message_type.add(name=names[message])
        for name, (number, kind) in message.fields.items():
            element = kind[0] if isinstance(kind, list) else kind
            field = declared.field.add(name=name, number=number)
            is_repeated = isinstance(kind, list)
            field.label = kinds.LABEL_REPEATED if is_repeated else kinds.LABEL_OPTIONAL
            if not isinstance(element, Message):
                field.type = types[element]
                continue
            # Once each: a message may nest itself, as the shape of a tuple does.
            if element not in names:
                names[element] = f"Nested{len(names)}"
                waiting.append(element)
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{names[element]}"
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClassesForFiles([file.name], pool)
