"""Numbers of two bytes that kernels take through registers of four: what loops stack by a kernel of
its own, and what products make.

Of numbers of two bytes there are twice as many in the bytes that the memory moves in a time, and
the compiler takes kernels that do little else with them to be limited by the registers:

    extra = numbers * `narrow_seconds` / cores              of what is written, on a device

slices      2 million numbers that are put into a stack take 30,000 to 38,500 cycles on v5e in
            bfloat16, 24,000 to 42,000 in float32; v5p's two cores take 12,300 to 15,400
products    4,096 x 512 and 512 x 512 numbers take 28,608 cycles on v5e in bfloat16, 16,640 in
            float32, which is what the matrix unit is busy for. A product takes the longer of its
            flops and of its bytes with this, so that long sums take no longer. On devices of
            `narrow_products` only

(tests/automap/backends/xla_tpu/test_narrow_results.py). What a product's kernel stacks of what it
makes costs no more than its bytes                 -> in: `hlo_tools.analyses.stacks_in_products`
"""

from collections.abc import Iterator, Sequence
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
from hlo_tools.analyses.kernels import Kernel
from hlo_tools.graph import DTYPE_BITS, Graph
from hlo_tools.opcodes import CONTRACTIONS, DYNAMIC_UPDATE_SLICE


@dataclass(frozen=True)
class NarrowResultEffect:
    """Kernels that put numbers of two bytes into stacks, and products that make some; the fuser
    tells which of the stacks a product's kernel fills.
    """

    fuser: Fuser
    n_columns: ClassVar[int] = 2

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel: of what it writes the bytes of a number, and whether a product makes
        it.
        """
        graph, numbers = program.problem.graph, program.numbers
        in_products = stacks_in_products(graph, self.fuser)
        return [
            KernelUses(
                {
                    value: (item_bytes, is_product)
                    for value, item_bytes, is_product in _results(graph, kernel, in_products)
                    if numbers.register_seconds(item_bytes)
                }
            )
            for kernel in program.kernels
        ]

    def table(self, access: np.ndarray, columns: np.ndarray) -> "NarrowResults":
        """The accesses of such results."""
        return NarrowResults(access, *columns)


@dataclass(frozen=True)
class NarrowResults:
    """`access` indexes `KernelTable.traffic_*`, `item_bytes` are those of a number, `is_product`
    whether a product makes it; [uses].
    """

    access: np.ndarray
    item_bytes: np.ndarray
    is_product: np.ndarray

    def select(self, copied: CopiedAccesses) -> "NarrowResults":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of the registers."""
        if not len(self.access):
            return
        each = np.array([work.numbers.register_seconds(b) for b in self.item_bytes.tolist()])
        if work.device.name not in work.numbers.narrow_products:
            each = np.where(self.is_product > 0, 0.0, each)
        seconds = work.local_bytes[self.access] / self.item_bytes * each / work.device.cores
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


def _results(
    graph: Graph, kernel: Kernel, in_products: frozenset[int]
) -> Iterator[tuple[int, int, bool]]:
    """(value, bytes of a number, whether a product makes it) of a kernel's stacks and products."""
    is_product = graph.ops[kernel.op].opcode in CONTRACTIONS
    for access in kernel.writes:
        producer = graph.values[access.value].producer
        is_stack = producer >= 0 and graph.ops[producer].opcode == DYNAMIC_UPDATE_SLICE
        if (is_stack and producer not in in_products) or (is_product and not is_stack):
            yield access.value, DTYPE_BITS[graph.values[access.value].dtype] // 8, is_product
