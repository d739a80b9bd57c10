"""Which sums hold their rows whole, in kernels of tiles.

A softmax and a normalization are made by Triton's kernels on XLA:GPU: a block of threads has whole
rows, and what goes on with a sum along them reads nothing again. Rows are those of the array as it
lies (`hlo_tools.analyses.orders`): scores of grouped attention, which their product writes with
queries as the innermost dimension, have none along the keys.

XLA begins a kernel of tiles where it sees a *diamond*, and takes in more of what works on its rows:

        v ----> reduce along the row ----> broadcast
         \\                                     |
          `-----------------------------> e(v', sum)      v' is made of v alone, or v of v'

(softmax_rewriter_triton.cc of XLA.) Between the sum and the broadcast each operation has one
operand that is no constant: a maximum that is tested to be finite begins no tile. A softmax and a
normalization are such diamonds. The gradient of a softmax, p * (d - sum(p * d)), is none: d and
p * d are made of different arrays                                     -> in: `tiled_reductions`

A sum that several arrays use, as the denominator of a softmax whose gradient is at hand too, is a
kernel of its own, and each of these arrays is made by a kernel of tiles that goes through the rows
again. A sum that one array waits for and nothing else, as the maximum of a softmax, is made again
by each kernel that makes that array: they are kernels of tiles as well, past products too, with the
sums along rows that they need, as the gradient of a softmax that is computed again   -> in: `uses`
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.matrix_vector import summed_value
from hlo_tools.analyses.orders import Order
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import (
    BROADCAST,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    REDUCTIONS,
    RESHAPE,
    TRANSPOSE,
)


ON_THE_WAY: Final = ELEMENTWISE | {BROADCAST, RESHAPE, TRANSPOSE}
"""What a tile does with its rows beside sums of them."""


def tiled_reductions(
    graph: Graph, run: Sequence[Kernel], remade: Collection[int], orders: Mapping[int, Order]
) -> frozenset[int]:
    """The ops of a run that reduce rows which a block holds; `remade` are sums that tiles make
    again, `orders` those of dimensions in memory that are not the program's.
    """
    rows = [kernel for kernel in run if _sums_rows(graph, graph.ops[kernel.op], orders)]
    tiled = {
        kernel.op
        for kernel in rows
        if uses(graph, graph.ops[kernel.op]).is_diamond or _reads(kernel, remade)
    }
    # More sums of what a tile holds are part of it.
    held = {a.value for k in rows if k.op in tiled for a in (*k.reads, *k.writes)}
    for kernel in rows if tiled else ():
        if held & {access.value for access in kernel.reads}:
            tiled.add(kernel.op)
            held.update(access.value for access in (*kernel.reads, *kernel.writes))
    return frozenset(tiled)


def remade_sums(graph: Graph, tiled: Collection[int]) -> frozenset[int]:
    """What those of the `tiled` sums make that one array waits for, and nothing else."""
    ops = (graph.ops[op] for op in tiled)
    return frozenset(v for op in ops if uses(graph, op) == _ALONE for v in op.outputs)


def is_sum(graph: Graph, op: Op) -> bool:
    """Whether an op reduces anything: dimensions of one number are nothing."""
    if op.opcode not in REDUCTIONS:
        return False
    return worked_numbers(graph, op) > prod(graph.values[op.outputs[0]].dims)


def worked_numbers(graph: Graph, op: Op) -> int:
    """How many numbers a kernel works on: of a stack the part that it writes."""
    is_update = op.opcode == DYNAMIC_UPDATE_SLICE
    return prod(graph.values[op.inputs[1]].dims if is_update else worked_dims(graph, op))


def worked_dims(graph: Graph, op: Op) -> tuple[int, ...]:
    """The dimensions of what a kernel works on: of a sum those of what it sums."""
    return graph.values[worked_value(graph, op)].dims


def worked_value(graph: Graph, op: Op) -> int:
    """What a kernel works on: what a sum reads, or what an op makes."""
    return summed_value(graph, op) if op.opcode in REDUCTIONS else op.outputs[0]


def _sums_rows(graph: Graph, op: Op, orders: Mapping[int, Order]) -> bool:
    """Whether an op reduces the innermost dimensions of an array in memory, and no other."""
    if op.opcode not in REDUCTIONS or op.is_joint_reduction:
        return False
    rank, reduced = len(graph.values[op.inputs[0]].dims), sorted(op.instruction.dimensions)
    order = orders.get(op.inputs[0], range(rank))
    return 0 < len(reduced) < rank and reduced == sorted(order[rank - len(reduced) :])


def _reads(kernel: Kernel, values: Collection[int]) -> bool:
    return any(access.value in values for access in kernel.reads)


@dataclass(frozen=True, slots=True)
class Uses:
    """What uses a reduction's result: how many arrays of the reduced size, how many other values,
    and whether one of the arrays is made of the reduced one too.
    """

    arrays: int
    others: int
    is_diamond: bool


_ALONE: Final = Uses(1, 0, is_diamond=True)


def uses(graph: Graph, op: Op) -> Uses:
    """Of the sum that an op makes."""
    array = op.inputs[0]
    dims, before = graph.values[array].dims, _made_of_one(graph, array)
    seen, todo = set[int](), [*op.outputs]
    arrays, others, is_diamond = 0, 0, False
    while todo:
        value = todo.pop()
        for user in graph.users[value]:
            made = graph.ops[user]
            if user in seen:
                continue
            seen.add(user)
            if made.opcode in ELEMENTWISE and graph.values[made.outputs[0]].dims == dims:
                beside = (v for v in made.inputs if v != value)
                is_diamond |= any(before & _made_of_one(graph, v) for v in beside)
                arrays += 1
            elif made.opcode in ON_THE_WAY and sum(graph.varies[v] for v in made.inputs) == 1:
                todo.extend(made.outputs)
            else:
                others += 1
    return Uses(arrays, others, is_diamond)


def _made_of_one(graph: Graph, value: int) -> set[int]:
    """A value, and the arrays that it is made of element by element, as far back as each is made of
    one such array alone.
    """
    chain = {value}
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in ELEMENTWISE:
            break
        arrays = {v for v in op.inputs if graph.varies[v] and not _is_repeated(graph, v)}
        if len(arrays) != 1:
            break
        (value,) = arrays
        chain.add(value)
    return chain


def _is_repeated(graph: Graph, value: int) -> bool:
    """Whether a value is a smaller one, broadcast."""
    producer = graph.values[value].producer
    return producer >= 0 and graph.ops[producer].opcode == BROADCAST
