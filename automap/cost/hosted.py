"""State that is kept in the host's memory between steps: which leaves can be, the room that they
take on the device while they are there, and the seconds of the link.

A leaf can be kept there if the step carries it, it is no parameter, and nothing but the update
reads it                                                        -> in: `movable_leaves`
Of n such leaves, in the order in which the update reads them first, leaf r comes in while earlier
ones are updated, and goes out while later ones are. Over the positions of the update, 0 to 1, it is
on the device from (r - a) / n to (r + 1 + a) / n, a the leaves that are ahead: 1 + 2 a leaves at a
time take the place of all. Where leaves come in part by part (`automap.jaxpr.in_parts`), as those
can that are updated element by element, there is one part of one leaf, from r / n to (r + 1) / n
                                                                -> in: `with_hosted`
With b_r the bytes of a leaf on a device, and w the link's bytes per second, a device waits for all
copies, in and out:

    2 sum of b_r / w                                            -> in: `host_waiting_seconds`

as on GPUs nothing runs beside them (measured: docs/reports/levers.md), and a loop over parts waits
for each.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from automap.cost.memory import TEMPORARY_KIND, BufferTable
from automap.jaxpr.hosted import HostState
from automap.jaxpr.in_parts import PARTS
from automap.program.problem import Problem
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.roles import Role
from hlo_tools.graph import Graph
from hlo_tools.opcodes import ELEMENTWISE


_AHEAD: Final = 2
"""Leaves that come in, and leaves that go out, beside the one that is updated: two moments of a
parameter are updated together."""
_LEAST_SHARE: Final = 1e-3
"""Of the bytes of the largest leaf: smaller ones, as counters are, give nothing back."""


def movable_leaves(problem: Problem, host_state: HostState) -> tuple[int, ...]:
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
    if host_state == "in parts":
        leaves = [leaf for leaf in leaves if _is_updated_by_element(graph, graph.inputs[leaf])]
    n_bytes = {leaf: graph.values[graph.inputs[leaf]].n_bytes for leaf in leaves}
    least = _LEAST_SHARE * max(n_bytes.values(), default=0)
    return tuple(leaf for leaf in leaves if n_bytes[leaf] >= least and _dims(problem, leaf))


def _is_updated_by_element(graph: Graph, leaf: int) -> bool:
    """Whether all that depends on a value has its dimensions, and each element is of its own."""
    dims, seen, waiting = graph.values[leaf].dims, set[int](), [leaf]
    while waiting:
        for index in graph.users[waiting.pop()]:
            op = graph.ops[index]
            if index in seen:
                continue
            if op.opcode not in ELEMENTWISE or any(
                graph.values[v].dims != dims for v in op.outputs
            ):
                return False
            seen.add(index)
            waiting.extend(op.outputs)
    return True


def _dims(problem: Problem, leaf: int) -> tuple[int, ...]:
    return problem.graph.values[problem.graph.inputs[leaf]].dims


def with_hosted(
    buffers: BufferTable, problem: Problem, position_of_op: np.ndarray, host_state: HostState
) -> BufferTable:
    """The intervals of buffers, those of the problem's hosted leaves within the update only."""
    movable = movable_leaves(problem, host_state)
    graph, leaves = problem.graph, [n for n in movable if n in problem.hosted]
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
    ahead, parts = (_AHEAD, 1) if host_state == "whole leaves" else (0, PARTS)
    birth, death, kind = buffers.birth.copy(), buffers.death.copy(), buffers.kind.copy()
    n_bytes, hosted = buffers.n_bytes.copy(), np.zeros(len(birth))
    for number, value in enumerate(buffers.value.tolist()):
        place = rank.get(value, new.get(value))
        if place is not None:
            share = length / len(leaves)
            birth[number] = first + max(int((place - ahead) * share), 0)
            death[number] = first + min(int((place + 1 + ahead) * share), length) - 1
            kind[number], hosted[number] = TEMPORARY_KIND, n_bytes[number] * (value in rank)
            n_bytes[number] /= parts
    death = np.maximum(birth, death)
    return replace(
        buffers, birth=birth, death=death, kind=kind, n_bytes=n_bytes, hosted_bytes=hosted
    )


def host_waiting_seconds(leaf_bytes: np.ndarray, host_bytes_per_s: float) -> float:
    """Seconds of a step in which a device waits for the link, given `leaf_bytes` on a device."""
    return 2 * float(leaf_bytes.sum()) / host_bytes_per_s
