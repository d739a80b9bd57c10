"""The program in the order it runs: kernels as slots, and between which slots each collective has
to be done.

The slots are the kernels and the ends of loops by their position in the schedule
(`hlo_tools.analyses.liveness`). Boundary k lies before slot k. A collective of a result is ready at
the boundary after the operation that makes it and needed at that before the first operation that
reads it; one of an operand is ready after its producer and needed before the operation. A sum that
has left its loops (`automap.cost.edges.sums`) is ready after the last of them.

SPARE kernels are those that no other waits for: products that make gradients, and what only the end
of a loop reads, as the stacking of residuals. They may run at any time from when their data is
there to the end of the loop. Kernels that are one stand where the last of them does
                                                        -> in: `automap.cost.schedule.one_kernel`
LATE kernels are those of the update: they wait for sums, and only the end of the step and the
gathers of what they make wait for them. Neither of them makes data for the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from automap.cost.edges import Edges
from automap.cost.schedule.one_kernel import is_gradient, where_one_kernel_is
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT


KERNEL, SPARE, LATE, ENTER, EXIT = range(5)


@dataclass(frozen=True)
class Places:
    """Where the rows of an edge table stand, as a list of [incidences] sorted by row; `first` [rows
    + 1] begins each.

    `ready` and `needed` are boundaries, `share` is an incidence's part of the times its row runs in
    a step; `incidences` are those of `Edges` in this order. `rank` is the order in which those that
    go together are merged: of what a loop hands on, the place among all that it does. `dtype` is a
    number for the type of what is summed, as sums of several types are not merged; 0 of all else.
    """

    first: np.ndarray
    incidences: np.ndarray
    ready: np.ndarray
    needed: np.ndarray
    share: np.ndarray
    rank: np.ndarray
    dtype: np.ndarray
    maker: np.ndarray

    def copies(self, n: int, n_slots: int) -> "Places":
        """Those of n programs, each so many slots behind the one before it."""
        starts = np.arange(len(self.first) - 1)
        return Places(
            first=np.append(_shifted(self.first[starts], n, len(self.ready)), n * len(self.ready)),
            incidences=np.tile(self.incidences, (n, 1)),
            ready=_shifted(self.ready, n, n_slots),
            needed=_shifted(self.needed, n, n_slots),
            share=np.tile(self.share, n),
            rank=np.tile(self.rank, n),
            dtype=np.tile(self.dtype, n),
            maker=_shifted(self.maker, n, n_slots),
        )


@dataclass(frozen=True)
class Order:
    """Slots: `kind` is KERNEL, SPARE, LATE, ENTER or EXIT of a loop.

    `op` is what stands there; `row` is the kernel's, -1 for loops; `trips` how often it runs in a
    step; `data_at` is the boundary at which what it reads has been made, but for what LATE kernels
    make, `read_at` the last one before what it makes is read; `merged` is the last slot of those
    that are one product, of others their own. `loop` [boundaries] is the slot that enters the
    innermost loop around, -1 for none.
    """

    kind: np.ndarray
    op: np.ndarray
    row: np.ndarray
    trips: np.ndarray
    data_at: np.ndarray
    read_at: np.ndarray
    merged: np.ndarray
    loop: np.ndarray
    first: np.ndarray
    operands: Places
    results: Places

    def copies(self, n: int, n_rows: int) -> "Order":
        """n such programs one after the other, each with a slot behind it in which nothing is done:
        so a program has as many slots as boundaries. Of kernels each has `n_rows`.
        """
        last = len(self.kind)

        def slots(column: np.ndarray, behind: int, step: int) -> np.ndarray:
            return _shifted(np.append(column, behind), n, step)

        return Order(
            kind=slots(self.kind, LATE, 0),
            op=slots(self.op, -1, 0),
            row=slots(self.row, -1, n_rows),
            trips=slots(self.trips, 1, 0),
            data_at=slots(self.data_at, last, last + 1),
            read_at=slots(self.read_at, last, last + 1),
            merged=slots(self.merged, last, last + 1),
            loop=np.append(_shifted(self.loop, n, last + 1), -1),
            first=np.append(_shifted(self.first, n, last + 1), n * (last + 1)),
            operands=self.operands.copies(n, last + 1),
            results=self.results.copies(n, last + 1),
        )


def _shifted(column: np.ndarray, n: int, step: int) -> np.ndarray:
    """n copies of a column of numbers, each `step` more than the one before; -1 stays."""
    shifted = column + step * np.arange(n)[:, None]
    return np.where(column >= 0, shifted, column).ravel()


def program_order(
    problem: Problem,
    kernels: Sequence[Kernel],
    row_of_kernel: Sequence[int],
    position: np.ndarray,
    operands: Edges,
    results: Edges,
) -> Order:
    """Slots of a program, and the places of its edges; `position` [ops] is the schedule."""
    graph = problem.graph
    position = where_one_kernel_is(problem, kernels, position)
    slots = [
        (
            int(position[k.op]),
            _kind(problem, graph.ops[k.op], k.op),
            row,
            graph.ops[k.op].trip_count,
            k.op,
        )
        for k, row in zip(kernels, row_of_kernel, strict=True)
    ]
    loops = {LOOP_ENTER: ENTER, LOOP_EXIT: EXIT}
    # The ends of loops are slots of no kernel, so that what is inside of one stays there.
    slots += [
        (int(position[i]), loops[op.opcode], -1, 1, i)
        for i, op in enumerate(graph.ops)
        if op.opcode in loops
    ]
    slots.sort(key=lambda slot: slot[0])
    columns = np.array(slots, np.int64).reshape(-1, 5)
    at = columns[:, 0]
    # What LATE kernels make does not count: only the step's end, and gathers of new parameters,
    # wait for it.
    made_at = _made_at(graph, position, set(columns[columns[:, 1] != LATE, 4].tolist()))
    all_made_at = np.array(_made_at(graph, position, set(columns[:, 4].tolist())), np.int64)
    # Slots at one place wait for none of each other.
    data = [
        max((made_at[v] for v in graph.ops[op].inputs if made_at[v] != place), default=-1)
        for place, op in columns[:, [0, 4]]
    ]
    read_at = _read_at(graph, position, set(columns[:, 4].tolist()))
    read = [min((read_at[v] for v in graph.ops[op].outputs), default=-1) for op in columns[:, 4]]
    # Slots at one place are one product, which waits for what any of them reads.
    merged = np.searchsorted(at, at, side="right") - 1
    latest = np.array(data, np.int64)
    np.maximum.at(latest, merged, data)
    return Order(
        kind=columns[:, 1],
        op=columns[:, 4],
        row=columns[:, 2],
        trips=columns[:, 3],
        data_at=np.searchsorted(at, latest[merged], side="right"),
        read_at=np.searchsorted(at, read),
        merged=merged,
        loop=_loops(columns[:, 1]),
        first=np.zeros(len(slots) + 1, np.int64),
        operands=_places(
            operands,
            *_operand_positions(operands, position, all_made_at),
            at,
            all_made_at[operands.incidences[:, 1]],
        ),
        results=_places(
            results,
            *_result_positions(problem, results, position, made_at),
            at,
            all_made_at[results.incidences[:, 5]],
            rank=_places_among_results(graph)[results.incidences[:, 1]],
            dtype=_dtypes(graph)[results.incidences[:, 1]],
        ),
    )


def _loops(kind: np.ndarray) -> np.ndarray:
    """For each boundary the slot that enters the innermost loop around it, -1 for none."""
    around, loops = [-1], [-1]
    for slot, each in enumerate(kind.tolist()):
        if each == ENTER:
            around.append(slot)
        elif each == EXIT:
            around.pop()
        loops.append(around[-1])
    return np.array(loops, np.int64)


def _kind(problem: Problem, op: Op, index: int) -> int:
    graph = problem.graph
    if _is_late(problem, index):
        return LATE
    readers = {user for value in op.outputs for user in graph.users[value]}
    # Only the end of a loop reads it.
    is_carried = bool(readers) and all(graph.ops[user].opcode == LOOP_EXIT for user in readers)
    return SPARE if is_carried or is_gradient(problem, op, index) else KERNEL


def _is_late(problem: Problem, op: int) -> bool:
    """Whether an op is of the update, and in no loop."""
    return problem.phases[op] == Phase.UPDATE and problem.graph.ops[op].trip_count == 1


def _made_at(graph: Graph, position: np.ndarray, slots: set[int]) -> list[int]:
    """For each value the position of the last of the ops in `slots` that it is made by; -1 for
    inputs.
    """
    made = [-1] * len(graph.values)
    for index, op in enumerate(graph.ops):
        at = (
            int(position[index])
            if index in slots
            # Fused into a kernel, or free: there as soon as what it reads is.
            else max((made[v] for v in op.inputs), default=-1)
        )
        for value in op.outputs:
            made[value] = at
    return made


def _read_at(graph: Graph, position: np.ndarray, slots: set[int]) -> list[int]:
    """For each value the position of the first op in `slots` that reads it, or what is made of it
    without one; the end of the step if there is none.
    """
    read = [len(position)] * len(graph.values)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        at = (
            int(position[index])
            if index in slots
            else min((read[v] for v in op.outputs), default=len(position))
        )
        for value in op.inputs:
            read[value] = min(read[value], at)
    return read


def _operand_positions(
    edges: Edges, position: np.ndarray, made_at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Positions after which, and before which, the incidences are gathered: what no kernel makes
    is there as soon as what it is made of.
    """
    return made_at[edges.incidences[:, 1]], position[edges.incidences[:, 2]]


