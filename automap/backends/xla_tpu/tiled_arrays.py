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

Operations need memory beside their operands and results                      -> in: `scratch`

    sort, top-k     run along a dimension that is not the minor one and in place of copies: each
                    operand that is sorted along its last dimension is copied in another order; what
                    is no operand yet, the places of a stable sort, is written first
    cumulative      a window over all of a dimension is computed in blocks of 128: the sums within
                    blocks are an array as large as the result, in another order
    transforms      a Fourier transform holds two complex arrays of its whole length: what it is
                    given and makes is among them, where that is complex and the step's own
    look-ups        an input that rows are looked up in or added to is copied by rows, if its
                    compact order is another one; the copy serves all that reads it later
    scatters        what they add is copied by rows while they do
    mixed orders    of operands of an elementwise op some of which lie by rows, those are copied

Seen in programs of libtpu 0.0.51 for v5e, of steps of the first half of `scripts.memory_steps`.
"""

from collections.abc import Callable, Iterator, Mapping
import math
from typing import Final

import numpy as np

from automap.backends.arrays import (
    ArrayOrders,
    DimOrder,
    Scratch,
    complex_bytes,
    item_bytes,
    whole_side,
)
from automap.backends.fitted import TileNumbers
from hlo_tools.analyses.liveness import one_number_rows
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import (
    AT_RUN_TIME_OFFSET,
    CONVOLUTION,
    CUSTOM_CALL,
    DOT,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    FFT,
    GATHER,
    LOOP_ENTER,
    LOOP_EXIT,
    RESHAPE,
    SCATTER,
    SELECT_AND_SCATTER,
    SORT,
    TOP_K,
    TRANSPOSE,
)


# Numbers of 32 bits, whatever is sorted.
_PLACE_BYTES: Final = 4
# So many of the greatest are found without sorting, in registers.
_MOST_IN_REGISTERS: Final = 16
_LEAST_IN_ROW: Final = 128
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


class TiledArrays:
    """The arrays of a memory that holds tiles."""

    def orders(self, graph: Graph) -> ArrayOrders:
        """By rows is what look-ups make, and what is computed element by element of that alone."""
        order = [DimOrder.ROWS if rows else DimOrder.COMPACT for rows in lies_by_row(graph)]
        # The caller's arrays are compact, also those of which there is a copy by rows.
        for value in (*graph.inputs, *graph.outputs):
            order[value] = DimOrder.COMPACT
        return ArrayOrders(order, _major_dims(graph))

    def lengthening(
        self,
        dims: np.ndarray,
        item_bytes: np.ndarray,
        order: np.ndarray,
        is_major: np.ndarray,
        numbers: TileNumbers,
    ) -> np.ndarray:
        """See `automap.backends.arrays.Arrays`."""
        lanes = np.ceil(dims / _LANES) * _LANES / dims
        rows = _tile_rows(dims, item_bytes, numbers)
        by_rows = lanes[:, -1] * np.where(dims[:, -2] > 1, rows[:, -2], 1.0)
        compact = np.minimum(_compact(dims, lanes, rows, is_major), by_rows)
        # Rows of one number are a vector, in whichever order.
        by_rows = np.where(dims[:, -1] == 1, compact, by_rows)
        result = np.where(order == DimOrder.COMPACT, compact, by_rows)
        result = np.where(order == DimOrder.COMPACT_BESIDE, compact, result)
        # A copy is made only where the compact order is another one.
        return np.where((order >= DimOrder.ROWS_BESIDE) & (by_rows <= compact), 0.0, result)


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


def _major_dims(graph: Graph) -> list[frozenset[int]]:
    """Dimensions of each value that cannot be minor: those that loops cut, batches, and those of
    space.
    """
    major = [frozenset[int]()] * len(graph.values)
    for op in graph.ops:
        result = op.outputs[0] if op.outputs else -1
        if op.opcode == DOT:
            major[result] = _batch_dims(graph, op)
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


def _batch_dims(graph: Graph, product: Op) -> frozenset[int]:
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


def scratch(graph: Graph) -> list[Scratch]:
    """Of all operations of a program."""
    workspaces = [
        needed
        for index, op in enumerate(graph.ops)
        if op.opcode in _WORKSPACES
        for needed in _WORKSPACES[op.opcode](graph, index, op)
    ]
    return [*workspaces, *_row_copies(graph), *_mixed_orders(graph)]


def _row_copies(graph: Graph) -> Iterator[Scratch]:
    for value in graph.inputs:
        readers = graph.users[value]
        by_row = [i for i in readers if is_by_row(graph.ops[i])]
        if by_row:
            size = item_bytes(graph, value)
            yield Scratch(by_row[0], max(readers), value, size, DimOrder.ROWS_BESIDE)
    computed_anew = one_number_rows(graph)
    for index, op in enumerate(graph.ops):
        if op.opcode != SCATTER or op.outputs[0] in computed_anew:
            continue
        added = op.inputs[-1]
        if graph.values[added].producer >= 0 and graph.varies[added]:
            size = item_bytes(graph, added)
            yield Scratch(index, index, added, size, DimOrder.ROWS_BESIDE)


def _mixed_orders(graph: Graph) -> Iterator[Scratch]:
    rows = lies_by_row(graph)
    for index, op in enumerate(graph.ops):
        if op.opcode in ELEMENTWISE and not rows[op.outputs[0]]:
            for value in alike_operands(graph, op):
                # What an input has a copy of by rows is there compact too.
                if rows[value] and graph.values[value].producer >= 0:
                    size = item_bytes(graph, value)
                    yield Scratch(index, index, value, size, DimOrder.COMPACT_BESIDE)


def _sort(graph: Graph, index: int, op: Op) -> list[Scratch]:
    value = op.inputs[0]
    is_last = _sorted_dim(op) == len(graph.values[value].dims) - 1
    result = []
    for operand in op.inputs:
        # What is no data, such as places, is nowhere yet.
        if is_last or not graph.varies[operand]:
            result.append(Scratch(index, index, value, item_bytes(graph, operand)))
    if len(op.inputs) == 1:
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
    value = op.outputs[0]
    dims = graph.values[value].dims
    if not any(w.size == d > _LEAST_IN_ROW for w, d in zip(op.instruction.attributes.window, dims)):
        return []
    return [Scratch(index, index, value, item_bytes(graph, value))]


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


_WORKSPACES: Final[Mapping[str, Callable[[Graph, int, Op], list[Scratch]]]] = {
    SORT: _sort,
    TOP_K: _top_k,
    "reduce-window": _window,
    FFT: _fourier,
}
