"""Serialized HLO protos -> `hlo_tools.module`.

`decode_module` checks what the rest of the package relies on: every operand is defined before it is used,
every called computation and root exists, calls do not recurse, dimensions are sane.
"""

from dataclasses import replace
import gzip
import json
import math
from typing import Any
import zlib

from hlo_tools import schema
from hlo_tools.collector import collector_paused
from hlo_tools.errors import HloError
from hlo_tools.groups import COLLECTIVE_OPCODES, Groups, read_groups
from hlo_tools.module import (
    NO_ATTRIBUTES,
    Attributes,
    Computation,
    ConvDims,
    DotDims,
    GatherDims,
    Instruction,
    Module,
    PadDim,
    RaggedDims,
    ScatterDims,
    Shape,
    SliceDim,
    WindowDim,
)
from hlo_tools.wire import parse


_MAX_ELEMENTS = 1 << 48
_GZIP_MAGIC = b"\x1f\x8b"
_WITH_NUMBERS = frozenset({"dot", "ragged-dot", "gather", "scatter"})
_COMBINING = frozenset({"reduce", "reduce-window", "scatter", "select-and-scatter"})


@collector_paused()
def decode_module(data: bytes) -> Module:
    """Decode an HloModuleProto, or an HloProto that wraps one, gzipped or not.

    Raises `HloError` with the reason for anything malformed.
    """
    if data.startswith(_GZIP_MAGIC):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise HloError(f"damaged gzip file: {error}") from error
    if not data:
        raise HloError("an empty HLO proto; dump the module again")
    fields = _module_fields(data)
    computations: dict[int, Computation] = {}
    shapes = _Shapes()
    for raw in fields.get("computations", ()):
        computation = _computation(raw, shapes)
        computations[computation.id] = computation
    _name_combiners(computations)
    module = Module(
        name=fields.get("name", ""),
        entry_id=fields.get("entry_id", 0),
        computations=computations,
        donated=frozenset(_donated(fields)),
        aliases=tuple(_aliases(fields)),
    )
    _check(module)
    return module


def _name_combiners(computations: dict[int, Computation]) -> None:
    """Set `Attributes.combiner` where the called computation is one op on its two parameters."""
    for computation in computations.values():
        for instruction in computation.instructions:
            called = computations.get(instruction.called[-1]) if instruction.called else None
            if instruction.opcode in _COMBINING and called is not None:
                *parameters, root = called.instructions or (instruction,)
                is_one_op = all(p.opcode == "parameter" for p in parameters)
                if is_one_op and len(parameters) == 2:
                    combined = replace(instruction.attributes, combiner=root.opcode)
                    instruction.attributes = combined


def _module_fields(data: bytes) -> dict[str, Any]:
    # In a wrapper, field 1 is the module, whose own field 3 holds computations; in a module it is a name.
    try:
        fields = parse(data, schema.MODULE)
    except HloError:
        fields = {}
    if any(computation.get("instructions") for computation in fields.get("computations", ())):
        return fields
    inner = parse(data, schema.WRAPPER).get("module", b"")
    fields = parse(inner, schema.MODULE) if inner else {}
    if not fields.get("computations"):
        raise HloError(
            "no HLO module in this proto: no computations; pass an HloProto or HloModuleProto"
        )
    return fields


def _donated(fields: dict[str, Any]) -> list[int]:
    entries = fields.get("aliases", {}).get("entries", [])
    entries = entries + fields.get("donors", {}).get("entries", [])
    return [entry.get("parameter_number", 0) for entry in entries]


def _aliases(fields: dict[str, Any]) -> list[tuple[int, int]]:
    pairs = []
    for entry in fields.get("aliases", {}).get("entries", []):
        index = entry.get("output_shape_index", [])
        if len(index) <= 1:
            pairs.append((index[0] if index else 0, entry.get("parameter_number", 0)))
    return pairs


class _Shapes:
    """Shapes of one module: equal ones are one object."""

    def __init__(self) -> None:
        self.of_record: dict[int, Shape] = {}

    def read(self, raw: dict[str, Any]) -> Shape:
        """The shape of a record, which must outlive this object."""
        known = self.of_record.get(id(raw))
        if known is None:
            known = self.of_record[id(raw)] = _shape(raw)
        return known


def _shape(raw: dict[str, Any]) -> Shape:
    number = raw.get("element_type", 0)
    dtype = schema.ELEMENT_TYPES.get(number)
    if dtype is None:
        raise HloError(
            f"unknown element type {number}; this build of automap is too old for the file"
        )
    dims = tuple(raw.get("dimensions", ()))
    if any(d < 0 for d in dims) or math.prod(dims) > _MAX_ELEMENTS:
        raise HloError(f"impossible dimensions {dims}; dynamic shapes are not supported")
    return Shape(dtype, dims, tuple(_shape(element) for element in raw.get("tuple_shapes", ())))


def _dims(cls: type, raw: dict[str, Any] | None) -> Any:
    """A dimension-number record; lists become tuples, absent fields 0 or ()."""
    if raw is None:
        return None
    values = {}
    for name, kind in cls.__annotations__.items():
        value = raw.get(name, () if "tuple" in str(kind) else 0)
        values[name] = tuple(value) if isinstance(value, list) else value
    return cls(**values)


def _computation(raw: dict[str, Any], shapes: _Shapes) -> Computation:
    instructions = tuple(
        _instruction(i, shapes) for i in _in_program_order(raw.get("instructions", []))
    )
    return Computation(raw.get("id", 0), raw.get("name", ""), instructions, raw.get("root_id", 0))


