"""Where a program looks rows up in tables, adds to some, and updates them: what decides the order
in which they lie.

What becomes of the sums of a scatter depends on how many tables the update reads besides. With up
to `table_most_by_row` (SGD, Adagrad, momentum) it runs by row: all that it reads was transposed,
and all that it makes is transposed back. With more (Adam) the sums are transposed, and the update
runs by column                                                   -> in: `_Uses._access_kind`
What that costs                               -> in: `automap.backends.xla_tpu.row_layouts`

The memory holds tiles of 8 x 128 numbers, so a table of fewer columns takes least with its columns
side by side. That is how steps are given tables and hand them on. What looks rows up, or adds to
some, wants rows side by side:

    by_row    = rows * ceil128(width)            numbers of a table on a device
    by_column = ceil128(rows) * side(width)
    side(w)   = ceil8(w), or 1, 2, 4 for what is no wider
    by column
        for look-ups    if by_row > 2 by_column and saved >= `table_saved_bytes`
        for a scatter   if by_row >= 2 by_column, and
                        saved >= max(`table_saved_bytes`, `table_saved_bytes_per_update` * updates)
                        or by_row > `table_largest_share` of the device's memory

with saved = by_row - by_column, as libtpu decides (test_row_layouts.py, SCATTERED, LOOKED_UP)
                                                                         -> in: `lies_by_column`
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
import math
from typing import Final

import numpy as np

from automap.backends.fitted import TileNumbers
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import DENSE_CONTRACTIONS, STRUCTURAL


TILE: Final = (8, 128)
"""Rows and columns of a tile in memory, and of a register."""


class TableAccess(IntEnum):
    """How an access finds a table.

    LOOKED_UP in a transposed copy, BY_ROW, FILLED by row with zeros and sums, TRANSPOSED to or from
    rows, RETURNED to columns, or BY_COLUMN as it is given and handed on.
    """

    LOOKED_UP = 1
    BY_ROW = 2
    TRANSPOSED = 3
    RETURNED = 4
    FILLED = 5
    BY_COLUMN = 6


@dataclass(frozen=True, slots=True)
class TableUse:
    """A `table` where a kernel has it: `rows` of `width` numbers, and the value that a scatter adds
    as `updates` rows.

    A look-up has none of these: 0, and the table itself.
    """

    kind: TableAccess
    table: int
    added: int
    rows: int
    width: int
    updates: int
    item_bytes: int


def table_bytes(
    rows: np.ndarray, width: np.ndarray, item_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of tables on a device, [tables], by row and by column."""
    by_column = up(rows, TILE[1]) * side(width) * item_bytes
    return rows * up(width, TILE[1]) * item_bytes, by_column


def up(size: np.ndarray, tile: int) -> np.ndarray:
    """Sizes in full tiles."""
    return np.ceil(size / tile) * tile


def side(width: np.ndarray) -> np.ndarray:
    """The columns that tiles of a table by column hold room for."""
    return np.where(width < TILE[0], np.exp2(np.ceil(np.log2(width))), up(width, TILE[0]))


def lies_by_column(
    rows: np.ndarray,
    width: np.ndarray,
    item_bytes: np.ndarray,
    updates: np.ndarray,
    numbers: TileNumbers,
    memory_bytes: int,
) -> np.ndarray:
    """Whether tables on a device of so much memory lie by column, [tables]; `updates` are the rows
    that a scatter adds, 0 if they are only looked up. A single column does.
    """
    by_row, by_column = table_bytes(rows, width, item_bytes)
    saved = by_row - by_column
    is_much = saved >= np.maximum(
        numbers.table_saved_bytes, numbers.table_saved_bytes_per_update * updates
    )
    # In a scatter a table by row may take only so much of the memory.
    is_added = updates > 0
    is_much |= is_added & (by_row > numbers.table_largest_share * memory_bytes)
    is_shorter = np.where(is_added, by_row >= 2 * by_column, by_row > 2 * by_column)
    return (is_shorter & is_much) | (width <= 1)


def table_uses(
    graph: Graph, kernels: Sequence[Kernel], most_by_row: int
) -> list[dict[int, TableUse]]:
    """For each kernel its accesses (by value) of tables that it looks rows up in, scatters to, or
    updates; an update that reads more than `most_by_row` tables runs by column.
    """
    return _Uses(graph, kernels, most_by_row).by_kernel


