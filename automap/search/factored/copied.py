"""The evaluator's tables put together from copies: of each cell, and each way that its rows may be
split, one of its rows.

Rows, edges, windows and kernels of copies are numbered apart, so the evaluator prices them all in
one call, each as if it were alone. Copies are numbered by cell, in a cell by way, in a way by
thing, so that

    number(cell, way, thing) = start(cell) + way * (things of the cell) + place of the thing

Many points of one mesh are priced so too. A step is a few hundred rows, of which numpy works out a
plan's prices in less time than it takes to call it; so a batch of n points is priced as one point
of a program that is n copies of the step, each with its own shardings      -> in: `Batches`

The estimates are those of one point at a time, to the last bit: sums over kernels and collectives
are made for each point alone and in the same order                         -> in: `_split_batch`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from automap.backends.effects import CopiedAccesses
from automap.cost.edges import Edges, Windows
from automap.cost.evaluate import Estimate, Evaluator, Priced, Together
from automap.cost.kernels.gathers import HiddenGathers
from automap.cost.kernels.table import KernelTable
from automap.cost.schedule.order import Order
from automap.cost.schedule.work import copied_order
from automap.cost.shardings import joint_shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import Flow
from automap.search.factored.cells import Cell
from automap.space.point import SplitClasses


@dataclass(frozen=True)
class Copies:
    """`thing`, `cell` and `way` are of each copy; `start` and `count` of each cell; `place` [cells,
    things], -1: not there.
    """

    thing: np.ndarray
    cell: np.ndarray
    way: np.ndarray
    start: np.ndarray
    count: np.ndarray
    place: np.ndarray

    @property
    def is_first(self) -> np.ndarray:
        """Whether each copy is of the first thing of its cell."""
        return self.place[self.cell, self.thing] == 0

    def number(self, cell: np.ndarray, way: np.ndarray, thing: np.ndarray) -> np.ndarray:
        """The copies of `thing` in each cell and way."""
        return self.start[cell] + way * self.count[cell] + self.place[cell, thing]

    def in_cell(self, cell: int, n_ways: int) -> np.ndarray:
        """The copies of one cell, [ways, things]."""
        count = int(self.count[cell])
        return int(self.start[cell]) + np.arange(n_ways * count).reshape(n_ways, count)


def make_copies(
    things: Sequence[Sequence[int] | np.ndarray], n_ways: np.ndarray, n_things: int
) -> Copies:
    """Copies of the `things` of each cell, of which there are `n_things` in all cells together."""
    count = np.array([len(own) for own in things], np.int64)
    cells = np.arange(len(things))
    # [cells, things]: where a thing stands in a cell, so that numbers are looked up and not
    # searched.
    place = np.full((len(things), n_things), -1, np.int32)
    for cell, own in enumerate(things):
        place[cell, np.array(own, np.int64)] = np.arange(len(own))
    none = np.zeros(0, np.int64)
    return Copies(
        thing=np.concatenate(
            [none, *(np.tile(np.array(own, np.int64), n) for own, n in zip(things, n_ways))]
        ),
        cell=np.repeat(cells, count * n_ways),
        way=np.concatenate([none, *(np.repeat(np.arange(n), k) for n, k in zip(n_ways, count))]),
        start=np.concatenate([[0], np.cumsum(count * n_ways)[:-1]]).astype(np.int64),
        count=count,
        place=place,
    )


class CopiedCells:
    """Copies of cells; each cell has as many as `n_ways` says."""

    def __init__(self, evaluator: Evaluator, cells: Sequence[Cell], n_ways: Sequence[int]) -> None:
        """Copies of rows of `evaluator`'s tables."""
        self.evaluator, self.cells = evaluator, cells
        self.n_ways = np.array(n_ways, np.int64)
        old = evaluator.tables
        self.value_rows = self._copies([c.value_rows for c in self.cells], len(old.value_rows))
        self.op_rows = self._copies([c.op_rows for c in self.cells], len(old.op_rows))
        self.operands = self._copies([c.operands for c in self.cells], len(old.operands.count))
        self.results = self._copies([c.results for c in self.cells], len(old.results.count))
        kernels = [c.kernels + c.beside for c in self.cells]
        self.kernels = self._copies(kernels, len(old.kernels.count))

    def _copies(self, things: Sequence[Sequence[int] | np.ndarray], n_things: int) -> Copies:
        return make_copies(things, self.n_ways, n_things)

    def tables(self) -> Tables:
        """The evaluator's tables with copies of edges, windows and kernels instead of its own."""
        old = self.evaluator.tables
        return replace(
            old,
            operands=self._edges(old.operands, self.operands),
            results=self._edges(old.results, self.results),
            windows=self._windows(old.windows),
            kernels=self._kernels(old.kernels),
            hidden_gathers=self._hidden_gathers(old.hidden_gathers),
        )

    def _edges(self, edges: Edges, copies: Copies) -> Edges:
        which, cell, way = copies.thing, copies.cell, copies.way
        # All columns but those that hold numbers of other things, which are numbered anew.
        columns = {f.name for f in fields(Edges)} - {"repeats", "windows", "incidences"}
        taken = {name: getattr(edges, name)[which] for name in columns - {"value_row", "op_row"}}
        return replace(
            edges,
            **taken,
            value_row=self.value_rows.number(cell, way, edges.value_row[which]),
            op_row=self.op_rows.number(cell, way, edges.op_row[which]),
            repeats=self._pairs(copies, edges.repeats),
        )

    def _pairs(self, copies: Copies, pairs: np.ndarray) -> np.ndarray:
        """Copies of pairs of things: in each cell of those that it has both of."""
        # Pairs of things of which the cell has both: a repeat, of which one edge is not there, is
        # none.
        pairs_by_cell = [
            np.flatnonzero((copies.place[cell, pairs] >= 0).all(axis=1))
            if copies.count[cell] > 1
            else ()
            for cell in range(len(self.cells))
        ]
        pair_copies = self._copies(pairs_by_cell, len(pairs))
        first, second = (
            copies.number(pair_copies.cell, pair_copies.way, pairs[pair_copies.thing, side])
            for side in (0, 1)
        )
        return np.stack([first, second], axis=1)

    def _windows(self, windows: Windows) -> Windows:
        windows_by_cell = [
            np.flatnonzero(np.isin(windows.edge, c.operands)) if len(windows.edge) else ()
            for c in self.cells
        ]
        copies = self._copies(windows_by_cell, len(windows.edge))
        which, cell, way = copies.thing, copies.cell, copies.way
        halos = windows.halos
        return Windows(
            edge=self.operands.number(cell, way, windows.edge[which]),
            factor=windows.factor[which],
            size=windows.size[which],
            place=windows.place[which],
            repeats=self._pairs(copies, windows.repeats),
            halos=replace(halos, **{f.name: getattr(halos, f.name)[which] for f in fields(halos)}),
        )

    def _hidden_gathers(self, hidden: HiddenGathers) -> HiddenGathers:
        is_none = hidden.kernel < 0
        # As of repeats: windows of which the cell has the edge and all kernels.
        windows_by_cell = [
            np.flatnonzero(
                (self.operands.place[cell, hidden.edge] >= 0)
                & (is_none | (self.kernels.place[cell, hidden.kernel] >= 0)).all(axis=1)
            )
            for cell in range(len(self.cells))
        ]
        copies = self._copies(windows_by_cell, len(hidden.edge))
        which, cell, way = copies.thing, copies.cell, copies.way
        number = self.kernels.number(cell[:, None], way[:, None], hidden.kernel[which])
        edge = self.operands.number(cell, way, hidden.edge[which])
        return HiddenGathers(edge, hidden.share[which], np.where(is_none[which], -1, number))

    def _kernels(self, table: KernelTable) -> KernelTable:
        copies = self.kernels
        which, cell, way = copies.thing, copies.cell, copies.way
        starts, kernel = self._first_access, np.arange(len(which))
        counts = np.diff(starts)[which]
        before = np.cumsum(counts) - counts
        # Accesses stand kernel by kernel: those of each copy are a range of the table's.
        access = np.repeat(starts[which] - before, counts) + np.arange(counts.sum())
        is_ringed = self.evaluator.backend.scattered_products == "rings"
        edge, row = np.full(len(which), -1), np.full(len(which), -1)
        # A product that is one loop with its reduce-scatter names the edge and the row of its
        # result; not one that is only there for what runs beside it.
        made = np.flatnonzero(is_ringed & (table.product_edge[which] >= 0))
        made = made[self.results.place[cell[made], table.product_edge[which[made]]] >= 0]
        edge[made] = self.results.number(cell[made], way[made], table.product_edge[which[made]])
        row[made] = self.value_rows.number(cell[made], way[made], table.product_row[which[made]])
        same = (
            "product_sizes",
            "kernel_class",
            "is_fill",
            "is_launched",
            "taps",
            "flops",
            "efficiency",
            "count",
            "phase",
        )
        kernel_by_access = np.repeat(kernel, counts)

        def value_row(here: np.ndarray, row: np.ndarray) -> np.ndarray:
            return self.value_rows.number(
                cell[kernel_by_access[here]], way[kernel_by_access[here]], row
            )

        copied = CopiedAccesses(access, value_row)
        return replace(
            table,
            **{name: getattr(table, name)[which] for name in same},
            op_row=self.op_rows.number(cell, way, table.op_row[which]),
            shape=tuple(table.shape[k] for k in which.tolist()),
            dtype=tuple(table.dtype[k] for k in which.tolist()),
            product_edge=edge,
            product_row=row,
            side_sizes=table.side_sizes[:, which],
            groups=table.groups[which],
            written_bytes=table.written_bytes[:, which],
            written_factors=table.written_factors[:, which],
            transposed_bytes=table.transposed_bytes[:, which],
            cut_dims=table.cut_dims[:, which],
            traffic_kernel=kernel_by_access,
            traffic_row=self.value_rows.number(
                cell[kernel_by_access], way[kernel_by_access], table.traffic_row[access]
            ),
            traffic_bytes=table.traffic_bytes[access],
            rival_bytes=table.rival_bytes[access],
            effects=tuple(effect.select(copied) for effect in table.effects),
            column_sums=table.column_sums.select(which, len(table.op_row)),
            on_core=table.on_core.select(which, len(table.op_row)),
            convolutions=table.convolutions.select(which, len(table.op_row)),
            product_rows=table.product_rows.select(which, len(table.op_row)),
            additions=table.additions.select(which, len(table.op_row)),
            factorizations=table.factorizations.select(which, len(table.op_row)),
            relaid=table.relaid.select(which, len(table.op_row)),
            strided=table.strided.select(which, len(table.op_row)),
            held=table.held.select(which, len(table.op_row)),
        )

    @cached_property
    def _first_access(self) -> np.ndarray:
        """Where the accesses of each kernel begin, [kernels + 1]."""
        table = self.evaluator.tables.kernels
        return np.searchsorted(table.traffic_kernel, np.arange(len(table.op_row) + 1))


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
        return _Copied(evaluator, copied_order(tables.order, n, len(tables.kernels.count)))


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
            priced.copying_seconds,
            together.collective_seconds,
            together.copying_seconds,
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
            joint.copied_results,
            again.mask,
            again.n_bytes,
            priced.kernel_seconds,
            together.local,
        )
    ]
    for number, (sharding, work) in enumerate(zip(priced.sharding.apart(n), works)):
        own_entries = slice(ends[number], ends[number + 1])
        *own, alone, overlapped, alone_joined, seconds, joined = (c[own_entries] for c in entries)
        *held, mask, n_bytes, kernel_seconds, local = (c[number] for c in rows)
        scattered_again = Flow(again.kind, mask, n_bytes)
        collectives = Collectives(*own, *held, scattered_again=scattered_again)
        yield (
            Priced(sharding, collectives, kernel_seconds, alone, overlapped, alone_joined),
            Together(seconds, joined, work, local),
        )
