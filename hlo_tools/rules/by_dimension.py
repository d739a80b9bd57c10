"""Ops that treat each dimension by itself: it passes, or is summed, or is whole on each device.

elementwise     every dimension passes                                        -> in: `elementwise`
producers       need no operand's sharding: every dimension is free              -> in: `producer`
collectives     that a program already has (it was written with shard_map) stay as they are: a
                dimension that keeps its size passes, one that is gathered, scattered or exchanged
                is whole                                                       -> in: `collective`
reduce          listed dimensions are summed                                       -> in: `reduce`
sort, topk      the dimension that is ordered is whole                    -> in: `along_dimension`
matrices        decompositions and solves: leading dimensions are a batch, the last ones are whole,
                as those are that a Fourier transform runs over  -> in: `batched_matrices`, `fft`
"""

from hlo_tools.module import Instruction
from hlo_tools.opcodes import EXCHANGES
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]

_MATRIX_DIMS = 2


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


def batched_matrices(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """cholesky, triangular-solve, LAPACK's calls: what stands before the first operand's last
    two.
    """
    n_batch = len(operands[0]) - _MATRIX_DIMS if operands else 0
    return _batched(operands, results, max(n_batch, 0))


def fft(instruction: Instruction, operands: list[Dims], results: list[Dims]) -> Rule:
    """The transformed dimensions are the last ones, as many as there are lengths."""
    builder = RuleBuilder(operands, results)
    first = len(operands[0]) - len(instruction.attributes.fft_length)
    for dim in range(len(operands[0])):
        kind = FactorKind.REPLICATION if dim >= first else FactorKind.PASSTHROUGH
        builder.join((0, dim), (builder.result(), dim), kind=kind)
    return builder.build()


def _batched(operands: list[Dims], results: list[Dims], n_batch: int) -> Rule:
    builder = RuleBuilder(operands, results)
    for dim in range(n_batch):
        size = operands[0][dim]
        places = [(n, dim) for n, o in enumerate(operands) if _has(o, dim, size)]
        places += [(builder.result(n), dim) for n, r in enumerate(results) if _has(r, dim, size)]
        builder.add(*places, size=size)
    return builder.build(FactorKind.REPLICATION)


def _has(dims: Dims, dim: int, size: int) -> bool:
    return dim < len(dims) and dims[dim] == size