class _Uses:
    def __init__(self, graph: Graph, kernels: Sequence[Kernel], most_by_row: int) -> None:
        self.most_by_row = most_by_row
        self.graph, self.kernels = graph, kernels
        self.inputs, self.outputs = set(graph.inputs), set(graph.outputs)
        self.by_kernel: list[dict[int, TableUse]] = [{} for _ in kernels]
        self.looked_up: set[int] = set()
        self.readers: dict[int, list[int]] = defaultdict(list)
        for number, kernel in enumerate(kernels):
            for access in kernel.reads:
                self.readers[access.value].append(number)
            if graph.ops[kernel.op].opcode == "gather":
                self._look_up(number)
        # Look-ups come first: a table that is looked up is transposed once, and its update reads
        # that copy.
        done: set[int] = set()
        for number, kernel in enumerate(kernels):
            op = graph.ops[kernel.op]
            if op.opcode == "scatter" and is_of_rows(op) and op.outputs[0] not in done:
                self._scatter(number, done)

    def _look_up(self, number: int) -> None:
        op = self.graph.ops[self.kernels[number].op]
        numbers = op.instruction.attributes.gather
        for access in self.kernels[number].reads[:1]:
            table = self.graph.values[access.value].dims
            # Rows are looked up along the first dimension of a matrix; a single column is none.
            is_table = self._is_given(access.value) and len(table) == 2 and table[-1] > 1
            if is_table and numbers is not None and numbers.start_index_map == (0,):
                self.looked_up.add(access.value)
                self.by_kernel[number][access.value] = self._use(
                    access.value, TableAccess.LOOKED_UP
                )

    def _is_given(self, value: int) -> bool:
        """Whether a value is an input, or an input in another type."""
        producer = self.graph.values[value].producer
        if producer >= 0 and self.graph.ops[producer].opcode == "convert":
            value = self.graph.ops[producer].inputs[0]
        return value in self.inputs

    def _scatter(self, number: int, done: set[int]) -> None:
        """Uses of a scatter, and of all kernels that make tables as large of its sums."""
        op = self.graph.ops[self.kernels[number].op]
        table = op.outputs[0]
        dims = self.graph.values[table].dims
        added = op.inputs[-1]
        # The list grows while it is walked: kernels that read a table of sums, and those that read
        # what these make of it.
        sums, members = {table}, [number]
        for member in members:
            sums |= self._made(member, dims)
            for value in self._made(member, dims):
                members.extend(
                    k for k in self.readers[value] if k not in members and self._joins(k)
                )
        members.sort()
        done |= sums
        # The tables that the update reads besides: parameters and moments of the same sizes.
        read = {
            a.value
            for k in members
            for a in self.kernels[k].reads
            if a.value in self.inputs and self.graph.values[a.value].dims == dims
        }
        for member in members:
            for value in self._like(member, dims):
                kind = self._access_kind(member, value, sums, len(read) <= self.most_by_row)
                if kind is TableAccess.BY_ROW and member == number:
                    kind = TableAccess.FILLED
                if kind is not None:
                    self.by_kernel[member].setdefault(value, self._use(value, kind, added))
        # The rows that are added are as wide as the table's.
        for access in self.kernels[number].reads:
            if access.value not in self.by_kernel[number] and access.value == added:
                self.by_kernel[number][added] = self._use(table, TableAccess.BY_ROW, added)

    def _access_kind(
        self,
        member: int,
        value: int,
        sums: set[int],
        by_row: bool,  # noqa: FBT001 - of a pair
    ) -> TableAccess | None:
        is_input, is_output = value in self.inputs, value in self.outputs
        made = set(self.graph.ops[self.kernels[member].op].outputs)
        if not by_row:
            # Tables lie as they are given; only the sums are transposed, where new tables are made.
            if is_input or is_output:
                return TableAccess.BY_COLUMN
            return TableAccess.RETURNED if made & self.outputs else TableAccess.BY_ROW
        if value in made and is_output:
            return TableAccess.TRANSPOSED
        if is_input and value not in self.looked_up:
            return TableAccess.TRANSPOSED
        return TableAccess.BY_ROW if is_input or value in sums else None

    def _made(self, member: int, dims: tuple[int, ...]) -> set[int]:
        return {
            a.value for a in self.kernels[member].writes if self.graph.values[a.value].dims == dims
        }

    def _like(self, member: int, dims: tuple[int, ...]) -> list[int]:
        kernel = self.kernels[member]
        values = dict.fromkeys(a.value for a in (*kernel.reads, *kernel.writes) if a.n_bytes)
        return [v for v in values if self.graph.values[v].dims == dims]

    def _joins(self, number: int) -> bool:
        op = self.graph.ops[self.kernels[number].op]
        return op.trip_count == 1 and op.opcode not in STRUCTURAL | DENSE_CONTRACTIONS | {"gather"}

    def _use(self, value: int, kind: TableAccess, added: int | None = None) -> TableUse:
        # A table of more dimensions is one of rows: all but the last are its rows.
        array = self.graph.values[value]
        rows, width = math.prod(array.dims[:-1]), array.dims[-1]
        updates = 0 if added is None else math.prod(self.graph.values[added].dims) // width
        added = value if added is None else added
        item_bytes = max(DTYPE_BITS[array.dtype] // 8, 1)
        return TableUse(kind, value, added, rows, width, updates, item_bytes)


def is_of_rows(op: Op) -> bool:
    """Whether a scatter changes rows of a table: the last dimension, of several numbers, is
    whole.
    """
    numbers, dims = op.instruction.attributes.scatter, op.instruction.shape.dims
    if numbers is None or len(dims) < 2 or dims[-1] == 1:
        return False
    return len(dims) - 1 not in (*numbers.inserted_window_dims, *numbers.input_batching_dims)
