"""Cells on one mesh: in which ways decisions can split their rows, and what each way costs.

The choices of a scope act on a group's rows in few different ways   -> in: `group_on_mesh`

What a way costs is asked of the evaluator, which prices tables of rows, edges and kernels. Here
they are copies: for each cell and each way that its rows may be split one of its rows, edges and
kernels (`automap.search.factored.copied`). So no price is worked out here, and any effect that the
evaluator learns is followed                                         -> in: `cell_costs`
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.cost.shardings import Shardings, n_parts
from automap.search.factored.cells import Cell
from automap.search.factored.codes import (
    Group,
    distinct_rows,
    joint_codes,
    numbered,
    splits_by_code,
)
from automap.search.factored.copied import CopiedCells
from automap.search.factored.stored import LeafStorage
from automap.search.factored.variables import Variables


@dataclass(frozen=True)
class CellSplits:
    """Ways to split the rows of a cell: the dimension [ways, value rows, axes], the factor [ways,
    op rows, axes].
    """

    cell: Cell
    dims: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True)
class MeshCell:
    """A cell's ways, and which of them each way of its group is, `number` [ways of the group]."""

    ways: CellSplits
    number: np.ndarray

    @property
    def is_priced(self) -> bool:
        """Whether it has an edge or kernels: what the evaluator prices."""
        cell = self.ways.cell
        return bool(cell.operands or cell.results or cell.kernels)


@dataclass(frozen=True)
class MeshGroup:
    """A group on a mesh; `way` [choices of each variable of the scope...] numbers the ways of the
    whole group.
    """

    group: Group
    way: np.ndarray
    cells: tuple[MeshCell, ...]


def group_on_mesh(group: Group, variables: Variables, stored: LeafStorage) -> MeshGroup:
    """All ways of a group and of its cells."""
    axes = variables.mesh.axes
    codes_by_axis, by_axis = [], []
    # Axis by axis: what splits a row along one axis does not depend on the other axes.
    for axis in range(len(axes)):
        codes, number = numbered(group.axis_codes(variables, stored, axis))
        codes_by_axis.append(codes)
        by_axis.append(number)
    # [ways, axes]: which code each axis has.
    joint, way = joint_codes(by_axis)
    # What each code splits along its axis: dims [codes, value rows], factors [codes, op rows].
    splits = [
        splits_by_code(group, codes, axis) for codes, axis in zip(codes_by_axis, axes, strict=True)
    ]
    cells = []
    for cell in group.cells:
        values = np.searchsorted(group.value_rows, cell.value_rows)
        ops = np.searchsorted(group.op_rows, cell.op_rows)
        rows = [np.concatenate([dims[:, values], fs[:, ops]], axis=1) for dims, fs in splits]
        # Codes differ in more than this cell's rows see, so its own ways are fewer.
        distinct = [distinct_rows(split_rows) for split_rows in rows]
        numbers = [which[joint[:, a]] for a, (_, which) in enumerate(distinct)]
        ways, number = joint_codes(numbers)
        # [ways, rows, axes]: value rows first, then op rows.
        split = np.stack(
            [split_rows[ways[:, a]] for a, (split_rows, _) in enumerate(distinct)], axis=-1
        )
        n = len(values)
        cells.append(MeshCell(CellSplits(cell, split[:, :n], split[:, n:]), number))
    return MeshGroup(group, way, tuple(cells))


@dataclass(frozen=True)
class CellCosts:
    """Of one cell: seconds of a step of its edge [ways] and of its kernels [kernels, ways], bytes
    its edge copies, or has whole before it is scattered, and what is beside that if it is turned
    [ways].

    `kept` [edges before, ways] are the bytes of the copies that its operand edge finds gathered.
    """

    edge_seconds: np.ndarray
    kernel_seconds: np.ndarray
    copied: np.ndarray
    turned: np.ndarray
    kept: np.ndarray


def cell_costs(
    evaluator: Evaluator, sizes: tuple[int, ...], ways: Sequence[CellSplits]
) -> list[CellCosts]:
    """Of each cell under each of its ways on a mesh of `sizes`."""
    batch = CopiedCells(evaluator, [w.cell for w in ways], [len(w.dims) for w in ways])
    # Not the evaluator's arithmetic but its tables are ours: every effect that it knows is priced.
    tables = batch.tables()
    dims = np.concatenate([w.dims.reshape(-1, len(sizes)) for w in ways])
    factors = np.concatenate([w.factors.reshape(-1, len(sizes)) for w in ways])
    priced = replace(evaluator, tables=tables).price(
        Shardings(
            sizes=sizes,
            dim_of_axis=dims,
            factor_of_axis=factors,
            parts_of_value=n_parts(dims >= 0, sizes),
            parts_of_op=n_parts(factors >= 0, sizes),
            # What a cell is split along does not say what lasts; it costs no less then.
            is_late_axis=np.zeros(dims.shape, bool),
        )
    )
    collectives, kernel_seconds = priced.collectives, priced.kernel_seconds * tables.kernels.count
    seconds = (priced.collective_seconds + priced.copying_seconds) * collectives.count
    operand_seconds, result_seconds = (
        np.bincount(collectives.edge[here], seconds[here], len(edges.count))
        for here, edges in (
            (collectives.on_operand, tables.operands),
            (~collectives.on_operand, tables.results),
        )
    )
    # Each copy of an edge that comes before a cell's own stands once as the earlier of that one.
    later, earlier = tables.operands.repeats.T
    is_of_own = collectives.is_repeat & batch.operands.is_first[later]
    kept = np.zeros(len(tables.operands.count))
    # Bytes that a cell's own edge finds gathered by those before it.
    kept[earlier[is_of_own]] = collectives.copied[earlier[is_of_own]]
    result = []
    for cell, way in enumerate(ways):
        n = len(way.dims)
        operands = batch.operands.in_cell(cell, n)
        # The first is the edge that is priced; the others are there so that it may find its work
        # done.
        made = batch.results.in_cell(cell, n)[:, :1]
        # Those that a gather runs beside come after them.
        kernels = batch.kernels.in_cell(cell, n)[:, : len(way.cell.kernels)]
        edge_seconds = operand_seconds[operands[:, :1]].sum(axis=1) + result_seconds[made].sum(
            axis=1
        )
        copied = collectives.copied[operands[:, :1]].sum(axis=1)
        copied += collectives.whole_sums[made].sum(axis=1)
        turned = collectives.turned_operands[operands[:, :1]].sum(axis=1)
        turned += collectives.copied_results[made].sum(axis=1)
        result.append(
            CellCosts(
                edge_seconds, kernel_seconds[kernels].T, copied, turned, kept[operands[:, 1:]].T
            )
        )
    return result
