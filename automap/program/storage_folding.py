"""Storage groups of equal layers folded to classes: leaves that are alike are stored alike."""

from collections.abc import Mapping

import numpy as np

from hlo_tools.flow import made_of
from hlo_tools.folding import numbered
from hlo_tools.graph import BRANCH_EXIT, LOOP_EXIT, STRUCTURAL
from hlo_tools.linkage import Linkage
from hlo_tools.storage import Side, Storage


def fold_storage(
    linkage: Linkage, stored: Storage, class_of_group: np.ndarray, state_map: Mapping[int, int]
) -> np.ndarray:
    """Storage groups are of one class if they hold the same dimensions of equally classed leaves.

    A group on no leaf (a gradient without optimizer state) is known by the parameter its op
    updates; what belongs to no leaf at all is folded by the values it holds.
    """
    graph = linkage.graph
    class_of_node = np.append(class_of_group, -1)[linkage.group_of_node].tolist()
    of_leaf: list[set[object]] = [set() for _ in range(len(stored.limits))]
    of_value: list[set[object]] = [set() for _ in range(len(stored.limits))]
    offset = linkage.node_offset.tolist()
    groups = stored.group_of_node.tolist()
    side, leaves = stored.side.tolist(), set(graph.inputs)
    for v in np.flatnonzero(stored.side).tolist():
        dims = graph.values[v].dims
        start, end = offset[v], offset[v + 1]
        key_of_value = (side[v], dims, tuple(class_of_node[start:end]))
        for dim, group in enumerate(groups[start:end]):
            if group >= 0:
                key = (*key_of_value, dim)
                (of_leaf if v in leaves else of_value)[group].add(key)
    for output, position in state_map.items():
        value = graph.inputs[position]
        classes = tuple(class_of_node[offset[value] : offset[value + 1]])
        for dim, group in enumerate(update_groups(linkage, stored, graph.outputs[output])):
            if group >= 0:
                of_leaf[group].add((Side.OPTIMIZER, graph.values[value].dims, classes, dim))
    return numbered([frozenset(leaf or other) for leaf, other in zip(of_leaf, of_value)])


def update_groups(linkage: Linkage, stored: Storage, output: int) -> tuple[int, ...]:
    """Storage group, per dimension, of the op that makes a new state leaf (-1: none)."""
    graph, made = linkage.graph, output
    producer = graph.values[made].producer
    while producer >= 0 and graph.ops[producer].opcode in (LOOP_EXIT, BRANCH_EXIT):
        ends = dict(made_of(graph.ops[producer]))[made]
        # A branch may hand on what it got; another one updates it.
        made = max(ends, key=lambda end: graph.values[end].producer)
        producer = graph.values[made].producer
    if producer < 0 or graph.ops[producer].opcode in STRUCTURAL:
        return (-1,) * len(graph.values[output].dims)
    groups = stored.factor_groups[producer]
    dims = linkage.rules[producer].results[graph.ops[producer].outputs.index(made)]
    return tuple(int(groups[factors[0]]) if factors else -1 for factors in dims)
