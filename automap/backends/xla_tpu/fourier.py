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
2^24 numbers in rows of 128 to 16,384, all of them powers of two: no other length was looked at).
"""

from dataclasses import dataclass
import math
from typing import ClassVar

import numpy as np

from automap.backends.arrays import complex_bytes, whole_side
from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.fitted import TileNumbers
from hlo_tools.graph import PART_TYPES, Graph, Op
from hlo_tools.opcodes import FFT


class FourierEffect:
    """What transforms move in their passes."""

    n_columns: ClassVar[int] = 2
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

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
    whole = whole_side(graph, op)
    if graph.values[op.outputs[0]].dtype not in PART_TYPES:
        moved += 2 * complex_bytes(graph.values[whole].dtype)
    return round(math.prod(graph.values[whole].dims) * moved)
