"""Gathers in loops that run beside kernels, in one trip of a loop.

*Parameters.* A compiler may lay a gather around a product that comes before the one that reads what
is gathered. Each product begins one gather at most: of each gather it is the nearest product before
its reader, in the same trip, that begins no other. The gather runs beside that product and what
comes after it, until it is read or the next one begins. Of the kernels after it those count that
depend on no more decisions: none that reads a parameter, and no product that makes a gradient. The
latter begin no gather either: their sums are scattered in rings (`automap.cost.kernels.rings`), or
reduced                                                             -> in: `_parameter_windows`

*Activations.* One gather at a time runs beside kernels. Tensors that are split alike under every
plan (of one value row) are gathered under the same plans, so that which of them waits for which can
be said once for a program:

    stream  what the trip before began, as the gradients that flow from layer to layer: its reader
            is next, so it runs beside products that make gradients of parameters, which nothing
            waits for: those between the stream's last gather and this one
    ready   what the trip finds, as slices of stacks: it begins when the gather before it is read,
            and runs beside the products up to its own reader; a reader that makes a gradient of a
            parameter is put off until the next gather is read

Of these products the `_MOST_BESIDE` with most bytes count. What comes between them is left out: it
mostly waits for a sum of what they made, which takes the same links -> in: `_activation_windows`

So of a gather that runs in every trip

    hidden = mean over its runs of min(gather, kernels beside it)     -> in: `HiddenGathers`

What is beside a gather does not depend on the plan. It is chosen as if all parameters that products
of the loop read were gathered, and all activations of a row; where only some are, more may be
hidden. In return what is left of a gather depends on few decisions
                                                           -> in: `automap.search.factored.cells`
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from automap.backends import Backend
from automap.cost.edges import Edges
from automap.cost.edges.loops import innermost_loops
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_GATHER
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.invariants import passed_on
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Graph
from hlo_tools.opcodes import CONTRACTIONS, LOOP_ENTER


_MOST_BESIDE = 4


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


@dataclass(frozen=True, slots=True)
class _Window:
    """A gather of an operand `edge` that runs beside kernels of `ops` in so many `trips`; where
    there are none it is waited for.
    """

    edge: int
    ops: tuple[int, ...]
    trips: int


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
    row_by_op = {kernel.op: row for kernel, row in zip(kernels, row_of_kernel, strict=True)}
    trips, runs = Counter[tuple[int, tuple[int, ...]]](), Counter[int]()
    for window in (
        *_parameter_windows(problem, operands, kernels),
        *_activation_windows(problem, operands, frozenset(row_by_op)),
    ):
        runs[window.edge] += window.trips
        if window.ops:
            trips[window.edge, tuple(row_by_op[op] for op in window.ops)] += window.trips
    kernel = np.full((len(trips), max((len(rows) for _, rows in trips), default=0)), -1)
    for number, (_, rows) in enumerate(trips):
        kernel[number, : len(rows)] = rows
    edges = np.array([edge for edge, _ in trips], np.int64)
    share = np.array([n / runs[edge] for (edge, _), n in trips.items()], float)
    return HiddenGathers(edges, share, kernel)


def _parameter_windows(
    problem: Problem, operands: Edges, kernels: Sequence[Kernel]
) -> Iterator[_Window]:
    ops, side = problem.graph.ops, problem.storage.side
    counted = [
        kernel.op
        for kernel in kernels
        if not any(side[access.value] == Side.PARAMETER for access in kernel.reads)
        and not _makes_gradient(problem, kernel.op)
    ]
    loops = innermost_loops(problem.graph)
    counted_by_loop: dict[int, list[int]] = defaultdict(list)
    for op in counted:
        counted_by_loop[loops[op]].append(op)
    kernel_ops = frozenset(kernel.op for kernel in kernels)
    begun = list(_begun(problem, operands, kernel_ops, loops))
    first_ops = sorted(first for _, _, first in begun if first is not None)
    for reader, edge, first in begun:
        beside: tuple[int, ...] = ()
        if first is not None:
            end = min([reader, *(other for other in first_ops if other > first)])
            after = (op for op in counted_by_loop[loops[first]] if first < op < end)
            beside = first, *after
        yield _Window(edge, beside, ops[reader].trip_count)


def _begun(
    problem: Problem, operands: Edges, kernel_ops: frozenset[int], loops: Sequence[int]
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
            if index in kernel_ops and not _makes_gradient(problem, index):
                free[loops[index]].append(index)


@dataclass(frozen=True, slots=True)
class _Gathered:
    """A value that a loop's products read, `edges` in the order of their `readers`."""

    value: int
    edges: tuple[int, ...]
    readers: tuple[int, ...]


