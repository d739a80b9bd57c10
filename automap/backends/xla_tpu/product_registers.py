"""What products wait for, and what they take through registers of four bytes for each number:
results of two bytes, and all of a matrix that meets a single row.

*Ends*. The first piece of what a product reads comes before its work, and the last of what it makes
leaves behind it. Each takes as long as the gap of another kernel
(`automap.backends.base.Backend.launch_gap_seconds`), if anything comes from the memory of the
device, and if anything goes there or through registers               -> in: `ProductEnds.add_to`

*Given*. What a step or a loop is given, as weights, is fetched to the chip while other kernels run:
of 1,234 products in programs of 27 steps for v5e, all of the fitted half of `scripts.unseen_steps`,
16 read such from the memory of the device and nothing else of it (2026-12-01, by a script that was
not kept). There is no room for all of a large one (`automap.backends.TileNumbers.off_chip`)
                                                                      -> in: `ProductEnds.add_to`

*Narrow results*. Of numbers of two bytes there are twice as many in the bytes that the memory moves
in a time, and the compiler takes products that do little else with them to be limited by the
registers:

    extra = numbers * 4 bytes / bandwidth                   of what is written, on a device

as other kernels take (`automap.cost.kernels.beside_memory`), wherever it is written. 8,192 x 128
and 128 x 128 numbers in the memory of the chip take 12,632 cycles on v5e in bfloat16, 2,304 in
float32, which is what the matrix unit is busy for. It is part of what a product does beside its
flops (`automap.cost.kernels.beside_products`), so that long sums take hardly longer, and so is what
its kernel makes of its result. On devices of `narrow_products` only
(tests/automap/backends/xla_tpu/test_product_registers.py)           -> in: `ProductEnds.add_to`

*Single rows*. A product of which a plan leaves a device one row, as of one sequence that is decoded
on each, is a product of a vector there (`hlo_tools.analyses.matrix_vector`), which the compiler
multiplies element by element and sums:

    extra = numbers of the matrix * 4 bytes / bandwidth                on a device

beyond its bytes. 8,192 x 4,096 numbers in bfloat16 take 312 us with one row on v5e, and with two
what it takes to read them                                              -> in: `SingleRows.add_to`
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
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
_NARROW_BYTES: Final = 2


class ProductEndsEffect:
    """What products read, and what they or what their kernels do besides write."""

    n_columns: ClassVar[int] = 3
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each access whether it is written, whether the step or a loop is given it, and the
        bytes of a number that is the one to go through registers, 0 of others.
        """
        graph, kernels = program.problem.graph, program.kernels
        last = _last_writers(graph, kernels)
        written = {access.value for kernel in kernels for access in kernel.writes}
        result = list[KernelUses]()
        for number, kernel in enumerate(kernels):
            ends = dict[int, tuple[int, int, int]]()
            if kernel.product < 0 and _is_product(graph, kernel):
                reads = [access.value for access in kernel.reads]
                ends.update((v, (False, v not in written, 0)) for v in reads)
            if last.get(_product(kernel)) == number:
                ends.update((access.value, (True, False, 0)) for access in kernel.writes)
                # One kernel goes through registers once, however much of it is written.
                narrow = [*_narrow_results(graph, kernel)][:1]
                ends.update((v, (True, False, item_bytes)) for v, item_bytes in narrow)
            result.append(KernelUses(ends))
        return result

    def table(self, access: np.ndarray, columns: np.ndarray) -> "ProductEnds":
        """The accesses of such results."""
        return ProductEnds(access, *columns)


@dataclass(frozen=True)
class ProductEnds:
    """`access` indexes `KernelTable.traffic_*`; the others as in `ProductEndsEffect.uses`;
    [uses].
    """

    access: np.ndarray
    is_written: np.ndarray
    is_given: np.ndarray
    item_bytes: np.ndarray

    def select(self, copied: CopiedAccesses) -> "ProductEnds":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of the registers and what is fetched ahead, and count what is waited for."""
        kernel, local = work.access_kernel[self.access], work.local_bytes[self.access]
        moves = work.off_chip[self.access]
        if work.device.name in work.numbers.narrow_products:
            narrow = self._narrow
            moves[narrow] = 1.0
            in_registers = local[narrow] / self.item_bytes[narrow] * _REGISTER_BYTES
            seconds = in_registers / work.device.memory_bytes_per_s("elementwise")
            np.add.at(work.extra_seconds, kernel[narrow], seconds)
        if work.device.on_chip_bytes:
            # A large array is not all fetched ahead; the rest comes with the work.
            given = self._given
            rest = work.numbers.off_chip(local[given] / work.device.on_chip_bytes)
            fetched = local[given] * moves[given] * (1.0 - rest)
            moves[given] = np.minimum(moves[given], rest)
            np.add.at(work.ahead_bytes, kernel[given], fetched)
        # At each end what is waited for most.
        most = np.zeros((2, len(work.waits)))
        np.maximum.at(most, (self.is_written, kernel), moves * (local > 0))
        np.add(work.waits, most.sum(axis=0), out=work.waits)

    @cached_property
    def _narrow(self) -> np.ndarray:
        return np.flatnonzero(self.item_bytes)

    @cached_property
    def _given(self) -> np.ndarray:
        return np.flatnonzero(self.is_given)


def _product(kernel: Kernel) -> int:
    return kernel.op if kernel.product < 0 else kernel.product


def _is_product(graph: Graph, kernel: Kernel) -> bool:
    is_own = graph.ops[kernel.op].opcode in CONTRACTIONS and kernel.copied is None
    return is_own or kernel.product >= 0


def _last_writers(graph: Graph, kernels: Sequence[Kernel]) -> Mapping[int, int]:
    """Of each product the number of the kernel that its last piece is waited for with: the first of
    its kernel's that writes narrow numbers, else the first that writes.
    """
    first, narrow = dict[int, int](), dict[int, int]()
    for number, kernel in enumerate(kernels):
        if _is_product(graph, kernel) and kernel.writes:
            first.setdefault(_product(kernel), number)
            if any(_narrow_results(graph, kernel)):
                narrow.setdefault(_product(kernel), number)
    return {**first, **narrow}


def _narrow_results(graph: Graph, kernel: Kernel) -> Iterator[tuple[int, int]]:
    """(value, bytes of a number) of what a product's kernel makes of two bytes or fewer, but for
    stacks.
    """
    for access in kernel.writes:
        producer = graph.values[access.value].producer
        if producer < 0 or graph.ops[producer].opcode != DYNAMIC_UPDATE_SLICE:
            # As it is in memory: operands of products are rounded there.
            numbers = max(prod(graph.values[access.value].dims), 1)
            item_bytes = max(access.n_bytes // numbers, 1)
            if item_bytes <= _NARROW_BYTES:
                yield access.value, item_bytes


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
