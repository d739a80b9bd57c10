"""Folding: groups that play the same part in repeated layers share one decision.

Two groups are of one class if their nodes have the same signature: the multiset of (opcode that makes
the value, the value's dimensions, which of them).  Nothing depends on names, so the feed-forward
dimensions of all layers of a transformer, encoder and decoder alike, fold into one class.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from hlo_tools.linkage import Linkage


def fold(linkage: Linkage) -> np.ndarray:
    """Class of each group, numbered from 0 in order of each class's first group; int64 [n_groups]."""
    graph = linkage.graph
    nodes = np.flatnonzero(linkage.group_of_node >= 0)
    kinds: dict[tuple[str, tuple[int, ...], int], int] = {}
    kind_of_node = np.zeros(len(linkage.group_of_node), np.int64)
    for v, value in enumerate(graph.values):
        opcode = graph.ops[value.producer].opcode if value.producer >= 0 else "input"
        start = linkage.node_offset[v]
        for dim in range(len(value.dims)):
            key = (opcode, value.dims, dim)
            kind_of_node[start + dim] = kinds.setdefault(key, len(kinds))
    pairs, counts = np.unique(
        np.stack([linkage.group_of_node[nodes], kind_of_node[nodes]], axis=1),
        axis=0, return_counts=True,
    )  # fmt: skip
    signature: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for (group, kind), count in zip(pairs.tolist(), counts.tolist()):
        signature[group].append((kind, count))
    return numbered([tuple(signature[g]) for g in range(linkage.n_groups)])


def numbered(keys: Sequence[object]) -> np.ndarray:
    """Consecutive numbers for equal keys, in order of first appearance; int64 [len(keys)]."""
    ids: dict[object, int] = {}
    return np.array([ids.setdefault(key, len(ids)) for key in keys], np.int64)
