"""Cells: what must be priced together, and which decisions it depends on.  The same on every mesh.

    operand     an operand edge and those before it whose copies may serve it; where gathers run
                beside kernels, these kernels
    result      a result edge, the sums before it that it may repeat, and, where products and their
                reduce-scatters are one loop, the products that make it
    kernel      any other kernel
    value       a value row, of which memory holds a part

A cell reads value rows and op rows: those of its edges and accesses, and of every op that may be
contested the rows of its tensors. A row can be split by the candidates that stand in it and by
storage classes of leaves; what a leaf stores depends on its level and on what computation does with
the classes of the leaf. So

    scope(cell) = axes of candidates in its rows,
                  sides of those that one row holds twice,
                  parts of those whose small part a row holds,
                  levels of leaves stored in its rows, axes of candidates on those leaves
                                                                      -> in: `Rows.scope`
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.cost.edges import Edges
from automap.cost.evaluate import Evaluator
from automap.search.factored.variables import Numbering
from automap.space.space import Space


@dataclass(frozen=True)
class Cell:
    """Rows of the tables that are priced together.

    `operands` and `results`: the edge that is priced comes first, the others are those that it may
    repeat. `kernels` are all priced; `beside` are those that a gather of the edge runs beside,
    which are priced elsewhere. A cell with none of them is of its one value row.
    """

    value_rows: tuple[int, ...]
    op_rows: tuple[int, ...]
    operands: tuple[int, ...]
    results: tuple[int, ...]
    kernels: tuple[int, ...]
    scope: tuple[int, ...]
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rows:
    """Which decisions rows depend on; variables are numbered as in
    `automap.search.factored.variables`.
    """

    space: Space
    evaluator: Evaluator

    @cached_property
    def numbering(self) -> Numbering:
        """The numbers of the variables."""
        return Numbering(self.space)

    @cached_property
    def input_rows(self) -> np.ndarray:
        """The value row of each input."""
        return self.evaluator.tables.row_of_value[list(self.space.problem.graph.inputs)]

    @cached_property
    def leaves_by_class(self) -> dict[int, tuple[int, ...]]:
        """The leaf classes that can turn each storage class on."""
        # A storage class is turned on by the level of its leaf, on either side of it.
        none, leaves = self.space.problem.n_classes, dict[int, tuple[int, ...]]()
        for number, leaf in enumerate(self.space.leaves):
            for side in (leaf.parameter_side, leaf.optimizer_side):
                for dim, group_class in enumerate(side):
                    # Where the parameter's dimension has no class `storage_dim` takes another
                    # dimension.
                    if group_class != none and leaf.parameter_side[dim] != none:
                        leaves[group_class] = (*leaves.get(group_class, ()), number)
        return {c: tuple(dict.fromkeys(numbers)) for c, numbers in leaves.items()}

    @cached_property
    def leaf_axes(self) -> tuple[tuple[int, ...], ...]:
        """The variables of the candidates that each leaf class holds."""
        known = self.numbering.axes
        return tuple(
            tuple(sorted({known[c] for c in (*leaf.compute, *leaf.regional) if c in known}))
            for leaf in self.space.leaves
        )

    @cached_property
    def storable(self) -> list[frozenset[int]]:
        """The storage classes in each value row, and after those in each op row."""
        known = self.leaves_by_class
        return [frozenset(c for c in row.ravel().tolist() if c in known) for row in self._all_rows]

    @property
    def _all_rows(self) -> Iterator[np.ndarray]:
        tables = self.evaluator.tables
        yield from tables.value_rows
        yield from tables.op_rows

    @cached_property
    def _variables(self) -> list[frozenset[int]]:
        """The variables that each value row, and after those each op row, depends on."""
        return [self._row_variables(row) for row in self._all_rows]

    def _row_variables(self, row: np.ndarray) -> frozenset[int]:
        none, number, variables = self.space.problem.n_classes, self.numbering, set[int]()
        numbers = row.ravel().tolist()
        classes = [c - none - 1 if c > none else c for c in numbers if c != none]
        for group_class, plain in zip(classes, (c for c in numbers if c != none), strict=True):
            if group_class in number.axes:
                variables.add(number.axes[group_class])
                if classes.count(group_class) > 1 and group_class in number.side:
                    variables.add(number.side[group_class])
                if plain > none and group_class in number.part:
                    variables.add(number.part[group_class])
            for leaf in self.leaves_by_class.get(group_class, ()):
                variables |= {number.first_leaf + leaf, *self.leaf_axes[leaf]}
        return frozenset(variables)

    @cached_property
    def contested(self) -> dict[int, tuple[int, ...]]:
        """Op rows of which several factors may be split along one axis, with their tensors' value
        rows.
        """
        tables, contests = self.evaluator.tables, self.evaluator.tables.factor_choices
        tensors: list[list[int]] = [[] for _ in contests.op_row]
        for contest, row in zip(contests.choice.tolist(), contests.value_row.tolist()):
            tensors[contest].append(row)
        return {
            row: tuple(tensor_rows)
            for row, tensor_rows in zip(contests.op_row.tolist(), tensors)
            # With one factor that decisions can split there is nothing to contest.
            if sum(bool(self._row_variables(factor)) for factor in tables.op_rows[row]) > 1
        }

    def scope(self, value_rows: Iterable[int], op_rows: Iterable[int]) -> tuple[int, ...]:
        """The variables that some rows depend on."""
        first_op = len(self.evaluator.tables.value_rows)
        value_scopes = (self._variables[r] for r in value_rows)
        op_scopes = (self._variables[first_op + r] for r in op_rows)
        return tuple(sorted(frozenset[int]().union(*value_scopes, *op_scopes)))

    def cell(
        self,
        value_rows: Iterable[int],
        op_rows: Iterable[int] = (),
        operands: Sequence[int] = (),
        results: Sequence[int] = (),
        kernels: Sequence[int] = (),
        beside: Sequence[int] = (),
    ) -> Cell:
        """A cell of these edges, kernels and rows, and of all rows that those need."""
        tables = self.evaluator.tables
        values, ops = set(value_rows), set(op_rows)
        for edges, numbers in ((tables.operands, operands), (tables.results, results)):
            values.update(edges.value_row[list(numbers)].tolist())
            ops.update(edges.op_row[list(numbers)].tolist())
        for op in ops:
            # Who wins a contest depends on the bytes of the op's tensors, so these have to be there
            # too.
            values.update(self.contested.get(op, ()))
        return Cell(
            tuple(sorted(values)),
            tuple(sorted(ops)),
            tuple(operands),
            tuple(results),
            tuple(kernels),
            self.scope(values, ops),
            tuple(beside),
        )


def make_cells(rows: Rows, pinned_rows: Iterable[int] = ()) -> tuple[Cell, ...]:
    """The cells of a problem; `pinned_rows` are value rows that need one of their own too."""
    tables = rows.evaluator.tables
    kernels, hidden = tables.kernels, tables.hidden_gathers
    starts = np.searchsorted(kernels.traffic_kernel, np.arange(len(kernels.op_row) + 1))
    reads = [set(kernels.traffic_row[start:end].tolist()) for start, end in zip(starts, starts[1:])]
    cells = []
    for edge, before in enumerate(_before(tables.operands)):
        beside = sorted({*hidden.kernel[hidden.edge == edge].ravel().tolist()} - {-1})
        values = {row for k in beside for row in reads[k]}
        ops = kernels.op_row[beside].tolist()
        cells.append(rows.cell(values, ops, (edge, *before), beside=beside))
    # There a product and the reduce-scatter of its result are one loop and have one price together.
    is_ringed = rows.evaluator.backend.scattered_products == "rings"
    products: dict[int, list[int]] = {}
    for number, edge in enumerate(kernels.product_edge.tolist()):
        if is_ringed and edge >= 0:
            products.setdefault(edge, []).append(number)
        else:
            cells.append(
                rows.cell(reads[number], (int(kernels.op_row[number]),), (), (), (number,))
            )
    for edge, before in enumerate(_before(tables.results)):
        made = products.get(edge, [])
        values = {row for k in made for row in (*reads[k], int(kernels.product_row[k]))}
        ops = kernels.op_row[made].tolist()
        cells.append(rows.cell(values, ops, (), (edge, *before), made))
    # Rows that are in memory at some time, and those that a barrier is asked about.
    in_memory = tables.shapes.row[tables.buffers.shape]
    rows_in_memory = {*in_memory.tolist(), *pinned_rows}
    return (*cells, *(rows.cell((row,)) for row in sorted(rows_in_memory)))


def _before(edges: Edges) -> list[list[int]]:
    before: list[list[int]] = [[] for _ in edges.count]
    for later, earlier in edges.repeats.tolist():
        # A later edge costs nothing where an earlier one has gathered the same already.
        before[later].append(earlier)
    return before
