"""How much a step does.

What splitting would divide: the work that runs over each class            -> in: `step_work`
What its model asks for: operations of products, each once                 -> in: `model_work`
"""

from collections.abc import Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
import math
from typing import Final

import numpy as np

from hlo_tools.analyses.flops import flops
from hlo_tools.analyses.linkage import Linkage
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import CONTRACTIONS, ELEMENTWISE, ITERATING, REDUCTIONS
from hlo_tools.rules import Rule


_BY_ELEMENT: Final = (ELEMENTWISE | REDUCTIONS) - ITERATING
_REMATERIALIZED: Final = "rematted_computation"
"""What JAX names the equations that `jax.checkpoint` computes again for the backward pass."""


@dataclass(frozen=True, slots=True)
class Work:
    """Operations per step: `by_class` of the ops that iterate over a compute class, `total` of all.

    A look-up counts one operation per element it copies. What is computed element by element or
    summed counts one per number, in steps with more of these than of all else: simulations may have
    no product at all.
    """

    by_class: Mapping[int, float]
    total: float


def step_work(linkage: Linkage, class_of_group: np.ndarray) -> Work:
    """The work of one step, by the ops that `_counted` counts."""
    total = 0.0
    by_class: dict[int, float] = {}
    for count, present in _counted(linkage, class_of_group):
        total += count
        for group_class in present:
            by_class[group_class] = by_class.get(group_class, 0.0) + count
    return Work(by_class, total)


def shared_work(linkage: Linkage, class_of_group: np.ndarray, first: int, second: int) -> float:
    """Operations per step of the ops that iterate over both classes, by those of `_counted`."""
    return sum(
        count
        for count, present in _counted(linkage, class_of_group)
        if first in present and second in present
    )


def _counted(linkage: Linkage, class_of_group: np.ndarray) -> list[tuple[float, tuple[int, ...]]]:
    """Operations per step of each `ITERATING` op, with the classes it iterates over; those of ops
    by element and of sums too if they are more than all of these.
    """
    iterating = [*_operations(linkage, class_of_group, ITERATING)]
    by_element = [*_operations(linkage, class_of_group, _BY_ELEMENT)]
    is_less = sum(count for count, _ in iterating) < sum(count for count, _ in by_element)
    return [*iterating, *by_element] if is_less else iterating


def _operations(
    linkage: Linkage, class_of_group: np.ndarray, opcodes: AbstractSet[str]
) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Of each op that has one of these opcodes."""
    graph = linkage.graph
    classes_by_row: dict[bytes, tuple[int, ...]] = {}
    classes = np.append(class_of_group, -1)[linkage.factor_groups]
    for index, (op, rule) in enumerate(zip(graph.ops, linkage.rules, strict=True)):
        if op.opcode not in opcodes:
            continue
        # A look-up makes no FLOPs, but its copies are divided by a split as products are.
        (largest,) = (op.inputs if op.opcode in REDUCTIONS else op.outputs)[:1] or (None,)
        numbers = 0 if largest is None else math.prod(graph.values[largest].dims)
        row = classes[index]
        # Most ops have a row that was seen before; `np.unique` is slow on short arrays.
        key = row.tobytes()
        present = classes_by_row.get(key)
        if present is None:
            present = classes_by_row[key] = tuple(c for c in np.unique(row).tolist() if c >= 0)
        counted = flops(graph, op, rule) if op.opcode in ITERATING else 0
        yield op.trip_count * float(counted or numbers), present


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Operations per step of the products that a model asks for, by the type whose rate they run
    at.
    """

    flops_by_dtype: Mapping[str, float]

    @property
    def flops(self) -> float:
        """Of all types together."""
        return sum(self.flops_by_dtype.values())

    @property
    def dtype(self) -> str:
        """The type of most of them, HLO's name; f32 without products."""
        return max(self.flops_by_dtype, key=lambda d: (self.flops_by_dtype[d], d), default="f32")


def model_work(linkage: Linkage) -> ModelWork:
    """The products of one step without those that rematerialization repeats."""
    by_dtype: dict[str, float] = {}
    for op, rule in zip(linkage.graph.ops, linkage.rules, strict=True):
        dtype = rate_dtype(linkage.graph, op, rule)
        if dtype and not is_rematerialized(op):
            count = op.trip_count * float(flops(linkage.graph, op, rule))
            by_dtype[dtype] = by_dtype.get(dtype, 0.0) + count
    return ModelWork(by_dtype)


def is_rematerialized(op: Op) -> bool:
    """Whether an operation computes again what the forward pass has made."""
    return _REMATERIALIZED in op.op_name


def rate_dtype(graph: Graph, op: Op, rule: Rule) -> str:
    """The type whose peak rate an operation runs at; "" for one that is bound by memory.

    One whose work is stated runs at the rate of its first operand's type, of numbers that are not
    whole where it has some (others are sizes and places).
    """
    if rule.work is not None and op.inputs:
        types = [graph.values[v].dtype for v in op.inputs]
        return next((t for t in types if t[0] in "fbc"), types[0])
    if op.opcode not in CONTRACTIONS:
        return ""
    # A product of two types runs at the rate of the wider.
    types = [graph.values[v].dtype for v in op.inputs[:2]]
    return max(types, key=lambda t: DTYPE_BITS[t])
