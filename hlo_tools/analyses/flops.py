"""FLOPs of an op, from its rule and shapes; bytes are those of its values (`Value.n_bytes`).

dot, ragged-dot    2 * iteration space (a multiply and an add each), but each row of a ragged dot
                   meets one group only; also custom calls whose rule says that they sum
convolution        2 * result positions * kernel taps that meet real input, per input feature
complex products   4 times that, as (a + ib)(c + id) has four products of real numbers
factorizations     those of each matrix (`hlo_tools.analyses.factorizations`)
kernel of a user    what its rule states (`hlo_tools.rules.notation`)
reduce and windows one per element read; everything else one per element written
"""

from collections.abc import Sequence
import math

import numpy as np

from hlo_tools.analyses.factorizations import op_factorization
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.module import Instruction
from hlo_tools.opcodes import (
    CONVOLUTION,
    CUSTOM_CALL,
    DOT,
    FLOPS_BY_READS,
    MATRIX_OPS,
    NO_FLOPS,
    RAGGED_DOT,
    STRUCTURAL,
)
from hlo_tools.rules import FactorKind, Rule


def flops(graph: Graph, op: Op, rule: Rule) -> int:
    """Floating point operations of one execution of `op` on one device with whole tensors."""
    if op.opcode in NO_FLOPS or op.opcode in STRUCTURAL:
        return 0
    if rule.work is not None:
        return rule.work.flops
    if op.opcode == DOT:
        return 2 * rule.n_iterations * _products_of_parts(graph, op)
    if op.opcode == RAGGED_DOT:
        return 2 * rule.n_iterations // ragged_groups(graph, op)
    factored = _factorization_flops(graph, op)
    if factored:
        return factored
    if op.opcode == CUSTOM_CALL and any(f.kind is FactorKind.REDUCTION for f in rule.factors):
        return 2 * rule.n_iterations
    if op.opcode == CONVOLUTION:
        sizes = (graph.values[v].dims for v in (*op.inputs[:2], op.outputs[0]))
        return convolution_flops(op.instruction, *sizes) * _products_of_parts(graph, op)
    read = op.opcode in FLOPS_BY_READS
    arrays = op.inputs if read else op.outputs
    return max((math.prod(graph.values[v].dims) for v in arrays), default=0)


def _factorization_flops(graph: Graph, op: Op) -> int:
    """Of all matrices of a factorization; 0 of what is none."""
    if op.opcode not in MATRIX_OPS and op.opcode != CUSTOM_CALL:
        return 0
    what = op_factorization(graph, op)
    if what is None:
        return 0
    return round(math.prod(graph.values[op.inputs[0]].dims[: what.n_batch]) * what.flops)


def _products_of_parts(graph: Graph, op: Op) -> int:
    return 4 if graph.values[op.inputs[0]].dtype in PART_TYPES else 1


def ragged_groups(graph: Graph, op: Op) -> int:
    """How many groups the rows of a ragged dot belong to."""
    return math.prod(graph.values[op.inputs[2]].dims)


def ragged_operands(op: Op) -> tuple[int, ...]:
    """The operands of a ragged dot whose rows belong to groups: the left one, and the right one
    too where rows are what is summed over.
    """
    numbers, ragged = op.instruction.attributes.dot, op.instruction.attributes.ragged
    assert numbers is not None and ragged is not None  # noqa: S101 - its rule has read both
    is_summed = not set(ragged.lhs_ragged).isdisjoint(numbers.lhs_contracting)
    return op.inputs[: 1 + is_summed]


def convolution_flops(
    instruction: Instruction, left: Sequence[int], right: Sequence[int], result: Sequence[int]
) -> int:
    """Of a convolution of real numbers whose operands and result are so large; 0 of what is
    none.
    """
    numbers = instruction.attributes.conv
    if numbers is None:
        return 0
    total = 2 * right[numbers.kernel_input_feature] * result[numbers.output_feature]
    total *= result[numbers.output_batch]
    spatial = zip(
        instruction.attributes.window, numbers.input_spatial, numbers.output_spatial, strict=True
    )
    for window, source, target in spatial:
        # Taps that fall on padding or between dilated elements multiply zeros, which no kernel
        # does.
        starts = np.arange(result[target])[:, None] * window.stride - window.padding_low
        position = starts + np.arange(window.size)[None, :] * window.window_dilation
        extent = (left[source] - 1) * window.base_dilation + 1
        real = (position >= 0) & (position < extent) & (position % window.base_dilation == 0)
        total *= int(real.sum())
    return total
