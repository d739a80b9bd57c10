"""Elementwise ops, and the free producers that need no operand's sharding."""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import Rule, RuleBuilder


Dims = tuple[int, ...]


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
        # What no operand has (the bytes of a bitcast) is left to `build`, which keeps it whole.
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
