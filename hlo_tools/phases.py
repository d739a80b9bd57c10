"""Phases: which ops are the forward pass, which the backward pass, which the update.

JAX writes the transformation that made an op into its name: `transpose(` is the backward pass, else
`jvp(` the forward pass of a differentiated function, else the op stands outside the differentiated
function.  Ops without a name take the phase of their users.  A program in which no name says
`transpose(` (inference, or a dump without metadata) is read by data flow: what leads to outputs that
replace no input is forward, and the rest is backward or update by whether it feeds a contraction.
"""

from collections.abc import Sequence
from enum import IntEnum

from hlo_tools.graph import Graph


class Phase(IntEnum):
    """Part of a train step."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


_HEAVY = frozenset(
    {"dot", "convolution", "ragged-dot", "scatter", "gather", "reduce", "reduce-window"}
)


def phases(graph: Graph, state_outputs: frozenset[int]) -> Sequence[Phase]:
    """Phase of every op. `state_outputs` are the indices of outputs that are new versions of inputs."""
    if any("transpose(" in op.op_name for op in graph.ops):
        return _by_name(graph)
    return _by_flow(graph, state_outputs)


def _by_name(graph: Graph) -> list[Phase]:
    named: list[Phase | None] = []
    for op in graph.ops:
        if "transpose(" in op.op_name:
            named.append(Phase.BACKWARD)
        elif "jvp(" in op.op_name:
            named.append(Phase.FORWARD)
        else:
            named.append(Phase.UPDATE if op.op_name else None)
    return _fill(graph, _before_backward(graph, named))


def _before_backward(graph: Graph, named: list[Phase | None]) -> list[Phase | None]:
    """Unlabelled work that leads into the forward pass (a cast of the batch, a mask) is forward."""
    leads = [False] * len(graph.values)
    result = list(named)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if result[index] is Phase.UPDATE and any(leads[v] for v in op.outputs):
            result[index] = Phase.FORWARD
        if result[index] is not Phase.UPDATE:
            for value in op.inputs:
                leads[value] = True
    return result


def _fill(graph: Graph, known: list[Phase | None]) -> list[Phase]:
    result: list[Phase] = [Phase.UPDATE] * len(known)
    for index in range(len(known) - 1, -1, -1):
        phase = known[index]
        if phase is None:
            users = [result[u] for v in graph.ops[index].outputs for u in graph.users[v]]
            phase = min(users, default=Phase.UPDATE)
        result[index] = phase
    return result


def _by_flow(graph: Graph, state_outputs: frozenset[int]) -> list[Phase]:
    loss = {v for i, v in enumerate(graph.outputs) if i not in state_outputs}
    forward = [False] * len(graph.values)
    for value in loss:
        forward[value] = True
    feeds_heavy = [False] * len(graph.values)
    result = [Phase.UPDATE] * len(graph.ops)
    for index in range(len(graph.ops) - 1, -1, -1):
        op = graph.ops[index]
        if any(forward[v] for v in op.outputs):
            result[index] = Phase.FORWARD
        elif op.opcode in _HEAVY or any(feeds_heavy[v] for v in op.outputs):
            result[index] = Phase.BACKWARD
        for value in op.inputs:
            forward[value] |= result[index] is Phase.FORWARD
            feeds_heavy[value] |= result[index] is Phase.BACKWARD
    return result
