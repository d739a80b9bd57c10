"""What kernels move of arrays whose tiles are not full: the padding is read and written with them.

    bytes moved of an array = its bytes * lengthening            -> in: `PaddedArrays.add_to`

by the order in which the array lies and what a plan leaves of its dimensions on a device, as in
memory (`automap.backends.xla_tpu.tiled_arrays`). Registers are tiles, too: what goes through them
is as much longer.

What rows are looked up into is written row by row, and then copied once for all that reads it: they
find it in the order that pads least. Tables of rows have an effect of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar, Final

import numpy as np

from automap.backends.arrays import ArrayParts, DimOrder, item_bytes, parts_of_dims
from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.xla_tpu.table_uses import table_uses
from automap.backends.xla_tpu.tiled_arrays import TiledArrays


# Of arrays of more dimensions nothing is known.
_MOST_DIMS: Final = 6


class PaddedArraysEffect:
    """All arrays but tables."""

    n_columns: ClassVar[int] = 5 + _MOST_DIMS
    passes: ClassVar[bool] = True
    pads: ClassVar[bool] = True

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel."""
        graph = program.problem.graph
        orders = TiledArrays().orders(graph)
        compact, by_row = dict[int, tuple[int, ...]](), dict[int, tuple[int, ...]]()
        for number, value in enumerate(graph.values):
            dims = value.dims
            if not 1 <= len(dims) <= _MOST_DIMS or not all(dims):
                continue
            first = _MOST_DIMS - len(dims)
            major = sum(1 << (first + dim) for dim in orders.major_dims[number])
            beginning = program.row_of_value[number], item_bytes(graph, number)
            rest = major, first, *(1,) * first, *dims
            compact[number] = (*beginning, DimOrder.COMPACT, *rest)
            if orders.order[number] == DimOrder.ROWS:
                by_row[number] = (*beginning, DimOrder.ROWS, *rest)
        tables = table_uses(graph, program.kernels, program.numbers.table_most_by_row)
        every, result = KernelUses(compact), list[KernelUses]()
        for kernel, used in zip(program.kernels, tables, strict=True):
            written = {a.value: by_row[a.value] for a in kernel.writes if a.value in by_row}
            if not used and not written:
                result.append(every)
                continue
            rows = {v: row for v, row in (compact | written).items() if v not in used}
            result.append(KernelUses(rows))
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "PaddedArrays":
        """The accesses of arrays."""
        row, size, order, major, first, *dims = columns
        bits = 1 << np.arange(_MOST_DIMS)
        return PaddedArrays(
            access,
            np.array(row),
            np.array(size),
            np.array(order),
            np.array(first),
            (np.array(major)[:, None] & bits) > 0,
            np.array(dims).T,
        )


@dataclass(frozen=True)
class PaddedArrays:
    """`access` indexes `KernelTable.traffic_*`, [uses]; `dims` and `is_major` [uses, dimensions] of
    the whole arrays, with `first` ones before those of fewer. `row` are their value rows.
    """

    access: np.ndarray
    row: np.ndarray
    item_bytes: np.ndarray
    order: np.ndarray
    first: np.ndarray
    is_major: np.ndarray
    dims: np.ndarray

    def select(self, copied: CopiedAccesses) -> "PaddedArrays":
        """Those of copied accesses."""
        taken = select_rows(self, copied)
        return replace(taken, row=copied.value_row(taken.access, taken.row))

    def add_to(self, work: KernelWork) -> None:
        """Lengthen what is moved."""
        if not len(self.access):
            return
        unlike, each = self._unlike
        part = parts_of_dims(unlike.dims, unlike.first, work.dim_of_axis[unlike.row], work.sizes)
        # Tables have an effect of their own.
        none = np.full(len(part), -1)
        parts = ArrayParts(part, unlike.item_bytes, unlike.order, unlike.is_major, none, none)
        lengthening = TiledArrays().lengthening(parts, work.numbers, work.device.memory_bytes)
        work.local_bytes[self.access] *= lengthening[each]

    @cached_property
    def _unlike(self) -> tuple["PaddedArrays", np.ndarray]:
        """The arrays that differ, as most are accessed by several kernels, and which each use is
        of.
        """
        parts = (self.row, self.item_bytes, self.order, self.first)
        _, some, each = np.unique(
            np.column_stack([*parts, self.is_major, self.dims]),
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        taken = {f.name: getattr(self, f.name)[some] for f in fields(self)}
        return replace(self, **taken), each.reshape(-1)
