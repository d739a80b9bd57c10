"""Decompositions, solves and Fourier transforms: leading dimensions are a batch, the last ones are
whole.
"""

from hlo_tools.module import Instruction
from hlo_tools.rules.rule import FactorKind, Rule, RuleBuilder


Dims = tuple[int, ...]

_MATRIX_DIMS = 2


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
