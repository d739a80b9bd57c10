"""Ops whose dimensions pass one by one: elementwise ones, free producers that need no operand's
sharding, and collectives that a program already has (it was written with shard_map), which stay as
they are: a dimension that keeps its size passes, one that the collective gathers, scatters or
exchanges is whole.
"""

from hlo_tools.module import Instruction
from hlo_tools.opcodes import EXCHANGES
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


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


def collective(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Operand n becomes result n."""
    builder = RuleBuilder(operands, results)
    for number, (source, target) in enumerate(zip(operands, results)):
        for dim, (a, b) in enumerate(zip(source, target)):
            is_moved = a != b or (instruction.opcode in EXCHANGES and dim in instruction.dimensions)
            # An all-to-all may keep the size of a dimension, though it exchanges its parts.
            kind = FactorKind.REPLICATION if is_moved else FactorKind.PASSTHROUGH
            builder.join((number, dim), (builder.result(number), dim), kind=kind)
    return builder.build()
