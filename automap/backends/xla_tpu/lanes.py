"""What it takes that memory holds tiles of 128 numbers side by side, where a kernel or a collective
wants single lanes.

*Copies beside collectives* along the last dimension

all-gather   parts of whole tiles are gathered where they belong; others one after the other, and
             then copied into their places (columns of DLRM's tables: 0.65 ms of a step on
             v5p:2x2x4)
all-to-all   what is exchanged stands apart, so that what moves from the last dimension, or to it,
             is copied before or after (a recurrent network's states, 1.3 us in each trip; tokens of
             experts move between other dimensions)

What is copied is read and written once more, at the speed of copies (libtpu 0.0.51)
                                                                -> in: `LaneCopyEffect.seconds`

*Parts of stacks whose steps are minor* (`hlo_tools.analyses.rearranged`): what a trip of a loop
reads of one is a lane of all tiles. The compiler turns eight numbers of it at a time:

    extra = numbers * `lane_part_seconds` / cores              beyond the bytes, on a device

for numbers of four and of two bytes, where a plan leaves a device heads that fill the rows of
tiles. [8, 8, 64] numbers of float32 take 7.1 us in each trip on v5e,
and of bfloat16 5.7, where their bytes take none
(tests/automap/backends/xla_tpu/test_lane_parts.py)                   -> in: `LaneParts.add_to`

*Numbers of rows*: a kernel that computes rows of an array with one number of each, as a norm's mean
or a softmax's sum, finds these numbers in lanes and spreads each over a row:

    extra = rows * `row_statistic_seconds`                     beyond the bytes, on a device

for each array of such numbers that it reads, if rows lie in lanes. A row of numbers that is the
same for all rows takes none. Products' kernels are left out: nothing was read of them
                                                                     -> in: `RowStatistics.add_to`
"""

from collections.abc import Sequence
from dataclasses import dataclass
import math
from typing import ClassVar, Final

import numpy as np

