"""Arrays that lie in tiles of less than eight rows: split heads of kernels [features, heads, 128]
and caches.

Memory holds tiles of 8 x 128 numbers of the last two dimensions. What steps are given and hand on
lies with its last dimension side by side if that fills lanes; of 1, 2 or 4 rows beside it tiles
have just as many, so that nothing is padded. Each of them takes a register all the same, to read,
to write or to bring in another order:

    tiles = numbers / (rows * 128)            for `TileNumbers.small_rows`, on a device
    extra = tiles * `small_tile_bytes` / bandwidth
                                              beyond the bytes, of a kernel by the access of most
                                              tiles

(arrays [n, 16, rows, 128] of 2^25 numbers doubled and updated by Adam: 5.9 to 6.7 ns a tile on v5e,
1.8 to 2.3 on v5p, tests/automap/backends/xla_tpu/test_few_rows.py). Other numbers of rows lie
otherwise and take what eight take. So do values that a step makes for itself: the compiler chooses
how they lie.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar, Final

import numpy as np

from automap.backends.effects import (
    CopiedAccesses,
    KernelUses,
    KernelWork,
    TracedKernels,
    select_rows,
)
from automap.backends.fitted import TileNumbers
from hlo_tools.graph import DTYPE_BITS, Graph, Op
from hlo_tools.opcodes import LOOP_ENTER, LOOP_EXIT, STRUCTURAL


# Numbers of the last dimension that a tile has side by side.
_LANES: Final = 128
# No mesh splits more rows than these to the few that small tiles hold.
_MOST_ROWS: Final = 1024


@dataclass(frozen=True, slots=True)
class GivenLayout:
    """The last two dimensions of an array that lies as it is given: `dim` is that of the rows."""

    dim: int
    rows: int
    lanes: int
    item_bytes: int


class FewRowsEffect:
    """Arrays that lie as they are given; kernels that make some of them beside are left out."""

    n_columns: ClassVar[int] = 4
    passes: ClassVar[bool] = False
    pads: ClassVar[bool] = True

    def uses(self, program: TracedKernels) -> list[KernelUses]:
        """Of each kernel."""
        graph = program.problem.graph
        # One kernel makes parameters and their moments of the same tiles, which take one pass.
        beside = written_beside(graph)
        layouts = {v: astuple(array) for v, array in given_layouts(graph, program.numbers).items()}
        every, none = KernelUses(layouts), KernelUses({})
        return [
            none if any(a.value in beside for a in kernel.writes) else every
            for kernel in program.kernels
        ]

    def table(self, access: np.ndarray, columns: np.ndarray) -> "FewRows":
        """The accesses of arrays of few rows."""
        return FewRows(access, *columns)


@dataclass(frozen=True)
class FewRows:
    """`access` indexes `KernelTable.traffic_*`, the others are those of `GivenLayout`; [uses]."""

    access: np.ndarray
    dim: np.ndarray
    rows: np.ndarray
    lanes: np.ndarray
    item_bytes: np.ndarray

    def select(self, copied: CopiedAccesses) -> "FewRows":
        """Those of copied accesses."""
        return select_rows(self, copied)

    def add_to(self, work: KernelWork) -> None:
        """Add the time of the small tiles of each kernel: by the access of most of them."""
        if not len(self.access):
            return
        count = work.local_bytes[self.access] / self.item_bytes
        dims = work.dim_of_axis[work.access_row[self.access]]
        # A kernel's tiles of several arrays go through the registers side by side: the most count.
        n_bytes = np.zeros(len(work.extra_seconds))
        extra = self.extra_bytes(dims, work.sizes, count, work.numbers)
        np.maximum.at(n_bytes, work.access_kernel[self.access], extra)
        work.extra_seconds[:] += n_bytes / work.device.memory_bytes_per_s("elementwise")

    def extra_bytes(
        self,
        dim_of_axis: np.ndarray,
        sizes: Sequence[int],
        count: np.ndarray,
        numbers: TileNumbers,
    ) -> np.ndarray:
        """What takes as long as the registers beyond those of full tiles, [uses].

        `dim_of_axis` [uses, axes] and `count` [uses] of its numbers are of what is accessed, on a
        device; `sizes` are those of the axes.
        """
        rows = self.rows / np.where(dim_of_axis == self.dim[:, None], sizes, 1).prod(axis=1)
        lanes = self.lanes / np.where(dim_of_axis == self.dim[:, None] + 1, sizes, 1).prod(axis=1)
        # Which numbers of rows have tiles of their own depends on the width of the numbers.
        is_small = np.zeros(len(rows), bool)
        for item_bytes in (4, 2):
            fewer = numbers.small_rows(item_bytes)
            is_small |= (self.item_bytes == item_bytes) & np.isin(rows, fewer)
        tiles = count / (np.maximum(rows, 1) * _LANES)
        return np.where(is_small & (lanes % _LANES == 0), tiles * numbers.small_tile_bytes, 0.0)


def given_layouts(graph: Graph, numbers: TileNumbers) -> dict[int, GivenLayout]:
    """Arrays of three dimensions or more that are given or handed on, and what loops take from and
    put into them.
    """
    # Forwards from what is given, backwards from what is handed on.
    given, handed_on = set(graph.inputs), set(graph.outputs)
    for op in graph.ops:
        given.update(result for source, result in _parts(graph, op) if source in given)
    for op in reversed(graph.ops):
        handed_on.update(source for source, result in _parts(graph, op) if result in handed_on)
    layouts = ((value, _given_layout(graph, value, numbers)) for value in sorted(given | handed_on))
    return {value: layout for value, layout in layouts if layout is not None}


def written_beside(graph: Graph) -> frozenset[int]:
    """What is handed on and read again, as moments are for parameters: one kernel makes both, of
    the same tiles.
    """
    read = {v for op in graph.ops if op.opcode not in STRUCTURAL for v in op.inputs}
    return frozenset(read.intersection(graph.outputs))


def _given_layout(graph: Graph, value: int, numbers: TileNumbers) -> GivenLayout | None:
    array = graph.values[value]
    item_bytes = DTYPE_BITS[array.dtype] // 8
    if len(array.dims) < 3 or not numbers.small_rows(item_bytes):
        return None
    rows, lanes = array.dims[-2:]
    if lanes % _LANES or rows > _MOST_ROWS:
        return None
    return GivenLayout(len(array.dims) - 2, rows, lanes, item_bytes)


def _parts(graph: Graph, op: Op) -> Iterator[tuple[int, int]]:
    """Pairs of an operand and a result of which one is part of the other, or is it."""
    if op.opcode in (LOOP_ENTER, LOOP_EXIT):
        yield from zip(op.inputs, op.outputs)
    elif op.opcode in ("dynamic-slice", "reshape", "dynamic-update-slice"):
        parts = op.inputs[:2] if op.opcode == "dynamic-update-slice" else op.inputs[:1]
        for value in parts:
            # Tiles stay as they are if the last two dimensions do.
            if graph.values[value].dims[-2:] == graph.values[op.outputs[0]].dims[-2:]:
                yield value, op.outputs[0]
