"""Small tensors of a class, and the ops on nothing else of it: what may be left whole where the
class is split.

Splitting an op along a class that it sums, sorts or looks up in costs a collective, however small
its tensors are: the router of a mixture of experts, a table of positions, counts per expert. So a
class c has two parts,

    small(c)   tensors of at most 1 / `LEAST_RATIO` of the bytes of the largest that holds c, and
               ops whose tensors with c are all small
    the rest

and whether the first is left whole is a decision of its own (`Point.small_whole_classes`): every
device then does all of it, and what large tensors need of it is cut out without communication.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hlo_tools.analyses.batches import Batch
from hlo_tools.analyses.linkage import Linkage
from hlo_tools.rules import FactorKind


LEAST_RATIO = 16


@dataclass(frozen=True)
class SmallParts:
    """The small parts of the classes of a graph.

    `is_small_node` [nodes], `is_small_factor` [ops, factors]: whether a dimension or factor
    belongs to the small part of its class. `classes`: those of whose small part some op sums, sorts
    or looks up along the class.
    """

    is_small_node: np.ndarray
    is_small_factor: np.ndarray
    classes: frozenset[int]


def small_parts(
    linkage: Linkage, class_of_node: np.ndarray, class_of_group: np.ndarray
) -> SmallParts:
    """The small parts of compute classes; `class_of_node` is `len(class_of_group)` or more where
    there is none.
    """
    values, offset = linkage.graph.values, linkage.node_offset
    n_bytes = np.repeat(np.array([v.n_bytes for v in values], np.int64), np.diff(offset))
    largest = np.zeros(int(class_of_node.max(initial=0)) + 1, np.int64)
    np.maximum.at(largest, class_of_node, n_bytes)
    nodes = n_bytes * LEAST_RATIO <= largest[class_of_node]
    factors = np.zeros(linkage.factor_groups.shape, bool)
    communicating = set[int]()
    for batch in linkage.batches:
        for factor, places in enumerate(batch.places((True,) * batch.values.shape[1])):
            groups = linkage.factor_groups[batch.ops, factor]
            if places and (groups >= 0).any():
                is_small = _all_small(batch, places, nodes, offset) & (groups >= 0)
                factors[batch.ops, factor] = is_small
                if batch.rule.factors[factor].kind is not FactorKind.PASSTHROUGH:
                    communicating.update(class_of_group[groups[is_small]].tolist())
    return SmallParts(nodes, factors, frozenset(communicating))


def _all_small(
    batch: Batch, places: Sequence[tuple[int, int]], nodes: np.ndarray, offset: np.ndarray
) -> np.ndarray:
    tensors, dims = (list(column) for column in zip(*places))
    return np.logical_and.reduce(nodes[offset[batch.values[:, tensors]] + np.array(dims)], axis=1)
