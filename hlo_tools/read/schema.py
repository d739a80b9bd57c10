"""The fields of HloModuleProto that are read, with their numbers (openxla hlo.proto,
xla_data.proto).

Checked against real bytes of JAX 0.10 and 0.12, and what libtpu 0.0.51 keeps in its executables.
Messages that many instructions share, and large ones that few need (literals), are listed as bytes:
what is in them is the message of that name. Of a sharding only its presence is read.
"""

from hlo_tools.read.messages import Message


SHAPE = Message(
    element_type=(2, int), dimensions=(3, [int]), layout=(5, Message(memory_space=(8, int)))
)
SHAPE.fields["tuple_shapes"] = (4, [SHAPE])

DOT = Message(
    lhs_contracting=(1, [int]),
    rhs_contracting=(2, [int]),
    lhs_batch=(3, [int]),
    rhs_batch=(4, [int]),
)
RAGGED_DOT = Message(dot=(1, DOT), lhs_ragged=(2, [int]), rhs_group=(3, [int]))
_WINDOW_DIM = Message(
    size=(1, int),
    stride=(2, int),
    padding_low=(3, int),
    padding_high=(4, int),
    window_dilation=(5, int),
    base_dilation=(6, int),
    reversal=(7, int),
)
WINDOW = Message(dimensions=(1, [_WINDOW_DIM]))
CONV = Message(
    kernel_input_feature=(3, int),
    kernel_output_feature=(4, int),
    kernel_spatial=(6, [int]),
    input_batch=(7, int),
    input_feature=(8, int),
    input_spatial=(11, [int]),
    output_batch=(9, int),
    output_feature=(10, int),
    output_spatial=(12, [int]),
)
GATHER = Message(
    offset_dims=(1, [int]),
    collapsed_slice_dims=(2, [int]),
    start_index_map=(3, [int]),
    index_vector_dim=(4, int),
    operand_batching_dims=(5, [int]),
    start_indices_batching_dims=(6, [int]),
)
SCATTER = Message(
    update_window_dims=(1, [int]),
    inserted_window_dims=(2, [int]),
    scatter_dims_to_operand_dims=(3, [int]),
    index_vector_dim=(4, int),
    input_batching_dims=(5, [int]),
    scatter_indices_batching_dims=(6, [int]),
)
PRECISION = Message(operands=(1, [int]))
SLICE_DIM = Message(start=(1, int), limit=(2, int), stride=(3, int))
_PAD_DIM = Message(low=(1, int), high=(2, int), interior=(3, int))
PADDING = Message(dimensions=(1, [_PAD_DIM]))
LITERAL = Message(
    preds=(2, [int]),
    s32s=(4, [int]),
    s64s=(5, [int]),
    u32s=(6, [int]),
    u64s=(7, [int]),
    f32s=(8, [float]),
)

_IOTA = Message(groups=(1, int), size=(2, int), reshape=(3, [int]), transpose=(4, [int]))
_GROUP = Message(ids=(1, [int]))
_DEVICE_LIST = Message(groups=(1, [_GROUP]), iota=(2, _IOTA))
_MESH = Message(
    axes=(1, [Message(size=(2, int))]),
    devices=(2, [int]),
    iota=(3, Message(reshape=(1, [int]), transpose=(2, [int]))),
)
_AXIS_PART = Message(pre_size=(1, int), size=(2, int))
_AXIS = Message(axis=(1, int), part=(2, _AXIS_PART))
_MESH_AXES = Message(mesh=(1, _MESH), axes=(2, [_AXIS]))
_PAIR = Message(source=(1, int), target=(2, int))

# A map of protobuf is a list of pairs.
FRONTEND_ATTRIBUTES = Message(map=(1, [Message(key=(1, bytes), value=(2, bytes))]))

INSTRUCTION = Message(
    name=(1, bytes),
    opcode=(2, bytes),
    shape=(3, bytes),
    metadata=(7, Message(op_name=(2, bytes))),
    literal=(8, bytes),
    parameter_number=(9, int),
    tuple_index=(13, int),
    dimensions=(14, [int]),
    window=(15, bytes),
    conv=(16, bytes),
    slice_dims=(17, [bytes]),
    padding=(21, bytes),
    channel_id=(26, int),
    custom_call_target=(28, bytes),
    dot=(30, bytes),
    fft_length=(32, [int]),
    gather=(33, bytes),
    gather_slice_sizes=(34, [int]),
    id=(35, int),
    operands=(36, [int]),
    called=(38, [int]),
    sharding=(40, bytes),
    backend_config=(43, bytes),
    scatter=(48, bytes),
    replica_groups=(49, [_GROUP]),
    feature_group_count=(50, int),
    precision=(51, bytes),
    source_target_pairs=(52, [_PAIR]),
    batch_group_count=(58, int),
    comparison_direction=(63, bytes),
    frontend_attributes=(68, bytes),
    device_list=(87, _DEVICE_LIST),
    ragged_dot=(90, bytes),
    iota_groups=(92, _IOTA),
    mesh_axes_groups=(93, _MESH_AXES),
    shared_config=(99, Message(index=(2, int))),
)
_COMPUTATION = Message(
    name=(1, bytes), instructions=(2, [INSTRUCTION]), id=(5, int), root_id=(6, int)
)
_ALIAS = Message(output_shape_index=(1, [int]), parameter_number=(2, int))
_DONOR = Message(parameter_number=(1, int))
# A map again. In compiled programs instructions stand in another order
# than they run in: operands before users in the proto, as they run in the schedule.
_SEQUENCE = Message(computation_id=(1, int), sequence=(2, Message(instruction_ids=(1, [int]))))
MODULE = Message(
    name=(1, bytes),
    computations=(3, [_COMPUTATION]),
    entry_id=(6, int),
    schedule=(7, Message(sequences=(1, [_SEQUENCE]))),
    aliases=(8, Message(entries=(1, [_ALIAS]))),
    donors=(18, Message(entries=(1, [_DONOR]))),
    shared_configs=(22, [bytes]),
)
# What --xla_dump_hlo_as_proto writes: the module in field 1 of a wrapper.
WRAPPER = Message(module=(1, bytes))

# PrimitiveType of xla_data.proto.
ELEMENT_TYPES: dict[int, str] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
    10: "f16", 11: "f32", 12: "f64", 13: "tuple", 14: "opaque", 15: "c64", 16: "bf16", 17: "token",
    18: "c128", 19: "f8e5m2", 20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz",
    24: "f8e5m2fnuz", 25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4",
    30: "s1", 31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu",
}  # fmt: skip
