"""Serialized HLO protos -> `hlo_tools.module`.

`decode_module` checks what the rest of the package relies on: every operand is defined before it is
used, every called computation and root exists, calls do not recurse, dimensions are sane.
"""

from collections.abc import Callable
from dataclasses import replace
import math
from operator import attrgetter
from typing import Any

from hlo_tools.collector import collector_paused
from hlo_tools.errors import FileError, HloError
from hlo_tools.files import MOST_PROGRAM_BYTES, is_gzip, unzipped
from hlo_tools.module import (
    NO_ATTRIBUTES,
    Attributes,
    Computation,
    Instruction,
    Module,
    Shape,
)
from hlo_tools.opcodes import COMBINES, PLAIN
from hlo_tools.read import schema
from hlo_tools.read.attributes import AttributeReader
from hlo_tools.read.messages import text
from hlo_tools.read.module_checks import check_references


_MAX_RANK = 256
_MAX_ELEMENTS = 1 << 48
# T5-11B, unrolled, has 24,000.
_MOST_INSTRUCTIONS = 1_000_000


@collector_paused()
def decode_module(data: bytes, most_instructions: int = _MOST_INSTRUCTIONS) -> Module:
    """Decode an HloModuleProto, or an HloProto that wraps one, gzipped or not.

    Raises `HloError` with the reason for anything malformed.
    """
    message = module_message(data, most_instructions)
    reader = _Reader()
    computations: dict[int, Computation] = {}
    for computation in map(reader.computation, message.computations):
        computations[computation.id] = computation
    _name_combiners(computations)
    # A result that is nested more deeply is no leaf of a flat tuple; what JAX lowers has none.
    aliases = message.aliases.entries
    module = Module(
        name=text(message.name),
        entry_id=message.entry_id,
        computations=computations,
        donated=frozenset(e.parameter_number for e in (*aliases, *message.donors.entries)),
        aliases=tuple(
            (next(iter(a.output_shape_index), 0), a.parameter_number)
            for a in aliases
            if len(a.output_shape_index) <= 1
        ),
        schedule={
            s.computation_id: tuple(s.sequence.instruction_ids) for s in message.schedule.sequences
        },
    )
    check_references(module)
    return module


def _name_combiners(computations: dict[int, Computation]) -> None:
    """Set `Attributes.combiner` where the called computation is one op on its two parameters."""
    combined: dict[tuple[Attributes, str], Attributes] = {}
    for computation in computations.values():
        for instruction in computation.instructions:
            # The last: a select-and-scatter calls one to select with, then one to combine with.
            called = computations.get(instruction.called[-1]) if instruction.called else None
            if instruction.opcode in COMBINES and called is not None:
                *parameters, root = called.instructions or (instruction,)
                is_one_op = all(p.opcode == "parameter" for p in parameters)
                if is_one_op and len(parameters) == 2:
                    # Equal attributes stay one object, on which rules are made once.
                    key = (instruction.attributes, root.opcode)
                    if key not in combined:
                        combined[key] = replace(instruction.attributes, combiner=root.opcode)
                    instruction.attributes = combined[key]


def module_message(data: bytes, most_instructions: int = _MOST_INSTRUCTIONS) -> Any:
    """The message (`schema.MODULE`) of an HloModuleProto or HloProto, gzipped or not.

    Raises `HloError` if it is none.
    """
    if is_gzip(data):
        try:
            data = unzipped(data, MOST_PROGRAM_BYTES)
        except FileError as error:
            raise HloError(str(error)) from error
    if not data:
        raise HloError("an empty HLO proto; dump the module again")
    # In a wrapper, field 1 is the module, which begins with the tag of one of its first fields; in
    # a module it is the name, which begins with no control character.
    inner = schema.WRAPPER.parse(data).module
    message = schema.MODULE.parse(inner if b"" < inner[:1] < b" " else data)
    count = sum(len(computation.instructions) for computation in message.computations)
    if count > most_instructions:
        raise HloError(
            f"{count} instructions; allowed: {most_instructions}; scan over layers instead of "
            "unrolling"
        )
    if not count:
        raise HloError(
            "no HLO module in this proto: no instructions; pass an HloProto or HloModuleProto"
        )
    if message.shared_configs:
        _give_shared_configs(message)
    return message


