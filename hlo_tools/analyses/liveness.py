"""When each stored value comes into memory and when it leaves.

Values are alive for intervals of positions in the order in which ops run.

That is the program's own order up to the loss. From there on an op runs as soon as what it
reads is there, as XLA's memory-minimizing schedulers do: otherwise all gradients would be alive at
once, and in a program written from its root backwards also all that weight gradients are made of.

    position of op o      order of (start(o), depth(o), o)
        start   o; for an op that reads a gradient, the largest start of its operands
        depth   0; for an op that reads a gradient, one more than the largest depth of its operands

Where a backend sums gradients beside other kernels, it puts off what waits for the sums: updates
run *late*, after all that leads to a gradient, unless a further forward pass waits for them. And
gradients of weights run beside the sums, after the products that lead to other gradients, in the
program and in each trip of a loop: in memory, what they are made of waits so long.

    birth of a buffer     first p of a kernel that writes one of its values
    death                 last p of a kernel that reads one of them

A kernel that computes element by element writes over what it reads for the last time, so what it
makes is born after it                                                      -> in: `_overwrites`
A result that replaces no input has its place for the whole step, and what it is written over last
is there already                                                            -> in: `_reserve`

A *buffer* is a set of values in one place: loop carries share theirs by their ties, and a donated
input shares with the output that replaces it. What loops read as bfloat16 and the rest of the
program as float32 has a rounded copy, one for all of them. Stacks that a loop fills with the same
are one                                              -> in: `hlo_tools.analyses.invariants`
Where the compiler chooses the order of dimensions, a transposed array is the array itself; and what
adds one number to each row of zeros, as the gradient of a look-up in each row, is computed where it
is read                                                                     -> in: `Places`
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
import math
from typing import Literal

import numpy as np

from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.invariants import equal_stacks
from hlo_tools.analyses.phases import Phase, awaited_by_products
from hlo_tools.graph import Graph, Value, sources_by_output
from hlo_tools.opcodes import (
    KEEPS_OPERANDS,
    LOOP_ENTER,
    LOOP_EXIT,
    MANUAL_ENTER,
    MANUAL_EXIT,
    REDUCTIONS,
    SCATTER,
)


Updates = Literal["early", "late"]


@dataclass(frozen=True, slots=True)
class Places:
    """What one compiler does with the places of values in memory.

    `updates` run as soon as they can, or late. What opcodes in `views` make is the array that they
    are given, with its dimensions in another order; those in `in_place` write over what they read.
    `beside_sums` says whether what reads an array and sums or maxima of it, as a softmax does,
    writes over it, or is one kernel with them and writes anew.
    """

    updates: Updates = "early"
    views: frozenset[str] = frozenset()
    in_place: frozenset[str] = frozenset()
    beside_sums: Literal["in place", "anew"] = "in place"


@dataclass(frozen=True)
class Buffers:
    """Arrays over buffers. `value` is the member that says how large and how sharded the buffer is.

    `birth` and `death` are inclusive positions in 0 .. n_positions - 1.
    """

    value: np.ndarray
    birth: np.ndarray
    death: np.ndarray
    is_input: np.ndarray
    n_positions: int
    position_of_op: np.ndarray


def op_positions(
    graph: Graph, phases: Sequence[Phase], updates: Updates, awaited: Sequence[int] = ()
) -> np.ndarray:
    """Position of every op, int64 [ops], a permutation of 0 .. n - 1; those that have one in
    `awaited` [ops] come behind it.
    """
    late = len(graph.ops) if updates == "late" else 0
    # A late update starts after the last op, unless a further forward pass needs what it makes.
    leads = _leads_forward(graph, phases) if late else ()
    keys: list[tuple[int, int]] = []
    is_gradient = [False] * len(graph.values)
    for index, op in enumerate(graph.ops):
        reads_gradient = any(is_gradient[v] for v in op.inputs)
        is_moved = phases[index] is Phase.UPDATE or reads_gradient
        latest = awaited[index] if awaited else -1
        is_moved |= latest >= 0
        key = (index, 0)
        if is_moved and op.opcode not in (LOOP_ENTER, LOOP_EXIT):
            # A constant can be made any time.
            varying = (graph.values[v].producer for v in op.inputs if graph.varies[v])
            operands = [keys[p] for p in varying if p >= 0]
            start = max((s for s, _ in operands), default=0)
            if late and phases[index] is Phase.UPDATE and reads_gradient and not leads[index]:
                start = max(start, late)
            start = max(start, latest)
            key = (start, 1 + max((d for s, d in operands if s == start), default=0))
        keys.append(key)
        for value in op.outputs:
            # What an update makes counts too: it may not run before the gradient that it is made
            # of.
            is_gradient[value] = phases[index] is not Phase.FORWARD
    position = np.empty(len(keys), np.int64)
    position[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return position


def _leads_forward(graph: Graph, phases: Sequence[Phase]) -> list[bool]:
    """Whether each op makes something that a forward pass reads, maybe by way of other ops."""
    read = [False] * len(graph.values)
    leads = [False] * len(graph.ops)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        leads[index] = phases[index] is Phase.FORWARD or any(read[v] for v in op.outputs)
        for value in op.inputs if leads[index] else ():
            read[value] = True
    return leads


def buffers(
    graph: Graph,
    kernels: Sequence[Kernel],
    phases: Sequence[Phase],
    donated: Mapping[int, int],
    narrow: Sequence[bool],
    places: Places | None = None,
    early: Mapping[int, int] | None = None,
) -> Buffers:
    """Intervals of all buffers; `donated` maps an output index to the input index it may
    overwrite, `early` a value to the number of the op at which it begins to arrive.
    """
    places = places or Places()
    awaited = awaited_by_products(graph, phases) if places.updates == "late" else ()
    position = op_positions(graph, phases, places.updates, awaited)
    last = len(graph.ops)
    home = _homes(graph, donated, narrow, places)
    computed_anew = one_number_rows(graph)
    birth: dict[int, int] = {}
    death: dict[int, int] = {}
    member: dict[int, int] = {}

    def touch(value: int, at: int) -> None:
        buffer = home[value]
        birth[buffer] = min(birth.get(buffer, at), at)
        death[buffer] = max(death.get(buffer, at), at)
        member.setdefault(buffer, value)

    for value, at in _held(graph, kernels, position, computed_anew, early or {}):
        touch(value, at)
    inputs = {home[v] for v in graph.inputs}
    summed = _summed(graph, kernels) if places.beside_sums == "anew" else {}
    place: dict[int, int] = {}
    for kernel in kernels:
        at = int(position[kernel.op])
        kept = [a for a in kernel.reads if a.value not in computed_anew]
        ends = {home[a.value] for a in kept if death[home[a.value]] == at} - inputs
        ends -= {home[v] for a in kernel.reads for v in summed.get(a.value, ())}
        begins = {home[a.value] for a in kernel.writes if birth.get(home[a.value]) == at}
        for written, overwritten in _overwrites(graph, kernel, home, begins, ends, places):
            if death[written] > at:
                birth[written] = at + 1
                place[written] = overwritten
    _reserve(birth, place, {home[v] for v in graph.outputs} - inputs)
    order = sorted(birth)
    return Buffers(
        value=np.array([member[b] for b in order], np.int64),
        birth=np.array([birth[b] for b in order], np.int64),
        death=np.array([death[b] for b in order], np.int64),
        is_input=np.array([b in inputs for b in order], bool),
        n_positions=last + 1,
        position_of_op=position,
    )


def _held(
    graph: Graph,
    kernels: Sequence[Kernel],
    position: np.ndarray,
    computed_anew: frozenset[int],
    early: Mapping[int, int],
) -> Iterator[tuple[int, int]]:
    """(value, a position at which it is in memory), of all values and the ends of their lives."""
    for value in graph.inputs:
        # The caller holds the inputs: they are there for the whole step.
        yield value, 0
        yield value, len(graph.ops)
    for kernel in kernels:
        for access in (*kernel.writes, *kernel.reads):
            if access.value not in computed_anew:
                yield access.value, int(position[kernel.op])
    for index, op in enumerate(graph.ops):
        if op.opcode in (LOOP_ENTER, LOOP_EXIT):
            # A carry is in memory for the whole loop, whatever its trips read.
            for value in (*op.inputs, *op.outputs):
                if graph.varies[value] and value not in graph.unread:
                    yield value, int(position[index])
    for value, op_number in early.items():
        yield value, int(position[op_number])
    for value in graph.outputs:
        yield value, len(graph.ops)


def _summed(graph: Graph, kernels: Sequence[Kernel]) -> dict[int, list[int]]:
    """What each sum or maximum in memory is made of."""
    return {
        written.value: [a.value for a in kernel.reads]
        for kernel in kernels
        if graph.ops[kernel.op].opcode in REDUCTIONS
        for written in kernel.writes
    }


def _overwrites(
    graph: Graph,
    kernel: Kernel,
    home: Sequence[int],
    begins: set[int],
    ends: set[int],
    places: Places,
) -> Iterator[tuple[int, int]]:
    """(buffer, the one whose place it takes) of those that begin with `kernel` and take the places
    of some that end with it.
    """
    opcode = graph.ops[kernel.op].opcode
    is_view = opcode in places.views
    if opcode in KEEPS_OPERANDS and not is_view and opcode not in places.in_place:
        return
    # Of equal type and dimensions, so that the place is as large, however it is split.
    free = {home[a.value]: graph.values[a.value] for a in kernel.reads if home[a.value] in ends}
    for access in kernel.writes:
        made = graph.values[access.value]
        place = next((b for b, v in free.items() if _fits_in(made, v, is_view=is_view)), None)
        if home[access.value] in begins and place is not None:
            del free[place]
            yield home[access.value], place


def _fits_in(made: Value, free: Value, *, is_view: bool) -> bool:
    """Whether what is made may lie where `free` does."""
    if is_view:
        return (made.dtype, sorted(made.dims)) == (free.dtype, sorted(free.dims))
    return (made.dtype, made.dims) == (free.dtype, free.dims)


def _reserve(birth: dict[int, int], place: Mapping[int, int], results: set[int]) -> None:
    """Let results be there from the beginning, in place of what they are written over."""
    for result in results & birth.keys():
        birth[result] = 0
        while (result := place.get(result, -1)) in birth and result not in results:
            del birth[result]


def one_number_rows(graph: Graph) -> frozenset[int]:
    """What scatters make that set one number of each row of zeros: XLA compares the indices with
    the places of the numbers instead, in whatever reads the result.
    """
    result = set[int]()
    for op in graph.ops:
        if op.opcode != SCATTER or len(op.outputs) != 1 or graph.varies[op.inputs[0]]:
            continue
        made, added = (graph.values[v].dims for v in (op.outputs[0], op.inputs[-1]))
        # Seen of matrices alone: of [batch, length, classes] partitioned programs store it.
        if len(made) == 2 and math.prod(added) == math.prod(made[:-1]) and made[-1] > 1:
            result.add(op.outputs[0])
    return frozenset(result - set(graph.outputs))


def _homes(
    graph: Graph, donated: Mapping[int, int], narrow: Sequence[bool], places: Places
) -> list[int]:
    # Union-find over values; a buffer is known by its root.
    parent = list(range(len(graph.values)))

    def find(value: int) -> int:
        while parent[value] != value:
            parent[value] = value = parent[parent[value]]
        return value

    loop_ties = [(a, b) for a, b in graph.ties if graph.varies[a]]
    for a, b in loop_ties:
        if narrow[a] == narrow[b]:
            parent[find(a)] = find(b)
    for value, source in _same_arrays(graph, narrow, places):
        parent[find(value)] = find(source)
    for stack, same in equal_stacks(graph):
        parent[find(stack)] = find(same)
    for output, source in donated.items():
        parent[find(graph.outputs[output])] = find(graph.inputs[source])
    # All rounded views of one tensor are one copy.
    copies: dict[int, int] = {}
    for a, b in loop_ties:
        if narrow[a] != narrow[b]:
            whole, rounded = (b, a) if narrow[a] else (a, b)
            parent[find(rounded)] = find(copies.setdefault(find(whole), rounded))
    return [find(v) for v in range(len(graph.values))]


def _same_arrays(graph: Graph, narrow: Sequence[bool], places: Places) -> Iterator[tuple[int, int]]:
    """(value, the one whose array it is) of what operations hand on as it is."""
    for op in graph.ops:
        if op.opcode in (MANUAL_ENTER, MANUAL_EXIT):
            # A device's own part is all that it has of the array.
            for value, sources in sources_by_output(op):
                if graph.varies[value]:
                    yield value, sources[0]
        elif op.opcode in places.views:
            value, source = op.outputs[0], op.inputs[0]
            # An input is as the caller has it.
            if graph.values[source].producer >= 0 and narrow[value] == narrow[source]:
                yield value, source
