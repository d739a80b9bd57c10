"""The program in the order it runs: kernels as slots, and between which slots each collective has
to be done.

The slots are the kernels and the ends of loops by their position in the schedule
(`hlo_tools.analyses.liveness`). Boundary k lies before slot k. A collective of a result is ready at
the boundary after the operation that makes it and needed at that before the first operation that
reads it; one of an operand is ready after its producer and needed before the operation. A sum that
has left its loops (`automap.cost.edges.sums`) is ready after the last of them.

SPARE kernels are those that no other waits for: products that make gradients, sums over rows that
do and are kernels by themselves, and what only the end of a loop reads, as the stacking of
residuals. They may run at any time from when their data is there to the end of the loop. Products
of one operand that make gradients in a loop are one product, as XLA:GPU merges them
(dot_merger.cc), and stand where the last of them does: a sum of one of them is not ready before
                                                                                -> in: `_merged`
Nor is the sum over rows that makes a gradient before the last element-by-element kernel that reads
the same array, as XLA:GPU makes one kernel of both (multi_output_fusion.cc)
                                                                      -> in: `_summed_beside`
LATE kernels are those of the update: they wait for sums, and only the end of the step and the
gathers of what they make wait for them. Neither of them makes data for the others.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
import math

import numpy as np

from automap.cost.edges import Edges
from automap.cost.edges.loops import carried_ops, innermost_loops
from automap.cost.kernels.merged_products import product_groups
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, ELEMENTWISE, LOOP_ENTER, LOOP_EXIT, REDUCTIONS


KERNEL, SPARE, LATE, ENTER, EXIT = range(5)


@dataclass(frozen=True)
class Places:
    """Where the rows of an edge table stand, as a list of [incidences] sorted by row; `first` [rows
    + 1] begins each.

    `ready` and `needed` are boundaries, `share` is an incidence's part of the times its row runs in
    a step; `incidences` are those of `Edges` in this order. `rank` is the order in which those that
    go together are merged: of what a loop hands on, the place among all that it does. `dtype` is a
    number for the type of what is summed, as sums of several types are not merged; 0 of all else.
    `maker` is the slot that makes it, -1 for an input, `reader` the one that reads it first.
    """

    first: np.ndarray
    incidences: np.ndarray
    ready: np.ndarray
    needed: np.ndarray
    share: np.ndarray
    rank: np.ndarray
    dtype: np.ndarray
    maker: np.ndarray
    reader: np.ndarray


@dataclass(frozen=True)
class Order:
    """Slots: `kind` is KERNEL, SPARE, LATE, ENTER or EXIT of a loop.

    `op` is what stands there; `row` is the kernel's, -1 for loops; `trips` how often it runs in a
    step; `data_at` is the boundary at which what it reads has been made, but for what LATE kernels
    make, `read_at` the last one before what it makes is read; `merged` is the last slot of those
    that are one product, of others their own. `loop` [boundaries] is the slot that enters the
    innermost loop around, -1 for none; `first` [boundaries] the boundary at which its program
    begins, where all is ready that is given.
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
    position = _summed_beside(problem, kernels, _merged(problem, position))
    carried = carried_ops(graph)
    kinds = [_kind(problem, graph.ops[k.op], k.op, carried) for k in kernels]
    at_kernel = [int(position[k.op]) for k in kernels]
    # Ops that are one kernel are waited for if one of them is.
    in_line = {place for place, kind in zip(at_kernel, kinds, strict=True) if kind == KERNEL}
    slots = [
        (place, KERNEL if place in in_line else kind, row, graph.ops[k.op].trip_count, k.op)
        for place, kind, k, row in zip(at_kernel, kinds, kernels, row_of_kernel, strict=True)
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
            position[operands.incidences[:, 2]],
        ),
        results=_places(
            results,
            *_result_positions(problem, results, position, made_at),
            at,
            all_made_at[results.incidences[:, 5]],
            np.array(read_at, np.int64)[results.incidences[:, 5]],
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


def _kind(problem: Problem, op: Op, index: int, carried: Collection[int]) -> int:
    if _is_late(problem, index):
        return LATE
    is_sum = op.opcode in REDUCTIONS and _is_of_parameter(problem, op, index)
    is_spare = index in carried or is_sum or _is_gradient(problem, op, index)
    return SPARE if is_spare else KERNEL


def _is_gradient(problem: Problem, op: Op, index: int) -> bool:
    """Whether an op is a product of the backward pass whose result is of a parameter."""
    return op.opcode in CONTRACTIONS and _is_of_parameter(problem, op, index)


def _is_of_parameter(problem: Problem, op: Op, index: int) -> bool:
    is_backward = problem.phases[index] == Phase.BACKWARD
    return is_backward and problem.storage.side[op.outputs[0]] != Side.NONE


def _merged(problem: Problem, position: np.ndarray) -> np.ndarray:
    """`position` [ops] with that of the last of those products of one operand that are one.

    XLA merges two only if one of them is small on a device (`Backend.merged_product_bytes`), which
    is not looked at here.
    """
    loops, merged = innermost_loops(problem.graph), position.copy()
    for group in product_groups(problem.graph):
        members = [
            index
            for index in group
            if loops[index] >= 0 and _is_gradient(problem, problem.graph.ops[index], index)
        ]
        if len(members) > 1:
            merged[members] = position[members].max()
    return merged


def _summed_beside(problem: Problem, kernels: Sequence[Kernel], position: np.ndarray) -> np.ndarray:
    """`position` [ops] with that of the kernel which a sum over rows becomes part of."""
    graph, loops = problem.graph, innermost_loops(problem.graph)
    # By (loop, array) where the last kernel stands that reads it element by element.
    last: dict[tuple[int, int], int] = {}
    sums: list[tuple[Kernel, list[tuple[int, int]]]] = []
    for kernel in kernels:
        op = graph.ops[kernel.op]
        if loops[kernel.op] < 0 or not op.outputs:
            continue
        is_sum = op.opcode in REDUCTIONS and _is_of_parameter(problem, op, kernel.op)
        size = _size(graph, (op.inputs if is_sum else op.outputs)[0])
        reads = [
            (loops[kernel.op], access.value)
            for access in kernel.reads
            if _size(graph, access.value) == size
        ]
        if is_sum:
            # A sum of what several arrays make is by itself: they are multiplied before.
            sums.append((kernel, reads if len(reads) == 1 else []))
        elif op.opcode in ELEMENTWISE:
            for read in reads:
                last[read] = max(last.get(read, -1), int(position[kernel.op]))
    moved = position.copy()
    for kernel, reads in sums:
        # One of what another has summed is behind it.
        made_by = [graph.values[access.value].producer for access in kernel.reads]
        behind = [int(moved[op]) for op in (kernel.op, *made_by) if op >= 0]
        moved[kernel.op] = max([*behind, *(last.get(read, -1) for read in reads)])
    return moved


def _size(graph: Graph, value: int) -> int:
    return math.prod(graph.values[value].dims)


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
    read_at = position.copy()
    for op, leave in carried_ops(problem.graph).items():
        # It is as well done at the end of its loop.
        read_at[op] = position[leave]
    first_use = [
        min((int(read_at[u]) for u in readers if not is_late[u]), default=end) for readers in users
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
    read_at: np.ndarray,
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
        reader=np.searchsorted(at, read_at)[order],
    )
