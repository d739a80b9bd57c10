"""Stored shapes: what is in memory, told apart by all that decides how many bytes a device has of
it.

    local(s) = 1 / parts(row_s)                                where arrays lie without gaps
             = lengthening(part of s) * numbers of that part / numbers of the whole
                                                               where a backend says how they lie

The part of a shape is each dimension over the axes that split it, rounded up. Without a backend's
`Arrays` there is one shape for each value row, of the row's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from automap.backends import TileNumbers
from automap.backends.arrays import (
    ArrayParts,
    Arrays,
    DimOrder,
    TableSizes,
    parts_of_dims,
)
from automap.cost.shardings import n_parts


class Stored(NamedTuple):
    """One array in memory: its value row, the sizes of the whole, bytes of a number, and how it
    lies (`automap.backends.arrays.ArrayOrders`).
    """

    row: int
    dims: tuple[int, ...]
    item_bytes: int
    order: DimOrder
    major_dims: frozenset[int]
    table: TableSizes | None = None


@dataclass(frozen=True)
class StoredShapes:
    """Arrays over shapes. `dims` [shapes, rank] are whole sizes, those of fewer dimensions with
    ones before; `first` is the number of those ones. `is_major` marks dimensions that cannot
    be minor; `table_rows` and `updates` are as those of `ArrayParts`. All but `row` are empty where
    arrays lie without gaps.
    """

    row: np.ndarray
    dims: np.ndarray
    first: np.ndarray
    item_bytes: np.ndarray
    order: np.ndarray
    is_major: np.ndarray
    table_rows: np.ndarray
    updates: np.ndarray

    def local(
        self,
        dim_of_axis: np.ndarray,
        sizes: Sequence[int],
        arrays: Arrays | None,
        numbers: TileNumbers,
        memory_bytes: int,
    ) -> np.ndarray:
        """Bytes on a device of so much memory for each byte of the whole, [shapes].

        `dim_of_axis` [shapes, axes] are the split dimensions of their rows, -1 for none; without
        `arrays` there are no gaps.
        """
        is_split = dim_of_axis >= 0
        if arrays is None or not len(self.first):
            return 1.0 / n_parts(is_split, sizes)
        part = parts_of_dims(self.dims, self.first, dim_of_axis, sizes)
        parts = ArrayParts(
            part, self.item_bytes, self.order, self.is_major, self.table_rows, self.updates
        )
        lengthening = arrays.lengthening(parts, numbers, memory_bytes)
        return lengthening * (part / self.dims).prod(axis=1)

    def take(self, shapes: np.ndarray) -> "StoredShapes":
        """Those shapes, maybe several times."""
        if not len(self.first):
            return StoredShapes.without_gaps(self.row[shapes])
        return StoredShapes(
            self.row[shapes],
            self.dims[shapes],
            self.first[shapes],
            self.item_bytes[shapes],
            self.order[shapes],
            self.is_major[shapes],
            self.table_rows[shapes],
            self.updates[shapes],
        )

    @staticmethod
    def without_gaps(row: np.ndarray) -> "StoredShapes":
        """Shapes that only their rows tell apart."""
        none = np.zeros(0, np.int64)
        return StoredShapes(row, none, none, none, none, none, none, none)


def stored_shapes(
    stored: Sequence[Stored], n_rows: int, arrays: Arrays | None
) -> tuple[StoredShapes, np.ndarray]:
    """The shapes of all that is in memory, and the shape of each, [stored]."""
    if arrays is None:
        rows = np.array([s.row for s in stored], np.int64)
        return StoredShapes.without_gaps(np.arange(n_rows)), rows
    index: dict[Stored, int] = {}
    shape = np.array([index.setdefault(s, len(index)) for s in stored], np.int64)
    # Two at least: an array has a minor dimension and one next to it.
    rank = max([2, *(len(s.dims) for s in index)])
    dims, is_major = np.ones((len(index), rank)), np.zeros((len(index), rank), bool)
    first = np.array([rank - len(s.dims) for s in index], np.int64)
    for number, s in enumerate(index):
        dims[number, first[number] :] = np.maximum(s.dims, 1)
        is_major[number, [first[number] + dim for dim in s.major_dims]] = True
    return (
        StoredShapes(
            row=np.array([s.row for s in index], np.int64),
            dims=dims,
            first=first,
            item_bytes=np.array([s.item_bytes for s in index], np.int64),
            order=np.array([s.order for s in index], np.int64),
            is_major=is_major,
            table_rows=np.array([s.table.rows if s.table else 0 for s in index], np.int64),
            updates=np.array([s.table.updates if s.table else -1 for s in index], np.int64),
        ),
        shape,
    )
