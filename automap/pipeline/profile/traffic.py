"""Bytes by item: what crosses each cut, and what a stage stores.

    A[t]        bytes of the whole batch that cross a cut after item t: every tensor that some item
                up to t makes and a later one reads, once, and once more backwards as its gradient
                                                                               -> in: `crossing`
    parameters  of each item, those that it reads, also through what is made of parameters alone;
                each trip of an unrolled loop reads its slice            -> in: `parameter_uses`
    saved       tensors of the forward pass that the backward pass reads, by the item of the op that
                reads them                                                   -> in: `saved_uses`
    kept        tensors with examples that weight passes read, by the item of the op that reads them
                                                                           -> in: `kept_uses`
    fixed       what is the same for all samples and another equation than its reader's has made
                (casts of parameters, zeros that gradients are scattered into): made once a step and
                held to its end by every stage that reads it                 -> in: `fixed_uses`
    working     the most that is alive at an item of what is not saved          -> in: `Working`

What batch inputs hold crosses nothing: every stage is handed its microbatches. Tensors are listed
by value, so that the bytes may be those of a part of each                      -> in: `Changes`

A *use* is (tensor, item, bytes). The stage of items [i, j) holds a tensor once, however many of its
items use it:

    G(i, j) = sum of bytes over the tensors used in [i, j)

Of a tensor used at p_1 < p_2 < ..., use p_k is the first in [i, j) for p_{k-1} < i <= p_k, so G is
a sum of rectangles: all pairs in O(uses + n^2)                           -> in: `segment_bytes`
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from automap.pipeline.profile.backward import Backward, outermost_equation
from automap.pipeline.profile.flow import Flow, is_sliced, is_stack
from automap.pipeline.profile.items import Items, Loop
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph, HandOver, Op
from hlo_tools.opcodes import LOOP_EXIT, SCATTER, STRUCTURAL


@dataclass
class UseList:
    """Uses while they are collected; tensors are known by any hashable name."""

    _tensors: dict[Hashable, int] = field(default_factory=dict)
    _rows: dict[tuple[int, int], float] = field(default_factory=dict)

    def add(self, tensor: Hashable, item: int, n_bytes: float) -> None:
        """A tensor of `n_bytes` is used by an item; said twice, it counts once."""
        number = self._tensors.setdefault(tensor, len(self._tensors))
        self._rows[number, item] = n_bytes

    def done(self) -> "Uses":
        """The uses as arrays."""
        pairs = np.array(list(self._rows), np.int64).reshape(-1, 2)
        n_bytes = np.array(list(self._rows.values()), float)
        return Uses(tuple(self._tensors), pairs[:, 0], pairs[:, 1], n_bytes)


@dataclass(frozen=True)
class Uses:
    """`tensor` (a place in `names`), `item` int64 and `n_bytes` float64, [uses]."""

    names: tuple[Hashable, ...]
    tensor: np.ndarray
    item: np.ndarray
    n_bytes: np.ndarray

    def moved(self, place: np.ndarray) -> "Uses":
        """The uses with item t called place[t]."""
        return replace(self, item=place[self.item])

    def first_uses(self) -> "Uses":
        """Of each tensor the use by the first item."""
        order = np.lexsort((self.item, self.tensor))
        _, first = np.unique(self.tensor[order], return_index=True)
        chosen = order[first]
        return replace(
            self, tensor=self.tensor[chosen], item=self.item[chosen], n_bytes=self.n_bytes[chosen]
        )

    @property
    def total_bytes(self) -> float:
        """Each tensor once."""
        return float(self.first_uses().n_bytes.sum())


def joined(uses: Sequence[Uses]) -> Uses:
    """Uses of other tensors each, as one."""
    before = np.cumsum([0, *(len(each.names) for each in uses)])
    return Uses(
        tuple(name for each in uses for name in each.names),
        np.concatenate([each.tensor + n for each, n in zip(uses, before)]),
        np.concatenate([each.item for each in uses]),
        np.concatenate([each.n_bytes for each in uses]),
    )


def segment_bytes(uses: Uses, n_items: int) -> np.ndarray:
    """G, float64 [n + 1, n + 1]: bytes that items i .. j - 1 use; 0 for j <= i."""
    order = np.lexsort((uses.item, uses.tensor))
    tensor, item, n_bytes = uses.tensor[order], uses.item[order], uses.n_bytes[order]
    is_first = np.diff(tensor, prepend=-1) != 0
    # i from `since` on: after the use before this one.
    since = np.where(is_first, 0, np.roll(item, 1) + 1)
    # Coarsening may put several uses of a tensor in one place, of which one counts.
    keep = is_first | (since <= item)
    since, item, n_bytes = since[keep], item[keep], n_bytes[keep]
    # first_used[i, p]: bytes whose first use from i on is at p, as differences along i. They are
    # summed along i, and then over all p before j.
    first_used = np.zeros((n_items + 1, n_items + 1))
    np.add.at(first_used, (since, item), n_bytes)
    np.add.at(first_used, (item + 1, item), -n_bytes)
    result = np.zeros((n_items + 1, n_items + 1))
    # Sums of differences leave rounding behind where the answer is 0.
    result[:, 1:] = np.maximum(first_used.cumsum(axis=0), 0.0)[:, :-1].cumsum(axis=1)
    return np.where(np.arange(n_items + 1)[:, None] < np.arange(n_items + 1), result, 0.0)


def segment_maximum(values: np.ndarray) -> np.ndarray:
    """The greatest of values i .. j - 1, float64 [n + 1, n + 1]; 0 for j <= i."""
    n = len(values)
    result = np.zeros((n + 1, n + 1))
    for i in range(n):
        result[i, i + 1 :] = np.maximum.accumulate(values[i:])
    return result


@dataclass(frozen=True)
class Changes:
    """Tensors that begin (`sign` 1) and cease (-1) to be counted before position `at`; [changes],
    of `n` positions.
    """

    at: np.ndarray
    value: np.ndarray
    sign: np.ndarray
    n: int

    @staticmethod
    def from_rows(rows: Sequence[tuple[int, int, int]], n: int) -> "Changes":
        """From rows (at, value, sign)."""
        at, value, sign = np.array(rows, np.int64).reshape(-1, 3).T
        return Changes(at, value, sign, n)

    def alive(self, n_bytes: np.ndarray) -> np.ndarray:
        """Bytes that are counted at each position, [n]; `n_bytes` [values]."""
        change = np.bincount(self.at, self.sign * n_bytes[self.value], self.n + 1)
        # Sums of differences of parts leave rounding behind where the answer is 0.
        return np.maximum(change.cumsum()[: self.n], 0.0)


def crossing(problem: Problem, kernels: Sequence[Kernel], flow: Flow, items: Items) -> Changes:
    """What crosses a cut after each item."""
    graph = problem.graph
    # The item that makes each value of the batch, and the last one that reads it.
    made: dict[int, int] = {}
    last_read: dict[int, int] = {}
    for value, item in _writes(problem, kernels, items):
        if flow.batched[value]:
            made[value] = item
    for value, item in _reads(problem, kernels, items):
        last_read[value] = max(last_read.get(value, 0), item)
    rows: list[tuple[int, int, int]] = []
    for value, item in made.items():
        if last_read.get(value, -1) > item:
            rows += [(item, value, 1), (last_read[value], value, -1)]
    # Between the trips of an unrolled loop its carry crosses, but for stacks, whose slices stay.
    for loop in items.loops:
        for position, carry in enumerate(graph.ops[loop.enter].outputs):
            is_new = flow.batched[carry] and graph.hand_over(carry) is HandOver.CHANGED
            if is_new and not is_stack(graph, loop.leave, position):
                rows += [(loop.span[0], carry, 1), (loop.span[1], carry, -1)]
    return Changes.from_rows(rows, len(items))


def _is_inside(items: Items, op: int) -> bool:
    return any(loop.enter < op < loop.leave for loop in items.loops)


def _writes(problem: Problem, kernels: Sequence[Kernel], items: Items) -> Iterator[tuple[int, int]]:
    """(value in memory, the item that makes it) of the forward pass outside its loops."""
    graph = problem.graph
    for kernel in kernels:
        if problem.phases[kernel.op] is Phase.FORWARD and not _is_inside(items, kernel.op):
            for access in kernel.writes:
                yield access.value, items.span(kernel.op)[1]
    for index, op in _structural(problem, items):
        first, last = items.span(index)
        for position, value in enumerate(op.outputs):
            # What each trip adds to a stack is in its stage: the bound taken is that all of it
            # crosses every cut of the loop.
            stacked = op.opcode == LOOP_EXIT and is_stack(graph, index, position)
            yield value, first if stacked else last


def _reads(problem: Problem, kernels: Sequence[Kernel], items: Items) -> Iterator[tuple[int, int]]:
    """(value in memory, an item that reads it) of the forward pass outside its loops."""
    graph = problem.graph
    for kernel in kernels:
        if problem.phases[kernel.op] is Phase.FORWARD and not _is_inside(items, kernel.op):
            for access in kernel.reads:
                yield access.value, items.span(kernel.op)[0]
    for index, op in enumerate(graph.ops):
        # What is fused to kernels of the backward pass alone is in the stage of the forward op all
        # the same.
        if problem.phases[index] is Phase.FORWARD and not _is_inside(items, index):
            if op.opcode not in STRUCTURAL:
                for value in op.inputs:
                    yield value, items.span(index)[0]
    for index, op in _structural(problem, items):
        if op.opcode == LOOP_EXIT:
            continue
        first, last = items.span(index)
        for source, value in zip(op.inputs, op.outputs):
            # What the trips hand on unchanged is read by all of them, a carry by the first alone.
            in_all = graph.hand_over(value) is HandOver.KEPT
            yield source, last if in_all else first


def _structural(problem: Problem, items: Items) -> Iterator[tuple[int, Op]]:
    for index, op in enumerate(problem.graph.ops):
        is_forward = problem.phases[index] is Phase.FORWARD
        if op.opcode in STRUCTURAL and is_forward and not _is_inside(items, index):
            yield index, op


def parameter_uses(problem: Problem, flow: Flow, items: Items) -> Uses:
    """Uses of parameters; a tensor is one, or the slice of one that a trip reads."""
    graph, uses = problem.graph, UseList()
    sizes = [graph.values[v].n_bytes for v in graph.inputs]
    unrolled = {loop.enter: loop for loop in items.loops if loop.trips > 1}
    for index, op in enumerate(graph.ops):
        if problem.phases[index] is not Phase.FORWARD or op.opcode == LOOP_EXIT:
            continue
        if index in unrolled:
            _add_slices(graph, flow, unrolled[index], sizes, uses)
        elif any(flow.batched[v] for v in op.outputs) and not any(
            loop.enter < index < loop.leave for loop in unrolled.values()
        ):
            for root in set[int]().union(*(flow.roots[v] for v in op.inputs)):
                uses.add(root, items.span(index)[0], sizes[root])
    return uses.done()


def _add_slices(graph: Graph, flow: Flow, loop: Loop, sizes: Sequence[int], uses: UseList) -> None:
    op = graph.ops[loop.enter]
    for source, carry in zip(op.inputs, op.outputs):
        sliced = is_sliced(graph, carry, loop.trips)
        for root in flow.roots[source]:
            for trip in range(loop.trips):
                if sliced:
                    uses.add((root, trip), loop.first_item + trip, sizes[root] / loop.trips)
                else:
                    uses.add(root, loop.first_item + trip, sizes[root])


def saved_uses(problem: Problem, kernels: Sequence[Kernel], flow: Flow, backward: Backward) -> Uses:
    """Uses of what the forward pass leaves for the backward pass, bytes of the whole batch."""
    graph, uses = problem.graph, UseList()
    forward = [p is Phase.FORWARD for p in problem.phases]

    def is_left(value: int) -> bool:
        producer = graph.values[value].producer
        return producer >= 0 and forward[producer] and flow.batched[value]

    for kernel in kernels:
        for access in kernel.reads if kernel.op in backward.span else ():
            if is_left(access.value):
                n_bytes = graph.values[access.value].n_bytes
                uses.add(access.value, backward.span[kernel.op][0], n_bytes)
    for index, span in backward.span.items():
        op = graph.ops[index]
        for source, value in zip(op.inputs, op.outputs) if op.opcode in STRUCTURAL else ():
            if not is_left(source):
                continue
            n_bytes, loop = graph.values[source].n_bytes, backward.twin.get(index)
            if loop is None:
                uses.add(source, span[0], n_bytes)
                continue
            # Each trip of a twin reads the slice that its trip of the forward loop has stacked.
            sliced = is_sliced(graph, value, loop.trips)
            for trip in range(loop.trips):
                tensor = (source, trip) if sliced else source
                share = n_bytes / loop.trips if sliced else n_bytes
                uses.add(tensor, loop.first_item + trip, share)
    return uses.done()


def kept_uses(
    problem: Problem,
    kernels: Sequence[Kernel],
    backward: Backward,
    weights: Collection[int],
    holds: np.ndarray,
) -> Uses:
    """Uses of what waits for weight passes, the ops `weights`; `holds` says of values whether they
    hold examples, [values].
    """
    graph, uses, inputs = problem.graph, UseList(), set(problem.graph.inputs)
    for kernel in kernels:
        for access in kernel.reads if kernel.op in weights else ():
            value = access.value
            # The batch itself waits on its own, and what a weight pass makes is its own.
            if holds[value] and value not in inputs and graph.values[value].producer not in weights:
                uses.add(value, backward.span[kernel.op][0], graph.values[value].n_bytes)
    return uses.done()


def fixed_uses(problem: Problem, flow: Flow, items: Items, backward: Backward) -> Uses:
    """Uses of what is computed once before the loop over the microbatches."""
    graph, uses = problem.graph, UseList()
    equation = [outermost_equation(op.op_name) for op in graph.ops]
    inside = [_is_inside(items, index) for index in range(len(graph.ops))]
    # What is as long as the batch is of a microbatch in the loop, and made there.
    sizes = {int(problem.limits[c]) for c in (problem.batch_class,) if c is not None}
    for index, op in enumerate(graph.ops):
        if problem.phases[index] is Phase.UPDATE or not any(flow.batched[v] for v in op.outputs):
            continue
        here = (backward.span.get(index) or items.span(index))[0]
        for position, value in enumerate(op.inputs):
            made, dims = graph.values[value].producer, graph.values[value].dims
            if made < 0 or flow.batched[value] or inside[made] or sizes & set(dims):
                continue
            # A number as large as what it is combined with is of its reader's equation. The zeros
            # that are scattered into are not, though several scatters may share them.
            is_apart = equation[made] not in (None, equation[index])
            if is_apart or (op.opcode == SCATTER and position == 0):
                uses.add(value, here, graph.values[value].n_bytes)
    return uses.done()


@dataclass(frozen=True)
class Working:
    """What is made and not saved, kernel by kernel; kernel `kernel[p]` runs for item `item[p]`,
    [pairs].
    """

    alive: Changes
    kernel: np.ndarray
    item: np.ndarray
    n_items: int

    def n_bytes(self, n_bytes: np.ndarray) -> np.ndarray:
        """The most that is alive at each item, [items]; `n_bytes` [values]."""
        result = np.zeros(self.n_items)
        np.maximum.at(result, self.item, self.alive.alive(n_bytes)[self.kernel])
        return result


def working(
    problem: Problem, kernels: Sequence[Kernel], items: Items, backward: Backward
) -> Working:
    """What is made and not saved for the backward pass."""
    graph = problem.graph
    is_run = [k for k in kernels if problem.phases[k.op] is not Phase.UPDATE]
    # Positions among the kernels that run. What the backward pass reads of the forward pass is in
    # `saved_uses`, for as long as a microbatch is in flight.
    first_written: dict[int, int] = {}
    last_read: dict[int, int] = {}
    saved = set[int]()
    for at, kernel in enumerate(is_run):
        for access in kernel.writes:
            first_written.setdefault(access.value, at)
        for access in kernel.reads:
            last_read[access.value] = at
            producer = graph.values[access.value].producer
            if kernel.op in backward.span and producer >= 0 and producer not in backward.span:
                saved.add(access.value)
    rows: list[tuple[int, int, int]] = []
    for value, at in first_written.items():
        if value not in saved:
            rows += [(at, value, 1), (max(last_read.get(value, at), at) + 1, value, -1)]
    pairs = [
        (at, item)
        for at, kernel in enumerate(is_run)
        for first, last in [backward.span.get(kernel.op) or items.span(kernel.op)]
        for item in range(first, last + 1)
    ]
    at, item = np.array(pairs, np.int64).reshape(-1, 2).T
    return Working(Changes.from_rows(rows, len(is_run)), at, item, len(items))
