"""Contractions: dot and ragged-dot; convolutions are in `convolution`."""

from hlo_tools.errors import HloError
from hlo_tools.module import DotDims, Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def dot(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Result dimensions are batch, free of the left, free of the right; the contracted are
    reduced.
    """
    numbers = _numbers(instruction)
    builder = RuleBuilder(operands, results)
    lhs, rhs = operands
    out = 0
    for left, right in zip(numbers.lhs_batch, numbers.rhs_batch, strict=True):
        builder.add((0, left), (1, right), (builder.result(), out), size=lhs[left])
        out += 1
    for dim in _free(lhs, numbers.lhs_batch, numbers.lhs_contracting):
        builder.add((0, dim), (builder.result(), out), size=lhs[dim])
        out += 1
    for dim in _free(rhs, numbers.rhs_batch, numbers.rhs_contracting):
        builder.add((1, dim), (builder.result(), out), size=rhs[dim])
        out += 1
    for left, right in zip(numbers.lhs_contracting, numbers.rhs_contracting, strict=True):
        builder.add((0, left), (1, right), size=lhs[left], kind=FactorKind.REDUCTION)
    return builder.build()


def ragged_dot(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Rows of the left side belong to groups, in order; the last operand says how many to each.

    Where a group starts depends on the rows before it, so the ragged dimension cannot be split.
    With the groups on the right side (rows times their group's matrix) a device that has some of
    the groups makes only their rows: a sum. Without (each group's rows contracted) the groups lead
    the result.
    """
    numbers, ragged = _numbers(instruction), instruction.attributes.ragged
    if ragged is None:
        raise HloError(f"{instruction.name}: a ragged dot without its ragged dimensions")
    builder = RuleBuilder(operands, results)
    # `counts` [.., groups]: how many rows belong to each group.
    lhs, rhs, *counts = operands
    n_groups = len(counts[0]) - 1 if counts else 0
    is_contracted = bool(set(ragged.lhs_ragged) & set(numbers.lhs_contracting))
    out = 0
    if is_contracted:
        builder.add((2, n_groups), (builder.result(), 0), size=counts[0][n_groups])
        out = 1
    for left, right in zip(numbers.lhs_batch, numbers.rhs_batch, strict=True):
        builder.add((0, left), (1, right), (builder.result(), out), size=lhs[left])
        out += 1
    for dim in _free(lhs, numbers.lhs_batch, numbers.lhs_contracting):
        kind = FactorKind.REPLICATION if dim in ragged.lhs_ragged else FactorKind.PASSTHROUGH
        builder.add((0, dim), (builder.result(), out), size=lhs[dim], kind=kind)
        out += 1
    for dim in _free(rhs, numbers.rhs_batch, (*numbers.rhs_contracting, *ragged.rhs_group)):
        builder.add((1, dim), (builder.result(), out), size=rhs[dim])
        out += 1
    for left, right in zip(numbers.lhs_contracting, numbers.rhs_contracting, strict=True):
        is_ragged = left in ragged.lhs_ragged
        kind = FactorKind.REPLICATION if is_ragged else FactorKind.REDUCTION
        builder.add((0, left), (1, right), size=lhs[left], kind=kind)
    for dim in ragged.rhs_group:
        builder.add((1, dim), (2, n_groups), size=rhs[dim], kind=FactorKind.REDUCTION)
    return builder.build()


def _numbers(instruction: Instruction) -> DotDims:
    if instruction.attributes.dot is None:
        raise HloError(f"{instruction.name}: a {instruction.opcode} without dimension numbers")
    return instruction.attributes.dot


def _free(dims: Dims, batch: Dims, contracting: Dims) -> list[int]:
    return [d for d in range(len(dims)) if d not in batch and d not in contracting]
