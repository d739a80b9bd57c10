"""Arrays in tiles: how far they are padded, and in which order their dimensions lie.

The memory holds tiles of R x 128 numbers, R = 8 or fewer for few rows (`TileNumbers.small_rows`).
With dimension m minor and s next to it an array takes

    padded(m, s) / whole = ceil128(d_m) / d_m * ceilR(d_s) / d_s

The compiler chooses the order of dimensions. The step's inputs and results, and what products,
reductions and sorts make, take the order that pads least; what look-ups and scatters of rows make
lies by rows, the last dimension minor, and so does what is computed element by element of such
arrays alone                                                              -> in: `lies_by_row`
The dimension along which a loop cuts its parts stays the major one. So do those of a batch of
products: what it makes is matrices, and so is what is made of them element by element, whatever
tiles of few rows or columns they leave empty. Of what a convolution of images or videos
makes, and what is pooled of that, features or the batch are minor, never a dimension of space: 16
images of 32 features take four times their bytes                         -> in: `_major_dims`

A table of narrow rows lies by columns where that saves enough, by its sizes on a device; then
what is looked up in it and added to it does too
                                       -> in: `automap.backends.xla_tpu.table_uses.lies_by_column`

What operations need beside these arrays is in `automap.backends.xla_tpu.workspaces`.
Seen in programs of libtpu 0.0.51 for v5e, of steps of the first half of `scripts.memory_steps`.
"""

from collections.abc import Sequence
import math
from typing import Final

import numpy as np

from automap.backends.arrays import ArrayOrders, ArrayParts, DimOrder, TableSizes
from automap.backends.fitted import TileNumbers
from automap.backends.xla_tpu.table_uses import lies_by_column, side, up
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    AT_RUN_TIME_OFFSET,
    CONVOLUTION,
    CUSTOM_CALL,
    DOT,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    GATHER,
    LOOP_ENTER,
    LOOP_EXIT,
    RESHAPE,
    SCATTER,
    SELECT_AND_SCATTER,
    TRANSPOSE,
)


_LANES: Final = 128
_ROWS: Final = 8
"""Numbers of a tile along the minor dimension, and along the one next to it."""
_POOLS: Final = frozenset({"reduce-window", SELECT_AND_SCATTER})
# Sequences, of one dimension, were not looked at.
_FEWEST_IN_SPACE: Final = 2


def is_by_row(op: Op) -> bool:
    """Whether an op looks up or adds whole rows; single numbers are found in any order."""
    attributes = op.instruction.attributes
    if op.opcode == GATHER:
        return bool(attributes.gather and attributes.gather.offset_dims)
    return op.opcode == SCATTER and bool(
        attributes.scatter and attributes.scatter.update_window_dims
    )


def lies_by_row(graph: Graph) -> list[bool]:
    """Whether each value is there by rows; of inputs, whether there is a copy by rows."""
    rows = [False] * len(graph.values)
    for value in graph.inputs:
        rows[value] = any(is_by_row(graph.ops[i]) for i in graph.users[value])
    for op in graph.ops:
        if op.opcode == CUSTOM_CALL or is_by_row(op):
            is_made = True
        elif op.opcode in ELEMENTWISE:
            alike = alike_operands(graph, op)
            is_made = bool(alike) and all(rows[v] for v in alike)
        else:
            continue
        for value in op.outputs:
            rows[value] = is_made
    return rows


def alike_operands(graph: Graph, op: Op) -> list[int]:
    """The operands of an elementwise op that are data and as large as its result."""
    dims = graph.values[op.outputs[0]].dims
    return [v for v in op.inputs if graph.varies[v] and graph.values[v].dims == dims]


