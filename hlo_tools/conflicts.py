"""Conflicts: places where groups compete, as explicit objects.

self conflict    one tensor holds a group on two of its dimensions (both sequence dimensions of
                 attention scores): an axis can split only one of them
pair conflict    two groups meet in one tensor or op: on the same mesh axis only one can win there,
                 the one that stands first in the axis's order
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hlo_tools.linkage import Linkage


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
    found: dict[int, list[int]] = {}
    class_of = class_of_group.tolist()
    for op, groups in zip(linkage.graph.ops, linkage.factor_groups, strict=True):
        for repeated in _repeated([class_of[g] for g in groups if g >= 0]):
            found.setdefault(repeated, []).append((op.outputs or op.inputs)[0])
    for value in range(len(linkage.graph.values)):
        for repeated in _repeated([class_of[g] for g in linkage.groups_of(value) if g >= 0]):
            found.setdefault(repeated, []).append(value)
    return tuple(
        SelfConflict(group_class, values[0], len(values))
        for group_class, values in sorted(found.items())
    )


def _repeated(classes: Sequence[int]) -> set[int]:
    return {c for c in classes if classes.count(c) > 1}


def pair_conflicts(linkage: Linkage, class_of_group: np.ndarray) -> tuple[PairConflict, ...]:
    """Every pair of different classes that meet in an op."""
    count: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], int] = {}
    for index, groups in enumerate(linkage.factor_groups):
        classes = sorted({int(class_of_group[g]) for g in groups if g >= 0})
        for i, a in enumerate(classes):
            for b in classes[i + 1 :]:
                count[a, b] = count.get((a, b), 0) + 1
                first.setdefault((a, b), index)
    return tuple(PairConflict(a, b, first[a, b], n) for (a, b), n in sorted(count.items()))
