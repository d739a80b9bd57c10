"""Contractions as products of matrices, and which of them could be one.

A convolution is the product of [pixels, K] and [K, features] with K = taps x input features; groups
and batches are G products side by side. Operators with one operand in common are one product whose
right sides stand beside each other:

    dots           of the same operand, contracted along the same dimensions
    convolutions   of the same image with equal strides and equal results' sizes. A window of size k
                   with padding p in front is a part of one with padding P >= p: it begins at tap
                   P - p, and all taps around it are zeros. Several fit into the window of
                   max p + max (k - p) taps                                  -> in: `MergeClass`

Only right sides that are inputs of the step, or casts of them, are stood beside each other
(weights), and that is not priced: a server can do it once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
import math

from automap.program.problem import Problem
from hlo_tools.graph import DTYPE_BITS, Op
from hlo_tools.opcodes import CONTRACTIONS, CONVOLUTION, DOT, VIEWS
from hlo_tools.rules import FactorKind


MOST_DIMS = 3
"""Spatial dimensions of a convolution that can be merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """G products [M, K] x [K, N]; `dtype` is that whose peak rate it runs at."""

    groups: int
    rows: int
    columns: int
    depth: int
    dtype: str

    @property
    def flops(self) -> float:
        """Two for each multiplication that tiles make, those of zeros of a padding included."""
        return 2.0 * self.groups * self.rows * self.columns * self.depth


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClass:
    """Operators of equal `key` may be one.

    - `padding`: of each spatial dimension in front, p; () of a dot.
    - `rest`: k - p of each.
    - `depth`: K over the number of taps.
    - `weight_bytes`: of an element of the right side, `operand` the value of the left one.
    """

    key: Hashable
    padding: tuple[int, ...]
    rest: tuple[int, ...]
    depth: int
    weight_bytes: int
    operand: int


def matrix_product(
    problem: Problem, op: Op, factor_parts: Sequence[int] | None = None
) -> Product | None:
    """The product that a contraction is; None of other ops. `factor_parts`: of how many parts of
    each factor of its rule a device has one.
    """
    if op.opcode not in CONTRACTIONS:
        return None
    graph = problem.graph
    arrays = [graph.values[v] for v in op.inputs[:2]]
    dtype = max((a.dtype for a in arrays), key=lambda t: DTYPE_BITS[t])
    rule = problem.linkage.rules[graph.values[op.outputs[0]].producer]
    parts = factor_parts or [1] * len(rule.factors)
    numbers = op.instruction.attributes.conv

    def local(dims: Sequence[int], factors: Sequence[Sequence[int]]) -> list[int]:
        return [
            math.ceil(size / math.prod(parts[f] for f in own))
            for size, own in zip(dims, factors, strict=True)
        ]

    if op.opcode == CONVOLUTION and numbers is not None:
        kernel = local(arrays[1].dims, rule.operands[1])
        result = local(graph.values[op.outputs[0]].dims, rule.results[0])
        attributes = op.instruction.attributes
        groups = max(attributes.feature_group_count, attributes.batch_group_count)
        features = result[numbers.output_feature]
        taps = math.prod(kernel[d] for d in numbers.kernel_spatial)
        return Product(
            groups=groups,
            rows=math.prod(result) // features,
            columns=max(features // groups, 1),
            depth=taps * kernel[numbers.kernel_input_feature],
            dtype=dtype,
        )
    sides = [frozenset(f for dim in dims for f in dim) for dims in rule.operands[:2]]
    sizes = [math.ceil(f.size / n) for f, n in zip(rule.factors, parts, strict=True)]
    summed = {f for f, x in enumerate(rule.factors) if x.kind is FactorKind.REDUCTION}
    both = (sides[0] & sides[1]) - summed
    return Product(
        groups=math.prod(sizes[f] for f in both),
        rows=math.prod(sizes[f] for f in sides[0] - both - summed),
        columns=math.prod(sizes[f] for f in sides[1] - both - summed),
        depth=math.prod(sizes[f] for f in summed),
        dtype=dtype,
    )


def merge_class(problem: Problem, op: Op, operand: object) -> MergeClass | None:
    """With which others an op could be one; None for none. `operand` identifies its left side."""
    if len(op.inputs) != 2 or not _is_weight(problem, op.inputs[1]):
        return None
    if op.opcode == DOT:
        return _dot_class(problem, op, operand)
    return _convolution_class(problem, op, operand) if op.opcode == CONVOLUTION else None


def _dot_class(problem: Problem, op: Op, operand: object) -> MergeClass | None:
    dims = op.instruction.attributes.dot
    value = problem.graph.values[op.inputs[1]]
    # One dimension of the right side is left: along it they stand beside each other.
    if dims is None or dims.rhs_batch or len(value.dims) != len(dims.rhs_contracting) + 1:
        return None
    dtypes = tuple(problem.graph.values[v].dtype for v in (*op.inputs, *op.outputs))
    precision = op.instruction.attributes.precision
    contracted = (dims.lhs_contracting, dims.rhs_contracting)
    return MergeClass(
        key=(op.opcode, operand, contracted, dtypes, precision),
        padding=(),
        rest=(),
        depth=math.prod(value.dims[d] for d in dims.rhs_contracting),
        weight_bytes=DTYPE_BITS[value.dtype] // 8,
        operand=op.inputs[0],
    )


def _convolution_class(problem: Problem, op: Op, operand: object) -> MergeClass | None:
    attributes, graph = op.instruction.attributes, problem.graph
    numbers, window = attributes.conv, attributes.window
    groups = max(attributes.feature_group_count, attributes.batch_group_count)
    is_plain = all(
        w.window_dilation == w.base_dilation == 1 and not w.reversal and w.padding_low >= 0
        for w in window
    )
    if numbers is None or groups > 1 or not is_plain or len(window) > MOST_DIMS:
        return None
    result = graph.values[op.outputs[0]].dims
    value = graph.values[op.inputs[1]]
    dtypes = tuple(graph.values[v].dtype for v in (*op.inputs, *op.outputs))
    places = tuple(result[d] for d in numbers.output_spatial)
    strides = tuple(w.stride for w in window)
    return MergeClass(
        key=(op.opcode, operand, numbers, strides, places, dtypes, attributes.precision),
        padding=tuple(w.padding_low for w in window),
        rest=tuple(w.size - w.padding_low for w in window),
        depth=value.dims[numbers.kernel_input_feature],
        weight_bytes=DTYPE_BITS[value.dtype] // 8,
        operand=op.inputs[0],
    )


def _is_weight(problem: Problem, value: int) -> bool:
    """Whether a value is made of the step's inputs by casts and moves alone."""
    graph = problem.graph
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in VIEWS or len(op.inputs) != 1:
            return False
        (value,) = op.inputs
    return True
