"""Conflicts: places where groups compete, as explicit objects.

self conflict    one tensor holds a group on two of its dimensions (both sequence dimensions of
                 attention scores): an axis can split only one of them
pair conflict    two groups meet in one tensor or op: on the same mesh axis only one can win there,
                 the one that stands first in the axis's order
"""

from dataclasses import dataclass

import numpy as np

from hlo_tools.analyses.linkage import Linkage


_NONE = -1


@dataclass(frozen=True, slots=True)
class SelfConflict:
    """`group_class` stands on several dimensions of `count` values, first in `value`."""

    group_class: int
    value: int
    count: int


@dataclass(frozen=True, slots=True)
class PairConflict:
    """Two classes that meet in `count` values or ops, first in the one at `op`."""

    first: int
    second: int
    op: int
    count: int


def self_conflicts(linkage: Linkage, class_of_group: np.ndarray) -> tuple[SelfConflict, ...]:
    """Every class that some value, or some op's iteration space, holds twice."""
    padded_classes = np.append(class_of_group, _NONE)
    graph = linkage.graph
    # An op's row is reported by the first value that it makes.
    made = np.array([(op.outputs or op.inputs or (_NONE,))[0] for op in graph.ops], np.int64)
    repetitions = [_repeated(padded_classes[linkage.factor_groups], made)]
    ranks = np.diff(linkage.node_offset)
    # A row of groups for each value, as wide as the greatest rank, so that one sort serves all.
    padded = np.full((len(graph.values), max(int(ranks.max(initial=0)), 1)), -1, np.int64)
    padded[np.arange(padded.shape[1]) < ranks[:, None]] = linkage.group_of_node
    repetitions.append(_repeated(padded_classes[padded], np.arange(len(graph.values))))
    repeated = np.concatenate(repetitions)
    classes, first, counts = np.unique(repeated[:, 0], return_index=True, return_counts=True)
    return tuple(
        SelfConflict(c, int(repeated[f, 1]), n)
        for c, f, n in zip(classes.tolist(), first.tolist(), counts.tolist())
    )


def _repeated(classes: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(class, value) for each class that a row holds more than once; `value` names the rows."""
    in_order = np.sort(classes, axis=1)
    again = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] != _NONE)
    # The third of three equal classes is no second repetition.
    again[:, 1:] &= in_order[:, 2:] != in_order[:, :-2]
    row, column = np.nonzero(again)
    return np.stack([in_order[row, column], value[row]], axis=1)


def pair_conflicts(linkage: Linkage, class_of_group: np.ndarray) -> tuple[PairConflict, ...]:
    """Every pair of different classes that meet in an op."""
    padded_classes = np.append(class_of_group, _NONE)
    classes = np.sort(padded_classes[linkage.factor_groups], axis=1)
    # Many ops have the same row: the pairs of each row are made once.
    rows, first, counts = np.unique(classes, axis=0, return_index=True, return_counts=True)
    count: dict[tuple[int, int], int] = {}
    first_op: dict[tuple[int, int], int] = {}
    for row, op, n in zip(rows.tolist(), first.tolist(), counts.tolist()):
        present = sorted(set(row) - {_NONE})
        for i, a in enumerate(present):
            for b in present[i + 1 :]:
                count[a, b] = count.get((a, b), 0) + n
                first_op[a, b] = min(first_op.get((a, b), op), op)
    return tuple(PairConflict(a, b, first_op[a, b], n) for (a, b), n in sorted(count.items()))