def _producers(graph: Graph) -> np.ndarray:
    return np.array([value.producer for value in graph.values], np.int64)


def _result_positions(
    problem: Problem, edges: Edges, position: np.ndarray, made_at: Sequence[int]
) -> tuple[np.ndarray, np.ndarray]:
    end = len(position)
    users = problem.graph.users
    is_late = np.array([_is_late(problem, op) for op in range(end)], bool)
    # The update waits for sums, not they for it: its reads are no deadline.
    first_use = [
        min((int(position[u]) for u in readers if not is_late[u]), default=end) for readers in users
    ]
    loop_end = _outermost_end(problem, position)
    _, value, op, times, trips, whole = edges.incidences.T
    # A sum of several terms is ready with the last of them.
    op = np.where(whole == value, op, _producers(problem.graph)[whole])
    made = np.where(is_late[op], np.array(made_at, np.int64)[whole], position[op])
    # Fewer sums than trips: the sum has left its loops, and is done once behind the outermost.
    ready = np.where(times < trips, loop_end[op], made)
    needed = np.array(first_use, np.int64)[whole]
    return ready, np.where(times < trips, end, np.maximum(needed, ready + 1))


def _places_among_results(graph: Graph) -> np.ndarray:
    """For each value the first place among what its loop hands on that it is part of, [values]; 0
    of those that are part of nothing.

    XLA merges sums in the order in which a walk from what a loop hands on comes to them.
    """
    place = np.full(len(graph.values), np.iinfo(np.int64).max)
    # From the last op to the first, so that all readers of a value come before what makes it.
    for op in reversed(graph.ops):
        if op.opcode == LOOP_EXIT:
            for index, value in enumerate(op.inputs):
                place[value] = min(place[value], index)
        elif op.outputs:
            first = min(place[value] for value in op.outputs)
            for value in op.inputs:
                place[value] = min(place[value], first)
    return np.where(place < np.iinfo(np.int64).max, place, 0)


