"""Scalars that are spread over like tensors which a plan splits differently (`automap.jaxpr.spread`
says why it matters).
"""

from collections.abc import Iterator

from automap.cost.edges import majors
from automap.planner.sharded_graph import AxesPerDim, ShardedGraph
from hlo_tools.opcodes import BROADCAST


def scalars_spread_differently(sharded: ShardedGraph) -> Iterator[tuple[int, int]]:
    """(op, value made by it) of broadcasts of one scalar to one shape that are used with several
    shardings.
    """
    graph = sharded.problem.graph
    spread: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for index, op in enumerate(graph.ops):
        if op.opcode == BROADCAST and graph.varies[op.inputs[0]]:
            (scalar,), (value,) = op.inputs, op.outputs
            dims = graph.values[value].dims
            # An exchange of vectors is too small to matter.
            if len(dims) > 1 and not graph.values[scalar].dims:
                spread.setdefault((scalar, dims), []).append((index, value))
    for made in spread.values():
        if len({axes for _, value in made for axes in _as_used(sharded, value)}) > 1:
            yield from made


def _as_used(sharded: ShardedGraph, value: int) -> Iterator[AxesPerDim]:
    graph, rules = sharded.problem.graph, sharded.problem.linkage.rules
    for user in graph.users[value]:
        for operand, dims in zip(graph.ops[user].inputs, rules[user].operands):
            if operand == value:
                yield sharded.axes_in_op(user, value, majors(dims))
