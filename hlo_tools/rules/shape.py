"""Ops that move data without computing: broadcast, reshape, transpose, slice, pad, concatenate,
...
"""

from collections.abc import Iterator

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def broadcast(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Operand dimension d is result dimension dimensions[d]; the others are new and free."""
    builder = RuleBuilder(operands, results)
    target = builder.result()
    source_by_result = {out: dim for dim, out in enumerate(instruction.dimensions)}
    for out, size in enumerate(results[0]):
        dim = source_by_result.get(out)
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

    Within a block both sides are split further wherever one boundary divides the other, so that `(a
    b) c -> a (b c)` has three factors. A block where none does (6 4 -> 4 6 is 2 3 4 against 4 6) is
    whole.
    """
    builder = RuleBuilder(operands, results)
    # Products of empty arrays say nothing of which dimension is which.
    if 0 in operands[0]:
        return builder.build()
    for left, right in equal_blocks(operands[0], results[0]):
        factors = _common_factors([operands[0][d] for d in left], [results[0][d] for d in right])
        if factors is None:
            continue
        numbers = [builder.add(size=size) for size, _, _ in factors]
        for tensor, dims, side in ((0, left, 1), (builder.result(), right, 2)):
            for position, dim in enumerate(dims):
                names = [n for n, factor in zip(numbers, factors) if factor[side] == position]
                builder.set(tensor, dim, tuple(names))
    return builder.build()


def equal_blocks(left: Dims, right: Dims) -> Iterator[tuple[list[int], list[int]]]:
    """Shortest runs of dimensions of two shapes with equal products, of which none is 0."""
    i = j = 0
    while i < len(left) or j < len(right):
        block: tuple[list[int], list[int]] = ([], [])
        products = [1, 1]
        while not any(block) or products[0] != products[1]:
            # The side whose product is behind takes its next dimension, until both are equal.
            take_left = i < len(left) and (products[0] <= products[1] or j == len(right))
            side, dims, at = (0, left, i) if take_left else (1, right, j)
            products[side] *= dims[at]
            block[side].append(at)
            i, j = (i + 1, j) if take_left else (i, j + 1)
        yield block


def _common_factors(left: list[int], right: list[int]) -> list[tuple[int, int, int]] | None:
    """(size, position on the left, on the right), major first; None if the boundaries do not
    divide.
    """
    factors: list[tuple[int, int, int]] = []
    rest = [list(left), list(right)]
    at = [0, 0]
    while at[0] < len(left) and at[1] < len(right):
        a, b = rest[0][at[0]], rest[1][at[1]]
        small = min(a, b)
        if max(a, b) % small:
            return None
        factors.append((small, at[0], at[1]))
        for side in (0, 1):
            rest[side][at[side]] //= small
            # The larger one is left with a rest, which meets the other side's next dimension.
            at[side] += rest[side][at[side]] == 1
    return factors


def slice_(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """A dimension taken whole passes; of one that is cut, parts move."""
    builder = RuleBuilder(operands, results)
    for dim, (a, b) in enumerate(zip(operands[0], results[0], strict=True)):
        kind = FactorKind.PASSTHROUGH if a == b else FactorKind.PERMUTATION
        builder.join((0, dim), (builder.result(), dim), kind=kind)
    return builder.build()


def pad(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """A dimension that gets no padding passes; of one that does, parts move."""
    builder = RuleBuilder(operands, results)
    for dim, padding in enumerate(instruction.attributes.padding):
        is_padded = padding.low or padding.high or padding.interior
        kind = FactorKind.PERMUTATION if is_padded else FactorKind.PASSTHROUGH
        builder.join((0, dim), (builder.result(), dim), kind=kind)
    return builder.build()


def reverse(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Parts of a reversed dimension move."""
    builder = RuleBuilder(operands, results)
    for dim, size in enumerate(operands[0]):
        is_reversed = dim in instruction.dimensions
        kind = FactorKind.PERMUTATION if is_reversed else FactorKind.PASSTHROUGH
        builder.add((0, dim), (builder.result(), dim), size=size, kind=kind)
    return builder.build()


def concatenate(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """All dimensions pass but the one that is concatenated."""
    builder = RuleBuilder(operands, results)
    for dim in range(len(results[0])):
        places = [(n, dim) for n in range(len(operands))]
        is_joined = dim == instruction.dimensions[0]
        kind = FactorKind.REPLICATION if is_joined else FactorKind.PASSTHROUGH
        builder.join(*places, (builder.result(), dim), kind=kind)
    return builder.build()


def dynamic_slice(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """A dimension taken whole passes; one that is cut at a run-time offset is needed whole."""
    builder = RuleBuilder(operands, results)
    for dim, (a, b) in enumerate(zip(operands[0], results[0], strict=True)):
        kind = FactorKind.PASSTHROUGH if a == b else FactorKind.REPLICATION
        builder.join((0, dim), (builder.result(), dim), kind=kind)
    return builder.build()


def dynamic_update_slice(
    instruction: Instruction, operands: list[Dims], results: list[Dims]
) -> Rule:
    """Dimensions the update covers wholly pass; the others are needed whole."""
    builder = RuleBuilder(operands, results)
    for dim, (a, b) in enumerate(zip(operands[0], operands[1], strict=True)):
        kind = FactorKind.PASSTHROUGH if a == b else FactorKind.REPLICATION
        builder.join((0, dim), (1, dim), (builder.result(), dim), kind=kind)
    return builder.build()
