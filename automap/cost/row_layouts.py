"""Tables of narrow rows in a TPU's memory: which way they lie, and what turning them costs.

The memory holds tiles of 8 x 128 numbers. A table of fewer columns than a tile has takes least with its columns side by
side, so that is how steps are given tables and hand them on. What looks rows up, or adds to some, wants rows side by side:

    by_row    = rows * ceil128(width),  by_column = ceil128(rows) * ceil8(width)      numbers of a table on a device
    by column if by_row >= 2 by_column, and of a look-up    saved >= 128 MiB
                                            of a scatter    saved >= max(128 MiB, 120 KiB * updates), or
                                                            by_row > 5 % of the device's memory

with saved = by_row - by_column (all of that as libtpu 0.0.51 for v5e decides, tests/automap/cost/test_row_layouts.py).
By row, look-ups turn the table first, and what becomes of the sums of a scatter depends on how many tables the update
reads besides. With up to two (SGD, Adagrad, momentum) it runs by row: all that it reads was turned, and all that it makes
is turned back. With more (Adam) the sums are turned, and the update runs by column     -> in: `uses_of_tables`
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
import math
from typing import Final

import numpy as np

from hlo_tools.graph import DTYPE_BITS, STRUCTURAL, Graph, Op
from hlo_tools.kernels import Kernel


_TILE: Final = (8, 128)
_WORTH_BYTES: Final = 2**27
_WORTH_BYTES_PER_UPDATE: Final = 120 * 2**10
_LARGEST_SHARE: Final = 0.05
# An update that reads more tables runs by column.
_MOST_BY_ROW: Final = 2


class Lies(IntEnum):
    """How an access finds a table: LOOKED_UP in a turned copy, BY_ROW, TURNED to or from rows, RETURNED to columns."""

    LOOKED_UP = 1
    BY_ROW = 2
    TURNED = 3
    RETURNED = 4


@dataclass(frozen=True, slots=True)
class TableUse:
    """A `table` where a kernel has it: `rows` of `width` numbers, and the value that a scatter adds as `updates` rows.

    A look-up has none of these: 0, and the table itself.
    """

    lies: Lies
    table: int
    added: int
    rows: int
    width: int
    updates: int
    item_bytes: int


@dataclass(frozen=True)
class TableUses:
    """`access` indexes `KernelTable.traffic_*`; [uses].

    `value_row` and `added_row` are those of `TableUse.table` and `added`, `last_dim` and `added_dim` their last dimensions.
    """

    access: np.ndarray
    value_row: np.ndarray
    last_dim: np.ndarray
    added_row: np.ndarray
    added_dim: np.ndarray
    lies: np.ndarray
    rows: np.ndarray
    width: np.ndarray
    updates: np.ndarray
    item_bytes: np.ndarray

    def in_memory(
        self, dim_of_axis: np.ndarray, axes: Sequence[int], memory_bytes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """By how much what is accessed is larger in tiles, and the bytes that are read and written to turn it; [uses].

        `dim_of_axis` is that of `automap.cost.shardings`, `axes` are the sizes of the mesh's, `memory_bytes` a device's.
        """
        dims, sizes = dim_of_axis[self.value_row], np.array(axes)
        is_last = dims == self.last_dim[:, None]
        width = self.width / np.where(is_last, sizes, 1).prod(axis=1)
        rows = self.rows / np.where((dims >= 0) & ~is_last, sizes, 1).prod(axis=1)
        # What is added is gathered along the axes that split the table.
        added = dim_of_axis[self.added_row]
        is_split = (dims < 0) & (added >= 0) & (added != self.added_dim[:, None])
        updates = self.updates / np.where(is_split, sizes, 1).prod(axis=1)
        by_row = rows * _up(width, _TILE[1]) * self.item_bytes
        by_column = _up(rows, _TILE[1]) * _up(width, _TILE[0]) * self.item_bytes
        saved = by_row - by_column
        is_much = saved >= np.maximum(_WORTH_BYTES, _WORTH_BYTES_PER_UPDATE * updates)
        is_much |= (self.updates > 0) & (by_row > _LARGEST_SHARE * memory_bytes)
        lies_by_row = (by_row < 2 * by_column) | ~is_much
        stays = (self.lies == Lies.BY_ROW) | (self.lies == Lies.TURNED)
        held = np.where(lies_by_row & stays, _up(width, _TILE[1]), _up(width, _TILE[0])) / width
        turns = (self.lies != Lies.BY_ROW) & lies_by_row & (saved > 0)
        return np.where(self.lies == Lies.LOOKED_UP, 1.0, held), turns * (by_row + by_column)


def _up(size: np.ndarray, tile: int) -> np.ndarray:
    return np.ceil(size / tile) * tile


def uses_of_tables(graph: Graph, kernels: Sequence[Kernel]) -> list[dict[int, TableUse]]:
    """For each kernel its accesses (by value) of tables that it looks rows up in, scatters to, or updates."""
    return _Uses(graph, kernels).found


class _Uses:
    def __init__(self, graph: Graph, kernels: Sequence[Kernel]) -> None:
        self.graph, self.kernels = graph, kernels
        self.inputs, self.outputs = set(graph.inputs), set(graph.outputs)
        self.found: list[dict[int, TableUse]] = [{} for _ in kernels]
        self.looked_up: set[int] = set()
        self.readers: dict[int, list[int]] = defaultdict(list)
        for number, kernel in enumerate(kernels):
            for access in kernel.reads:
                self.readers[access.value].append(number)
            if graph.ops[kernel.op].opcode == "gather":
                self._look_up(number)
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
            is_table = access.value in self.inputs and len(table) == 2 and table[-1] > 1
            if is_table and numbers is not None and numbers.start_index_map == (0,):
                self.looked_up.add(access.value)
                self.found[number][access.value] = self._use(access.value, Lies.LOOKED_UP)

    def _scatter(self, number: int, done: set[int]) -> None:
        """Uses of a scatter, and of all kernels that make tables as large of its sums."""
        op = self.graph.ops[self.kernels[number].op]
        table = op.outputs[0]
        dims = self.graph.values[table].dims
        added = op.inputs[-1]
        sums, members = {table}, [number]
        for member in members:
            sums |= self._made(member, dims)
            for value in self._made(member, dims):
                members.extend(
                    k for k in self.readers[value] if k not in members and self._joins(k)
                )
        members.sort()
        done |= sums
        read = {
            a.value for k in members for a in self.kernels[k].reads
            if a.value in self.inputs and self.graph.values[a.value].dims == dims
        }  # fmt: skip
        for member in members:
            for value in self._like(member, dims):
                lies = self._lies(member, value, sums, len(read) <= _MOST_BY_ROW)
                if lies is not None:
                    self.found[member].setdefault(value, self._use(value, lies, added))
        # The rows that are added are as wide as the table's.
        for access in self.kernels[number].reads:
            if access.value not in self.found[number] and access.value == added:
                self.found[number][added] = self._use(table, Lies.BY_ROW, added)

    def _lies(self, member: int, value: int, sums: set[int], by_row: bool) -> Lies | None:  # noqa: FBT001 - of a pair
        is_input, is_output = value in self.inputs, value in self.outputs
        made = set(self.graph.ops[self.kernels[member].op].outputs)
        if not by_row:
            if is_input or is_output:
                return None
            return Lies.RETURNED if made & self.outputs else Lies.BY_ROW
        if value in made and is_output:
            return Lies.TURNED
        if is_input and value not in self.looked_up:
            return Lies.TURNED
        return Lies.BY_ROW if is_input or value in sums else None

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
        return op.trip_count == 1 and op.opcode not in STRUCTURAL | {"dot", "convolution", "gather"}

    def _use(self, value: int, lies: Lies, added: int | None = None) -> TableUse:
        array = self.graph.values[value]
        rows, width = math.prod(array.dims[:-1]), array.dims[-1]
        updates = 0 if added is None else math.prod(self.graph.values[added].dims) // width
        added = value if added is None else added
        item_bytes = max(DTYPE_BITS[array.dtype] // 8, 1)
        return TableUse(lies, value, added, rows, width, updates, item_bytes)


def is_of_rows(op: Op) -> bool:
    """Whether a scatter changes rows of a table: the last dimension, of several numbers, is whole."""
    numbers, dims = op.instruction.attributes.scatter, op.instruction.shape.dims
    if numbers is None or len(dims) < 2 or dims[-1] == 1:
        return False
    return len(dims) - 1 not in (*numbers.inserted_window_dims, *numbers.input_batching_dims)
