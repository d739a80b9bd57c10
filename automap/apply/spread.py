"""Scalars that are spread over like tensors which the plan splits differently: `mu / (1 - b1 ** t)` of several kernels.

XLA makes one tensor of such broadcasts, gives it the sharding of one of its uses, and exchanges it for the
others (the partitioner before Shardy, and Shardy in jaxlib 0.6). Spread whole, each use slices it, which costs nothing,
as a slice of a broadcast is a smaller broadcast         -> `<site>:spread<j>`, the equation's operand j
"""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from automap.apply.sharded_graph import AxesPerDim, ShardedGraph
from automap.cost.edges import majors
from automap.jax_compat import open_jaxpr, weak_shape


def scalars_spread_differently(sharded: ShardedGraph) -> Iterator[tuple[int, int]]:
    """(op, value made by it) of broadcasts of one scalar to one shape that are used with several shardings."""
    graph = sharded.problem.graph
    spread: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for index, op in enumerate(graph.ops):
        if op.opcode == "broadcast" and graph.varies[op.inputs[0]]:
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
                yield sharded.as_run(user, value, majors(dims))


def spread_number(operands: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int | None:
    """Which operand of an equation is the scalar that is spread over its result; None if that is not plain."""
    scalars = [number for number, shape in enumerate(operands) if not shape]
    is_plain = len(scalars) == 1 and result in operands
    return scalars[0] if is_plain else None


def spread_aval(scalar: Any, shape: tuple[int, ...]) -> Any:
    """The aval of a scalar's tensor of a shape."""
    return _spreading(scalar, shape).outvars[0].aval


def spread(scalar: Any, shape: tuple[int, ...], eqn: Any) -> Any:
    """The equation that spreads a scalar, named like the one that uses it."""
    made = _spreading(scalar.aval, shape)
    return made.replace(
        invars=[scalar], outvars=[core.Var(made.outvars[0].aval)], source_info=eqn.source_info
    )


def _spreading(scalar: Any, shape: tuple[int, ...]) -> Any:
    traced = jax.make_jaxpr(lambda x: lax.broadcast_in_dim(x, shape, ()))(weak_shape(scalar))
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn
