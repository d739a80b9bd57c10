"""Products whose operands or results lie in rows that the fast paths of a GPU's memory cannot move.

Bulk copies into the cores (TMA), and the loads of 16 bytes of the matrix library's fast kernels,
are for rows whose length is a multiple of `aligned_bytes`. Others are loaded in words of 4 bytes,
or number by number where a row is no multiple of a word either, and the matrix units wait:

    t >= F / (s P)
    F = max(2 b m n k, 2 min(k, k_0) min(m, T) min(n, T) * cores)

with P the peak, F the operations that the units could do until the last tile is done, and s the
share of the peak that is reached. It depends on what is not aligned, whichever is slowest:

    an operand in words, whose rows are not summed over    s = `word_share_of_2_bytes`
    an operand otherwise                                   s = `operand_share_of_2_bytes`, `_4_`
    the result alone                                       s = `result_share_of_2_bytes`, `_4_`
                                                                           -> in: `least_seconds`

Rows are the innermost dimensions of an array as it is stored, read through transposes, as many as
are of one role in the product: batches, what is summed over, what one operand alone has
                                                           -> in: `row_factors`, `_order`
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from automap.backends import AlignmentNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.profile.shapes import KernelShape
from automap.cost.profile.signatures import Role
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count, has_matrix_units
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS, PART_TYPES, Graph, Op
from hlo_tools.rules import Rule
from hlo_tools.rules.rule import DimFactors


_TILE: Final = 128
_WORD_BYTES: Final = 4
# XLA pads products of 8-bit types (gemm_rewriter.cc); others have no matrix units or wide numbers.
_TYPES: Final = frozenset({"bf16", "f16", "f32"})
READ_THROUGH: Final = frozenset({"transpose", "convert"})
"""What a product's kernel does as it reads or writes: its arrays lie as they were before."""

RowFactors: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""The factors along the rows of a product's left and right side and of its result."""


@dataclass(frozen=True, slots=True)
class LocalProducts:
    """Products on a device: `sizes` [4, products] (b, m, n, k), `rows` [3, products] the numbers in
    a row of the left and the right side and of the result, `is_summed` [2, products] whether the
    rows of a side are summed over, `item_bytes` [products].
    """

    sizes: np.ndarray
    rows: np.ndarray
    is_summed: np.ndarray
    item_bytes: np.ndarray


def least_seconds(
    products: LocalProducts, peaks: np.ndarray, numbers: AlignmentNumbers, device: Device
) -> np.ndarray:
    """What products take at least for their rows, [products], 0 where all are aligned; `peaks` are
    those of their types.
    """
    batch, m, n, k = products.sizes.astype(float)
    tile = np.minimum(m, _TILE) * np.minimum(n, _TILE)
    occupied = 2 * np.minimum(k, numbers.unsplit_sum) * tile * core_count(device)
    return np.maximum(2 * batch * m * n * k, occupied) / (peaks * _peak_share(products, numbers))


def _peak_share(products: LocalProducts, numbers: AlignmentNumbers) -> np.ndarray:
    """Of the peak, what rows let products reach, [products]: infinite where they limit nothing."""
    row_bytes = products.rows * products.item_bytes
    is_unaligned = row_bytes % numbers.aligned_bytes > 0
    is_narrow = products.item_bytes < _WORD_BYTES
    in_words = is_unaligned[:2] & ~products.is_summed & (row_bytes[:2] % _WORD_BYTES == 0)
    operand = np.where(
        is_narrow, numbers.operand_share_of_2_bytes, numbers.operand_share_of_4_bytes
    )
    result = np.where(is_narrow, numbers.result_share_of_2_bytes, numbers.result_share_of_4_bytes)
    sides = np.where(in_words & is_narrow, numbers.word_share_of_2_bytes, operand)
    return np.where(is_unaligned, np.stack([*sides, result]), np.inf).min(axis=0)


