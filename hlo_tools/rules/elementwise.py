"""Elementwise ops, and the free producers that need no operand's sharding."""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import Rule, RuleBuilder


Dims = tuple[int, ...]

ELEMENTWISE: frozenset[str] = frozenset(
    """abs acos acosh add and asin asinh atan2 atanh bitcast-convert cbrt ceil clamp compare complex
    convert cosh cosine count-leading-zeros divide erf exponential exponential-minus-one floor imag
    is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt power real
    reduce-precision remainder round-nearest-afz round-nearest-even rsqrt select shift-left
    shift-right-arithmetic shift-right-logical sign sine sinh sqrt stochastic-convert subtract tan
    tanh xor map""".split()
)
# Produce without reading data: any device can make any part.
FREE_PRODUCERS: frozenset[str] = frozenset({"constant", "iota", "partition-id", "replica-id"})


def elementwise(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Operands of the result's shape share its factors; scalars have none.

    A bitcast between widths has one dimension more on one side, the bytes of an element: they stay
    together.
    """
    builder = RuleBuilder(operands, results)
    shape = results[0]
    for dim, size in enumerate(shape):
        places = [(n, dim) for n, o in enumerate(operands) if dim < len(o) and o[dim] == size]
        places += [(builder.result(n), dim) for n, r in enumerate(results) if r[dim] == size]
        if len(places) > len(results) or not operands:
            builder.add(*places, size=size)
    return builder.build()


def producer(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Every result dimension is free."""
    builder = RuleBuilder(operands, results)
    for number, shape in enumerate(results):
        for dim, size in enumerate(shape):
            builder.add((builder.result(number), dim), size=size)
    return builder.build()
