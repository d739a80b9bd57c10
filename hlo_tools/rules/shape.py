"""Ops that move data without computing: broadcast, reshape, transpose, slice, pad, concatenate, ..."""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def broadcast(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Operand dimension d is result dimension dimensions[d]; the others are new and free."""
    builder = RuleBuilder(operands, results)
    target = builder.result()
    source_of = {out: dim for dim, out in enumerate(instruction.dimensions)}
    for out, size in enumerate(results[0]):
        dim = source_of.get(out)
        same = dim is not None and operands[0][dim] == size
        places = [(0, dim), (target, out)] if dim is not None and same else [(target, out)]
        builder.add(*places, size=size)
    return builder.build()


def transpose(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Result dimension d is operand dimension dimensions[d]."""
    builder = RuleBuilder(operands, results)
    for out, dim in enumerate(instruction.dimensions):
        builder.add((0, dim), (builder.result(), out), size=results[0][out])
    return builder.build()


def reshape(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Cut both shapes at their common prefix products; inside a block, factors keep their order.

    Within a block both sides are split further wherever one boundary divides the other, so that
    `(a b) c -> a (b c)` has three factors.  Sizes with no common divisor become one opaque factor.
    """
    builder = RuleBuilder(operands, results)
    left, right = list(operands[0]), list(results[0])
    factors: list[list[tuple[int, ...]]] = [[() for _ in left], [() for _ in right]]
    i = j = 0
    rest_left = rest_right = 1
    while i < len(left) or j < len(right):
        if rest_left == 1 and i < len(left):
            rest_left = left[i]
        if rest_right == 1 and j < len(right):
            rest_right = right[j]
        if rest_left == 1 and i < len(left):
            i += 1
            continue
        if rest_right == 1 and j < len(right):
            j += 1
            continue
        # Factors are laid down from the major side, so the larger must be a multiple of the smaller.
        small = min(rest_left, rest_right)
        if max(rest_left, rest_right) % small:
            return _opaque(builder, operands[0], results[0])
        factor = builder.add(size=small)
        factors[0][i] += (factor,)
        factors[1][j] += (factor,)
        rest_left //= small
        rest_right //= small
        i += rest_left == 1
        j += rest_right == 1
    for tensor, dims in zip((0, builder.result()), factors):
        for dim, names in enumerate(dims):
            builder.set(tensor, dim, names)
    return builder.build()


def _opaque(builder: RuleBuilder, left: Dims, right: Dims) -> Rule:
    fresh = RuleBuilder([left], [right])
    # Leading and trailing dimensions that are equal on both sides still pass through.
    for dim, (a, b) in enumerate(zip(left, right)):
        if a != b:
            break
        fresh.add((0, dim), (fresh.result(), dim), size=a)
    return fresh.build()


def same_or_blocked(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """slice, pad, reverse: a dimension that keeps its size passes, one that changes is blocked."""
    builder = RuleBuilder(operands, results)
    reversed_dims = instruction.dimensions if instruction.opcode == "reverse" else ()
    for dim, (a, b) in enumerate(zip(operands[0], results[0], strict=True)):
        if a == b and dim not in reversed_dims:
            builder.add((0, dim), (builder.result(), dim), size=a)
    return builder.build(FactorKind.PERMUTATION)


def concatenate(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """All dimensions pass but the one that is concatenated."""
    builder = RuleBuilder(operands, results)
    for dim, size in enumerate(results[0]):
        if dim != instruction.dimensions[0]:
            places = [(n, dim) for n in range(len(operands))]
            builder.add(*places, (builder.result(), dim), size=size)
    return builder.build(FactorKind.PERMUTATION)


def dynamic_slice(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """A dimension taken whole passes; one that is cut at a run-time offset is blocked."""
    builder = RuleBuilder(operands, results)
    for dim, (a, b) in enumerate(zip(operands[0], results[0], strict=True)):
        if a == b:
            builder.add((0, dim), (builder.result(), dim), size=a)
    return builder.build()


def dynamic_update_slice(
    instruction: Instruction, operands: list[Dims], results: list[Dims]
) -> Rule:
    """Dimensions the update covers wholly pass; the others stay together on operand and result."""
    builder = RuleBuilder(operands, results)
    for dim, (a, b) in enumerate(zip(operands[0], operands[1], strict=True)):
        if a == b:
            builder.add((0, dim), (1, dim), (builder.result(), dim), size=a)
        else:
            places = ((0, dim), (builder.result(), dim))
            builder.add(*places, size=a, kind=FactorKind.REPLICATION)
    return builder.build()
