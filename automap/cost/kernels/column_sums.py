"""Sums over rows that a few blocks do: gradients of biases and of what normalization scales by.

A GPU sums a matrix over its rows with a block of threads for each `column_block_bytes` of a row,
which goes down all rows. A block is on one core, which moves `column_block_bytes_per_s` at most, so
that few columns leave most of the device idle:

    bytes per second <= max(1, kept * width / column_block_bytes) * column_block_bytes_per_s
                                                                -> in: `limit_by_blocks`

with the kept numbers of a device and the width of one. Of more than `column_split_rows` rows parts
are summed at once, as if there were that many more columns. What is computed element by element of
the same arrays is part of the same kernel, and shares its fate           -> in: `column_sums`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
import math
from typing import TypeAlias

import numpy as np

from automap.backends import ColumnNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel
from hlo_tools.graph import DTYPE_BITS, Graph
from hlo_tools.opcodes import DYNAMIC_UPDATE_SLICE, OWN_KERNEL, REDUCTIONS
from hlo_tools.rules.rule import DimFactors


_Sizes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ColumnSum:
    """A sum over rows: the width of what it sums in bytes, and the sizes of the kernel's factors,
    of those that are kept and of those that are summed over; 1 for the others.
    """

    width_bytes: int
    kept: _Sizes
    summed: _Sizes


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The sums that kernels are part of: `kernels` are their numbers, ascending; [those]."""

    kernels: np.ndarray
    kept: np.ndarray
    summed: np.ndarray
    width_bytes: np.ndarray

    @classmethod
    def build(cls, sums: Sequence[ColumnSum | None]) -> "ColumnSums":
        """Of all kernels, in their order."""
        chosen = [(k, s) for k, s in enumerate(sums) if s is not None]
        width = max((len(s.kept) for _, s in chosen), default=0)
        # The last column is of no factor, as `FactorSizes` has it.
        kept, summed = np.ones((2, len(chosen), width + 1), np.int64)
        for row, (_, s) in enumerate(chosen):
            kept[row, : len(s.kept)], summed[row, : len(s.summed)] = s.kept, s.summed
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            kept,
            summed,
            np.array([s.width_bytes for _, s in chosen], float),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "ColumnSums":
        """Those of copied kernels, of which `which` [copies] says of which of `n_kernels` each
        is.
        """
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return ColumnSums(copied, self.kept[row], self.summed[row], self.width_bytes[row])


def limit_by_blocks(
    bytes_per_s: np.ndarray,
    sums: ColumnSums,
    op_row: np.ndarray,
    sharding: Shardings,
    numbers: ColumnNumbers,
) -> np.ndarray:
    """What kernels move in a second, with those that are part of a sum over rows limited by its
    blocks; `bytes_per_s` and `op_row` are of all kernels.
    """
    rows = op_row[sums.kernels]
    kept, summed = (
        FactorSizes(sums.kernels, rows, sizes).local(sharding) for sizes in (sums.kept, sums.summed)
    )
    blocks = np.maximum(kept * sums.width_bytes / numbers.column_block_bytes, 1.0)
    is_split = summed > numbers.column_split_rows
    limited = bytes_per_s.copy()
    limited[sums.kernels] = np.minimum(
        bytes_per_s[sums.kernels],
        np.where(is_split, np.inf, blocks * numbers.column_block_bytes_per_s),
    )
    return limited


def column_sums(problem: Problem, kernels: Sequence[Kernel]) -> list[ColumnSum | None]:
    """The sum over rows that each kernel is, or is part of; None for the others."""
    sums: list[ColumnSum | None] = []
    for run in _runs(problem.graph, kernels):
        summing = [kernel for kernel in run if _sums_rows(problem.graph, kernel)]
        sums.extend(_column_sum(problem, kernel, summing) for kernel in run)
    return sums


def _runs(graph: Graph, kernels: Sequence[Kernel]) -> Iterator[list[Kernel]]:
    """Kernels one after the other of which some may become one, with what stands before them.

    Unlike in `hlo_tools.analyses.passes.fused_runs` a convolution is in the run of what sums its
    result, and limited as that is: those of few features are slow too. Without it Inception-v3 is
    predicted 22 % too fast where it is 19 %, ResNet-50 9.2 % where it is 8.5 %, by
    `python -m scripts.compare_measured scripts/data/steps_h200.jsonl` on 2026-11-28.
    """
    run: list[Kernel] = []
    trips = 1
    for kernel in kernels:
        op = graph.ops[kernel.op]
        if run and (op.opcode in OWN_KERNEL or op.trip_count != trips):
            yield run
            run = []
        trips = op.trip_count
        run.append(kernel)
    if run:
        yield run


def _sums_rows(graph: Graph, kernel: Kernel) -> bool:
    op = graph.ops[kernel.op]
    if op.opcode != "reduce" or op.is_joint_reduction:
        return False
    # Dimensions of one number lie nowhere.
    real = [d for d, size in enumerate(graph.values[op.inputs[0]].dims) if size > 1]
    reduced = set(op.instruction.dimensions)
    return bool(real) and real[-1] not in reduced and bool(reduced & set(real))


def _column_sum(problem: Problem, kernel: Kernel, summing: Sequence[Kernel]) -> ColumnSum | None:
    """Of a kernel that sums itself, or computes something of the arrays that one of `summing`
    reads.
    """
    graph, op, rule = problem.graph, problem.graph.ops[kernel.op], problem.linkage.rules[kernel.op]
    for other in summing:
        summed = graph.ops[other.op]
        array = graph.values[summed.inputs[0]]
        if kernel is other:
            return _sizes(problem, kernel, rule.operands[0], other)
        is_alike = op.opcode not in REDUCTIONS | {DYNAMIC_UPDATE_SLICE} and (
            graph.values[op.outputs[0]].dims == array.dims
        )
        if is_alike and _arrays(graph, kernel, array.dims) & _arrays(graph, other, array.dims):
            return _sizes(problem, kernel, rule.results[0], other)
    return None


def _sizes(problem: Problem, kernel: Kernel, dims: DimFactors, summing: Kernel) -> ColumnSum:
    """Of a kernel whose factors run over the dimensions of the summed array as `dims` says."""
    graph, rule = problem.graph, problem.linkage.rules[kernel.op]
    reduced = graph.ops[summing.op].instruction.dimensions
    array = graph.values[graph.ops[summing.op].inputs[0]]
    sizes = [[1] * len(rule.factors) for _ in ("kept", "summed")]
    for dim, factors in enumerate(dims):
        for factor in factors:
            sizes[dim in reduced][factor] = rule.factors[factor].size
    read = _arrays(graph, summing, array.dims) - {*graph.ops[summing.op].outputs}
    widths = [DTYPE_BITS[graph.values[v].dtype] // 8 for v in read]
    kept, summed = map(tuple, sizes)
    return ColumnSum(min(widths, default=DTYPE_BITS[array.dtype] // 8), kept, summed)


def _arrays(graph: Graph, kernel: Kernel, dims: Sequence[int]) -> frozenset[int]:
    """What a kernel reads and writes that has as many numbers as an array of `dims`, or more."""
    accessed = {a.value for a in (*kernel.reads, *kernel.writes)}
    least = math.prod(dims)
    return frozenset(v for v in accessed if math.prod(graph.values[v].dims) >= least)