from automap.backends.arrays import item_bytes
from automap.backends.effects import (
    CollectiveWork,
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.xla_tpu.tiled_arrays import minor_dims
from hlo_tools.analyses.accesses import Kernel, read_through
from hlo_tools.analyses.rearranged import HEADS_IN_ROWS, parts_of_lane_stacks
from hlo_tools.graph import Graph, Op
from hlo_tools.opcodes import BROADCAST, CONTRACTIONS, RESHAPE


_LANES: Final = 128
_WIDE_BYTES: Final = 4
_SAME_ARRAY: Final = frozenset({BROADCAST, RESHAPE})


class LaneCopyEffect:
    """All-gathers and all-to-alls along the last dimension."""

    def seconds(self, work: CollectiveWork) -> np.ndarray:
        """Of the copy beside each collective, 0 where there is none; [entries]."""
        copied_bytes = np.zeros(len(work.n_bytes))
        moved = np.flatnonzero(work.is_gather | work.is_exchange)
        axes = work.takes_part[moved]
        stored, computed = work.splits_stored[moved], work.splits_computed[moved]
        # An operand is gathered from how it is stored, a result from how it is computed.
        gathered = np.where(work.on_operand[moved, None], stored, computed)
        part = work.last_size[moved] / np.where(gathered, work.sizes, 1).prod(axis=1)
        is_copied = np.where(
            work.is_gather[moved],
            (gathered & axes).any(axis=1) & (part % _LANES != 0),
            ((stored | computed) & axes).any(axis=1),
        )
        # Read once and written once.
        copied_bytes[moved] = np.where(is_copied, 2 * work.n_bytes[moved], 0.0)
        seconds = copied_bytes / work.device.memory_bytes_per_s("copy")
        return np.where(copied_bytes > 0, np.maximum(seconds, work.device.launch_seconds), 0.0)


class LanePartsEffect:
    """What loops cut of stacks whose steps are minor."""

    n_columns: ClassVar[int] = 3
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel, of the part that it writes, the bytes of a number, and the number of the
        dimension of heads and its size.
        """
        graph = program.problem.graph
        rows = {
            value: (item_bytes(graph, value), len(dims) - 2, dims[-2])
            for value in graph.remember(parts_of_lane_stacks)
            if (dims := graph.values[value].dims)
        }
        return [
            KernelUses({a.value: rows[a.value] for a in kernel.writes if a.value in rows})
            for kernel in program.kernels
        ]

    def table(self, access: np.ndarray, columns: np.ndarray) -> "LaneParts":
        """The accesses of such parts."""
        return LaneParts(access, *columns)


@dataclass(frozen=True)
class LaneParts:
    """`access` indexes `KernelTable.traffic_*`, `item_bytes` are those of a number, `heads` the
    sizes of the dimensions `head_dim`; [uses].
    """

    access: np.ndarray
    item_bytes: np.ndarray
    head_dim: np.ndarray
    heads: np.ndarray

    def select(self, copied: CopiedAccesses) -> "LaneParts":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of picking the numbers."""
        if not len(self.access):
            return
        wide, narrow = work.numbers.lane_part_seconds
        each = np.where(self.item_bytes >= _WIDE_BYTES, wide, narrow) / work.device.cores
        dims = work.dim_of_axis[work.access_row[self.access]]
        heads = self.heads / np.where(dims == self.head_dim[:, None], work.sizes, 1).prod(axis=1)
        seconds = work.local_bytes[self.access] / self.item_bytes * each
        seconds = np.where(heads % HEADS_IN_ROWS == 0, seconds, 0.0)
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


class RowStatisticsEffect:
    """What kernels read one number of for each row."""

    n_columns: ClassVar[int] = 2
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = False

    def uses(self, program: TracedKernels) -> Sequence[KernelUses]:
        """Of each kernel, of the numbers that it reads, the bytes of one, and of one of a row."""
        graph = program.problem.graph
        rows = dict[int, Op]()
        for op in graph.ops:
            if op.opcode == BROADCAST and _is_along_rows(graph, op):
                rows[read_through(graph, op.inputs[0], _SAME_ARRAY)] = op
        return [
            KernelUses(
                {
                    a.value: (
                        item_bytes(graph, a.value),
                        item_bytes(graph, rows[a.value].outputs[0]),
                    )
                    for a in kernel.reads
                    if a.value in rows and _is_of_rows(graph, kernel, rows[a.value])
                }
            )
            for kernel in program.kernels
        ]

    def table(self, access: np.ndarray, columns: np.ndarray) -> "RowStatistics":
        """The accesses of such numbers."""
        return RowStatistics(access, *columns)


@dataclass(frozen=True)
class RowStatistics:
    """`access` indexes `KernelTable.traffic_*`, `item_bytes` are those of a number of it,
    `row_bytes` those of a number of the rows; [uses].
    """

    access: np.ndarray
    item_bytes: np.ndarray
    row_bytes: np.ndarray

    def select(self, copied: CopiedAccesses) -> "RowStatistics":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of spreading the numbers."""
        if not len(self.access):
            return
        wide, narrow = work.numbers.row_statistic_seconds
        each = np.where(self.row_bytes >= _WIDE_BYTES, wide, narrow)
        seconds = work.local_bytes[self.access] / self.item_bytes * each
        np.add.at(work.extra_seconds, work.access_kernel[self.access], seconds)


def _is_along_rows(graph: Graph, broadcast: Op) -> bool:
    """Whether numbers are repeated along the dimension that lies in lanes."""
    dims, given = (graph.values[v].dims for v in (broadcast.outputs[0], broadcast.inputs[0]))
    minor, _ = minor_dims(dims)
    sizes = [size for at, size in zip(broadcast.instruction.dimensions, given) if at == minor]
    return math.prod(given) > 1 and dims[minor] > math.prod(sizes)


def _is_of_rows(graph: Graph, kernel: Kernel, broadcast: Op) -> bool:
    """Whether a kernel computes with as many numbers as the rows have, and is no product's."""
    op = graph.ops[kernel.op]
    if kernel.product >= 0 or op.opcode in CONTRACTIONS:
        return False
    rows = graph.values[broadcast.outputs[0]].dims
    most = max(math.prod(graph.values[v].dims) for v in (*op.inputs, *op.outputs))
    return most >= math.prod(rows)
