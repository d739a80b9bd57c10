"""Kernels whose numbers go through the memory inside a GPU's cores many times: sorts, top-k, sums
over windows.

A core moves B bytes a second between its own memory and its registers (128 a clock), so S cores
move S B, of which each kind of kernel reaches a share e. Of N numbers of w bytes on a device,
beside what is read from and written to the device's memory:

    sort of rows of n    L (L + 1) / 2 stages of a bitonic network, L = up(log2 n); each reads and
                         writes all numbers, with their places where these are sorted too
                             N L (L + 1) w / (e_sort S B), and a block for each row
    top-k                T = min(1024, n / k) threads, each with s = n / T numbers of a row, of
                         which k + k ln(s / k) go into the k that it keeps
                             N min(1, (k + k ln(s / k)) / s) k w_kept / (S B)
    windows              each result reads the numbers of its window, of a cumulative sum those of a
                         part of `window_part` of it
                             N taps w / (e_window S B)
    convolutions         of each feature by itself along one dimension, for which the library has no
                         kernel but its general one: each result reads the numbers of its window
                             N taps w / (e_line S B)
                               -> in: `core_work`, `sort_work`, `top_k_work`, `line_work`

The shares are data of the backend, fitted on one H200 (docs/reports/step_times.md), e_line on one
H100.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import TypeVar

import numpy as np

from automap.backends import CoreNumbers
from automap.cost.kernels.matrix_tiles import FactorSizes, rows_of_copies
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import core_count
from automap.topology.model import Device
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.module import Instruction
from hlo_tools.opcodes import CONVOLUTION, SORT, TOP_K
from hlo_tools.rules import Rule


Numbers = TypeVar("Numbers", float, np.ndarray)
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class CoreWork:
    """What a kernel does within the cores: bytes for each number, and rows for each; `sizes` are
    those of the factors over which the numbers lie.
    """

    bytes_per_number: float
    rows_per_number: float
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OnCore:
    """Such work of some kernels, [those]: `kernels` are their numbers, ascending; `sizes` [those,
    factors + 1] end with a column of no factor.
    """

    kernels: np.ndarray
    bytes_per_number: np.ndarray
    rows_per_number: np.ndarray
    sizes: np.ndarray

    @classmethod
    def build(cls, works: Sequence[CoreWork | None]) -> "OnCore":
        """Of all kernels, in their order."""
        chosen = [(k, w) for k, w in enumerate(works) if w is not None]
        width = max((len(w.sizes) for _, w in chosen), default=0)
        sizes = np.ones((len(chosen), width + 1), np.int64)
        for row, (_, work) in enumerate(chosen):
            sizes[row, : len(work.sizes)] = work.sizes
        return cls(
            np.array([k for k, _ in chosen], np.int64),
            np.array([w.bytes_per_number for _, w in chosen], float),
            np.array([w.rows_per_number for _, w in chosen], float),
            sizes,
        )

    def select(self, which: np.ndarray, n_kernels: int) -> "OnCore":
        """That of copied kernels; `which` [copies] says of which of `n_kernels` each is."""
        copied, row = rows_of_copies(self.kernels, which, n_kernels)
        return OnCore(
            copied, self.bytes_per_number[row], self.rows_per_number[row], self.sizes[row]
        )

    def seconds(
        self, op_row: np.ndarray, sharding: Shardings, numbers: CoreNumbers, device: Device
    ) -> np.ndarray:
        """Of each of `kernels`; `op_row` is of all kernels."""
        local = FactorSizes(self.kernels, op_row[self.kernels], self.sizes).local(sharding)
        return local * seconds_per_number(
            self.bytes_per_number, self.rows_per_number, numbers, device
        )


def seconds_per_number(
    n_bytes: Numbers, rows: Numbers, numbers: CoreNumbers, device: Device
) -> Numbers:
    """Seconds of bytes within the cores, and of rows."""
    cores = core_count(device)
    return n_bytes / (cores * numbers.core_bytes_per_s) + rows * numbers.core_row_seconds / cores


def core_work(graph: Graph, op: Op, rule: Rule, numbers: CoreNumbers) -> CoreWork | None:
    """That of an operation; None for one without."""
    if not op.inputs or not rule.operands:
        return None
    dims, factors = graph.values[op.inputs[0]].dims, rule.operands[0]
    if op.opcode == SORT:
        n_bytes = sum(_item_bytes(graph, v) for v in op.inputs)
        n_bytes += numbers.place_bytes if len(op.inputs) == 1 else 0
        (along,) = op.instruction.dimensions
        each = sort_work(dims[along], n_bytes, numbers)
    elif op.opcode == TOP_K:
        kept, n_bytes = graph.values[op.outputs[0]].dims[-1], _item_bytes(graph, op.inputs[0])
        if numbers.keeps_greatest(dims[-1], kept):
            each = top_k_work(dims[-1], kept, numbers)
        else:
            each = sort_work(dims[-1], n_bytes + numbers.place_bytes, numbers)
    elif op.opcode == "reduce-window":
        dims, factors = graph.values[op.outputs[0]].dims, rule.results[0]
        taps = math.prod(w.size for w in op.instruction.attributes.window)
        read = min(taps, numbers.window_part) * _item_bytes(graph, op.inputs[0])
        each = read / numbers.window_share, 0.0
    elif op.opcode == CONVOLUTION and is_line_convolution(op.instruction):
        dims, factors = graph.values[op.outputs[0]].dims, rule.results[0]
        each = line_work(op.instruction, _item_bytes(graph, op.inputs[0]), numbers)
    else:
        return None
    sizes = [1] * len(rule.factors)
    for together in factors:
        for factor in together:
            sizes[factor] = rule.factors[factor].size
    return CoreWork(*each, tuple(sizes))


def sort_work(row: int, n_bytes: int, numbers: CoreNumbers) -> tuple[float, float]:
    """(bytes, rows) for each number of rows of so many, `n_bytes` with what is sorted besides."""
    doublings = math.ceil(math.log2(max(row, 2)))
    moved = doublings * (doublings + 1) * n_bytes / numbers.sort_share
    return moved, 1 / max(row, 1)


def top_k_work(row: int, kept: int, numbers: CoreNumbers) -> tuple[float, float]:
    """(bytes, rows) for each number of rows of which some are kept."""
    kept = max(kept, 1)
    share = row / min(_MOST_THREADS, max(row // kept, 1))
    inserted = kept * (1 + math.log(max(share / kept, 1.0)))
    return min(1.0, inserted / share) * kept * numbers.kept_bytes, 0.0


def is_line_convolution(instruction: Instruction) -> bool:
    """Whether a convolution, or a library's call of one, is of groups along one dimension."""
    window = instruction.attributes.window
    return instruction.attributes.feature_group_count > 1 and (sum(w.size > 1 for w in window) == 1)


def line_work(
    instruction: Instruction, n_bytes: float, numbers: CoreNumbers
) -> tuple[float, float]:
    """(bytes, rows) for each result of such a convolution of numbers of `n_bytes`."""
    taps = math.prod(w.size for w in instruction.attributes.window)
    return taps * n_bytes / numbers.line_share, 0.0


def _item_bytes(graph: Graph, value: int) -> int:
    return max(DTYPE_BITS[graph.values[value].dtype] // 8, 1)