@dataclass(frozen=True)
class _Ready:
    """Of each value whether it `flows` from trip to trip, and the last product of its trip that it
    is made of (`product`, -1 for none).
    """

    flows: Sequence[bool]
    product: Sequence[int]


def _makes_gradient(problem: Problem, index: int) -> bool:
    """Whether an op is a product that makes a gradient of a parameter."""
    op = problem.graph.ops[index]
    return op.opcode in CONTRACTIONS and problem.storage.side[op.outputs[0]] != Side.NONE


def _activation_windows(
    problem: Problem, operands: Edges, kernel_ops: frozenset[int]
) -> Iterator[_Window]:
    """The windows of all activations that are gathered in every trip of a loop; `kernel_ops` are
    ops with a kernel of their own.
    """
    graph, loops = problem.graph, innermost_loops(problem.graph)
    products: dict[int, list[int]] = defaultdict(list)
    for index in sorted(kernel_ops):
        if graph.ops[index].opcode in CONTRACTIONS:
            products[loops[index]].append(index)
    ready = _ready(graph)
    for loop, gathered in _alike(problem, operands, loops):
        for one, beside in _in_turn(problem, gathered, products[loop], ready):
            most = sorted(beside, key=lambda op: _op_bytes(graph, op), reverse=True)[:_MOST_BESIDE]
            for edge, reader in zip(one.edges, one.readers, strict=True):
                yield _Window(edge, tuple(most), graph.ops[reader].trip_count)


def _op_bytes(graph: Graph, index: int) -> int:
    op = graph.ops[index]
    return sum(graph.values[value].n_bytes for value in (*op.inputs, *op.outputs))


def _alike(
    problem: Problem, operands: Edges, loops: Sequence[int]
) -> Iterator[tuple[int, list[_Gathered]]]:
    """For each loop the values of each row that its products read, in the order of their first
    readers.
    """
    graph, side = problem.graph, problem.storage.side
    readers: dict[tuple[int, int], dict[int, list[tuple[int, int]]]]
    readers = defaultdict(lambda: defaultdict(list))
    for edge, value, op, _, moved, _ in operands.incidences.tolist():
        is_moved = graph.ops[op].trip_count == moved > 1
        if is_moved and side[value] == Side.NONE and graph.ops[op].opcode in CONTRACTIONS:
            row = int(operands.value_row[edge])
            readers[loops[op], row][value].append((op, edge))
    for (loop, _), by_value in readers.items():
        gathered = list[_Gathered]()
        for value, pairs in by_value.items():
            pairs.sort()
            ops, edges = zip(*pairs, strict=True)
            gathered.append(_Gathered(value, edges, ops))
        yield loop, sorted(gathered, key=lambda one: one.readers)


def _ready(graph: Graph) -> _Ready:
    flows, product = [False] * len(graph.values), [-1] * len(graph.values)
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            kept = passed_on(graph, index)
            for carried in op.outputs:
                # Scalars are counters, by which stacks are cut.
                flows[carried] = carried not in kept and bool(graph.values[carried].dims)
            continue
        for value in op.outputs:
            flows[value] = any(flows[v] for v in op.inputs)
            latest = max((product[v] for v in op.inputs), default=-1)
            product[value] = index if op.opcode in CONTRACTIONS else latest
    return _Ready(flows, product)


def _in_turn(
    problem: Problem, gathered: Sequence[_Gathered], products: Sequence[int], ready: _Ready
) -> Iterator[tuple[_Gathered, list[int]]]:
    """Each gather of one loop with the products that it may run beside."""
    spare = [op for op in products if _makes_gradient(problem, op)]
    main = [op for op in products if not _makes_gradient(problem, op)]
    last = len(problem.graph.ops)
    # Before the first of the stream's gathers nothing waits for it.
    last_stream, begin = last, -1
    for number, one in enumerate(gathered):
        reader = one.readers[0]
        if ready.flows[one.value]:
            yield one, [op for op in spare if last_stream <= op < reader]
            last_stream = begin = reader
            continue
        end = reader
        if _makes_gradient(problem, reader):
            later = (other.readers[0] for other in gathered[number + 1 :])
            end = next((op for op in later if op > reader), last)
        begin = max(begin, ready.product[one.value] + 1)
        yield one, [op for op in main if begin <= op < end]
        begin = max(begin, end)
