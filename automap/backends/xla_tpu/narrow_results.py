"""Numbers of two bytes that products make through registers of four.

Of numbers of two bytes there are twice as many in the bytes that the memory moves in a time, and
the compiler takes products that do little else with them to be limited by the registers:

    extra = numbers * `narrow_seconds` / cores              of what is written, on a device

4,096 x 512 and 512 x 512 numbers take 28,608 cycles on v5e in bfloat16, 16,640 in float32, which
is what the matrix unit is busy for. It is part of what a product does beside its flops
(`automap.cost.kernels.beside_products`), so that long sums take hardly longer, and so is what its
kernel makes of its result. On devices of `narrow_products` only
(tests/automap/backends/xla_tpu/test_narrow_results.py).

Of kernels that are no products the registers take as long as the memory does for numbers of four
bytes                                                 -> in: `automap.cost.kernels.beside_memory`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.graph import Graph
from hlo_tools.opcodes import CONTRACTIONS, DYNAMIC_UPDATE_SLICE


class NarrowResultEffect:
    """Products that make numbers of two bytes."""

    n_columns: ClassVar[int] = 1
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each product the bytes of a number that it makes."""
        graph, numbers = program.problem.graph, program.numbers
        result, passed = list[KernelUses](), set[int]()
        for kernel in program.kernels:
            product = kernel.op if kernel.product < 0 else kernel.product
            narrow = {
                value: (item_bytes,)
                for value, item_bytes in _results(graph, kernel)
                if numbers.register_seconds(item_bytes)
            }
            # One kernel goes through registers once, however much of it is written.
            first = [*narrow.items()][:1] if product not in passed else []
            result.append(KernelUses(dict(first)))
            passed.update([product] if first else [])
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "NarrowResults":
        """The accesses of such results."""
        return NarrowResults(access, *columns)


@dataclass(frozen=True)
class NarrowResults:
    """`access` indexes `KernelTable.traffic_*`, `item_bytes` are those of a number; [uses]."""

    access: np.ndarray
    item_bytes: np.ndarray

    def select(self, copied: CopiedAccesses) -> "NarrowResults":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of the registers."""
        if not len(self.access) or work.device.name not in work.numbers.narrow_products:
            return
        each = np.array([work.numbers.register_seconds(b) for b in self.item_bytes.tolist()])
        seconds = work.local_bytes[self.access] / self.item_bytes * each / work.device.cores
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


def _results(graph: Graph, kernel: Kernel) -> Iterator[tuple[int, int]]:
    """(value, bytes of a number) of what a product's kernel makes, but for stacks."""
    is_product = graph.ops[kernel.op].opcode in CONTRACTIONS or kernel.product >= 0
    for access in kernel.writes if is_product else ():
        producer = graph.values[access.value].producer
        if producer < 0 or graph.ops[producer].opcode != DYNAMIC_UPDATE_SLICE:
            # As it is in memory: operands of products are rounded there.
            numbers = max(prod(graph.values[access.value].dims), 1)
            yield access.value, max(access.n_bytes // numbers, 1)
