"""Folding: groups that play the same part in repeated layers share one decision.

Two groups are of one class if their nodes have the same signature: the multiset of (opcode that
makes the value, the value's dimensions, which of them). Nothing depends on names, so the
feed-forward dimensions of all layers of a transformer, encoder and decoder alike, fold into one
class.
"""

from collections.abc import Sequence

import numpy as np

from hlo_tools.linkage import Linkage


def fold(linkage: Linkage) -> np.ndarray:
    """Class of each group, numbered from 0 in order of each class's first group; int64 [n_groups]."""
    graph = linkage.graph
    kinds: dict[tuple[str, tuple[int, ...]], int] = {}
    kind_of_value = np.empty(len(graph.values), np.int64)
    for v, value in enumerate(graph.values):
        opcode = graph.ops[value.producer].opcode if value.producer >= 0 else "input"
        kind_of_value[v] = kinds.setdefault((opcode, value.dims), len(kinds))
    ranks = np.diff(linkage.node_offset)
    dim = np.arange(linkage.node_offset[-1]) - np.repeat(linkage.node_offset[:-1], ranks)
    kind_of_node = np.repeat(kind_of_value, ranks) * (ranks.max(initial=0) + 1) + dim
    nodes = np.flatnonzero(linkage.group_of_node >= 0)
    # One number per (group, kind) sorts much faster than two.
    base = int(kind_of_node.max(initial=0)) + 1
    pairs, counts = np.unique(
        linkage.group_of_node[nodes] * base + kind_of_node[nodes], return_counts=True
    )
    group, kind = np.divmod(pairs, base)
    bounds = np.searchsorted(group, np.arange(linkage.n_groups + 1)).tolist()
    rows = np.stack([kind, counts], axis=1)
    return numbered([rows[a:b].tobytes() for a, b in zip(bounds, bounds[1:])])


def numbered(keys: Sequence[object]) -> np.ndarray:
    """Consecutive numbers for equal keys, in order of first appearance; int64 [len(keys)]."""
    ids: dict[object, int] = {}
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)
