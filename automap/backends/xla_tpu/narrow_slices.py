"""Slices of stacks whose numbers are of two bytes: what a trip of a loop stacks, moved by itself.

A kernel that only puts a slice into its place in a stack takes every number through the registers.
Of numbers of two bytes there are twice as many in the bytes that the memory moves in a time, and
the compiler takes such kernels to be limited by the registers:

    extra = numbers * `narrow_slice_seconds` / cores        of what is written, on a device

(2 million numbers of bfloat16 take 30,000 to 38,500 cycles on v5e, as float32 24,000 to 42,000;
v5p's two cores take 12,300 to 15,400, tests/automap/backends/xla_tpu/test_narrow_slices.py). What a
product's kernel stacks of what it makes costs no more than its bytes
                                                  -> in: `hlo_tools.analyses.stacks_in_products`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from hlo_tools.analyses.fuser import Fuser, stacks_in_products
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE


@dataclass(frozen=True)
class NarrowSliceEffect:
    """Kernels that put numbers of two bytes into stacks; the fuser tells which of them are part of
    a product's.
    """

    fuser: Fuser
    n_columns: ClassVar[int] = 1

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel."""
        graph = program.problem.graph
        in_products = stacks_in_products(graph, self.fuser)
        item_bytes = {
            op.outputs[0]: _item_bytes(graph, op)
            for index, op in enumerate(graph.ops)
            if op.opcode == DYNAMIC_UPDATE_SLICE and index not in in_products
        }
        narrow = {
            v: (size,) for v, size in item_bytes.items() if program.numbers.slice_seconds(size)
        }
        # All writes of a kernel: several that read the same are one.
        return [
            KernelUses({a.value: narrow[a.value] for a in kernel.writes if a.value in narrow})
            for kernel in program.kernels
        ]

    def table(self, access: np.ndarray, columns: np.ndarray) -> "NarrowSlices":
        """The accesses of such stacks."""
        return NarrowSlices(access, *columns)


@dataclass(frozen=True)
class NarrowSlices:
    """`access` indexes `KernelTable.traffic_*`, `item_bytes` are those of a number; [uses]."""

    access: np.ndarray
    item_bytes: np.ndarray

    def select(self, copied: CopiedAccesses) -> "NarrowSlices":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of the registers."""
        if not len(self.access):
            return
        each = [work.numbers.slice_seconds(size) for size in self.item_bytes.tolist()]
        seconds = work.local_bytes[self.access] / self.item_bytes * each / work.device.cores
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


def _item_bytes(graph: Graph, op: Op) -> int:
    """Of a number that the op puts into a stack."""
    return DTYPE_BITS[graph.values[op.inputs[1]].dtype] // 8
