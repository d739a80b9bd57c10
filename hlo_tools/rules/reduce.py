"""Ops that combine or order a dimension: reduce, sort, topk."""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def reduce(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Variadic: n arrays, n initial scalars, n results; the listed dimensions are combined away."""
    builder = RuleBuilder(operands, results)
    # The other half are the initial values, scalars that every device has.
    arrays = range(len(operands) // 2)
    kept = 0
    for dim, size in enumerate(operands[0]):
        places = [(n, dim) for n in arrays]
        if dim in instruction.dimensions:
            builder.add(*places, size=size, kind=FactorKind.REDUCTION)
        else:
            places += [(builder.result(n), kept) for n in range(len(results))]
            builder.add(*places, size=size)
            kept += 1
    return builder.build()


def along_dimension(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """sort, topk: every dimension passes but the one that is ordered."""
    builder = RuleBuilder(operands, results)
    rank = len(operands[0])
    ordered = instruction.dimensions[0] if instruction.dimensions else rank - 1
    arrays = [n for n, o in enumerate(operands) if len(o) == rank]
    for dim in range(rank):
        places = [(n, dim) for n in arrays]
        places += [(builder.result(n), dim) for n in range(len(results))]
        kind = FactorKind.REPLICATION if dim == ordered else FactorKind.PASSTHROUGH
        builder.join(*places, kind=kind)
    return builder.build()
