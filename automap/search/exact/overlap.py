"""Lower bounds of a step whose collectives run beside its kernels, as weighted sums of what both
take.

A device runs one kernel at a time and one link carries one collective at a time. So with weights w
of kernels and v of collectives, all from 0 to 1,

    step >= sum of w seconds(kernel) + sum of v seconds(collective)
                                            if w + v <= 1 for any two that can run together

An urgent collective (`automap.cost.schedule.overlap`) can only run beside the kernels between where
it is ready and where it is needed, beside spare and late ones, and beside slices of what a loop is
handed (`automap.cost.schedule.closed_loops`). The others, sums of gradients and gathers of
parameters, are only known to take link time,

    step >= sum of all collectives          so their v <= 1 - a,  and all w <= a

for some a. One weight for all places of a row keeps the number of them small; which are best
depends on the plan, so they are chosen with the prices of memory -> in: `automap.search.exact.dual`
Where one thing runs after the other all weights are 1.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from automap.cost.evaluate import Evaluator
from automap.cost.schedule.order import KERNEL, LATE, SPARE, Order, Places
from automap.search.factored.model import FeatureOffsets


@dataclass(frozen=True)
class Weights:
    """The weights that make lower bounds: of a feature of seconds `base` + the free number `which`
    of z (-1: none).

    z, `count` of them, are from 0 to 1 with `matrix` @ z <= `most`.
    """

    base: np.ndarray
    which: np.ndarray
    count: int
    matrix: sparse.csr_matrix
    most: np.ndarray

    def by_feature(self, z: np.ndarray) -> np.ndarray:
        """The weight of each feature of seconds."""
        # Number -1 is the 0 that is appended.
        return self.base + np.append(z, 0.0)[self.which]


def bounding_weights(evaluator: Evaluator, features: FeatureOffsets) -> Weights:
    """All valid weights of a problem."""
    # Features of seconds: kernels and edges.
    n = features.shapes
    if evaluator.backend.collectives == "in line":
        return Weights(np.ones(n), np.full(n, -1), 0, sparse.csr_matrix((0, 0)), np.zeros(0))
    tables = evaluator.tables
    # The free numbers: the weight of each feature, a, and the greatest weight of an urgent
    # collective.
    share, most_urgent = n, n + 1
    is_urgent = np.concatenate([~tables.operands.combinable, ~tables.results.combinable])
    urgent = features.operands + np.flatnonzero(is_urgent)
    others = features.operands + np.flatnonzero(~is_urgent)
    rows = _Rows()
    # w <= a for each kernel, v <= 1 - a for each collective that is not urgent.
    for kernel in range(features.operands):
        rows.add(kernel, 1.0, share, -1.0, 0.0)
    for collective in others.tolist():
        rows.add(collective, 1.0, share, 1.0, 1.0)
    # An urgent one weighs at most u, the greatest of them, and kernels that run at any time at most
    # 1 - u: one row each in place of one for each pair.
    for collective in urgent.tolist():
        rows.add(collective, 1.0, most_urgent, -1.0, 0.0)
    for kernel in _free(tables.order):
        rows.add(kernel, 1.0, most_urgent, 1.0, 1.0)
    # The pairs that are left: an urgent collective and a kernel in the window of one of its places.
    allowed = set(urgent.tolist())
    for first, places in (
        (features.operands, tables.order.operands),
        (features.results, tables.order.results),
    ):
        for kernel, collective in sorted(_beside(tables.order, places, first)):
            if collective in allowed:
                rows.add(kernel, 1.0, collective, 1.0, 1.0)
    return Weights(np.zeros(n), np.arange(n), n + 2, rows.matrix(n + 2), np.array(rows.most))


class _Rows:
    """Inequalities of two numbers each: f x + g y <= most."""

    def __init__(self) -> None:
        self.columns: list[int] = []
        self.factors: list[float] = []
        self.most: list[float] = []

    def add(self, x: int, f: float, y: int, g: float, most: float) -> None:
        self.columns += [x, y]
        self.factors += [f, g]
        self.most.append(most)

    def matrix(self, n_columns: int) -> sparse.csr_matrix:
        at = np.repeat(np.arange(len(self.most)), 2)
        shape = (len(self.most), n_columns)
        return sparse.csr_matrix((self.factors, (at, self.columns)), shape=shape)


def _free(order: Order) -> list[int]:
    """Kernel rows of which some are spare, late, or made of nothing but what a loop is handed."""
    # `loop` has one more, of the boundary behind the last slot.
    loop = order.loop[: len(order.kind)]
    is_handed = (order.kind == KERNEL) & (loop >= 0) & (order.data_at <= loop + 1)
    return np.unique(order.row[(order.kind == SPARE) | (order.kind == LATE) | is_handed]).tolist()


def _beside(order: Order, places: Places, first: int) -> set[tuple[int, int]]:
    """(kernel row, feature) of kernels in the windows of an edge's collectives; its features begin
    at `first`.
    """
    # Spare and late kernels are in no window: they may run anywhere.
    is_kernel = order.kind == KERNEL
    pairs = set[tuple[int, int]]()
    for edge, (start, end) in enumerate(zip(places.first[:-1].tolist(), places.first[1:].tolist())):
        for ready, needed in {
            (int(places.ready[i]), int(places.needed[i])) for i in range(start, end)
        }:
            rows = order.row[ready:needed][is_kernel[ready:needed]]
            pairs.update((row, first + edge) for row in rows.tolist())
    return pairs
