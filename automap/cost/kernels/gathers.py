"""Gathers of parameters in loops that run beside kernels.

A compiler may lay a gather around a product that comes before the one that reads what is gathered.
In one trip of a loop each product begins one gather at most: of each gather it is the nearest
product before its reader, in the same trip, that begins no other. The gather runs beside that
product and what comes after it, until it is read or the next one begins. So of a gather that runs
in every trip

    hidden = mean over its runs of min(gather, product + kernels after it)

Of the kernels after it those count that depend on no more decisions: none that reads a parameter,
and no product that makes a gradient. The latter begin no gather either: their sums are scattered in
rings (`automap.cost.kernels.rings`), or reduced.

Where a gather begins does not depend on the plan. It is chosen as if all parameters that products
of the loop read were gathered; where only some are, more may be hidden. In return what is left of a
gather depends on few decisions                          -> in: `automap.search.factored.cells`
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from automap.backends import Backend
from automap.cost.edges import Edges
from automap.cost.edges.loops import innermost_loops
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_GATHER
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Op
from hlo_tools.opcodes import CONTRACTIONS


@dataclass(frozen=True)
class HiddenGathers:
    """Operand edges, `edge` [windows], and the kernels that a `share` of the gathers there run
    beside: `kernel` [windows, width], -1 where a window has fewer.
    """

    edge: np.ndarray
    share: np.ndarray
    kernel: np.ndarray

    def hidden_seconds(
        self, collectives: Collectives, kernel_seconds: np.ndarray, seconds: np.ndarray
    ) -> np.ndarray:
        """Of `seconds` [entries] those beside kernels, which take `kernel_seconds` [kernels]."""
        at = np.flatnonzero(collectives.on_operand & (collectives.kind == ALL_GATHER))
        n_edges = 1 + max(self.edge.max(initial=0), collectives.edge[at].max(initial=0))
        entry_by_edge = np.full(n_edges, -1)
        entry_by_edge[collectives.edge[at]] = at
        # Of an edge where nothing is gathered nothing is hidden.
        here = np.flatnonzero(entry_by_edge[self.edge] >= 0)
        entry = entry_by_edge[self.edge[here]]
        # Number -1 is the 0 that is appended.
        beside = np.append(kernel_seconds, 0.0)[self.kernel[here]].sum(axis=1)
        hidden = np.minimum(seconds[entry], beside) * self.share[here]
        return np.bincount(entry, hidden, len(seconds))


_NONE_HIDDEN = HiddenGathers(np.zeros(0, np.int64), np.zeros(0), np.zeros((0, 0), np.int64))


def hidden_gathers(
    problem: Problem,
    operands: Edges,
    kernels: Sequence[Kernel],
    row_of_kernel: Sequence[int],
    backend: Backend,
) -> HiddenGathers:
    """Those of a program."""
    if backend.hidden_gathers == "none":
        return _NONE_HIDDEN
    ops, side = problem.graph.ops, problem.storage.side
    row_by_op = {kernel.op: row for kernel, row in zip(kernels, row_of_kernel, strict=True)}
    counted = [
        kernel.op
        for kernel in kernels
        if not any(side[access.value] == Side.PARAMETER for access in kernel.reads)
        and not _makes_gradient(problem, ops[kernel.op])
    ]
    loops = innermost_loops(problem.graph)
    counted_by_loop: dict[int, list[int]] = defaultdict(list)
    for op in counted:
        counted_by_loop[loops[op]].append(op)
    begun = list(_begun(problem, operands, row_by_op, loops))
    first_ops = sorted(first for _, _, first in begun if first is not None)
    windows, runs = Counter[tuple[int, tuple[int, ...]]](), Counter[int]()
    for reader, edge, first in begun:
        trips = ops[reader].trip_count
        runs[edge] += trips
        if first is not None:
            end = min([reader, *(other for other in first_ops if other > first)])
            after = [op for op in counted_by_loop[loops[first]] if first < op < end]
            windows[edge, tuple(row_by_op[op] for op in (first, *after))] += trips
    kernel = np.full((len(windows), max((len(rows) for _, rows in windows), default=0)), -1)
    for window, (_, rows) in enumerate(windows):
        kernel[window, : len(rows)] = rows
    edges = np.array([edge for edge, _ in windows], np.int64)
    share = np.array([n / runs[edge] for (edge, _), n in windows.items()], float)
    return HiddenGathers(edges, share, kernel)


def _makes_gradient(problem: Problem, op: Op) -> bool:
    return op.opcode in CONTRACTIONS and problem.storage.side[op.outputs[0]] != Side.NONE


def _begun(
    problem: Problem, operands: Edges, row_by_op: Mapping[int, int], loops: Sequence[int]
) -> Iterator[tuple[int, int, int | None]]:
    """Of each parameter that is gathered in every trip of a loop the product that reads it, its
    edge, and the product that begins the gather, if there is one.
    """
    graph, side = problem.graph, problem.storage.side
    edges_by_reader: dict[int, list[int]] = defaultdict(list)
    for edge, value, op, _, moved, _ in operands.incidences.tolist():
        if side[value] == Side.PARAMETER and graph.ops[op].trip_count == moved > 1:
            edges_by_reader[op].append(edge)
    # Products of each loop that have run and begin nothing yet.
    free: dict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        if op.opcode in CONTRACTIONS and loops[index] >= 0:
            for edge in edges_by_reader[index]:
                yield index, edge, free[loops[index]].pop() if free[loops[index]] else None
            if index in row_by_op and not _makes_gradient(problem, op):
                free[loops[index]].append(index)
