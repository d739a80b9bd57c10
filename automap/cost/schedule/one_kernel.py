"""Kernels of a loop that the compiler makes one: where it stands.

Products of one operand that make gradients in a loop are one product, as XLA:GPU merges them
(dot_merger.cc), and stand where the last of them does: a sum of one of them is not ready before
                                                                             -> in: `_merged`
Nor is the sum over rows that makes a gradient before the last element-by-element kernel that reads
the same array, as XLA:GPU makes one kernel of both (multi_output_fusion.cc)
                                                                      -> in: `_summed_beside`
"""

from collections.abc import Sequence
import math

import numpy as np

from automap.cost.edges.loops import innermost_loops
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.storage import Side
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, ELEMENTWISE, REDUCTIONS


def where_one_kernel_is(
    problem: Problem, kernels: Sequence[Kernel], position: np.ndarray
) -> np.ndarray:
    """`position` [ops] of the schedule, but of kernels that become one that of the last of them."""
    return _summed_beside(problem, kernels, _merged(problem, position))


def is_gradient(problem: Problem, op: Op, index: int) -> bool:
    """Whether an op is a product of the backward pass whose result is of a parameter."""
    return op.opcode in CONTRACTIONS and _is_of_parameter(problem, op, index)


def _is_of_parameter(problem: Problem, op: Op, index: int) -> bool:
    is_backward = problem.phases[index] == Phase.BACKWARD
    return is_backward and problem.storage.side[op.outputs[0]] != Side.NONE


def _merged(problem: Problem, position: np.ndarray) -> np.ndarray:
    """`position` [ops] with that of the last of those products of one operand that are one.

    XLA merges two only if operands and result of one of them are no more bytes on a device than
    `xla_gpu_dot_merger_threshold_mb`, which is not looked at.
    """
    graph, loops = problem.graph, innermost_loops(problem.graph)
    merged = position.copy()
    # A product is of one group only, the first that another one is of too.
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, op in enumerate(graph.ops):
        dot = op.instruction.attributes.dot
        if dot is not None and loops[index] >= 0 and is_gradient(problem, op, index):
            sides = (dot.lhs_contracting, dot.rhs_contracting)
            for side, contracting in enumerate(sides):
                key = (loops[index], side, op.inputs[side], *contracting)
                groups.setdefault(key, []).append(index)
    seen = set[int]()
    for group in groups.values():
        members = [index for index in group if index not in seen]
        if len(members) > 1:
            seen.update(members)
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
