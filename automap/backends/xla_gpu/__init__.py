"""XLA:GPU with NCCL: collectives on a stream of their own beside kernels.

Its pipeline makes all collectives asynchronous and moves their ends behind independent kernels
(seen in its programs, jax 0.10.2, 2026-11).

Operations that need memory beside their operands and results            -> in: `_WORKSPACES`

    sort           in place of a copy of its operands, together with the places of a stable sort
    top-k          of many, or of short rows, by sorting numbers and places; else a kernel of its
                   own keeps the greatest (`CoreNumbers.keeps_greatest`)
    convolution    the library pads both ends alike: an operand that is padded otherwise is copied
                   with its padding
    ragged-dot     operands whose rows belong to groups, once for each group
    loop           a stack that it reads in another order than it was written in is copied
                                                                     -> in: `.relaid`
                   the zeros that it begins with are there since the first loop that begins with
                   zeros of this type and shape: one kernel writes them all  -> in: `_early_zeros`

Seen in programs of jax 0.10.2 for H100, of steps of the first half of `scripts.memory_steps`. What
the matrix and convolution libraries ask for besides is chosen on the device and not known here.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from automap.backends.arrays import OpScratch, Relaid, Scratch, item_bytes, scratch_by_opcode
from automap.backends.base import Backend, CompiledCollectives
from automap.backends.believed import believed_seconds
from automap.backends.fitted import FittedFile, core_numbers
from automap.backends.xla_gpu.contended import contended_additions
from automap.backends.xla_gpu.nccl import NCCL
from automap.backends.xla_gpu.relaid import relaid_operands, relaid_scratch, relaid_stacks
from automap.backends.xla_tpu import EFFECTS, LIBTPU
from hlo_tools.analyses.flops import ragged_groups, ragged_operands
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.host_memory import host_memory
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONVOLUTION, LOOP_ENTER, OWN_KERNEL, RAGGED_DOT, SORT, TOP_K


_FITTED: Final = FittedFile(folder="xla_gpu", file="defaults.toml")


def _scratch(graph: Graph) -> list[Scratch]:
    """Of all operations of a program."""
    workspaces = scratch_by_opcode(graph, _WORKSPACES)
    return [*workspaces, *relaid_scratch(graph), *_early_zeros(graph)]


def _sort(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value = op.inputs[0]
    # What is no data, such as places, is nowhere yet.
    sizes = [item_bytes(graph, v) for v in op.inputs if not graph.varies[v]]
    if len(op.inputs) == 1:
        sizes.append(core_numbers(_FITTED).place_bytes)
    return [Scratch(index, index, value, size) for size in sizes]


def _top_k(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value, numbers = op.inputs[0], core_numbers(_FITTED)
    length, k = graph.values[value].dims[-1], graph.values[op.outputs[0]].dims[-1]
    if numbers.keeps_greatest(length, k):
        return []
    sizes = (item_bytes(graph, value), numbers.place_bytes)
    return [Scratch(index, index, value, size) for size in sizes]


def _convolution(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value = op.inputs[0]
    if all(w.padding_low == w.padding_high for w in op.instruction.attributes.window):
        return []
    return [Scratch(index, index, value, item_bytes(graph, value))]


def _relaid(graph: Graph) -> list[Relaid]:
    return [*relaid_stacks(graph), *relaid_operands(graph)]


def _early_zeros(graph: Graph) -> Iterator[Scratch]:
    """What loops begin with, before they begin; stacks in the host's memory are nothing here."""
    hosted = host_memory(graph).values
    first = dict[tuple[str, tuple[int, ...]], int]()
    for loop, op in enumerate(graph.ops):
        # What is fused is in one computation: loops in a loop have zeros of their own.
        if op.opcode != LOOP_ENTER or graph.outermost_region[loop] != loop:
            continue
        for value, carried in zip(op.inputs, op.outputs):
            array = graph.values[carried]
            if carried in graph.unread or carried in hosted:
                continue
            if array.dims and graph.varies[carried] and not graph.varies[value]:
                since = first.setdefault((array.dtype, array.dims), loop)
                if since < loop:
                    # Since then the loop's own array is there.
                    yield Scratch(since, loop - 1, carried, item_bytes(graph, carried))


def _ragged_dot(graph: Graph, index: int, op: Op) -> list[Scratch]:
    groups = ragged_groups(graph, op)
    return [
        Scratch(index, index, value, groups * item_bytes(graph, value))
        for value in ragged_operands(op)
    ]


_WORKSPACES: Final[Mapping[str, OpScratch]] = {
    RAGGED_DOT: _ragged_dot,
    SORT: _sort,
    TOP_K: _top_k,
    CONVOLUTION: _convolution,
}


XLA_GPU: Final = Backend(
    name="xla_gpu",
    platform="cuda",
    # The matrix library reads finished operands, and a layer's part of a stack from a copy; it adds
    # to an array that is written over (gemm_rewriter.cc).
    # Priority fusion makes a value part of all its users if the whole is faster so.
    fuser=Fuser(
        loads=OWN_KERNEL,
        results="several",
        products="summed",
        tables="rows",
        slices="copied",
        remade="if all read less",
        lookups="fused",
        # What a product would load must be no larger than its operand (gemm_fusion.cc).
        casts="widening",
        sums="end a pass but in tiles",
        stacks="written apart",
        columns="beside what reads the same",
    ),
    protocols=NCCL,
    compiled=CompiledCollectives(
        merges="into buffers",
        note="the GPU compiler concatenates tensors before it sends them: their number says "
        "nothing",
    ),
    sums="terms first",
    float32_products="float32",
    collectives="beside kernels",
    combines="sums and gathers",
    column_sums="by blocks",
    launches="of arrays",
    registers="no time",
    orders="on cores",
    convolutions="by a library",
    unaligned_products="slower",
    additions="atomic",
    factorizations="by columns",
    # Its combiners go through the body of a loop as through any computation.
    loop_messages="all",
    # What makes arrays larger is not hoisted (while_loop_invariant_code_motion.cc, without
    # `hoist_size_inflating_ops`).
    loop_gathers="in every trip",
    hidden_gathers="none",
    # A loop's stacks are zeros that a kernel of their own writes, also those that it fills whole.
    loop_zeros="all",
    # Measured so on an H100 (docs/reports/levers.md).
    host_copies="in line",
    host_stacks="any order",
    host_state="whole leaves",
    ragged_products="all groups",
    # xla_gpu_dot_merger_threshold_mb.
    merged_product_bytes=64 << 20,
    scattered_products="apart",
    # Layouts are assigned so (gpu_layout_assignment.cc).
    collective_dims="first",
    scattered_sums="beside products",
    # AllReduceSplitter (all_reduce_splitter.cc).
    sliced_sums="apart",
    # all_reduce_folder.cc.
    nested_sums="folded",
    vector_products="as others",
    gathered_state="in place",
    slice_scatters="scatters",
    # A softmax and its gradient are kernels of Triton's, which write over nothing.
    beside_sums="anew",
    layout="rows",
    fitted=_FITTED,
    believed=lambda device: believed_seconds(_FITTED.folder, "believed.toml").get(device.name),
    tiles=LIBTPU,
    effects=EFFECTS,
    scratch=_scratch,
    relaid=_relaid,
    unpriced=contended_additions,
    in_place=frozenset({SORT}),
)
