"""What operations of a TPU's programs need in memory beside their operands and results.

    sort, top-k     run along a dimension that is not the minor one and in place of copies: each
                    operand that is sorted along its last dimension is copied in another order,
                    which is the place of a result that nobody reads; what is no operand yet, the
                    places of a stable sort, is written first
    cumulative      a window over all of a dimension wants that one outside of the tiles. What lies
                    otherwise is copied, into full blocks of 128, and so is the result; sums within
                    blocks are an array as large
    transforms      a Fourier transform holds two complex arrays of its whole length: what it is
                    given and makes is among them, where that is complex and the step's own
    look-ups        an input that rows are looked up in or added to is copied by rows, if its
                    compact order is another one; the copy serves all that reads it later. What is
                    looked up is there by rows before it is a result of the step
    scatters        what they add is copied by rows while they do. Equal numbers are written before
                    they are added
    products        of a batch of matrices that lie otherwise read copies, in bfloat16, and a result
                    of the step that they make is turned behind them
    strides         a dimension of which slices take every n-th row, as in an associative scan,
                    lies outside of the tiles: an input of the step is copied to that order
    mixed orders    of operands of an elementwise op some of which lie by rows, those are copied

Seen in programs of libtpu 0.0.51 for v5e, of steps of the first half of `scripts.memory_steps` and
of single operations of other sizes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
import math
from typing import Final

from automap.backends.arrays import (
    DimOrder,
    OpScratch,
    Scratch,
    complex_bytes,
    item_bytes,
    scratch_by_opcode,
    whole_side,
)
from automap.backends.xla_tpu.tiled_arrays import (
    alike_operands,
    is_by_row,
    lies_by_row,
    minor_dims,
    product_batch,
    table_sizes,
)
from hlo_tools.analyses.liveness import one_number_rows
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import DOT, ELEMENTWISE, FFT, GATHER, SCATTER, SORT, TOP_K


# Numbers of 32 bits, whatever is sorted.
_PLACE_BYTES: Final = 4
# So many of the greatest are found without sorting, in registers.
_MOST_IN_REGISTERS: Final = 16
_LEAST_IN_ROW: Final = 128
# Of a sum within which there are no blocks.
_BLOCK: Final = 128
# Of numbers as the matrix unit takes them.
_PRODUCT_BYTES: Final = 2


def scratch(graph: Graph) -> list[Scratch]:
    """Of all operations of a program."""
    workspaces = scratch_by_opcode(graph, _WORKSPACES)
    return [*workspaces, *_row_copies(graph), *_strided_copies(graph), *_mixed_orders(graph)]


def _row_copies(graph: Graph) -> Iterator[Scratch]:
    for value in graph.inputs:
        readers = graph.users[value]
        by_row = [i for i in readers if is_by_row(graph.ops[i])]
        if by_row:
            op = max((graph.ops[i] for i in by_row), key=lambda op: table_sizes(graph, op).updates)
            table, size = table_sizes(graph, op), item_bytes(graph, value)
            # The table itself, and not what is added to it, is as large as a device's part.
            table = replace(table, rows=0) if op.inputs[0] == value else table
            order = DimOrder.ROWS_BESIDE
            yield Scratch(by_row[0], max(readers), value, size, order, table)
    computed_anew, outputs = one_number_rows(graph), set(graph.outputs)
    for index, op in enumerate(graph.ops):
        table = table_sizes(graph, op) if is_by_row(op) else None
        if op.opcode == SCATTER and op.outputs[0] not in computed_anew:
            copied = op.inputs[-1]
            is_copied = graph.values[copied].producer >= 0 and graph.varies[copied]
        else:
            copied = op.outputs[0] if op.opcode == GATHER and table else -1
            is_copied = copied in outputs
        if is_copied:
            size = item_bytes(graph, copied)
            yield Scratch(index, index, copied, size, DimOrder.ROWS_BESIDE, table)


def _strided_copies(graph: Graph) -> Iterator[Scratch]:
    for value in graph.inputs:
        readers = graph.users[value]
        strided = [(i, dims) for i in readers if (dims := _strided_dims(graph.ops[i]))]
        minor = minor_dims(graph.values[value].dims) if strided else ()
        turned = [i for i, dims in strided if not dims.isdisjoint(minor)]
        if turned:
            yield Scratch(turned[0], max(readers), value, item_bytes(graph, value))


def _strided_dims(op: Op) -> frozenset[int]:
    """The dimensions of which a slice takes every n-th row."""
    slices = op.instruction.attributes.slices
    return frozenset(at for at, cut in enumerate(slices) if cut.stride > 1)


def _mixed_orders(graph: Graph) -> Iterator[Scratch]:
    rows = lies_by_row(graph)
    for index, op in enumerate(graph.ops):
        if op.opcode in ELEMENTWISE and not rows[op.outputs[0]]:
            for value in alike_operands(graph, op):
                # What an input has a copy of by rows is there compact too.
                if rows[value] and graph.values[value].producer >= 0:
                    size = item_bytes(graph, value)
                    yield Scratch(index, index, value, size, DimOrder.COMPACT_BESIDE)


def _scatter(graph: Graph, index: int, op: Op) -> list[Scratch]:
    """Of single numbers: those of rows are with the copies by rows."""
    if is_by_row(op) or len(op.outputs) != 1:
        return []
    added = op.inputs[-1]
    return [] if graph.varies[added] else [Scratch(index, index, added, item_bytes(graph, added))]


def _product(graph: Graph, index: int, op: Op) -> list[Scratch]:
    numbers = op.instruction.attributes.dot
    result = []
    for value, batch in zip(op.inputs, (numbers.lhs_batch, numbers.rhs_batch) if numbers else ()):
        producer, dims = graph.values[value].producer, graph.values[value].dims
        is_matrices = sum(size > 1 for at, size in enumerate(dims) if at not in batch) > 1
        # What other operations make is made as it is read.
        is_copied = producer < 0 or graph.ops[producer].opcode in ELEMENTWISE
        if batch and is_matrices and is_copied:
            size, order = min(item_bytes(graph, value), _PRODUCT_BYTES), DimOrder.MATRICES_BESIDE
            copy = Scratch(index, index, value, size, order, major_dims=frozenset(batch))
            result.append(copy)
    made, major = op.outputs[0], product_batch(graph, op)
    if major and made in graph.outputs:
        size, order = item_bytes(graph, made), DimOrder.MATRICES_BESIDE
        result.append(Scratch(index, index, made, size, order, major_dims=major))
    return result


def _sort(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value = op.inputs[0]
    is_last = _sorted_dim(op) == len(graph.values[value].dims) - 1
    result = []
    for operand, made in zip(op.inputs, op.outputs):
        # What is no data, such as places, is nowhere yet.
        if not graph.varies[operand] or (is_last and made not in graph.unread):
            result.append(Scratch(index, index, value, item_bytes(graph, operand)))
    if all(graph.varies[operand] for operand in op.inputs):
        result.append(Scratch(index, index, value, _PLACE_BYTES))
    return result


def _top_k(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value = op.inputs[0]
    length, k = graph.values[value].dims[-1], graph.values[op.outputs[0]].dims[-1]
    copied = Scratch(index, index, value, item_bytes(graph, value))
    if length < _LEAST_IN_ROW:
        return [copied, Scratch(index, index, value, _PLACE_BYTES)]
    return [] if k <= _MOST_IN_REGISTERS else [copied]


def _window(graph: Graph, index: int, op: Op) -> list[Scratch]:
    operand, value = op.inputs[0], op.outputs[0]
    dims, windows = graph.values[value].dims, op.instruction.attributes.window
    whole = [at for at, (w, size) in enumerate(zip(windows, dims)) if w.size == size > 1]
    if len(whole) != 1:
        return []
    length = dims[whole[0]]
    minor, second = minor_dims(dims)
    is_minor, is_long = whole[0] == minor, length > _BLOCK
    # Of two dimensions the one that is not minor is within the tiles in any case.
    is_turned = is_minor or (whole[0] == second and sum(size > 1 for size in dims) > 2)
    is_copied = is_minor or (is_long and length % _BLOCK > 0)
    # What ends here makes room for its copy, and what is computed element by element is written to
    # that order.
    producer = graph.values[operand].producer
    is_computed = producer >= 0 and graph.ops[producer].opcode in ELEMENTWISE
    is_kept = producer < 0 or (max(graph.users[operand]) > index and not is_computed)
    count = (is_long or is_turned) + (is_copied and is_kept)
    return [Scratch(index, index, value, item_bytes(graph, value))] * count


def _fourier(graph: Graph, index: int, op: Op) -> list[Scratch]:
    operand, result, whole = op.inputs[0], op.outputs[0], whole_side(graph, op)
    numbers = math.prod(graph.values[whole].dims)
    n_bytes = 2 * complex_bytes(graph.values[whole].dtype) * numbers
    if graph.values[operand].producer >= 0 and graph.values[operand].dtype in PART_TYPES:
        n_bytes -= graph.values[operand].n_bytes
    if result not in graph.outputs and graph.values[result].dtype in PART_TYPES:
        n_bytes -= graph.values[result].n_bytes
    size = n_bytes // numbers
    return [Scratch(index, index, whole, size)] if size > 0 else []


def _sorted_dim(op: Op) -> int:
    return op.instruction.dimensions[0]


_WORKSPACES: Final[Mapping[str, OpScratch]] = {
    DOT: _product,
    SCATTER: _scatter,
    SORT: _sort,
    TOP_K: _top_k,
    "reduce-window": _window,
    FFT: _fourier,
}