@dataclass(frozen=True, slots=True)
class ProductRows:
    """The rows of a program's products, [those] unless said: `kernels` are their numbers,
    ascending; `role_sizes` [4, those, factors + 1] and `row_sizes` [3, those, factors + 1] the
    sizes of factors, 1 for others and in the last column.
    """

    kernels: np.ndarray
    role_sizes: np.ndarray
    row_sizes: np.ndarray
    is_summed: np.ndarray

    @classmethod
    def build(
        cls, shapes: Sequence[KernelShape], rows: Sequence[RowFactors | None]
    ) -> "ProductRows":
        """Of all kernels, in their order."""
        chosen = [(k, s, r) for k, (s, r) in enumerate(zip(shapes, rows, strict=True)) if r]
        width = max((len(s.sizes) for _, s, _ in chosen), default=0)
        role_sizes = np.ones((len(Role), len(chosen), width + 1), np.int64)
        row_sizes = np.ones((3, len(chosen), width + 1), np.int64)
        is_summed = np.zeros((2, len(chosen)), bool)
        for at, (_, shape, arrays) in enumerate(chosen):
            for factor, (role, size) in enumerate(zip(shape.roles, shape.sizes, strict=True)):
                role_sizes[role, at, factor] = size
            for array, factors in enumerate(arrays):
                row_sizes[array, at, list(factors)] = [shape.sizes[f] for f in factors]
            is_summed[:, at] = [Role.K in {shape.roles[f] for f in side} for side in arrays[:2]]
        return cls(np.array([k for k, *_ in chosen], np.int64), role_sizes, row_sizes, is_summed)

    def select(self, which: np.ndarray, n_kernels: int) -> "ProductRows":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return ProductRows(
            copied, self.role_sizes[:, row], self.row_sizes[:, row], self.is_summed[:, row]
        )

    def seconds(
        self,
        op_row: np.ndarray,
        rates: "RowRates",
        sharding: Shardings,
        numbers: AlignmentNumbers,
        device: Device,
    ) -> np.ndarray:
        """The least of each of `kernels`; `op_row` is of all kernels."""
        sizes = np.concatenate([self.role_sizes, self.row_sizes])
        n_arrays = len(sizes)
        kernels = np.tile(self.kernels, n_arrays)
        rows = FactorSizes(kernels, op_row[kernels], sizes.reshape(len(kernels), -1))
        # Parts are rounded up: the largest part is the one that the step waits for.
        local = np.ceil(rows.local(sharding)).reshape(n_arrays, -1)
        products = LocalProducts(
            sizes=local[: len(Role)],
            rows=local[len(Role) :],
            is_summed=self.is_summed,
            item_bytes=rates.item_bytes,
        )
        return least_seconds(products, rates.peaks, numbers, device)


@dataclass(frozen=True, slots=True)
class RowRates:
    """Of products the bytes of a number and the peak of its type, infinite where rows that are not
    aligned are no slower, [products].
    """

    item_bytes: np.ndarray
    peaks: np.ndarray

    @classmethod
    def build(cls, dtypes: Sequence[str], device: Device, measured: Container[str]) -> "RowRates":
        """Of products of types; of those that are `measured` nothing more is known."""
        rates = [
            device.peak_flops_per_s(d) if has_slow_rows(device, d) and d not in measured else np.inf
            for d in dtypes
        ]
        return cls(np.array([DTYPE_BITS[d] // 8 for d in dtypes], np.int64), np.array(rates, float))


def has_slow_rows(device: Device, dtype: str) -> bool:
    """Whether products of a type are slower where rows are not aligned."""
    return dtype in _TYPES and has_matrix_units(device, dtype)


def row_factors(graph: Graph, op: Op, rule: Rule, shape: KernelShape) -> RowFactors | None:
    """Of a product of numbers that its operands have as they are; None for other kernels."""
    # The parts of complex numbers lie beside each other.
    is_complex = op.inputs and graph.values[op.inputs[0]].dtype in PART_TYPES
    if shape.kind != "dot" or shape.dtype not in _TYPES or is_complex:
        return None
    left, right, result = (
        _row(order, dims, shape)
        for order, dims in zip(
            (*(_order(graph, v) for v in op.inputs[:2]), _order_of_readers(graph, op.outputs[0])),
            (*rule.operands[:2], rule.results[0]),
            strict=True,
        )
    )
    return left, right, result


def _row(order: Sequence[int], dims: DimFactors, shape: KernelShape) -> tuple[int, ...]:
    """The factors of the last dimensions, in the order of memory, that are of one role."""
    row: list[int] = []
    for dim in reversed(order):
        if any(shape.roles[f] is not shape.roles[row[0]] for f in dims[dim] if row):
            break
        row.extend(dims[dim])
    return tuple(sorted(row))


def _order(graph: Graph, value: int) -> list[int]:
    """The dimensions of an operand as they lie in memory, the major one first."""
    order = list(range(len(graph.values[value].dims)))
    while (producer := graph.values[value].producer) >= 0:
        op = graph.ops[producer]
        if op.opcode not in READ_THROUGH:
            break
        if op.opcode == "transpose":
            # Dimension i of what it makes is dimension `dimensions[i]` of what it reads.
            order = [order[d] for d in np.argsort(op.instruction.dimensions)]
        value = op.inputs[0]
    return order


def _order_of_readers(graph: Graph, value: int) -> list[int]:
    """The dimensions of a result as they are written for the one that reads it."""
    order = list(range(len(graph.values[value].dims)))
    for op in _only_readers(graph, value):
        if op.opcode == "transpose":
            order = [order[d] for d in op.instruction.dimensions]
    return order


def _only_readers(graph: Graph, value: int) -> Iterator[Op]:
    outputs = frozenset(graph.outputs)
    while value not in outputs and len(graph.users[value]) == 1:
        op = graph.ops[graph.users[value][0]]
        if op.opcode not in READ_THROUGH:
            return
        yield op
        value = op.outputs[0]
