"""How much of a step's work runs over each class: what splitting it would divide."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
import math

import numpy as np

from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.linkage import Linkage
from hlo_tools.opcodes import ITERATING


@dataclass(frozen=True, slots=True)
class Work:
    """Operations per step: `by_class` of the ops that iterate over a compute class, `total` of all.

    A look-up counts one operation per element it copies.
    """

    by_class: Mapping[int, float]
    total: float


def step_work(linkage: Linkage, class_of_group: np.ndarray) -> Work:
    """The work of the `ITERATING` ops of one step."""
    total = 0.0
    by_class: dict[int, float] = {}
    for count, present in _counted(linkage, class_of_group):
        total += count
        for group_class in present:
            by_class[group_class] = by_class.get(group_class, 0.0) + count
    return Work(by_class, total)


def shared_work(linkage: Linkage, class_of_group: np.ndarray, first: int, second: int) -> float:
    """Operations per step of the `ITERATING` ops that iterate over both classes."""
    return sum(
        count
        for count, present in _counted(linkage, class_of_group)
        if first in present and second in present
    )


def _counted(
    linkage: Linkage, class_of_group: np.ndarray
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Operations per step of each `ITERATING` op, with the classes it iterates over."""
    graph = linkage.graph
    classes_by_row: dict[bytes, tuple[int, ...]] = {}
    classes = np.append(class_of_group, -1)[linkage.factor_groups]
    for index, (op, rule) in enumerate(zip(graph.ops, linkage.rules, strict=True)):
        if op.opcode not in ITERATING:
            continue
        # A look-up makes no FLOPs, but its copies are divided by a split as products are.
        copied = math.prod(graph.values[op.outputs[0]].dims) if op.outputs else 0
        row = classes[index]
        # Most ops have a row that was seen before; `np.unique` is slow on short arrays.
        key = row.tobytes()
        present = classes_by_row.get(key)
        if present is None:
            present = classes_by_row[key] = tuple(c for c in np.unique(row).tolist() if c >= 0)
        yield op.trip_count * float(flops(graph, op, rule) or copied), present