def _dtypes(graph: Graph) -> np.ndarray:
    """A number for the element type of each value."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(v.dtype, len(numbers)) for v in graph.values], np.int64)


def _outermost_end(problem: Problem, position: np.ndarray) -> np.ndarray:
    """For each op the position of the end of the outermost loop around it; its own if there is
    none.
    """
    graph = problem.graph
    ends = position.copy()
    around: list[int] = []
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            around.append(graph.exit_by_entry[index])
        elif op.opcode == LOOP_EXIT:
            around.pop()
        if around:
            ends[index] = position[around[0]]
    return ends


def _places(
    edges: Edges,
    ready: np.ndarray,
    needed: np.ndarray,
    at: np.ndarray,
    made_at: np.ndarray,
    rank: np.ndarray | None = None,
    dtype: np.ndarray | None = None,
) -> Places:
    row, trips = edges.incidences[:, 0], edges.incidences[:, 4]
    # Sorted by row, so that `first` says where those of each row are.
    order = np.argsort(row, kind="stable")
    total = np.bincount(row, weights=trips, minlength=len(edges.count))
    # From positions of operations to boundaries between slots; never ready after it is needed.
    before = np.searchsorted(at, needed)
    return Places(
        first=np.searchsorted(row[order], np.arange(len(edges.count) + 1)),
        incidences=edges.incidences[order],
        ready=np.minimum(np.searchsorted(at, ready, side="right"), before)[order],
        needed=before[order],
        share=(trips / total[row])[order],
        # Gathers in the order in which they are read.
        rank=(before if rank is None else rank)[order],
        dtype=np.zeros(len(row), np.int64) if dtype is None else dtype[order],
        maker=np.where(made_at >= 0, np.searchsorted(at, made_at), -1)[order],
    )
