"""Collectives that a program already has (it was written with shard_map): they stay as they are.

A dimension that keeps its size passes, one that the collective gathers, scatters or exchanges is
whole.
"""

from hlo_tools.module import Instruction
from hlo_tools.opcodes import EXCHANGES
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


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
