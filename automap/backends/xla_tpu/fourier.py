"""Fourier transforms, which the matrix unit computes as products.

A transform of n numbers is n = n_1 * n_2 * ... of them, each a *pass*: numbers meet the matrix of a
short transform, real and imaginary parts apart, and are turned and transposed for the next one.
Those of real numbers take as long as those of as many complex ones: the half of the result that
they have is cut off at the end, and on the way back the other half is written first.

    passes = the fewest lengths of up to `fourier_longest_pass` whose product is n or more, of each
             transformed dimension
    moved  = numbers * (`fourier_pass_bytes` * passes + `fourier_turn_bytes` * (passes - 1) + real)
    real   = 16 where real numbers are made: all complex ones are written and read before, else 0
                                                                           -> in: `moved_bytes`

beyond operand and result; numbers are those of the whole transform (libtpu 0.0.51, transforms of
2^24 numbers in rows of 128 to 16,384).
"""

from dataclasses import dataclass
import math
from typing import ClassVar, Final

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.fitted import TileNumbers
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import FFT


_REAL: Final = frozenset({"f32", "f64"})
_COMPLEX_BYTES: Final = 8


class FourierEffect:
    """What transforms move in their passes."""

    n_columns: ClassVar[int] = 2

    def uses(self, program: TracedKernels) -> list[KernelUses]:
        """Of each kernel."""
        graph = program.problem.graph
        result: list[KernelUses] = []
        for kernel in program.kernels:
            op = graph.ops[kernel.op]
            accessed = [a for a in (*kernel.reads, *kernel.writes) if a.n_bytes]
            rows: dict[int, tuple[int, ...]] = {}
            if op.opcode == FFT and accessed:
                # What is moved is split as the largest array that the kernel accesses.
                largest = max(accessed, key=lambda access: access.n_bytes)
                rows[largest.value] = (moved_bytes(graph, op, program.numbers), largest.n_bytes)
            result.append(KernelUses(rows))
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "Fourier":
        """One access of each transform."""
        return Fourier(access, *columns)


@dataclass(frozen=True)
class Fourier:
    """`access` indexes `KernelTable.traffic_*`; what is moved for so many bytes there; [uses]."""

    access: np.ndarray
    moved: np.ndarray
    whole: np.ndarray

    def select(self, copied: CopiedAccesses) -> "Fourier":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add what the passes move to what is accessed."""
        if len(self.access):
            work.local_bytes[self.access] *= 1 + self.moved / self.whole


def moved_bytes(graph: Graph, op: Op, numbers: TileNumbers) -> int:
    """Bytes that the passes of a transform move beyond its operand and result."""
    moved = 0.0
    for length in op.instruction.attributes.fft_length:
        # Logarithms to the base of 2 are exact for its powers.
        ratio = math.log2(length) / math.log2(numbers.fourier_longest_pass)
        passes = max(math.ceil(ratio), 1)
        moved += passes * numbers.fourier_pass_bytes
        moved += (passes - 1) * numbers.fourier_turn_bytes
    # From half of the numbers all of them are written first, and read again.
    if graph.values[op.outputs[0]].dtype in _REAL:
        moved += 2 * _COMPLEX_BYTES
    return round(math.prod(graph.values[_longer(graph, op)].dims) * moved)


def _longer(graph: Graph, op: Op) -> int:
    """The operand or the result: whichever has the numbers of the whole transform."""
    return max(op.outputs[0], op.inputs[0], key=lambda v: math.prod(graph.values[v].dims))
