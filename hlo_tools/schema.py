"""The fields of HloModuleProto that are read, with their numbers (openxla hlo.proto, xla_data.proto).

Checked against real bytes of JAX 0.10 and 0.12.  Large literals are not listed, so they are skipped.
"""

from hlo_tools.wire import Field, Table


def _table(**fields: tuple[object, ...]) -> Table:
    table: dict[int, Field] = {}
    for name, (number, kind, *inner) in fields.items():
        table[number] = Field(name, kind, inner[0] if inner else None)  # pyright: ignore
    return Table(table)


SHAPE = _table(element_type=(2, "int"), dimensions=(3, "ints"))
SHAPE.add(4, Field("tuple_shapes", "messages", SHAPE))

_DOT = _table(
    lhs_contracting=(1, "ints"),
    rhs_contracting=(2, "ints"),
    lhs_batch=(3, "ints"),
    rhs_batch=(4, "ints"),
)
_WINDOW_DIM = _table(
    size=(1, "int"), stride=(2, "int"), padding_low=(3, "int"), padding_high=(4, "int"),
    window_dilation=(5, "int"), base_dilation=(6, "int"), reversal=(7, "int"),
)  # fmt: skip
_CONV = _table(
    kernel_input_feature=(3, "int"), kernel_output_feature=(4, "int"), kernel_spatial=(6, "ints"),
    input_batch=(7, "int"), input_feature=(8, "int"), input_spatial=(11, "ints"),
    output_batch=(9, "int"), output_feature=(10, "int"), output_spatial=(12, "ints"),
)  # fmt: skip
_GATHER = _table(
    offset_dims=(1, "ints"), collapsed_slice_dims=(2, "ints"), start_index_map=(3, "ints"),
    index_vector_dim=(4, "int"), operand_batching_dims=(5, "ints"),
    start_indices_batching_dims=(6, "ints"),
)  # fmt: skip
_SCATTER = _table(
    update_window_dims=(1, "ints"), inserted_window_dims=(2, "ints"),
    scatter_dims_to_operand_dims=(3, "ints"), index_vector_dim=(4, "int"),
    input_batching_dims=(5, "ints"), scatter_indices_batching_dims=(6, "ints"),
)  # fmt: skip
_LITERAL = _table(
    preds=(2, "ints"), s32s=(4, "ints"), s64s=(5, "ints"), u32s=(6, "ints"), u64s=(7, "ints"),
    f32s=(8, "floats"),
)  # fmt: skip
_IOTA = _table(groups=(1, "int"), size=(2, "int"), reshape=(3, "ints"), transpose=(4, "ints"))
_GROUP = _table(ids=(1, "ints"))
_DEVICE_LIST = _table(groups=(1, "messages", _GROUP), iota=(2, "message", _IOTA))
_MESH = _table(
    axes=(1, "messages", _table(size=(2, "int"))), devices=(2, "ints"),
    iota=(3, "message", _table(reshape=(1, "ints"), transpose=(2, "ints"))),
)  # fmt: skip
_AXIS_PART = _table(pre_size=(1, "int"), size=(2, "int"))
_AXIS = _table(axis=(1, "int"), part=(2, "message", _AXIS_PART))
_MESH_AXES = _table(mesh=(1, "message", _MESH), axes=(2, "messages", _AXIS))
_PAIR = _table(source=(1, "int"), target=(2, "int"))
_SLICE_DIM = _table(start=(1, "int"), limit=(2, "int"), stride=(3, "int"))
_PAD_DIM = _table(low=(1, "int"), high=(2, "int"), interior=(3, "int"))

INSTRUCTION = _table(
    name=(1, "text"), opcode=(2, "text"), shape=(3, "shared", SHAPE),
    op_name=(7, "inner", _table(op_name=(2, "text"))), literal=(8, "bytes"),
    parameter_number=(9, "int"), tuple_index=(13, "int"), dimensions=(14, "ints"),
    window=(15, "shared", _table(dimensions=(1, "messages", _WINDOW_DIM))),
    conv=(16, "shared", _CONV), slice_dims=(17, "messages", _SLICE_DIM),
    dynamic_slice_sizes=(20, "ints"),
    padding=(21, "message", _table(dimensions=(1, "messages", _PAD_DIM))),
    channel_id=(26, "int"), custom_call_target=(28, "text"), dot=(30, "shared", _DOT), fft_length=(32, "ints"),
    gather=(33, "shared", _GATHER), gather_slice_sizes=(34, "ints"), id=(35, "int"),
    operands=(36, "ints"), called=(38, "ints"), sharding=(40, "present"),
    backend_config=(43, "bytes"), scatter=(48, "shared", _SCATTER),
    replica_groups=(49, "messages", _GROUP), feature_group_count=(50, "int"),
    source_target_pairs=(52, "messages", _PAIR), batch_group_count=(58, "int"),
    comparison_direction=(63, "text"), k=(81, "int"), device_list=(87, "message", _DEVICE_LIST),
    iota_groups=(92, "message", _IOTA), mesh_axes_groups=(93, "message", _MESH_AXES),
    ragged_dot=(
        90, "message",
        _table(dot=(1, "message", _DOT), lhs_ragged=(2, "ints"), rhs_group=(3, "ints")),
    ),
)  # fmt: skip
LITERAL = _LITERAL
_COMPUTATION = _table(
    name=(1, "text"), instructions=(2, "messages", INSTRUCTION), id=(5, "int"), root_id=(6, "int")
)
_ALIASES = _table(
    entries=(1, "messages", _table(output_shape_index=(1, "ints"), parameter_number=(2, "int")))
)
MODULE = _table(
    name=(1, "text"), entry_id=(6, "int"), computations=(3, "messages", _COMPUTATION),
    aliases=(8, "message", _ALIASES),
    donors=(18, "message", _table(entries=(1, "messages", _table(parameter_number=(2, "int"))))),
)  # fmt: skip
# What --xla_dump_hlo_as_proto writes: the module in field 1 of a wrapper.
WRAPPER = _table(module=(1, "bytes"))

# PrimitiveType of xla_data.proto.
ELEMENT_TYPES: dict[int, str] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
