"""Many points of one mesh priced at once.

A step is a few hundred rows, of which numpy works out a plan's prices in less time than it takes to
call it; so a batch of n points is priced as one point of a program that is n copies of the step
(`automap.search.factored.copied`), each with its own shardings              -> in: `Batches`

The estimates are those of one point at a time, to the last bit: sums over kernels and collectives
are made for each point alone and in the same order                         -> in: `_split_batch`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from automap.cost.evaluate import Estimate, Evaluator, Priced, Together
from automap.cost.schedule.order import Order
from automap.cost.shardings import Shardings, joint_shardings
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import Flow
from automap.search.factored.cells import Cell
from automap.search.factored.copied import CopiedCells
from automap.space.point import SplitClasses


# Copies of more edges are no faster together than one after the other.
_MOST_EDGES = 1 << 14
_MOST_POINTS = 32
# So many times as many copies as points are priced at most.
_MOST_SPARE = 2


class _Copied(NamedTuple):
    """An evaluator of a program copied so many times, and the order of the copies."""

    evaluator: Evaluator
    order: Order | None


@dataclass(frozen=True)
class Batches:
    """Prices points of one program in batches; `_copies` keeps evaluators of so many copies, and
    `_spare` how many too many were priced for batches of so many points.
    """

    evaluator: Evaluator
    _copies: dict[int, _Copied] = field(default_factory=dict, repr=False)
    _spare: dict[int, int] = field(default_factory=dict, repr=False)

    @cached_property
    def most_points(self) -> int:
        """How many points are worth pricing at once; what is known of measured kernels is kept for
        single ones.
        """
        tables = self.evaluator.tables
        n_edges = len(tables.operands.count) + len(tables.results.count)
        # Measured kernels are looked up by signature and remembered, which copies would not find.
        is_alone = self.evaluator.kernel_profile is not None or not self.evaluator.has_parts
        if is_alone or not n_edges:
            return 1
        return min(max(_MOST_EDGES // n_edges, 1), _MOST_POINTS)

    def estimates(self, split_classes: Sequence[SplitClasses]) -> list[Estimate]:
        """Of each of at most `most_points` split_classes, which are on one mesh."""
        n = len(split_classes)
        if n < 2:
            return [self.evaluator.evaluate(each) for each in split_classes]
        n_copies, copied = self._copied_evaluator(n)
        # Copies that are left over price the last point again, for nobody.
        every = [*split_classes, *[split_classes[-1]] * (n_copies - n)]
        joint = joint_shardings(self.evaluator.tables, self.evaluator.n_classes, every)
        parts = _split_batch(self.evaluator, copied, copied.evaluator.price(joint), n_copies)
        return [self.evaluator.add_up(*part) for part in islice(parts, n)]

    def _copied_evaluator(self, n: int) -> tuple[int, _Copied]:
        """An evaluator of at least n copies, and of how many."""
        at_hand = min((k for k in self._copies if n <= k <= _MOST_SPARE * n), default=n)
        spare = self._spare.get(n, 0)
        # To copy the tables takes about as long as to price as many points for nobody. So they are
        # copied where none are at hand, or once that much time was lost.
        n_copies = at_hand if spare < n else n
        self._spare[n] = spare + n_copies - n
        if n_copies not in self._copies:
            self._copies[n_copies] = self._copy(n_copies)
        return n_copies, self._copies[n_copies]

    def _copy(self, n: int) -> _Copied:
        tables = self.evaluator.tables
        # All of the program as one cell: its copies are copies of the step.
        whole = Cell(
            value_rows=tuple(range(len(tables.value_rows))),
            op_rows=tuple(range(len(tables.op_rows))),
            operands=tuple(range(len(tables.operands.count))),
            results=tuple(range(len(tables.results.count))),
            kernels=tuple(range(len(tables.kernels.count))),
            scope=(),
        )
        copied = CopiedCells(self.evaluator, [whole], [n]).tables()
        n_shapes, n_rows = len(tables.shapes.row), len(tables.value_rows)
        shapes = tables.shapes.take(np.tile(np.arange(n_shapes), n))
        first_row = np.repeat(np.arange(n) * n_rows, n_shapes)
        shapes = replace(shapes, row=shapes.row + first_row)
        evaluator = replace(self.evaluator, tables=replace(copied, shapes=shapes))
        if not evaluator.is_scheduled:
            return _Copied(evaluator, None)
        return _Copied(evaluator, tables.order.copies(n, len(tables.kernels.count)))


def _split_batch(
    evaluator: Evaluator, copied: _Copied, priced: Priced, n: int
) -> Iterator[tuple[Priced, Together]]:
    """The parts of each of n points, with edges numbered as in the evaluator's own tables."""
    tables, joint = evaluator.tables, priced.collectives
    again = joint.scattered_again
    # Copies are numbered point by point, so the point of an edge is its number over their count.
    n_edges = np.where(joint.on_operand, len(tables.operands.count), len(tables.results.count))
    point, edge = np.divmod(joint.edge, n_edges)
    together = copied.evaluator.together(priced, point, copied.order)
    works = repeat(None) if together.work is None else together.work.apart(n)
    # Stable: within a point entries stay in their order, in which they are added up.
    by_point = np.argsort(point, kind="stable")
    ends = [0, *np.searchsorted(point[by_point], np.arange(1, n)).tolist(), len(point)]
    # Columns of collectives, of which points have different numbers.
    entries = [
        column[by_point]
        for column in (
            joint.kind,
            joint.mask,
            joint.n_bytes,
            joint.count,
            joint.phase,
            joint.combinable,
            edge,
            joint.on_operand,
            priced.collective_seconds,
            priced.overlapped_seconds,
            together.collective_seconds,
        )
    ]
    # Columns of rows that every point has: n equal parts.
    rows = [
        column.reshape(n, -1)
        for column in (
            joint.is_repeat,
            joint.copied,
            joint.whole_sums,
            joint.turned_operands,
            joint.turned_results,
            again.mask,
            again.n_bytes,
            priced.kernel_seconds,
            together.local,
        )
    ]
    for number, (sharding, work) in enumerate(zip(_shardings_apart(priced.sharding, n), works)):
        own_entries = slice(ends[number], ends[number + 1])
        *own, alone_seconds, overlapped_seconds, seconds = (c[own_entries] for c in entries)
        is_repeat, copied_bytes, *held, mask, n_bytes, kernel_seconds, local = (
            c[number] for c in rows
        )
        whole_sums, turned_operands, turned_results = held
        collectives = Collectives(
            *own,
            is_repeat=is_repeat,
            copied=copied_bytes,
            whole_sums=whole_sums,
            turned_operands=turned_operands,
            turned_results=turned_results,
            scattered_again=Flow(again.kind, mask, n_bytes),
        )
        yield (
            Priced(sharding, collectives, kernel_seconds, alone_seconds, overlapped_seconds),
            Together(seconds, work, local),
        )


def _shardings_apart(joint: Shardings, n: int) -> Iterator[Shardings]:
    columns = (joint.dim_of_axis, joint.factor_of_axis, joint.parts_of_value, joint.parts_of_op)
    apart = [column.reshape(n, -1, *column.shape[1:]) for column in columns]
    for number in range(n):
        yield Shardings(joint.sizes, *(column[number] for column in apart))
