"""What products take through registers of four bytes for each number: results of two bytes, and all
of a matrix that meets a single row.

*Narrow results*. Of numbers of two bytes there are twice as many in the bytes that the memory moves
in a time, and the compiler takes products that do little else with them to be limited by the
registers:

    extra = numbers * `narrow_seconds` / cores              of what is written, on a device

4,096 x 512 and 512 x 512 numbers take 28,608 cycles on v5e in bfloat16, 16,640 in float32, which
is what the matrix unit is busy for. It is part of what a product does beside its flops
(`automap.cost.kernels.beside_products`), so that long sums take hardly longer, and so is what its
kernel makes of its result. On devices of `narrow_products` only
(tests/automap/backends/xla_tpu/test_product_registers.py)            -> in: `NarrowResults.add_to`

*Single rows*. A product of which a plan leaves a device one row, as of one sequence that is decoded
on each, is a product of a vector there (`hlo_tools.analyses.matrix_vector`), which the compiler
multiplies element by element and sums:

    extra = numbers of the matrix * 4 bytes / bandwidth                on a device

beyond its bytes. 8,192 x 4,096 numbers in bfloat16 take 312 us with one row on v5e, and with two
what it takes to read them                                              -> in: `SingleRows.add_to`

Of kernels that are no products the registers take as long as the memory does for numbers of four
bytes                                                 -> in: `automap.cost.kernels.beside_memory`
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Final

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
from hlo_tools.opcodes import CONTRACTIONS, DOT, DYNAMIC_UPDATE_SLICE
from hlo_tools.rules import Rule


_REGISTER_BYTES: Final = 4


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


class SingleRowEffect:
    """Products whose rows a plan may split until a device has one."""

    n_columns: ClassVar[int] = 4
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each product and either operand: the numbers of the other one, its own rows, and, as
        bit masks, the factors that split either.
        """
        graph, rules = program.problem.graph, program.problem.linkage.rules
        result = list[KernelUses]()
        for kernel in program.kernels:
            op, rule = graph.ops[kernel.op], rules[kernel.op]
            # Both operands may be one value, whose rows are those of either.
            sides = {}
            for own, other in ((0, 1), (1, 0)) if op.opcode == DOT else ():
                rows = _own_factors(rule, own, other)
                sizes = prod(rule.factors[f].size for f in rows)
                numbers = prod(graph.values[op.inputs[other]].dims)
                masks = (_mask(rows), _mask({f for dim in rule.operands[other] for f in dim}))
                sides[op.inputs[other]] = (numbers, sizes, *masks)
            result.append(KernelUses(sides, frozenset(sides)))
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "SingleRows":
        """The matrices."""
        return SingleRows(access, *columns)


@dataclass(frozen=True)
class SingleRows:
    """`access` indexes `KernelTable.traffic_*`; the others as in `SingleRowEffect.uses`; [uses]."""

    access: np.ndarray
    numbers: np.ndarray
    rows: np.ndarray
    row_factors: np.ndarray
    matrix_factors: np.ndarray

    def select(self, copied: CopiedAccesses) -> "SingleRows":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the registers' time of matrices that meet one row on a device."""
        if not len(self.access):
            return
        kernel = work.access_kernel[self.access]
        factors, sizes = work.factor_of_axis[work.op_row[kernel]], np.array(work.sizes)

        def parts(mask: np.ndarray) -> np.ndarray:
            is_split = (factors >= 0) & (mask[:, None] >> np.maximum(factors, 0) & 1 != 0)
            return np.where(is_split, sizes, 1).prod(axis=1)

        is_single = (self.rows > 1) & (self.rows <= parts(self.row_factors))
        n_bytes = self.numbers / parts(self.matrix_factors) * _REGISTER_BYTES
        seconds = n_bytes / work.device.memory_bytes_per_s("elementwise")
        np.add.at(work.extra_seconds, kernel, np.where(is_single, seconds, 0.0))


def _own_factors(rule: Rule, own: int, other: int) -> frozenset[int]:
    """The factors that one operand has and the other has not."""
    factors = [{f for dim in rule.operands[number] for f in dim} for number in (own, other)]
    return frozenset(factors[0] - factors[1])


def _mask(factors: Iterable[int]) -> int:
    return sum(1 << factor for factor in factors)
