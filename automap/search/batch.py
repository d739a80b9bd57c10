"""Many points of one mesh priced in one call of the evaluator.

A step is a few hundred rows, of which numpy works out a plan's prices in less time than it takes to
call it. So a batch of n points is priced as one point of a program that is n copies of the step,
each with its own shardings.

The estimates are those of one point at a time, to the last bit: sums over kernels and collectives
are made for each point alone and in the same order -> in: `_split`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator, Priced
from automap.cost.shardings import Shardings, joint_shardings
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import Flow
from automap.search.factored.cells import Cell
from automap.search.factored.copied import CopiedCells
from automap.space.point import SplitClasses


# Copies of more edges are no faster together than one after the other.
_MOST_EDGES = 1 << 14
_MOST_POINTS = 32


@dataclass(frozen=True)
class Batches:
    """Prices points of one program in batches; `_copies` keeps evaluators of so many copies."""

    evaluator: Evaluator
    _copies: dict[int, Evaluator] = field(default_factory=dict, repr=False)

    @cached_property
    def most_points(self) -> int:
        """How many points are worth pricing at once; what is known of measured kernels is kept for
        single ones.
        """
        tables = self.evaluator.tables
        n_edges = len(tables.operands.count) + len(tables.results.count)
        is_alone = self.evaluator.kernel_profile is not None or not self.evaluator.has_parts
        if is_alone or not n_edges:
            return 1
        return min(max(_MOST_EDGES // n_edges, 1), _MOST_POINTS)

    def estimates(self, split_classes: Sequence[SplitClasses]) -> list[Estimate]:
        """Of each of at most `most_points` split_classes, which are on one mesh."""
        if len(split_classes) < 2:
            return [self.evaluator.evaluate(each) for each in split_classes]
        joint = joint_shardings(self.evaluator.tables, self.evaluator.n_classes, split_classes)
        priced = self._copied_evaluator(len(split_classes)).price(joint)
        return [
            self.evaluator.estimate(e) for e in _split(self.evaluator, priced, len(split_classes))
        ]

    def _copied_evaluator(self, n: int) -> Evaluator:
        if n not in self._copies:
            tables = self.evaluator.tables
            whole = Cell(
                value_rows=tuple(range(len(tables.value_rows))),
                op_rows=tuple(range(len(tables.op_rows))),
                operands=tuple(range(len(tables.operands.count))),
                results=tuple(range(len(tables.results.count))),
                kernels=tuple(range(len(tables.kernels.count))),
                scope=(),
            )
            copied = CopiedCells(self.evaluator, [whole], [n]).tables()
            self._copies[n] = replace(self.evaluator, tables=copied)
        return self._copies[n]


def _split(evaluator: Evaluator, priced: Priced, n: int) -> Iterator[Priced]:
    """The parts of each of n points, with edges numbered as in the evaluator's own tables."""
    tables, collectives_of_all, again = evaluator.tables, priced.found, priced.found.scattered_again
    n_edges = np.where(
        collectives_of_all.on_operand, len(tables.operands.count), len(tables.results.count)
    )
    point, edge = np.divmod(collectives_of_all.edge, n_edges)
    by_point = np.argsort(point, kind="stable")
    ends = np.searchsorted(point[by_point], np.arange(1, n))
    entries = [
        np.split(column[by_point], ends)
        for column in (
            collectives_of_all.kind,
            collectives_of_all.mask,
            collectives_of_all.n_bytes,
            collectives_of_all.count,
            collectives_of_all.phase,
            collectives_of_all.combinable,
            edge,
            collectives_of_all.on_operand,
            priced.of_collective,
            priced.beside,
        )
    ]
    rows = [
        np.split(column, n)
        for column in (
            collectives_of_all.is_repeat,
            collectives_of_all.copied,
            again.mask,
            again.n_bytes,
            priced.of_kernel,
        )
    ]
    for sharding, (*own, of_collective, beside), (is_repeat, copied, *scattered, of_kernel) in zip(
        _shardings_apart(priced.sharding, n), zip(*entries), zip(*rows), strict=True
    ):
        again_scattered = Flow(again.kind, *scattered)
        collectives = Collectives(
            *own, is_repeat=is_repeat, copied=copied, scattered_again=again_scattered
        )
        yield Priced(sharding, collectives, of_kernel, of_collective, beside)


def _shardings_apart(joint: Shardings, n: int) -> Iterator[Shardings]:
    columns = (joint.dim_of_axis, joint.factor_of_axis, joint.parts_of_value, joint.parts_of_op)
    for own in zip(*(np.split(column, n) for column in columns), strict=True):
        yield Shardings(joint.sizes, *own)
