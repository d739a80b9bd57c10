"""The cost of every plan on one mesh as a sum of tables over few decisions each.

    cost(x) = sum over groups g of  weights . features_g(u_g(x))

x is a choice for each variable, u_g(x) the number of the way in which the choices of g's scope
split its rows, and features_g [features, ways] what its kernels, edges and value rows cost then.
Features of all groups together:

    kernels, operand edges, result edges     seconds of a step
    stored shapes                            bytes of a device per byte of the whole
    copies by operand edges, whole sums by
    result edges, what both turn             bytes
    repeats of operand edges                 bytes of the copy that the later edge finds gathered
                                                                        -> in: `FeatureOffsets`
The sums of seconds are those of `Evaluator.evaluate` where one thing runs after the other; bytes at
a position of the schedule are at least a weighted sum of the others
(`automap.cost.memory.MemoryTimeline.at`). What is not allowed (broken pins) is kept apart
                                                                        -> in: `Factored.barriers`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.search.factored.barriers import pin_barriers, pins_by_value_row, validity_barriers
from automap.search.factored.cells import Cell, Rows, make_cells
from automap.search.factored.codes import Group
from automap.search.factored.eliminate import Table
from automap.search.factored.pricing import (
    CellCosts,
    CellSplits,
    MeshCell,
    MeshGroup,
    cell_costs,
    group_on_mesh,
)
from automap.search.factored.stored import LeafStorage
from automap.search.factored.variables import Variables
from automap.space.pins import Pin


# More would cost no less in all, and take more memory.
_WAYS_AT_ONCE = 1 << 15
# Nominal seconds to lay out a joint choice and to price a way: four models on 2 cores, 2026-11.
_SECONDS_PER_CHOICE, _SECONDS_PER_WAY = 2.5e-7, 2e-6


@dataclass(frozen=True)
class FeatureOffsets:
    """The numbers of features: where each kind begins."""

    operands: int
    results: int
    shapes: int
    copies: int
    kept: int
    count: int

    @staticmethod
    def from_evaluator(evaluator: Evaluator) -> "FeatureOffsets":
        """Those of a problem's tables."""
        t = evaluator.tables
        # In the order of the fields: where a kind begins is how many numbers the kinds before it
        # take.
        lengths = (
            len(t.kernels.count),
            len(t.operands.count),
            len(t.results.count),
            len(t.shapes.row),
            2 * (len(t.operands.count) + len(t.results.count)),
            len(t.operands.repeats),
        )
        return FeatureOffsets(*np.cumsum(lengths).tolist())


@dataclass(frozen=True)
class Term:
    """A group on a mesh: `way` [choices...] numbers what they do, `values` [features, ways] what
    that costs.
    """

    scope: tuple[int, ...]
    way: np.ndarray
    features: np.ndarray
    values: np.ndarray

    def table(self, weights: np.ndarray) -> Table:
        """The weighted sum of the features; `weights` has one entry per feature of the problem."""
        # Over the ways first, of which there are few, then spread to all joint choices
        # [choices...].
        return Table(self.scope, (weights[self.features] @ self.values)[self.way])


@dataclass(frozen=True)
class Factored:
    """All plans of a mesh; `barriers` are infinite where a plan is not allowed, else 0.

    `is_complete` is whether no group was left out: if one was, sums of features are lower bounds.
    """

    variables: Variables
    terms: tuple[Term, ...]
    barriers: tuple[Table, ...]
    is_complete: bool

    def tables(self, weights: np.ndarray) -> list[Table]:
        """Tables whose sum is the weighted sum of a plan's features, infinite for those not
        allowed.
        """
        return [*(term.table(weights) for term in self.terms), *self.barriers]


