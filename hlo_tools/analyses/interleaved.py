"""Fused dimensions: several equal parts side by side in one dimension (q, k, v; the gates of an
LSTM).

Cut in contiguous pieces, a device gets pieces of different parts, so slicing a part out moves data
and its dimension is not linked to the whole. Stored interleaved, as [.., parts, size] or with the
parts' elements taking turns, each device has its share of every part. `interleaved_rules` are the
rules as they would be then: a slice, pad or concatenation of whole parts lets the size of a part
pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import CONCATENATE, PAD, SLICE
from hlo_tools.rules import Rule, RuleBuilder


_FEWEST_PARTS = 2


@dataclass(frozen=True, slots=True)
class Fused:
    """A dimension of a value that is cut in `parts` equal parts."""

    value: int
    dim: int
    parts: int


def fused_dimensions(graph: Graph) -> tuple[Fused, ...]:
    """Every dimension that slices cut in equal parts, all of them."""
    starts: dict[tuple[int, int, int], set[int]] = {}
    for op in graph.ops:
        for dim, part, start in _cuts(graph, op):
            starts.setdefault((op.inputs[0], dim, part), set()).add(start)
    dimensions = []
    for (value, dim, part), seen in starts.items():
        # One part taken out says little of how a dimension is made up; all of them, side by side,
        # do.
        whole = graph.values[value].dims[dim]
        if (
            whole % part == 0
            and whole // part >= _FEWEST_PARTS
            and seen == set(range(0, whole, part))
        ):
            dimensions.append(Fused(value, dim, whole // part))
    return tuple(dimensions)


def _cuts(graph: Graph, op: Op) -> list[tuple[int, int, int]]:
    """(dimension, size, start) of the one dimension that a slice cuts."""
    if op.opcode != SLICE or not graph.varies[op.inputs[0]]:
        return []
    before, after = graph.values[op.inputs[0]].dims, graph.values[op.outputs[0]].dims
    cut = [d for d, (a, b) in enumerate(zip(before, after)) if a != b]
    slices = op.instruction.attributes.slices
    if len(cut) != 1 or not slices or slices[cut[0]].stride != 1:
        return []
    return [(cut[0], after[cut[0]], slices[cut[0]].start)]


def interleaved_rules(graph: Graph, rules: Sequence[Rule]) -> list[Rule]:
    """The rules if every fused dimension were interleaved; other rules are the same objects."""
    fused = fused_dimensions(graph)
    cut = {(f.value, f.dim): graph.values[f.value].dims[f.dim] // f.parts for f in fused}
    # By sizes too: the gradient of a fused tensor is put together, and nothing slices it again.
    sizes = {(graph.values[f.value].dims[f.dim], part) for f, part in zip(fused, cut.values())}
    result = list(rules)
    for index, op in enumerate(graph.ops):
        dim = _joined_dim(graph, op, cut, sizes)
        if dim is not None:
            result[index] = _passing(graph, op, rules[index], dim)
    return result


def _joined_dim(
    graph: Graph, op: Op, cut: dict[tuple[int, int], int], sizes: set[tuple[int, int]]
) -> int | None:
    """The dimension along which an op takes whole parts out, or puts them together."""
    dims = [graph.values[v].dims for v in (*op.inputs, *op.outputs)]
    if op.opcode == SLICE:
        return next(
            (d for d, size, _ in _cuts(graph, op) if cut.get((op.inputs[0], d)) == size), None
        )
    # The gradient of taking a part out: the part at its place, between zeros.
    if op.opcode == PAD:
        before, after = dims[0], dims[-1]
        changed = [d for d, (a, b) in enumerate(zip(before, after)) if a != b]
        if len(changed) == 1 and (after[changed[0]], before[changed[0]]) in sizes:
            padding = op.instruction.attributes.padding[changed[0]]
            is_whole = padding.interior == 0 and padding.low % before[changed[0]] == 0
            return changed[0] if is_whole else None
    # Parts put together: the fused weight itself, or the gradients of all parts.
    if op.opcode == CONCATENATE:
        dim = op.instruction.dimensions[0]
        parts = {d[dim] for d in dims[:-1]}
        if len(parts) == 1 and (dims[-1][dim], *parts) in sizes:
            return dim
    return None


def _passing(graph: Graph, op: Op, rule: Rule, dim: int) -> Rule:
    """The rule with the op's own dimension as one factor that passes, of the size of a part."""
    operands, results = ([graph.values[v].dims for v in side] for side in (op.inputs, op.outputs))
    tensors = (*rule.operands, *rule.results)
    builder = RuleBuilder(operands, results)
    # What is whole has several of the parts along this dimension, everything else has one.
    part = min(dims[dim] for dims in (*operands, *results) if len(dims) > dim)
    number = {
        f: builder.add(size=x.size, kind=x.kind, halo=x.halo) for f, x in enumerate(rule.factors)
    }
    passing = builder.add(size=part)
    for tensor, dims in enumerate(tensors):
        for position, factors in enumerate(dims):
            own = (passing,) if position == dim and factors else tuple(number[f] for f in factors)
            builder.set(tensor, position, own)
    return builder.build()
