"""Tables of narrow rows in tiled memory: in which order they lie, and what transposing them costs.

By rows or by columns: what decides           -> in: `automap.backends.xla_tpu.table_uses`
By row, look-ups transpose the table first; which tables of an update are transposed
                                                  -> in: `automap.backends.xla_tpu.table_uses`

Registers hold 8 x 128 numbers, and less of a narrower table by column. Its zeros take the time of a
full register each, an update of Adam that of side + 1 of 8, and look-ups in a single column first
copy it register by register (v5e and v5p: tables of 4,000,000 rows of 1 to 16)
                                                  -> in: `_registers`
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.fitted import TileNumbers
from automap.backends.xla_tpu.table_uses import (
    TILE,
    TableAccess,
    TableUse,
    lies_by_column,
    side,
    table_bytes,
    table_uses,
    up,
)
from automap.program.problem import Problem
from hlo_tools.graph import Op
from hlo_tools.rules import Rule


_BY_ROW: Final = (TableAccess.BY_ROW, TableAccess.TRANSPOSED, TableAccess.FILLED)
_TRANSPOSING: Final = (TableAccess.LOOKED_UP, TableAccess.TRANSPOSED, TableAccess.RETURNED)


@dataclass(frozen=True, slots=True)
class InMemory:
    """By how much longer what is accessed takes in tiles, bytes that are read and written to
    transpose it, or copied; [uses].

    `launches` are more ops that run where a device has some of the rows: it finds out which indices
    are its own.
    """

    lengthening: np.ndarray
    transposed_bytes: np.ndarray
    copied_bytes: np.ndarray
    launches: np.ndarray


@dataclass(frozen=True, slots=True)
class _Local:
    """What a device has of tables, [uses]; `has_some_rows` is whether others have other rows."""

    rows: np.ndarray
    width: np.ndarray
    updates: np.ndarray
    has_some_rows: np.ndarray


class RowLayoutEffect:
    """Tables that rows are looked up in, scattered to, or updated."""

    n_columns: ClassVar[int] = 10
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = True

    def uses(self, program: TracedKernels) -> list[KernelUses]:
        """Of each kernel; what a scatter adds decides how its table lies."""
        problem, kernels = program.problem, program.kernels
        tables = table_uses(problem.graph, kernels, program.numbers.table_most_by_row)
        result: list[KernelUses] = []
        for kernel, uses in zip(kernels, tables, strict=True):
            op, rule = problem.graph.ops[kernel.op], problem.linkage.rules[kernel.op]
            rows = {
                v: (*_row(use, problem, program.row_of_value), _columns_factor(op, rule, v))
                for v, use in uses.items()
            }
            added = frozenset(use.added for use in uses.values() if use.updates)
            result.append(KernelUses(rows, added))
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "TableUses":
        """The accesses of tables."""
        return TableUses(access, *columns)


@dataclass(frozen=True)
class TableUses:
    """`access` indexes `KernelTable.traffic_*`; [uses].

    `value_row` and `added_row` are those of `TableUse.table` and `added`, `last_dim` and
    `added_dim` their last dimensions, `factor` is that of the columns in the kernel's op, -1 for
    none.
    """

    access: np.ndarray
    value_row: np.ndarray
    last_dim: np.ndarray
    added_row: np.ndarray
    added_dim: np.ndarray
    kind: np.ndarray
    rows: np.ndarray
    width: np.ndarray
    updates: np.ndarray
    item_bytes: np.ndarray
    factor: np.ndarray

    def select(self, copied: CopiedAccesses) -> "TableUses":
        """Those of copied accesses."""
        taken = select_rows(self, copied)
        return replace(
            taken,
            value_row=copied.value_row(taken.access, taken.value_row),
            added_row=copied.value_row(taken.access, taken.added_row),
        )

    def add_to(self, work: KernelWork) -> None:
        """Lengthen accesses by what tiles hold besides, and add the time of transposing and
        copying.
        """
        if not len(self.access):
            return
        device, kernel = work.device, work.access_kernel[self.access]
        factors = work.factor_of_axis[work.op_row[kernel]]
        tiled = self.in_memory(
            work.dim_of_axis, factors, work.sizes, device.memory_bytes, work.numbers
        )
        work.local_bytes[self.access] *= tiled.lengthening
        seconds = tiled.transposed_bytes / device.memory_bytes_per_s("turn")
        seconds += tiled.copied_bytes / device.memory_bytes_per_s("copy")
        seconds += tiled.launches * device.launch_seconds
        n_kernels = len(work.extra_seconds)
        work.extra_seconds[:] += np.bincount(kernel, weights=seconds, minlength=n_kernels)

    def in_memory(
        self,
        dim_of_axis: np.ndarray,
        factor_of_axis: np.ndarray,
        axes: Sequence[int],
        memory_bytes: int,
        numbers: TileNumbers,
    ) -> InMemory:
        """What accesses cost beyond their bytes.

        `dim_of_axis` [value rows, axes] are split dimensions, `factor_of_axis` [uses, axes] split
        factors of the operations of kernels, `axes` are the sizes of the mesh's, `memory_bytes` a
        device's.
        """
        local = self._local(dim_of_axis, factor_of_axis, np.array(axes))
        by_row, by_column = table_bytes(local.rows, local.width, self.item_bytes)
        lies_by_row = ~lies_by_column(
            local.rows, local.width, self.item_bytes, local.updates, numbers, memory_bytes
        )
        is_filled, is_looked_up = (
            self.kind == TableAccess.FILLED,
            self.kind == TableAccess.LOOKED_UP,
        )
        # By row a table is padded to 128 columns; by column it takes registers of 8.
        by_register = _registers(local.width, is_filled=is_filled)
        stays = lies_by_row & np.isin(self.kind, _BY_ROW)
        lengthening = np.where(stays, up(local.width, TILE[1]), by_register) / local.width
        is_transposed = np.isin(self.kind, _TRANSPOSING) & lies_by_row & (by_row > by_column)
        # A single column is no table of rows: it is copied to where look-ups find it.
        copied = is_looked_up & (local.width == 1) & ~is_transposed
        full = up(local.rows, TILE[1]) * TILE[0] * self.item_bytes
        return InMemory(
            lengthening=np.where(is_looked_up, 1.0, lengthening),
            transposed_bytes=is_transposed * (by_row + by_column),
            copied_bytes=copied * full,
            launches=local.has_some_rows * (is_looked_up | is_filled) * numbers.table_launches,
        )

    def _local(
        self, dim_of_axis: np.ndarray, factor_of_axis: np.ndarray, sizes: np.ndarray
    ) -> _Local:
        # What a plan splits is of the table and of what is added; [uses, axes].
        dims, added = dim_of_axis[self.value_row], dim_of_axis[self.added_row]
        is_last = dims == self.last_dim[:, None]
        is_row = (dims >= 0) & ~is_last
        # Columns that are only stored apart are gathered before rows are looked up.
        is_cut_in_op = (factor_of_axis == self.factor[:, None]) & (factor_of_axis >= 0)
        is_cut = np.where((self.kind == TableAccess.LOOKED_UP)[:, None], is_cut_in_op, is_last)
        # What is added is gathered along the axes that split the table.
        is_split = (dims < 0) & (added >= 0) & (added != self.added_dim[:, None])
        return _Local(
            rows=self.rows / np.where(is_row, sizes, 1).prod(axis=1),
            width=self.width / np.where(is_cut, sizes, 1).prod(axis=1),
            updates=self.updates / np.where(is_split, sizes, 1).prod(axis=1),
            has_some_rows=is_row.any(axis=1),
        )


def _registers(width: np.ndarray, *, is_filled: np.ndarray) -> np.ndarray:
    """The columns of full tiles by column that take as long; a single column is filled as a vector
    is.
    """
    filled = np.where(width == 1, 1, up(width, TILE[0]))
    other = np.where(width < TILE[0], np.minimum(side(width) + 1, TILE[0]), side(width))
    return np.where(is_filled, filled, other)


def _row(use: TableUse, problem: Problem, rows: Sequence[int]) -> tuple[int, ...]:
    # (value row, last dimension) of the table, then of what is added: the order of `TableUses`.
    places = [
        place
        for value in (use.table, use.added)
        for place in (rows[value], len(problem.graph.values[value].dims) - 1)
    ]
    return *places, use.kind, use.rows, use.width, use.updates, use.item_bytes


def _columns_factor(op: Op, rule: Rule, table: int) -> int:
    """The major factor of the last dimension of an operand, -1 for what is none."""
    dims = rule.operands[op.inputs.index(table)] if table in op.inputs else ()
    return dims[-1][0] if dims and dims[-1] else -1
