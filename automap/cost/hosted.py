"""State that is kept in the host's memory between steps: which leaves can be, the room that they
take on the device while they are there, and the seconds of the link.

A leaf can be kept there if the step carries it, it is no parameter, and nothing but the update
reads it                                                        -> in: `movable_leaves`
Of n such leaves, in the order in which the update reads them first, leaf r comes in while earlier
ones are updated, and goes out while later ones are. Over the positions of the update, 0 to 1, it is
on the device from (r - a) / n to (r + 1 + a) / n, a the leaves that are ahead: 1 + 2 a leaves at a
time take the place of all                                      -> in: `with_hosted`
With b_r the bytes of a leaf on a device, w the link's bytes per second in each direction, and u the
seconds of the update's kernels, which run beside it, a device waits

    (sum of b_r + max of b_r) / w - u

as the last leaf goes out when none comes in any more. Where copies go in line with kernels, as on
GPUs (measured: docs/reports/levers.md), it waits for all of them, in and out:

    2 sum of b_r / w
                                                                -> in: `host_waiting_seconds`
A compiler that has memory to spare brings leaves in earlier, beside the backward pass; that is not
counted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from automap.cost.memory import TEMPORARY_KIND, BufferTable
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role


_AHEAD: Final = 2
"""Leaves that come in, and leaves that go out, beside the one that is updated: two moments of a
parameter are updated together."""
_LEAST_SHARE: Final = 1e-3
"""Of the bytes of the largest leaf: smaller ones, as counters are, give nothing back."""


def movable_leaves(problem: Problem) -> tuple[int, ...]:
    """Numbers of the inputs that can be in host memory between steps, in the order in which the
    update reads them first.
    """
    graph = problem.graph
    number = {value: index for index, value in enumerate(graph.inputs)}
    carried = set(problem.state_map.values())
    first: dict[int, int] = {}
    elsewhere = set[int](number.get(value, -1) for value in graph.outputs)
    for index, op in enumerate(graph.ops):
        for value in op.inputs:
            if value in number:
                first.setdefault(number[value], index)
                if problem.phases[index] is not Phase.UPDATE:
                    elsewhere.add(number[value])
    leaves = [
        leaf
        for leaf in sorted(first, key=first.__getitem__)
        if problem.roles[leaf] is Role.OPTIMIZER and leaf in carried and leaf not in elsewhere
    ]
    n_bytes = {leaf: graph.values[graph.inputs[leaf]].n_bytes for leaf in leaves}
    least = _LEAST_SHARE * max(n_bytes.values(), default=0)
    return tuple(leaf for leaf in leaves if n_bytes[leaf] >= least and _dims(problem, leaf))


def _dims(problem: Problem, leaf: int) -> tuple[int, ...]:
    return problem.graph.values[problem.graph.inputs[leaf]].dims


def with_hosted(buffers: BufferTable, problem: Problem, position_of_op: np.ndarray) -> BufferTable:
    """The intervals of buffers, those of the problem's hosted leaves within the update only."""
    graph, leaves = problem.graph, [n for n in movable_leaves(problem) if n in problem.hosted]
    if not leaves:
        return buffers
    rank = {graph.inputs[leaf]: place for place, leaf in enumerate(leaves)}
    # Of what is not donated the new version has a buffer of its own.
    new = {
        graph.outputs[output]: rank[graph.inputs[leaf]]
        for output, leaf in problem.state_map.items()
        if leaf in leaves
    }
    updates = [
        index for index, op in enumerate(graph.ops) if any(value in rank for value in op.inputs)
    ]
    position = position_of_op[updates]
    first, length = int(position.min()), int(position.max() - position.min()) + 1
    birth, death, kind = buffers.birth.copy(), buffers.death.copy(), buffers.kind.copy()
    hosted = np.zeros(len(birth), bool)
    for number, value in enumerate(buffers.value.tolist()):
        place = rank.get(value, new.get(value))
        if place is not None:
            share = length / len(leaves)
            birth[number] = first + max(int((place - _AHEAD) * share), 0)
            death[number] = first + min(int((place + 1 + _AHEAD) * share), length) - 1
            kind[number], hosted[number] = TEMPORARY_KIND, value in rank
    return replace(buffers, birth=birth, death=np.maximum(birth, death), kind=kind, hosted=hosted)


def update_counts(
    problem: Problem, kernels: Sequence[Kernel], row_of_kernel: Sequence[int]
) -> np.ndarray:
    """How often the update runs each distinct kernel, [kernel rows]."""
    count = np.zeros(max(row_of_kernel, default=-1) + 1)
    for kernel, row in zip(kernels, row_of_kernel, strict=True):
        if problem.phases[kernel.op] is Phase.UPDATE:
            count[row] += problem.graph.ops[kernel.op].trip_count
    return count


def host_waiting_seconds(
    leaf_bytes: np.ndarray, host_bytes_per_s: float, update_seconds: float | None
) -> float:
    """Seconds of a step in which a device waits for the link, given `leaf_bytes` on a device;
    `update_seconds` are those of the update's kernels beside the copies, None where nothing runs
    beside them.
    """
    if not len(leaf_bytes):
        return 0.0
    coming, last = float(leaf_bytes.sum()), float(leaf_bytes.max())
    if update_seconds is None:
        return 2 * coming / host_bytes_per_s
    return max((coming + last) / host_bytes_per_s - update_seconds, 0.0)
