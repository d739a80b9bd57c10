"""Storage groups: the dimensions along which a leaf can be kept sharded without its computation
being so.

ZeRO keeps parameters, gradients and optimizer state split over the devices that would otherwise
hold copies. That concerns only part of the graph, found by data flow:

    parameter side   a parameter leaf and what merely casts, slices or transposes it, up to the op
                     that uses it (there it is gathered), stacks of that, and the new parameter
                     that the step returns, or a further forward pass of the same step reads
    optimizer side   every op of the update, and the gradient back to the contraction that makes it
                     (there a partial sum is scattered instead of reduced whole)

Within one side, the rules link dimensions into groups as `linkage` does; between the sides nothing
is linked, so that parameters may be whole while the optimizer is split (ZeRO-1, ZeRO-2).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hlo_tools.analyses.linkage import Edges, Linkage, node_sizes
from hlo_tools.analyses.phases import Phase
from hlo_tools.analyses.state_roles import Role
from hlo_tools.graph import Graph, HandOver, Op, sources_by_output
from hlo_tools.opcodes import (
    BRANCH_ENTER,
    BRANCH_EXIT,
    CARRIES_PARAMETER,
    DYNAMIC_UPDATE_SLICE,
    ELEMENTWISE,
    LOOP_ENTER,
    LOOP_EXIT,
    SCATTER,
    STRUCTURAL,
)
from hlo_tools.rules import FactorKind


class Side(IntEnum):
    """Which part of a leaf's storage a value belongs to."""

    NONE = 0
    PARAMETER = 1
    OPTIMIZER = 2


_SIDE_OF_ROLE = {Role.PARAMETER: Side.PARAMETER, Role.OPTIMIZER: Side.OPTIMIZER}


@dataclass(frozen=True)
class Storage:
    """Sides of values, storage group of each node (-1: none), and of each factor of each op."""

    side: np.ndarray
    group_of_node: np.ndarray
    limits: np.ndarray
    factor_groups: np.ndarray


def storage(
    linkage: Linkage,
    phases: Sequence[Phase],
    roles: Sequence[Role],
    state_map: Mapping[int, int],
) -> Storage:
    """Storage groups of a train step; `state_map` maps output index to input index."""
    graph = linkage.graph
    in_update, value_serves = _update_region(linkage, phases, frozenset(state_map))
    new_in_step = _new_in_step(graph, phases, value_serves, roles)
    side = _sides(graph, value_serves, roles, state_map)
    _carry_on(graph, in_update, (new for _, new in new_in_step), side)
    op_side = _op_sides(graph, in_update, side)
    sides = np.array(side, np.int8)
    op_sides = np.array(op_side, np.int8)
    # Ops on a side, with those of their tensors that are on it too: no link leads across.
    parts = [
        part
        for b in linkage.batches
        for part in b.split(
            (sides[b.values] == op_sides[b.ops, None]) & (op_sides[b.ops, None] != Side.NONE)
        )
    ]
    edges = Edges(linkage.node_offset)
    for batch, held in parts:
        for factor, places in zip(batch.rule.factors, batch.places(held)):
            if factor.kind is FactorKind.PASSTHROUGH:
                edges.link(batch, places, factor.size)
    ties = [(a, b) for a, b in (*graph.ties, *new_in_step) if side[a] == side[b] != Side.NONE]
    # A leaf's new version is stored as the leaf is.
    ties += [
        (graph.inputs[i], graph.outputs[o])
        for o, i in state_map.items()
        if side[graph.inputs[i]] == side[graph.outputs[o]] != Side.NONE
    ]
    edges.tie(ties, graph)
    members, sizes = node_sizes(graph, linkage.node_offset, sides != Side.NONE)
    group_of_node, limits = edges.groups(members, sizes)
    factor_groups = np.full(linkage.factor_groups.shape, -1, np.int64)
    for batch, held in parts:
        for index, places in enumerate(batch.places(held)):
            if places:
                factor_groups[batch.ops, index] = group_of_node[edges.nodes(batch, places[0])]
    return Storage(sides, group_of_node, limits, factor_groups)


def _update_region(
    linkage: Linkage, phases: Sequence[Phase], state_outputs: frozenset[int]
) -> tuple[list[bool], list[bool]]:
    """(op only serves the update, value only serves the update), found backwards from the new
    state.

    A returned new state is such a use; the stacked result of a loop passes its use on to the write
    inside the loop.
    """
    graph = linkage.graph
    serves = [False] * len(graph.ops)
    used = [False] * len(graph.values)
    other_use = [False] * len(graph.values)
    # Back to the op that sums partial gradients, and not beyond: there the sum is scattered.
    is_local = {
        id(b.rule): all(f.kind is not FactorKind.REDUCTION for f in b.rule.factors)
        for b in linkage.batches
    }
    for position, value in enumerate(graph.outputs):
        used[value] = True
        other_use[value] |= position not in state_outputs
    # Users come after what they use, so backwards all uses of a value are known.
    for index in range(len(graph.ops) - 1, -1, -1):
        op, rule = graph.ops[index], linkage.rules[index]
        for_update = [used[v] and not other_use[v] for v in op.outputs]
        if op.opcode in (LOOP_EXIT, BRANCH_EXIT):
            for (_, sources), is_for_update in zip(sources_by_output(op), for_update, strict=True):
                for source in sources:
                    used[source] = True
                    other_use[source] |= not is_for_update
            continue
        if op.opcode == BRANCH_ENTER:
            # The branches read themselves what is handed to them.
            used[op.inputs[0]] = other_use[op.inputs[0]] = True
            continue
        if op.opcode not in STRUCTURAL and index not in graph.local_ops:
            serves[index] = phases[index] is Phase.UPDATE or (
                is_local[id(rule)] and all(for_update)
            )
        for value in op.inputs:
            used[value] = True
            other_use[value] |= not serves[index]
    return serves, [u and not o for u, o in zip(used, other_use)]