def _in_program_order(raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Instructions by id, the order in which they were traced, if operands still come first.

    XLA serializes a computation from its root backwards, which puts every weight gradient at the end.
    """
    by_id = sorted(raw, key=lambda i: i.get("id", 0))
    is_ordered = all(o < i.get("id", 0) for i in by_id for o in i.get("operands", ()))
    return by_id if is_ordered else raw


# Fields that every kind of instruction may have; one with no others has no attributes.
_PLAIN = frozenset(
    """name opcode shape op_name literal parameter_number tuple_index dimensions id operands called""".split()
)
_EMPTY_SHAPE: dict[str, Any] = {}


def _instruction(raw: dict[str, Any], shapes: _Shapes) -> Instruction:
    get = raw.get
    opcode = get("opcode", "")
    shape = shapes.read(get("shape", _EMPTY_SHAPE))
    literal = _scalar(get("literal", b""), shape) if opcode == "constant" else None
    has_attributes = opcode in _WITH_NUMBERS or not raw.keys() <= _PLAIN
    return Instruction(
        get("id", 0), get("name", ""), opcode, shape, tuple(get("operands", ())),
        tuple(get("called", ())), get("op_name", ""), get("parameter_number", 0),
        get("tuple_index", 0), tuple(get("dimensions", ())), literal,
        _attributes(opcode, raw) if has_attributes else NO_ATTRIBUTES,
    )  # fmt: skip


def _attributes(opcode: str, raw: dict[str, Any]) -> Attributes:
    get = raw.get
    ragged = get("ragged_dot", {}) if opcode == "ragged-dot" else None
    dot = get("dot", {}) if opcode == "dot" else ragged and ragged.get("dot", {})
    return Attributes(
        window=tuple(_window_dim(d) for d in get("window", {}).get("dimensions", ())),
        conv=_dims(ConvDims, get("conv") if opcode == "convolution" else None),
        dot=_dims(DotDims, dot),
        ragged=_dims(RaggedDims, ragged),
        slices=tuple(
            SliceDim(d.get("start", 0), d.get("limit", 0), d.get("stride", 0) or 1)
            for d in get("slice_dims", ())
        ),
        padding=tuple(
            PadDim(d.get("low", 0), d.get("high", 0), d.get("interior", 0))
            for d in get("padding", {}).get("dimensions", ())
        ),
        fft_length=tuple(get("fft_length", ())),
        gather=_dims(GatherDims, get("gather", {}) if opcode == "gather" else None),
        gather_slice_sizes=tuple(get("gather_slice_sizes", ())),
        scatter=_dims(ScatterDims, get("scatter", {}) if opcode == "scatter" else None),
        feature_group_count=get("feature_group_count", 0) or 1,
        batch_group_count=get("batch_group_count", 0) or 1,
        custom_call_target=get("custom_call_target", ""),
        comparison_direction=get("comparison_direction", ""),
        is_sharded_by_user=get("sharding", False),
        groups=_groups(raw) if opcode in COLLECTIVE_OPCODES else None,
        channel_id=get("channel_id", 0),
        trip_count=_known_trip_count(get("backend_config", b"")) if opcode == "while" else None,
    )


def _groups(raw: dict[str, Any]) -> Groups | None:
    pairs = raw.get("source_target_pairs")
    if pairs:
        return tuple((pair.get("source", 0), pair.get("target", 0)) for pair in pairs)
    return read_groups(raw)


def _known_trip_count(backend_config: bytes) -> int | None:
    # JSON on CPU and GPU; other backends keep their own binary format here.
    try:
        count = json.loads(backend_config)["known_trip_count"]["n"]
        return max(int(count), 0)
    except (ValueError, KeyError, TypeError):
        return None


def _window_dim(raw: dict[str, Any]) -> WindowDim:
    get = raw.get
    return WindowDim(
        get("size", 0), get("stride", 0) or 1, get("padding_low", 0), get("padding_high", 0),
        get("window_dilation", 0) or 1, get("base_dilation", 0) or 1, bool(get("reversal", 0)),
    )  # fmt: skip


def _scalar(literal: bytes, shape: Shape) -> int | float | bool | None:
    if shape.dims or shape.dtype == "tuple":
        return None
    fields = parse(literal, schema.LITERAL)
    for name in ("s32s", "s64s", "u32s", "u64s", "f32s"):
        if fields.get(name):
            return fields[name][0]
    return bool(fields["preds"][0]) if fields.get("preds") else None


def _check(module: Module) -> None:
    if module.entry_id not in module.computations:
        raise HloError(f"module {module.name!r} has no entry computation; dump it again")
    for computation in module.computations.values():
        known: set[int] = set()
        for instruction in computation.instructions:
            for operand in instruction.operands:
                if operand not in known:
                    raise HloError(
                        f"{instruction.name}: operand {operand} is not defined before it"
                    )
            for called in instruction.called:
                if called not in module.computations:
                    raise HloError(
                        f"{instruction.name}: calls computation {called}, which is missing"
                    )
            known.add(instruction.id)
        if computation.root_id not in known:
            raise HloError(f"computation {computation.name!r}: its root is missing")
    _check_acyclic(module)


def _check_acyclic(module: Module) -> None:
    state: dict[int, bool] = {}  # False while open, True when done
    stack = [(module.entry_id, False)]
    while stack:
        current, leaving = stack.pop()
        if leaving:
            state[current] = True
            continue
        if current in state:
            continue
        state[current] = False
        stack.append((current, True))
        for instruction in module.computations[current].instructions:
            for called in instruction.called:
                if state.get(called) is False:
                    raise HloError(f"{instruction.name}: computations call each other in a circle")
                if called not in state:
                    stack.append((called, False))
