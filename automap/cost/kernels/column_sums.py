"""Sums over rows that a few blocks do: gradients of biases and of what normalization scales by.

A GPU sums a matrix over its rows with a block of threads for each `column_block_bytes` of a row,
which goes down all rows. A block is on one core, which moves `column_block_bytes_per_s` at most, so
that few columns leave most of the device idle:

    r = max(1, kept * width / column_block_bytes) * column_block_bytes_per_s
    bytes per second <= r                                       -> in: `limit_by_blocks`

with the kept numbers of a device and the width of one. Of more than `column_split_rows` rows parts
are summed at once, as if there were that many more columns. What is computed element by element in
the same kernel (`hlo_tools.analyses.column_kernels`) shares its fate     -> in: `column_sums`

What is summed of several arrays, of B bytes in all, XLA writes by another kernel before if the
blocks would read the arrays more slowly: of N numbers, u bytes wide and those of the arrays
`width`, in

    apart = N u / bandwidth + max(N width / r, N u / bandwidth)

seconds, as the blocks of a wider array are as many more. Else it is one kernel with sums of one of
these arrays and with a kernel of P bytes beside it, if there are some: it reads what they do not,
and delays the other by the blocks                                       -> in: `limit_by_blocks`

    seconds = apart, or min(B / r, (B - given) / r + P / r - P / bandwidth) where B / r <= apart

What another kernel makes is summed beside that in the same way, all of it given.

Sums along rows are fast, but for blocks that hold the same row of several matrices
(`hlo_tools.analyses.strided_tiles`), where a device has so many that a block has many rows:

    rows of a block = matrices that an array repeats over * length of a row  -> in: `StridedTiles`
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Final, TypeAlias

import numpy as np

from automap.backends import Backend, ColumnNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.program.problem import Problem
from hlo_tools.analyses.accesses import Kernel, read_through
from hlo_tools.analyses.column_kernels import column_kernels, summed_arrays, sums_columns
from hlo_tools.analyses.fuser import Fuser
from hlo_tools.analyses.strided_tiles import LARGE_TILE, strided_tiles
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import CONVOLUTION, COPY, REDUCTIONS
from hlo_tools.rules import Rule
from hlo_tools.rules.rule import DimFactors


_Sizes: TypeAlias = tuple[int, ...]
# Where nothing is left to read; no memory is that fast.
_LEAST_SECONDS_PER_BYTE: Final = 1e-30


@dataclass(frozen=True, slots=True)
class ColumnSum:
    """A sum over rows: the width of what it reads in bytes, and the sizes of the kernel's factors,
    of those that are kept and of those that are summed over; 1 for the others. `written`, `summed`,
    `own` and `beside` are N u, N width, B - given and P, as shares of B; what is never written
    before has an infinite share.
    """

    width_bytes: int
    kept: _Sizes
    over: _Sizes
    written: float = math.inf
    summed: float = 0.0
    own: float = 1.0
    beside: float = 0.0

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """As `ColumnSums` has them."""
        return self.written, self.summed, self.own, self.beside


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """The sums that kernels are part of: `kernels` are their numbers, ascending; [those].

    `shares` [those, 4] are those of `ColumnSum`, in its order.
    """

    kernels: np.ndarray
    kept: np.ndarray
    over: np.ndarray
    width_bytes: np.ndarray
    shares: np.ndarray

    @classmethod
    def build(cls, sums: Sequence[ColumnSum | None]) -> "ColumnSums":
        """Of all kernels, in their order."""
        chosen = [(k, s) for k, s in enumerate(sums) if s is not None]
        width = max((len(s.kept) for _, s in chosen), default=0)
        # The last column is of no factor, as `FactorSizes` has it.
        kept, over = np.ones((2, len(chosen), width + 1), np.int64)
        for row, (_, s) in enumerate(chosen):
            kept[row, : len(s.kept)], over[row, : len(s.over)] = s.kept, s.over
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            kept,
            over,
            np.array([s.width_bytes for _, s in chosen], float),
            np.array([s.shares for _, s in chosen], float).reshape(-1, 4),
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "ColumnSums":
        """Those of copied kernels, of which `which` [copies] says of which of `n_kernels` each
        is.
        """
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return ColumnSums(
            copied, self.kept[row], self.over[row], self.width_bytes[row], self.shares[row]
        )


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
    kept, over = (
        FactorSizes(sums.kernels, rows, sizes).local(sharding) for sizes in (sums.kept, sums.over)
    )
    blocks = np.maximum(kept * sums.width_bytes / numbers.column_block_bytes, 1.0)
    is_split = over > numbers.column_split_rows
    unlimited = bytes_per_s[sums.kernels]
    by_blocks = np.minimum(
        unlimited, np.where(is_split, np.inf, blocks * numbers.column_block_bytes_per_s)
    )
    written, summed, own, beside = sums.shares.T
    apart = written / unlimited + np.maximum(summed / by_blocks, written / unlimited)
    together = own / by_blocks + beside * (1 / by_blocks - 1 / unlimited)
    seconds_per_byte = np.where(1 / by_blocks <= apart, np.minimum(together, 1 / by_blocks), apart)
    limited = bytes_per_s.copy()
    limited[sums.kernels] = 1 / np.maximum(seconds_per_byte, _LEAST_SECONDS_PER_BYTE)
    return limited


def sums_by_blocks(
    problem: Problem, kernels: Sequence[Kernel], backend: Backend
) -> tuple[Sequence[ColumnSum | None], Mapping[int, tuple[int, ...]]]:
    """The sum over rows that each kernel is part of, and of the ops whose kernels hold the same row
    of several matrices the dimensions of a block's rows.
    """
    if backend.column_sums != "by blocks":
        return [None] * len(kernels), {}
    # A copy is fused with nothing.
    fused = [kernel for kernel in kernels if kernel.copied is None]
    sums = iter(column_sums(problem, fused, backend.fuser))
    by_kernel = [next(sums) if kernel.copied is None else None for kernel in kernels]
    return by_kernel, strided_tiles(problem.graph, fused)


def column_sums(
    problem: Problem, kernels: Sequence[Kernel], fuser: Fuser
) -> list[ColumnSum | None]:
    """The sum over rows that each kernel is, or is part of; None for the others."""
    graph, rules = problem.graph, problem.linkage.rules
    by_op = {kernel.op: kernel for kernel in kernels}
    columns = column_kernels(graph, fuser, kernels)
    leaders = dict(columns.leaders)
    leaders |= _convolutions(graph, kernels, leaders)
    sums: list[ColumnSum | None] = []
    for kernel in kernels:
        if kernel.op not in leaders:
            sums.append(None)
        elif sums_columns(graph, kernel.op):
            alone = _sizes(problem, kernel, rules[kernel.op].operands[0], kernel)
            other = by_op.get(columns.beside.get(kernel.op, -1))
            if kernel.op in columns.given:
                alone = _with_arrays(graph, kernel, columns.given[kernel.op], alone)
            elif other is not None:
                alone = replace(alone, own=0.0)
            if other is not None:
                alone = replace(alone, beside=_moved_bytes(other) / _moved_bytes(kernel))
            sums.append(alone)
        else:
            leader = by_op[leaders[kernel.op]]
            sums.append(_sizes(problem, kernel, rules[kernel.op].results[0], leader))
    return sums


def _convolutions(
    graph: Graph, kernels: Sequence[Kernel], leaders: Mapping[int, int]
) -> Iterator[tuple[int, int]]:
    """Convolutions whose results are summed over rows: those of few features are slow too.

    Without this Inception-v3 is predicted 21 % too fast where it is 17 %, ResNet-50 7 % where it is
    6 %, by `python -m scripts.compare_measured scripts/data/steps_h200.jsonl` on 2026-11-29.
    """
    sum_by_array = {
        read_through(graph, graph.ops[op].inputs[0]): one
        for op, one in leaders.items()
        if sums_columns(graph, op)
    }
    for kernel in kernels:
        if graph.ops[kernel.op].opcode == CONVOLUTION:
            for access in kernel.writes:
                if access.value in sum_by_array:
                    yield kernel.op, sum_by_array[access.value]


def _sizes(problem: Problem, kernel: Kernel, dims: DimFactors, summing: Kernel) -> ColumnSum:
    """Of a kernel whose factors run over the dimensions of the summed array as `dims` says."""
    graph, rule = problem.graph, problem.linkage.rules[kernel.op]
    reduced = graph.ops[summing.op].instruction.dimensions
    summed_value = graph.values[graph.ops[summing.op].inputs[0]]
    sizes = [[1] * len(rule.factors) for _ in ("kept", "over")]
    for dim, factors in enumerate(dims):
        for factor in factors:
            sizes[dim in reduced][factor] = rule.factors[factor].size
    widths = [DTYPE_BITS[graph.values[v].dtype] // 8 for v in summed_arrays(graph, summing)]
    kept, over = map(tuple, sizes)
    return ColumnSum(min(widths, default=DTYPE_BITS[summed_value.dtype] // 8), kept, over)


def _with_arrays(
    graph: Graph, kernel: Kernel, given: Collection[int], alone: ColumnSum
) -> ColumnSum:
    """A sum of several arrays, of which other sums read those that are `given`."""
    summed_value = graph.values[graph.ops[kernel.op].inputs[0]]
    all_bytes = sum(access.n_bytes for access in kernel.reads)
    if not all_bytes:
        return alone
    numbers = math.prod(summed_value.dims) / all_bytes
    own_bytes = sum(access.n_bytes for access in kernel.reads if access.value not in given)
    return replace(
        alone,
        written=numbers * DTYPE_BITS[summed_value.dtype] / 8,
        summed=numbers * alone.width_bytes,
        own=own_bytes / all_bytes,
    )


def _moved_bytes(kernel: Kernel) -> int:
    return sum(access.n_bytes for access in (*kernel.reads, *kernel.writes))


@dataclass(frozen=True, slots=True)
class StridedTiles:
    """Such kernels, [those]: `kernels` are their numbers, ascending; `sizes` [those, factors + 1]
    of what a block's rows stand for end with a column of no factor.
    """

    kernels: np.ndarray
    sizes: np.ndarray

    @classmethod
    def build(cls, sizes: Sequence[tuple[int, ...]]) -> "StridedTiles":
        """Of all kernels, in their order; those of others are empty."""
        chosen = [(k, own) for k, own in enumerate(sizes) if own]
        width = max((len(own) for _, own in chosen), default=0)
        array = np.ones((len(chosen), width + 1), np.int64)
        for at, (_, own) in enumerate(chosen):
            array[at, : len(own)] = own
        return cls(np.array([k for k, _ in chosen], np.int64), array)

    def select(self, which: np.ndarray, n_kernels: int) -> "StridedTiles":
        """Those of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return StridedTiles(copied, self.sizes[row])

    def are_slow(self, op_row: np.ndarray, sharding: Shardings) -> np.ndarray:
        """The kernels that are slow on a device; `op_row` is of all kernels."""
        sizes = FactorSizes(self.kernels, op_row[self.kernels], self.sizes)
        return self.kernels[sizes.local(sharding) >= LARGE_TILE]


def block_sizes(op: Op, rule: Rule, dims: Sequence[int]) -> tuple[int, ...]:
    """Sizes of an op's factors that a block's rows stand for, 1 of the others; `dims` are those of
    the array that it works on, counted from the last one.
    """
    if not dims or op.opcode == COPY:
        return ()
    worked = rule.operands[0] if op.opcode in REDUCTIONS else rule.results[0]
    chosen = {factor for dim in dims for factor in worked[dim]}
    return tuple(x.size if f in chosen else 1 for f, x in enumerate(rule.factors))
