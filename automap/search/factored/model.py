"""The cost of every plan on one mesh as a sum of tables over few decisions each.

    cost(x) = sum over groups g of  weights . features_g(u_g(x))

x is a choice for each variable, u_g(x) the number of the way in which the choices of g's scope
split its rows, and features_g [features, ways] what its kernels, edges and value rows cost then.
Features of all groups together:

    kernels, operand edges, result edges     seconds of a step
    value rows                               1 / (parts of the row): bytes of a device per byte
    copies by operand edges                  bytes
    repeats of operand edges                 bytes of the copy that the later edge finds gathered
                                                                              -> in: `Features`
The sums of seconds are those of `Evaluator.evaluate` where one thing runs after the other; bytes at a position of
the schedule are at least a weighted sum of the others (`automap.cost.memory.Profile.at`).  What is not allowed
(broken pins) is kept apart                                                    -> in: `Factored.barriers`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from automap.cost.evaluate import Evaluator
from automap.search.factored.barriers import barriers_of_both, pin_barriers, pins_of_rows
from automap.search.factored.cells import Cell, Rows, cells_of
from automap.search.factored.codes import Group
from automap.search.factored.laying import Laid, LaidCell, lay
from automap.search.factored.pricing import Prices, Ways, prices
from automap.search.factored.stored import Stored
from automap.search.factored.table import Table
from automap.search.factored.variables import Variables
from automap.space.pins import Pin


# More would cost no less in all, and take more memory.
_WAYS_AT_ONCE = 1 << 15
# Nominal seconds to lay out a joint choice and to price a way: four models on 2 cores, 2026-11.
_SECONDS_PER_CHOICE, _SECONDS_PER_WAY = 2.5e-7, 2e-6


@dataclass(frozen=True)
class Features:
    """The numbers of features: where each kind begins."""

    operands: int
    results: int
    value_rows: int
    copies: int
    kept: int
    count: int

    @staticmethod
    def of(evaluator: Evaluator) -> "Features":
        """Those of a problem's tables."""
        t = evaluator.tables
        lengths = (
            len(t.kernels.count),
            len(t.operands.count),
            len(t.results.count),
            len(t.value_rows),
            len(t.operands.count),
            len(t.operands.repeats),
        )
        return Features(*np.cumsum(lengths).tolist())


@dataclass(frozen=True)
class Part:
    """A group on a mesh: `way` [choices...] numbers what they do, `values` [features, ways] what
    that costs.
    """

    scope: tuple[int, ...]
    way: np.ndarray
    features: np.ndarray
    values: np.ndarray

    def table(self, weights: np.ndarray) -> Table:
        """The weighted sum of the features; `weights` has one entry per feature of the problem."""
        return Table(self.scope, (weights[self.features] @ self.values)[self.way])


@dataclass(frozen=True)
class Factored:
    """All plans of a mesh; `barriers` are infinite where a plan is not allowed, else 0.

    `is_complete` is whether no group was left out: if one was, sums of features are lower bounds.
    """

    variables: Variables
    parts: tuple[Part, ...]
    barriers: tuple[Table, ...]
    is_complete: bool

    def tables(self, weights: np.ndarray) -> list[Table]:
        """Tables whose sum is the weighted sum of a plan's features, infinite for those not
        allowed.
        """
        return [*(part.table(weights) for part in self.parts), *self.barriers]