@dataclass(frozen=True)
class Model:
    """A problem's cost, ready to be laid out on meshes; `spend` is called with the nominal seconds
    of a part, and may raise.
    """

    rows: Rows
    pins: Sequence[Pin] = ()
    spend: Callable[[float], None] = lambda nominal_seconds: None

    @cached_property
    def features(self) -> FeatureOffsets:
        """The numbers of features."""
        return FeatureOffsets.from_evaluator(self.rows.evaluator)

    @cached_property
    def _repeats_by_edge(self) -> dict[int, list[int]]:
        """The rows of `Edges.repeats` in which each operand edge is the later."""
        repeats: dict[int, list[int]] = {}
        for row, later in enumerate(self.rows.evaluator.tables.operands.repeats[:, 0].tolist()):
            repeats.setdefault(later, []).append(row)
        return repeats

    @cached_property
    def _pins_by_value_row(self) -> dict[int, list[Pin]]:
        return pins_by_value_row(self.pins, self.rows.input_rows)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Cells by scope."""
        # Cells of one scope are laid out together, as their joint choices are the same.
        by_scope: dict[tuple[int, ...], list[Cell]] = {}
        for cell in make_cells(self.rows, self._pins_by_value_row):
            by_scope.setdefault(cell.scope, []).append(cell)
        return tuple(Group(self.rows, scope, tuple(cells)) for scope, cells in by_scope.items())

    def is_complete(self, variables: Variables, most_choices: float) -> bool:
        """Whether `on_mesh` leaves no group out."""
        return all(_choices(group, variables) <= most_choices for group in self.groups)

    def on_mesh(self, variables: Variables, most_choices: float = np.inf) -> Factored:
        """The tables of one mesh; groups of more than `most_choices` joint choices are left out."""
        stored, sizes = LeafStorage(self.rows, variables), variables.mesh.sizes
        # A group that is left out costs nothing, so sums without it are lower bounds.
        groups = [group for group in self.groups if _choices(group, variables) <= most_choices]
        mesh_groups = [self._group_on_mesh(group, variables, stored) for group in groups]
        priced = [cell for mesh_group in mesh_groups for cell in mesh_group.cells if cell.is_priced]
        # All cells of the mesh in few calls of the evaluator; a cell of one value row needs no
        # price.
        costs = self._prices([cell.ways for cell in priced], sizes)
        rows = [
            [
                row
                for cell in mesh_group.cells
                if not cell.is_priced
                for row in self._value_row_values(cell, sizes)
            ]
            for mesh_group in mesh_groups
        ]
        group_numbers = [
            g
            for g, mesh_group in enumerate(mesh_groups)
            for cell in mesh_group.cells
            if cell.is_priced
        ]
        # Prices come back in the order of the cells, lazily: a batch is priced when its first one
        # is asked for.
        for group, cell, price in zip(group_numbers, priced, costs, strict=True):
            rows[group] += self._cell_values(cell, price)
        terms = [
            Term(
                group.scope,
                mesh_group.way,
                np.array([feature for feature, _ in group_rows], np.int64),
                np.stack([values for _, values in group_rows]),
            )
            for group, mesh_group, group_rows in zip(groups, mesh_groups, rows, strict=True)
        ]
        pins_by_row = self._pins_by_value_row
        pins = [
            barrier
            for mesh_group in mesh_groups
            for barrier in pin_barriers(mesh_group, variables, pins_by_row)
        ]
        is_complete = len(groups) == len(self.groups)
        barriers = (*pins, *validity_barriers(variables))
        return Factored(variables, tuple(terms), barriers, is_complete)

    def _group_on_mesh(self, group: Group, variables: Variables, stored: LeafStorage) -> MeshGroup:
        self.spend(_SECONDS_PER_CHOICE * _choices(group, variables))
        return group_on_mesh(group, variables, stored)

    def _prices(self, ways: Sequence[CellSplits], sizes: tuple[int, ...]) -> Iterator[CellCosts]:
        """The prices of every cell, from few calls of the evaluator."""
        batch, room = list[CellSplits](), _WAYS_AT_ONCE
        for splits in ways:
            # A cell of more ways than fit at once is a batch by itself.
            if batch and len(splits.dims) > room:
                yield from cell_costs(self.rows.evaluator, sizes, batch)
                batch, room = [], _WAYS_AT_ONCE
            self.spend(_SECONDS_PER_WAY * len(splits.dims))
            batch.append(splits)
            room -= len(splits.dims)
        if batch:
            yield from cell_costs(self.rows.evaluator, sizes, batch)

    def _cell_values(self, cell: MeshCell, price: CellCosts) -> list[tuple[int, np.ndarray]]:
        """(feature, values [ways of the group]) of a cell with an edge or kernels."""
        priced, features, tables = cell.ways.cell, self.features, self.rows.evaluator.tables
        n_operands, n_results = len(tables.operands.count), len(tables.results.count)
        # Kernels have the first numbers, so theirs need no offset.
        values_by_feature = list(zip(priced.kernels, price.kernel_seconds, strict=True))
        if priced.operands:
            values_by_feature.append((features.operands + priced.operands[0], price.edge_seconds))
            # Numbered as in `Collectives.held_bytes`.
            held = features.copies + priced.operands[0]
            values_by_feature.append((held, price.copied))
            values_by_feature.append((held + n_operands + n_results, price.turned))
            rows = self._repeats_by_edge.get(priced.operands[0], ())
            values_by_feature += [
                (features.kept + row, kept) for row, kept in zip(rows, price.kept, strict=True)
            ]
        if priced.results:
            values_by_feature.append((features.results + priced.results[0], price.edge_seconds))
            held = features.copies + n_operands + priced.results[0]
            values_by_feature.append((held, price.copied))
            values_by_feature.append((held + n_results + n_operands, price.turned))
        return [(feature, values[cell.number]) for feature, values in values_by_feature]

    def _value_row_values(
        self, cell: MeshCell, sizes: tuple[int, ...]
    ) -> list[tuple[int, np.ndarray]]:
        """The same for a cell of one value row: of each shape that is stored so."""
        dims, row = cell.ways.dims[:, 0], cell.ways.cell.value_rows[0]
        evaluator = self.rows.evaluator
        shapes = evaluator.tables.shapes
        result = []
        for shape in np.flatnonzero(shapes.row == row).tolist():
            each_way = shapes.take(np.full(len(dims), shape))
            local = evaluator.shapes_local(each_way, dims, sizes)
            result.append((self.features.shapes + shape, local[cell.number]))
        return result


def _choices(group: Group, variables: Variables) -> int:
    """Joint choices of a group's decisions."""
    return prod(variables.sizes[v] for v in group.scope)