def _new_in_step(
    graph: Graph, phases: Sequence[Phase], value_serves: Sequence[bool], roles: Sequence[Role]
) -> list[tuple[int, int]]:
    """(parameter, a new version of it that a further forward pass reads): made element by element,
    by an update.
    """
    leaf_by_value = {v: v for v, role in zip(graph.inputs, roles) if role is Role.PARAMETER}
    versions = []
    for index, (op, phase) in enumerate(zip(graph.ops, phases, strict=True)):
        if index in graph.local_ops:
            continue
        is_same = op.opcode in STRUCTURAL or op.opcode in ELEMENTWISE
        for output, sources in sources_by_output(op) if is_same and leaf_by_value else ():
            dims = graph.values[output].dims
            leaf = next(
                (
                    leaf_by_value[v]
                    for v in sources
                    if v in leaf_by_value and graph.values[v].dims == dims
                ),
                None,
            )
            if leaf is None or not dims:
                continue
            if op.opcode in STRUCTURAL or phase is Phase.UPDATE:
                leaf_by_value[output] = leaf
            if op.opcode not in STRUCTURAL and phase is Phase.UPDATE and not value_serves[output]:
                versions.append((leaf, output))
    return versions


def _sides(
    graph: Graph,
    value_serves: Sequence[bool],
    roles: Sequence[Role],
    state_map: Mapping[int, int],
) -> list[Side]:
    side = [
        Side.OPTIMIZER if value.dims and varies and serves and not is_local else Side.NONE
        for value, varies, serves, is_local in zip(
            graph.values, graph.varies, value_serves, graph.is_local, strict=True
        )
    ]
    for value, role in zip(graph.inputs, roles):
        side[value] = _SIDE_OF_ROLE.get(role, Side.NONE) if graph.values[value].dims else Side.NONE
    for output, source in state_map.items():
        if graph.values[graph.outputs[output]].dims:
            side[graph.outputs[output]] = side[graph.inputs[source]]
    return side


def _carry_on(
    graph: Graph, in_update: Sequence[bool], new_in_step: Iterable[int], side: list[Side]
) -> None:
    """Give sides to what carries parameters on: casts, slices, loops, branches, stacks."""
    stacks = set[int]()
    for value in new_in_step:
        side[value] = Side.PARAMETER
    for index, op in enumerate(graph.ops):
        if op.opcode == LOOP_ENTER:
            _into_loop(graph, op, graph.ops[graph.exit_by_entry[index]], side)
        elif op.opcode == LOOP_EXIT:
            _out_of_loop(op, stacks, side)
        elif op.opcode == BRANCH_EXIT:
            _out_of_branches(op, side)
        elif _is_stacked(graph, op, side):
            stacks.add(op.outputs[0])
            side[op.inputs[0]] = side[op.outputs[0]] = Side.PARAMETER
        elif (
            op.opcode in CARRIES_PARAMETER
            and side[op.inputs[0]] is Side.PARAMETER
            and not in_update[index]
        ):
            side[op.outputs[0]] = Side.PARAMETER


def _into_loop(graph: Graph, enter: Op, leave: Op, side: list[Side]) -> None:
    """Give what a loop carries the side of what it starts with.

    That is a parameter which it does not change, and state of which it ends with the new version: a
    loop of steps.
    """
    carries = zip(enter.inputs, enter.outputs, leave.inputs, leave.outputs, strict=True)
    for source, carried, root, result in carries:
        if side[source] is Side.PARAMETER and carried in leave.inputs:
            side[carried] = Side.PARAMETER
        elif side[source] is side[result] is not Side.NONE:
            side[carried] = side[root] = side[source]


def _is_stacked(graph: Graph, op: Op, side: Sequence[Side]) -> bool:
    """Whether a loop over layers keeps what it made of a weight for the backward pass: such casts
    are split as the weight is.

    Vectors, such as the scales of norms, the partitioner keeps whole.
    """
    if op.opcode != DYNAMIC_UPDATE_SLICE:
        return False
    stack, part = op.inputs[:2]
    return (
        side[part] is Side.PARAMETER
        and side[stack] is side[op.outputs[0]] is Side.NONE
        and sum(size > 1 for size in graph.values[part].dims) > 1
        and graph.hand_over(stack) is HandOver.CHANGED
    )


def _out_of_loop(leave: Op, stacks: Collection[int], side: list[Side]) -> None:
    for root, result in zip(leave.inputs, leave.outputs, strict=True):
        if root in stacks:
            side[result] = Side.PARAMETER


def _out_of_branches(leave: Op, side: list[Side]) -> None:
    """What the branches end with as new versions of a parameter is stored as the parameter is."""
    for result, roots in sources_by_output(leave):
        if side[result] is Side.PARAMETER:
            for root in roots:
                if side[root] is Side.OPTIMIZER:
                    side[root] = Side.PARAMETER


def _op_sides(graph: Graph, in_update: Sequence[bool], side: Sequence[Side]) -> list[Side]:
    result = []
    for index, op in enumerate(graph.ops):
        # An embedding's gradient: a scatter into zeros, which can be split as the table's rows are.
        is_table_gradient = op.opcode == SCATTER and side[op.outputs[0]] is Side.OPTIMIZER
        if in_update[index] or is_table_gradient:
            result.append(Side.OPTIMIZER)
        elif (op.opcode in CARRIES_PARAMETER or op.opcode == DYNAMIC_UPDATE_SLICE) and side[
            op.outputs[0]
        ] is Side.PARAMETER:
            result.append(Side.PARAMETER)
        else:
            result.append(Side.NONE)
    return result