@dataclass(frozen=True)
class Model:
    """A problem's cost, ready to be laid out on meshes; `spend` is called with the nominal seconds
    of a part, and may raise.
    """

    rows: Rows
    pins: Sequence[Pin] = ()
    spend: Callable[[float], None] = lambda nominal_seconds: None

    @cached_property
    def features(self) -> Features:
        """The numbers of features."""
        return Features.of(self.rows.evaluator)

    @cached_property
    def _repeats_of(self) -> dict[int, list[int]]:
        """The rows of `Edges.repeats` in which each operand edge is the later."""
        found: dict[int, list[int]] = {}
        for row, later in enumerate(self.rows.evaluator.tables.operands.repeats[:, 0].tolist()):
            found.setdefault(later, []).append(row)
        return found

    @cached_property
    def _pins_of_rows(self) -> dict[int, list[Pin]]:
        return pins_of_rows(self.pins, self.rows.of_inputs)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Cells by scope."""
        by_scope: dict[tuple[int, ...], list[Cell]] = {}
        for cell in cells_of(self.rows, self._pins_of_rows):
            by_scope.setdefault(cell.scope, []).append(cell)
        return tuple(Group(self.rows, scope, tuple(of)) for scope, of in by_scope.items())

    def is_complete(self, variables: Variables, most_choices: float) -> bool:
        """Whether `on_mesh` leaves no group out."""
        return all(_choices(group, variables) <= most_choices for group in self.groups)

    def on_mesh(self, variables: Variables, most_choices: float = np.inf) -> Factored:
        """The tables of one mesh; groups of more than `most_choices` joint choices are left out."""
        stored, sizes = Stored(self.rows, variables), variables.mesh.sizes
        groups = [group for group in self.groups if _choices(group, variables) <= most_choices]
        laid = [self._lay(group, variables, stored) for group in groups]
        priced = [cell for one in laid for cell in one.cells if cell.is_priced]
        price_of = self._prices([cell.ways for cell in priced], sizes)
        rows = [
            [row for cell in one.cells if not cell.is_priced for row in self._of_value(cell, sizes)]
            for one in laid
        ]
        group_of = [g for g, one in enumerate(laid) for cell in one.cells if cell.is_priced]
        for group, cell, price in zip(group_of, priced, price_of, strict=True):
            rows[group] += self._of_cell(cell, price)
        parts = [
            Part(
                group.scope,
                one.way,
                np.array([feature for feature, _ in of], np.int64),
                np.stack([values for _, values in of]),
            )
            for group, one, of in zip(groups, laid, rows, strict=True)
        ]
        of_row = self._pins_of_rows
        pins = [barrier for one in laid for barrier in pin_barriers(one, variables, of_row)]
        is_complete = len(groups) == len(self.groups)
        barriers = (*pins, *barriers_of_both(variables))
        return Factored(variables, tuple(parts), barriers, is_complete)

    def _lay(self, group: Group, variables: Variables, stored: Stored) -> Laid:
        self.spend(_SECONDS_PER_CHOICE * _choices(group, variables))
        return lay(group, variables, stored)

    def _prices(self, ways: Sequence[Ways], sizes: tuple[int, ...]) -> Iterator[Prices]:
        """The prices of every cell, from few calls of the evaluator."""
        batch, room = list[Ways](), _WAYS_AT_ONCE
        for of_cell in ways:
            if batch and len(of_cell.dims) > room:
                yield from prices(self.rows.evaluator, sizes, batch)
                batch, room = [], _WAYS_AT_ONCE
            self.spend(_SECONDS_PER_WAY * len(of_cell.dims))
            batch.append(of_cell)
            room -= len(of_cell.dims)
        if batch:
            yield from prices(self.rows.evaluator, sizes, batch)

    def _of_cell(self, cell: LaidCell, price: Prices) -> list[tuple[int, np.ndarray]]:
        """(feature, values [ways of the group]) of a cell with an edge or kernels."""
        of, features = cell.ways.cell, self.features
        found = list(zip(of.kernels, price.of_kernels, strict=True))
        if of.operands:
            found.append((features.operands + of.operands[0], price.of_edge))
            found.append((features.copies + of.operands[0], price.copied))
            rows = self._repeats_of.get(of.operands[0], ())
            found += [
                (features.kept + row, kept) for row, kept in zip(rows, price.kept, strict=True)
            ]
        if of.results:
            found.append((features.results + of.results[0], price.of_edge))
        return [(feature, values[cell.number]) for feature, values in found]

    def _of_value(self, cell: LaidCell, sizes: tuple[int, ...]) -> list[tuple[int, np.ndarray]]:
        """The same for a cell of one value row."""
        parts = np.where(cell.ways.dims[:, 0] >= 0, sizes, 1).prod(axis=1)
        row = cell.ways.cell.value_rows[0]
        return [(self.features.value_rows + row, (1.0 / parts)[cell.number])]


def _choices(group: Group, variables: Variables) -> int:
    """Joint choices of a group's decisions."""
    return prod(variables.sizes[v] for v in group.scope)
