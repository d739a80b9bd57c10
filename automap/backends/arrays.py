"""How a compiler's arrays lie in memory, and what its operations need besides their results.

The memory of a backend may hold tiles: then the bytes of an array depend on which two of its
dimensions are the minor ones, and on what a plan leaves of them on a device
                                                                     -> in: `Arrays.lengthening`
An operation may need *scratch*: memory beside what it reads and makes, such as a copy of its
operand in another order, or the places of what it sorts. It is as large as a value of the program,
number by number, and split as that value is                         -> in: `Scratch`

A table that rows are looked up in or added to may lie by rows or by columns, whichever a compiler
takes by its sizes on a device                                       -> in: `TableSizes`

A backend without an `Arrays` stores every array without gaps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
import math
from typing import Protocol, TypeAlias

import numpy as np

from automap.backends.fitted import TileNumbers
from hlo_tools.graph import DTYPE_BITS, PART_TYPES, Graph, Op


class DimOrder(IntEnum):
    """Which dimensions of an array are its minor ones in memory."""

    # Those that leave the fewest gaps.
    COMPACT = 0
    # The last two, as the program has them.
    ROWS = 1
    # Copies in these orders of what lies in the other one. They are made only where the compact
    # order is not by rows: else they have no bytes.
    ROWS_BESIDE = 2
    COMPACT_BESIDE = 3
    # A copy with a product's batch outside of its matrices. It is made only where another order
    # leaves fewer gaps.
    MATRICES_BESIDE = 4


@dataclass(frozen=True, slots=True)
class TableSizes:
    """What decides whether a table lies by rows, and with it what is looked up in it or added.

    `rows` are the table's, 0 for those of the array itself; `updates` are the rows that the whole
    step's scatter adds to it, which may be more than a device adds, 0 if they are only looked up.
    """

    rows: int = 0
    updates: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that one operation needs besides, from `op` to `until` (operations of the schedule).

    It has a number of `item_bytes` for each number of the value `like`, and lies in `order`; of a
    batch of matrices `major_dims` count these.
    """

    op: int
    until: int
    like: int
    item_bytes: int
    order: DimOrder = DimOrder.COMPACT
    table: TableSizes | None = None
    major_dims: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaid:
    """A value that is copied to another order of dimensions, by a kernel that stands with the
    operation `op`, and takes `times` as long as it takes to read and to write the bytes. There is
    none where one of the value's `long_dims` has a single element on a device.
    """

    op: int
    value: int
    times: float = 1.0
    long_dims: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ArrayOrders:
    """Of each value of a program, [values]: its order, the dimensions that cannot be minor, and the
    table that decides whether it lies by rows.
    """

    order: Sequence[DimOrder]
    major_dims: Sequence[frozenset[int]]
    tables: Sequence[TableSizes | None]


@dataclass(frozen=True)
class ArrayParts:
    """What a device has of arrays. `dims` [arrays, rank] are sizes, those of fewer dimensions with
    ones before; `is_major` [arrays, rank] marks dimensions that cannot be minor. [arrays] are bytes
    of a number, a `DimOrder`, and `TableSizes`, with -1 `updates` of what is no table.
    """

    dims: np.ndarray
    item_bytes: np.ndarray
    order: np.ndarray
    is_major: np.ndarray
    table_rows: np.ndarray
    updates: np.ndarray


def item_bytes(graph: Graph, value: int) -> int:
    """Bytes of a number of a value; at least 1."""
    array = graph.values[value]
    return max(array.n_bytes // max(math.prod(array.dims), 1), 1)


def whole_side(graph: Graph, op: Op) -> int:
    """The operand or the result of a transform: whichever has all its numbers. Of real numbers the
    other side has half of the complex ones.
    """
    return max(op.outputs[0], op.inputs[0], key=lambda v: math.prod(graph.values[v].dims))


def complex_bytes(dtype: str) -> int:
    """Bytes of a complex number whose parts are as a type's, or which is of that type."""
    return DTYPE_BITS[dtype] * (1 if dtype in PART_TYPES else 2) // 8


OpScratch: TypeAlias = Callable[[Graph, int, Op], list[Scratch]]
"""What an operation of a number needs besides."""


def scratch_by_opcode(graph: Graph, needs: Mapping[str, OpScratch]) -> list[Scratch]:
    """What the operations of a program need, by their opcodes."""
    each = (needs[op.opcode](graph, n, op) for n, op in enumerate(graph.ops) if op.opcode in needs)
    return [needed for several in each for needed in several]


def no_scratch(graph: Graph) -> Sequence[Scratch]:
    """What a compiler needs besides of which nothing is known."""
    return ()


def parts_of_dims(
    dims: np.ndarray, first: np.ndarray, dim_of_axis: np.ndarray, sizes: Sequence[int]
) -> np.ndarray:
    """The sizes [arrays, rank] that a device has of arrays of whole sizes `dims`, with `first` ones
    before those of fewer dimensions; `dim_of_axis` [arrays, axes] are split dimensions, or -1.
    """
    split = np.ones(dims.shape)
    for axis, size in enumerate(sizes):
        here = np.flatnonzero(dim_of_axis[:, axis] >= 0)
        split[here, dim_of_axis[here, axis] + first[here]] *= size
    return np.ceil(dims / split)


class Arrays(Protocol):
    """One compiler's arrays."""

    def orders(self, graph: Graph) -> ArrayOrders:
        """How the values of a program lie."""
        ...

    def lengthening(self, parts: ArrayParts, numbers: TileNumbers, memory_bytes: int) -> np.ndarray:
        """Bytes in memory for each byte of arrays, [arrays], of a device with so much memory."""
        ...