def _give_shared_configs(message: Any) -> None:
    """Give instructions their backend's configurations, where the module keeps equal ones once."""
    for computation in message.computations:
        for instruction in computation.instructions:
            if instruction.HasField("shared_config"):
                index = instruction.shared_config.index
                if not 0 <= index < len(message.shared_configs):
                    raise HloError(
                        f"{text(instruction.name)}: configuration {index} of "
                        f"{len(message.shared_configs)}; dump the module again"
                    )
                instruction.backend_config = message.shared_configs[index]


class _Known(dict[bytes, Any]):
    """What was made of some bytes already."""

    def __init__(self, make: Callable[[bytes], Any]):
        super().__init__()
        self.make = make

    def __missing__(self, raw: bytes) -> Any:
        made = self[raw] = self.make(raw)
        return made


class _Reader:
    """Computations of one module; equal opcodes, shapes and attributes are one object."""

    def __init__(self):
        self.opcodes = _Known(text)
        self.shapes = _Known(lambda raw: _shape(schema.SHAPE.parse(raw)))
        self.attributes = AttributeReader()

    def computation(self, message: Any) -> Computation:
        """One computation; the loop runs tens of thousands of times, so calls are written out."""
        opcodes, shapes, attributes = self.opcodes, self.shapes, self.attributes
        instructions: list[Instruction] = []
        for m in message.instructions:
            opcode, shape = opcodes[m.opcode], shapes[m.shape]
            # A slice copies a field's numbers at once; iterating over it asks for one after the
            # other.
            operands, called, dimensions = m.operands, m.called, m.dimensions
            is_plain = opcode in PLAIN and not m.HasField("sharding")
            instruction = Instruction(
                m.id,
                str(m.name, "utf-8", "replace"),
                opcode,
                shape,
                tuple(operands[:]) if operands else (),
                tuple(called[:]) if called else (),
                str(m.metadata.op_name, "utf-8", "replace"),
                m.parameter_number,
                m.tuple_index,
                tuple(dimensions[:]) if dimensions else (),
                _scalar(m, shape) if opcode == "constant" else None,
                NO_ATTRIBUTES if is_plain else attributes.read(opcode, m),
            )
            instructions.append(instruction)
        ordered = _in_program_order(instructions)
        return Computation(message.id, text(message.name), ordered, message.root_id)


def _shape(message: Any) -> Shape:
    dtype = schema.ELEMENT_TYPES.get(message.element_type)
    if dtype is None:
        raise HloError(
            f"unknown element type {message.element_type}; this build of automap is too old for "
            "the file"
        )
    dims = tuple(message.dimensions)
    if len(dims) > _MAX_RANK or any(d < 0 for d in dims) or math.prod(dims) > _MAX_ELEMENTS:
        raise HloError(
            f"impossible dimensions {dims[:8]}, {len(dims)} in all; allowed: {_MAX_RANK} of at "
            f"least 0, with up to {_MAX_ELEMENTS} elements; dynamic shapes are not supported"
        )
    elements = tuple(map(_shape, message.tuple_shapes))
    return Shape(dtype, dims, elements, message.layout.memory_space)


def _in_program_order(instructions: list[Instruction]) -> tuple[Instruction, ...]:
    """Instructions by id, the order in which they were traced, if operands still come first.

    XLA serializes a computation from its root backwards, which puts every weight gradient at the
    end.
    """
    by_id = sorted(instructions, key=attrgetter("id"))
    if _user_of_undefined(by_id) is None:
        return tuple(by_id)
    user = _user_of_undefined(instructions)
    if user is not None:
        raise HloError(
            f"{user.name}: not all of its operands {user.operands} are before it; dump the module "
            "again"
        )
    return tuple(instructions)


def _user_of_undefined(instructions: list[Instruction]) -> Instruction | None:
    """The first instruction that has an operand which is not before it."""
    known: set[int] = set()
    for instruction in instructions:
        if not known.issuperset(instruction.operands):
            return instruction
        known.add(instruction.id)
    return None


def _scalar(constant: Any, shape: Shape) -> int | float | bool | None:
    if shape.dims or shape.dtype == "tuple":
        return None
    literal = schema.LITERAL.parse(constant.literal)
    for numbers in (literal.s32s, literal.s64s, literal.u32s, literal.u64s, literal.f32s):
        if numbers:
            return numbers[0]
    return bool(literal.preds[0]) if literal.preds else None