def table_sizes(graph: Graph, op: Op) -> TableSizes:
    """The table of an op that looks rows up in it, or adds some, for what is looked up or added."""
    rows = math.prod(graph.values[op.inputs[0]].dims[:-1])
    if op.opcode == GATHER:
        return TableSizes(rows)
    added = graph.values[op.inputs[-1]].dims
    return TableSizes(rows, math.prod(added) // max(added[-1], 1))


def _tables(graph: Graph, rows: Sequence[bool]) -> list[TableSizes | None]:
    """The table that decides whether each value lies by rows, of those that may."""
    tables: list[TableSizes | None] = [None] * len(graph.values)
    for op in graph.ops:
        if is_by_row(op):
            sizes = table_sizes(graph, op)
            # What a scatter makes is the table.
            made = sizes if op.opcode == GATHER else TableSizes(updates=sizes.updates)
        elif op.opcode in ELEMENTWISE and rows[op.outputs[0]]:
            alike = (tables[v] for v in alike_operands(graph, op))
            made = next((table for table in alike if table), None)
        else:
            continue
        for value in op.outputs:
            tables[value] = made
    return tables


class TiledArrays:
    """The arrays of a memory that holds tiles."""

    def orders(self, graph: Graph) -> ArrayOrders:
        """By rows is what look-ups make, and what is computed element by element of that alone."""
        rows = lies_by_row(graph)
        order = [DimOrder.ROWS if is_by_row else DimOrder.COMPACT for is_by_row in rows]
        # The caller's arrays are compact, also those of which there is a copy by rows.
        for value in (*graph.inputs, *graph.outputs):
            order[value] = DimOrder.COMPACT
        major = _major_dims(graph)
        for value in graph.outputs:
            producer = graph.values[value].producer
            # What a product makes by matrices is turned to a result.
            if producer >= 0 and graph.ops[producer].opcode == DOT:
                major[value] = frozenset()
        return ArrayOrders(order, major, _tables(graph, rows))

    def lengthening(self, parts: ArrayParts, numbers: TileNumbers, memory_bytes: int) -> np.ndarray:
        """See `automap.backends.arrays.Arrays`."""
        dims, order, is_major = parts.dims, parts.order, parts.is_major
        lanes = np.ceil(dims / _LANES) * _LANES / dims
        rows = _tile_rows(dims, parts.item_bytes, numbers)
        by_rows = lanes[:, -1] * np.where(dims[:, -2] > 1, rows[:, -2], 1.0)
        compact = np.minimum(_compact(dims, lanes, rows, is_major), by_rows)
        # Rows of one number are a vector, in whichever order.
        by_rows = np.where(dims[:, -1] == 1, compact, by_rows)
        by_rows = np.where(_is_by_column(parts, numbers, memory_bytes), compact, by_rows)
        result = np.where(order == DimOrder.ROWS, by_rows, compact)
        result = np.where(order == DimOrder.ROWS_BESIDE, by_rows, result)
        # A copy is made only where the compact order is another one.
        is_same = np.isin(order, (DimOrder.ROWS_BESIDE, DimOrder.COMPACT_BESIDE))
        is_same &= by_rows <= compact
        matrices = order == DimOrder.MATRICES_BESIDE
        if matrices.any():
            free = _compact(dims, lanes, rows, np.zeros_like(is_major))
            is_same |= matrices & (compact <= np.minimum(free, by_rows))
        return np.where(is_same, 0.0, result)


def _is_by_column(parts: ArrayParts, numbers: TileNumbers, memory_bytes: int) -> np.ndarray:
    """Whether arrays lie by columns, as their tables do; [arrays]."""
    result = parts.updates >= 0
    if result.any():
        at = np.flatnonzero(result)
        own_rows, width = parts.dims[at, :-1].prod(axis=1), parts.dims[at, -1]
        rows = np.where(parts.table_rows[at] > 0, parts.table_rows[at], own_rows)
        size, updates = parts.item_bytes[at], parts.updates[at]
        result[at] = lies_by_column(rows, width, size, updates, numbers, memory_bytes)
    return result


def _tile_rows(dims: np.ndarray, item_bytes: np.ndarray, numbers: TileNumbers) -> np.ndarray:
    """By how much each dimension grows if it is the one next to the minor one."""
    full = np.ceil(dims / _ROWS) * _ROWS
    for n_bytes in np.unique(item_bytes).tolist():
        # The greatest first, so that the smallest that holds all rows is left.
        for small in sorted(numbers.small_rows(n_bytes), reverse=True):
            full = np.where((item_bytes == n_bytes)[:, None] & (dims <= small), small, full)
    return full / dims


def _compact(
    dims: np.ndarray, lanes: np.ndarray, rows: np.ndarray, is_major: np.ndarray
) -> np.ndarray:
    """The least product of one dimension's `lanes` and another one's `rows`, [arrays]."""
    is_out = (dims == 1) | is_major
    lanes, rows = np.where(is_out, np.inf, lanes), np.where(is_out, np.inf, rows)
    count = dims.shape[1]
    best = np.full(len(dims), np.inf)
    for minor in range(count):
        others = np.delete(rows, minor, axis=1).min(axis=1)
        # A vector has no dimension beside the minor one.
        best = np.minimum(best, lanes[:, minor] * np.where(np.isinf(others), 1.0, others))
    return best


def minor_dims(dims: Sequence[int]) -> tuple[int, int]:
    """The minor dimension of a whole array in the order that pads least, and the one next to it;
    of equally good ones the last, as a program has them. -1 for those that there are not.
    """
    long = [at for at in reversed(range(len(dims))) if dims[at] > 1]
    if len(long) < 2:
        return (long[0] if long else -1), -1
    sizes = np.array(dims)
    lanes, rows = up(sizes, _LANES) / sizes, side(sizes) / sizes
    pairs = ((minor, second) for minor in long for second in long if minor != second)
    return min(pairs, key=lambda pair: lanes[pair[0]] * rows[pair[1]])


def _major_dims(graph: Graph) -> list[frozenset[int]]:
    """Dimensions of each value that cannot be minor: those that loops cut, batches, and those of
    space.
    """
    major = [frozenset[int]()] * len(graph.values)
    for op in graph.ops:
        result = op.outputs[0] if op.outputs else -1
        if op.opcode == DOT:
            major[result] = product_batch(graph, op)
        elif op.opcode == CONVOLUTION:
            major[result] = _space_dims(op)
        elif op.opcode in _POOLS:
            major[result] = major[op.inputs[0]]
        elif op.opcode == TRANSPOSE:
            moved = enumerate(op.instruction.dimensions)
            major[result] = frozenset(at for at, dim in moved if dim in major[op.inputs[0]])
        elif op.opcode == RESHAPE:
            major[result] = _without_ones(graph, op, major[op.inputs[0]])
        elif op.opcode in ELEMENTWISE:
            alike = (v for v in op.inputs if graph.values[v].dims == graph.values[result].dims)
            major[result] = next((major[v] for v in alike if major[v]), frozenset())
        elif op.opcode in AT_RUN_TIME_OFFSET:
            # Places of a cache, along another one, may lie side by side.
            cut = _cut_dim(graph, op.inputs[0], op.inputs[1])
            whole = frozenset([cut] if cut == 0 else [])
            is_update = op.opcode == DYNAMIC_UPDATE_SLICE
            whole |= major[op.inputs[1 if is_update else 0]]
            major[op.inputs[0]] = major[result] = whole
        elif op.opcode in (LOOP_ENTER, LOOP_EXIT):
            for value, carried in zip(op.inputs, op.outputs):
                major[carried] = major[value]
    return major


def _space_dims(convolution: Op) -> frozenset[int]:
    """Dimensions of a convolution's result that its windows go along, of images and videos."""
    dims = convolution.instruction.attributes.conv
    if dims is None or len(dims.output_spatial) < _FEWEST_IN_SPACE:
        return frozenset()
    return frozenset(dims.output_spatial)


def product_batch(graph: Graph, product: Op) -> frozenset[int]:
    """The dimensions of a product's result that count its matrices; none if these are vectors."""
    numbers = product.instruction.attributes.dot
    dims = graph.values[product.outputs[0]].dims
    count = len(numbers.lhs_batch) if numbers else 0
    return frozenset(range(count)) if sum(d > 1 for d in dims[count:]) > 1 else frozenset()


def _without_ones(graph: Graph, reshape: Op, major: frozenset[int]) -> frozenset[int]:
    """The same dimensions where a reshape adds or drops some of one element only, else none."""
    before, after = (
        [at for at, size in enumerate(graph.values[v].dims) if size > 1]
        for v in (reshape.inputs[0], reshape.outputs[0])
    )
    sizes = [graph.values[v].dims for v in (reshape.inputs[0], reshape.outputs[0])]
    if [sizes[0][at] for at in before] != [sizes[1][at] for at in after]:
        return frozenset()
    return frozenset(new for old, new in zip(before, after) if old in major)


def _cut_dim(graph: Graph, whole: int, part: int) -> int:
    """The dimension that a part is shorter in than the whole; -1 for several or none."""
    sizes = zip(graph.values[whole].dims, graph.values[part].dims)
    shorter = [d for d, (a, b) in enumerate(sizes) if a != b]
    return shorter[0] if len(shorter) == 1 else -1
