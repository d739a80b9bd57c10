"""Folding: groups that play the same part in repeated layers share one decision.

Two groups are of one class if their nodes have the same signature: the multiset of (opcode that
makes the value, the value's dimensions, which of them). Nothing depends on names, so the
feed-forward dimensions of all layers of a transformer, encoder and decoder alike, fold into one
class                                                                         -> in: `fold`

Storage groups fold likewise: leaves that are alike are stored alike          -> in: `fold_storage`
"""

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_tools.analyses.linkage import Linkage
from hlo_tools.analyses.storage import Side, Storage
from hlo_tools.graph import sources_by_output
from hlo_tools.opcodes import BRANCH_EXIT, LOOP_EXIT, STRUCTURAL


def fold(linkage: Linkage) -> np.ndarray:
    """Class of each group, numbered from 0 in order of each class's first group; int64
    [n_groups].
    """
    graph = linkage.graph
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind_of_value = np.empty(len(graph.values), np.int64)
    for v, value in enumerate(graph.values):
        opcode = graph.ops[value.producer].opcode if value.producer >= 0 else "input"
        kind_of_value[v] = kinds.setdefault((opcode, value.dims), len(kinds))
    ranks = np.diff(linkage.node_offset)
    dim = np.arange(linkage.node_offset[-1]) - np.repeat(linkage.node_offset[:-1], ranks)
    # (kind, dimension) as one number: a dimension is less than the greatest rank.
    kind_of_node = np.repeat(kind_of_value, ranks) * (ranks.max(initial=0) + 1) + dim
    nodes = np.flatnonzero(linkage.group_of_node >= 0)
    # One number per (group, kind) sorts much faster than two.
    base = int(kind_of_node.max(initial=0)) + 1
    pairs, counts = np.unique(
        linkage.group_of_node[nodes] * base + kind_of_node[nodes], return_counts=True
    )
    group, kind = np.divmod(pairs, base)
    bounds = np.searchsorted(group, np.arange(linkage.n_groups + 1)).tolist()
    # Sorted by kind within each group: equal multisets are equal bytes.
    rows = np.stack([kind, counts], axis=1)
    return number_keys([rows[a:b].tobytes() for a, b in zip(bounds, bounds[1:])])


def number_keys(keys: Sequence[object]) -> np.ndarray:
    """Consecutive numbers for equal keys, in order of first appearance; int64 [len(keys)]."""
    ids: dict[object, int] = {}
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)


def fold_storage(
    linkage: Linkage, stored: Storage, class_of_group: np.ndarray, state_map: Mapping[int, int]
) -> np.ndarray:
    """Storage groups are of one class if they hold the same dimensions of equally classed leaves.

    A group on no leaf (a gradient without optimizer state) is known by the parameter its op
    updates; what belongs to no leaf at all is folded by the values it holds.
    """
    graph = linkage.graph
    class_of_node = np.append(class_of_group, -1)[linkage.group_of_node].tolist()
    leaf_keys: list[set[object]] = [set() for _ in range(len(stored.limits))]
    value_keys: list[set[object]] = [set() for _ in range(len(stored.limits))]
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
                (leaf_keys if v in leaves else value_keys)[group].add(key)
    for output, position in state_map.items():
        value = graph.inputs[position]
        classes = tuple(class_of_node[offset[value] : offset[value + 1]])
        for dim, group in enumerate(update_groups(linkage, stored, graph.outputs[output])):
            if group >= 0:
                leaf_keys[group].add((Side.OPTIMIZER, graph.values[value].dims, classes, dim))
    return number_keys([frozenset(leaf or other) for leaf, other in zip(leaf_keys, value_keys)])


def update_groups(linkage: Linkage, stored: Storage, output: int) -> tuple[int, ...]:
    """Storage group, per dimension, of the op that makes a new state leaf (-1: none)."""
    graph, made = linkage.graph, output
    producer = graph.values[made].producer
    while producer >= 0 and graph.ops[producer].opcode in (LOOP_EXIT, BRANCH_EXIT):
        ends = dict(sources_by_output(graph.ops[producer]))[made]
        # A branch may hand on what it got; another one updates it.
        made = max(ends, key=lambda end: graph.values[end].producer)
        producer = graph.values[made].producer
    if producer < 0 or graph.ops[producer].opcode in STRUCTURAL:
        return (-1,) * len(graph.values[output].dims)
    groups = stored.factor_groups[producer]
    dims = linkage.rules[producer].results[graph.ops[producer].outputs.index(made)]
    return tuple(int(groups[factors[0]]) if factors else -1 for factors in dims)
