"""What a kernel reads, dimension by dimension: which of its factors each dimension of a source runs
along.

A kernel computes the fused ops before it as it goes, so the way from its op back to a stored value
leads through their rules. Along it each dimension carries a *label*: the factor of the kernel that
it is split with, or NO_FACTOR where all of it is read.

    operands of the kernel's op      a dimension has the label of its major factor
    operands of a fused op           its factors take the labels of the result's dimensions they are major
                                     in; a factor that is permuted or replicated has none
    two ways to one source           a dimension keeps a label that both agree on         -> in: `kernel_reads`

Loops hand their carries on as they are: the source of what enters or leaves one is what was handed
    to it -> in: `origin`
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_tools.analyses.kernels import Kernel
from hlo_tools.graph import Graph
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT
from hlo_tools.rules import FactorKind, Rule
from hlo_tools.rules.rule import DimFactors


NO_FACTOR = -1
Labels = tuple[int, ...]
_KEPT = (FactorKind.PASSTHROUGH, FactorKind.REDUCTION)


@dataclass(frozen=True, slots=True)
class Read:
    """A stored value, the kernel's factor of each of its dimensions, and the bytes that are read of
    it.
    """

    value: int
    labels: Labels
    n_bytes: int


def dimension_labels(rule: Rule, dims: DimFactors) -> Labels:
    """Factor of each dimension of a tensor of the op itself."""
    return tuple(
        factors[0] if factors and rule.factors[factors[0]].kind in _KEPT else NO_FACTOR
        for factors in dims
    )


def kernel_reads(graph: Graph, rules: Sequence[Rule], kernel: Kernel) -> tuple[Read, ...]:
    """Every stored value that a kernel reads, in the order of `kernel.reads`."""
    wanted = {access.value for access in kernel.reads}
    labels_by_value: dict[int, Labels] = {}
    op, rule = graph.ops[kernel.op], rules[kernel.op]
    todo = [(v, dimension_labels(rule, d)) for v, d in zip(op.inputs, rule.operands, strict=True)]
    while todo:
        value, labels = todo.pop()
        known = labels_by_value.get(value)
        merged = labels if known is None else _agreed(known, labels)
        if merged == known:
            continue
        labels_by_value[value] = merged
        producer = graph.values[value].producer
        if value not in wanted and producer >= 0:
            todo += _operands(graph, rules, producer, value, merged)
    rank = {value: len(graph.values[value].dims) for value in wanted}
    nothing = {value: (NO_FACTOR,) * rank[value] for value in wanted}
    return tuple(
        Read(access.value, labels_by_value.get(access.value, nothing[access.value]), access.n_bytes)
        for access in kernel.reads
    )


def origin(graph: Graph, value: int) -> int:
    """The value that loops hand on as `value`."""
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in (LOOP_ENTER, LOOP_EXIT):
            break
        value = op.inputs[op.outputs.index(value)]
    return value


def _agreed(known: Labels, labels: Labels) -> Labels:
    return tuple(a if a == b else NO_FACTOR for a, b in zip(known, labels, strict=True))


def _operands(
    graph: Graph, rules: Sequence[Rule], producer: int, value: int, labels: Labels
) -> list[tuple[int, Labels]]:
    op, rule = graph.ops[producer], rules[producer]
    if not op.inputs or not rule.operands:
        return []
    label_by_factor: dict[int, int] = {}
    for factors, label in zip(rule.results[op.outputs.index(value)], labels, strict=True):
        if factors and rule.factors[factors[0]].kind in _KEPT:
            label_by_factor[factors[0]] = label
    return [
        (operand, tuple(label_by_factor.get(d[0], NO_FACTOR) if d else NO_FACTOR for d in dims))
        for operand, dims in zip(op.inputs, rule.operands, strict=True)
    ]
