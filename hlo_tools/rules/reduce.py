"""Ops that combine along dimensions: reduce, windows, sort, and scans over a dimension."""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]


def reduce(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Variadic: n arrays, n initial scalars, n results; the listed dimensions are summed away."""
    builder = RuleBuilder(operands, results)
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


def reduce_window(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """Dimensions with a window of one pass; the others need their neighbours."""
    builder = RuleBuilder(operands, results)
    arrays = range(len(operands) // 2)
    for dim, window in enumerate(instruction.window):
        if window.size == 1 and operands[0][dim] == results[0][dim]:
            places = [(n, dim) for n in arrays]
            places += [(builder.result(n), dim) for n in range(len(results))]
            builder.add(*places, size=operands[0][dim])
    return builder.build(FactorKind.PERMUTATION)


def select_and_scatter(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """The gradient of a pool: (input, gradient of the output, initial) -> gradient of the input."""
    builder = RuleBuilder(operands, results)
    for dim, window in enumerate(instruction.window):
        if window.size == 1 and operands[0][dim] == operands[1][dim]:
            builder.add((0, dim), (1, dim), (builder.result(), dim), size=operands[0][dim])
    return builder.build(FactorKind.PERMUTATION)


def along_dimension(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """sort, topk: every dimension passes but the one that is ordered."""
    builder = RuleBuilder(operands, results)
    rank = len(operands[0])
    ordered = instruction.dimensions[0] if instruction.dimensions else rank - 1
    arrays = [n for n, o in enumerate(operands) if len(o) == rank]
    for dim in (d for d in range(rank) if d != ordered):
        places = [(n, dim) for n in arrays]
        places += [(builder.result(n), dim) for n in range(len(results))]
        builder.add(*places, size=operands[0][dim])
    return builder.build()
