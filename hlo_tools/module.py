"""HLO modules as data classes; `hlo_tools.read.proto` makes them.

Instances are not frozen only because tens of thousands are built; nothing changes them.
"""

from dataclasses import dataclass, field


# Partition numbers that a collective joins, or (source, target) pairs.
Groups = tuple[tuple[int, ...], ...]


DEVICE_SPACE = 0
"""The number of a device's own memory, on GPUs and TPUs."""
CHIP_SPACE = 1
"""The number of a TPU's memory on the chip."""
HOST_SPACE = 5
"""The number of the host's memory, on GPUs and TPUs."""


@dataclass(slots=True)
class Shape:
    """Element type (HLO name, lower case) and dimensions, or the elements of a tuple.

    `memory_space` is the compiler's number of the memory that an array of a compiled program is in:
    `DEVICE_SPACE`, `HOST_SPACE`, `CHIP_SPACE` of TPUs, or another that nothing here asks for.
    """

    dtype: str
    dims: tuple[int, ...]
    elements: tuple["Shape", ...] = ()
    memory_space: int = DEVICE_SPACE


@dataclass(frozen=True, slots=True)
class WindowDim:
    """One dimension of a window; strides and dilations are 1 where there is none."""

    size: int
    stride: int
    padding_low: int
    padding_high: int
    window_dilation: int
    base_dilation: int
    reversal: bool


@dataclass(frozen=True, slots=True)
class ConvDims:
    """Which dimension of each tensor of a convolution is what."""

    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DotDims:
    """Contracting and batch dimensions of a dot."""

    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatherDims:
    """Dimension numbers of a gather."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ScatterDims:
    """Dimension numbers of a scatter."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RaggedDims:
    """What makes a dot ragged: the ragged dimensions of its left side, the group dimensions of its
    right.
    """

    lhs_ragged: tuple[int, ...]
    rhs_group: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SliceDim:
    """Elements start, start + stride, ... before limit of one dimension."""

    start: int
    limit: int
    stride: int


@dataclass(frozen=True, slots=True)
class PadDim:
    """Elements added before, after and between those of one dimension; negative ones are cut
    off.
    """

    low: int
    high: int
    interior: int


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Which pairs of positions cuDNN's attention reads: `window` keys up to a query's own, 0 for
    all; none after it if it is causal.
    """

    is_causal: bool
    window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """What only some opcodes have; fields that do not belong to an opcode are empty.

    `groups` are the devices a collective joins (source and target for a permute), None for all;
    `channel_id` is its number, 0 if it has none. `combiner` is the opcode that a reduction, window
    or scatter combines two elements with, "" if it is more than one op. `precision` is the highest
    that is asked for an operand of a product: 0 what the backend likes, 1 high, 2 highest.
    `trip_count` is what XLA found out about a `while`, None if nothing; `attention` is the mask of
    cuDNN's. `memory` is that which a custom call puts its result in, "" if it names none.
    """

    window: tuple[WindowDim, ...] = ()
    conv: ConvDims | None = None
    dot: DotDims | None = None
    ragged: RaggedDims | None = None
    slices: tuple[SliceDim, ...] = ()
    padding: tuple[PadDim, ...] = ()
    fft_length: tuple[int, ...] = ()
    gather: GatherDims | None = None
    gather_slice_sizes: tuple[int, ...] = ()
    scatter: ScatterDims | None = None
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: int = 0
    custom_call_target: str = ""
    combiner: str = ""
    comparison_direction: str = ""
    is_sharded_by_user: bool = False
    groups: Groups | None = None
    channel_id: int = 0
    trip_count: int | None = None
    attention: AttentionMask | None = None
    memory: str = ""


NO_ATTRIBUTES = Attributes()


@dataclass(slots=True)
class Instruction:
    """One HLO instruction. `literal` is the value of a scalar constant; other literals are not
    read.
    """

    id: int
    name: str
    opcode: str
    shape: Shape
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    parameter_number: int
    tuple_index: int
    # Reduced, broadcast, permuted, ..., as the opcode has it.
    dimensions: tuple[int, ...]
    literal: int | float | bool | None
    attributes: Attributes


@dataclass(slots=True)
class Computation:
    """A named list of instructions, operands before users."""

    id: int
    name: str
    instructions: tuple[Instruction, ...]
    root_id: int


@dataclass(slots=True)
class Module:
    """A whole program. `aliases` are (flat output index, parameter number) pairs.

    `schedule` has the instructions' ids of each computation in the order in which they run, by the
    computation's id; nothing for a program that is not compiled.
    """

    name: str
    entry_id: int
    computations: dict[int, Computation]
    # Parameter numbers; XLA chooses what takes the place of those that are in no alias.
    donated: frozenset[int]
    aliases: tuple[tuple[int, int], ...]
    schedule: dict[int, tuple[int, ...]] = field(default_factory=dict)
