"""Seconds of every kernel on one device: the roofline, and what was measured for like kernels instead of it.

    kernel = max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)

parts is how many ways the op's factors are split, bytes are local, e_m and e_b the device's efficiencies for
matmuls and for the memory accesses of a class of ops (`OP_CLASSES`).  The matrix unit of a TPU multiplies tiles:
what it sums over and the columns of the result are rounded up to them.  So are the tiles of 8 x 128 numbers that its
memory holds: the rows of a table that is scattered into are rounded up to 128, or, if all that is too large, its
columns lie side by side, and are rounded up to 8                               -> in: `Roofline._padding`

What is made and read within a phase may stay on the chip and move no bytes: all of it up to 1/16 of the memory
there, nothing from 1/2, between them less with each doubling.  (Of such tensors the compiler for v5e, with 128 MiB,
keeps about 2 of 3 of 8 to 16 MiB on the chip, 1 of 3 of 16 to 32, and hardly any of 64; of what every trip of a loop
reads, such as sums of gradients, it keeps 3 of 4 of 32 MiB.)
                                                                                -> in: `Roofline._off_chip`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.cost.kernel_table import KernelTable
from automap.cost.measured import MeasuredKernels
from automap.cost.shardings import Shardings
from automap.topology.model import OP_CLASSES, Topology


_STAYS, _LEAVES = 1 / 16, 1 / 2
# Numbers side by side in the tiles of a TPU's memory, and under each other.
_TILE = (128, 8)
# libtpu 0.0.51 for v5e rounds up rows to 512 MB in all, and does not to 640.
_LARGEST_BY_ROW = 2**29


@dataclass(frozen=True)
class Roofline:
    """The kernels of a program on the devices of a topology."""

    kernels: KernelTable
    topology: Topology
    measured: MeasuredKernels | None = None

    def seconds(self, sharding: Shardings) -> np.ndarray:
        """Of each distinct kernel once, [kernels]."""
        table, device = self.kernels, self.topology.device
        flops = table.flops / sharding.parts_of_op[table.op_row]
        parts = sharding.parts_of_value[table.traffic_row]
        local = table.traffic_bytes / parts
        if device.matmul_tile > 1:
            local = self._in_tiles(local, sharding)
        if device.on_chip_bytes:
            local *= self._off_chip(table.near_bytes / parts / device.on_chip_bytes)
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if device.matmul_tile > 1:
            for side in self._sides:
                flops[side.kernels] *= _rounded(side.local(sharding), device.matmul_tile)
        memory = moved / self._bytes_per_s
        each = np.maximum(np.maximum(flops / self._flops_per_s, memory), device.launch_seconds)
        if self.measured is not None:
            each = self.measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        return each

    def _off_chip(self, share: np.ndarray) -> np.ndarray:
        """The part of accesses that goes to memory, by the share of the chip's that the value takes, [accesses]."""
        doublings = np.log2(np.maximum(share, _STAYS) / _STAYS) / np.log2(_LEAVES / _STAYS)
        return np.where(self.kernels.near_bytes > 0, np.minimum(doublings, 1.0), 1.0)

    def _in_tiles(self, local: np.ndarray, sharding: Shardings) -> np.ndarray:
        """The bytes of each access in the tiles of the memory, [accesses]."""
        size = self._tables.local(sharding)
        by_row, by_column = (_rounded(size, n)[self._table_of_access] for n in _TILE)
        held = local[self._accesses_of_tables]
        local[self._accesses_of_tables] = held * np.where(
            held * by_row <= _LARGEST_BY_ROW, by_row, by_column
        )
        return local

    @cached_property
    def _sides(self) -> tuple["_Sizes", ...]:
        return tuple(_Sizes.of(sizes, self.kernels.op_row) for sizes in self.kernels.side_sizes)

    @cached_property
    def _tables(self) -> "_Sizes":
        return _Sizes.of(self.kernels.row_sizes, self.kernels.op_row)

    @cached_property
    def _accesses_of_tables(self) -> np.ndarray:
        return np.flatnonzero(np.isin(self.kernels.traffic_kernel, self._tables.kernels))

    @cached_property
    def _table_of_access(self) -> np.ndarray:
        of_kernel = self.kernels.traffic_kernel[self._accesses_of_tables]
        return np.searchsorted(self._tables.kernels, of_kernel)

    @cached_property
    def _flops_per_s(self) -> np.ndarray:
        device = self.topology.device
        rates: Mapping[str, float] = {
            d: device.peak_flops_per_s(d) * device.matmul_efficiency if d else np.inf
            for d in set(self.kernels.dtype)
        }
        return np.array([rates[d] for d in self.kernels.dtype])

    @cached_property
    def _bytes_per_s(self) -> np.ndarray:
        device = self.topology.device
        shares = dict(device.class_efficiency)
        of_class = np.array([shares.get(c, device.memory_efficiency) for c in OP_CLASSES])
        return device.hbm_bytes_per_s * of_class[self.kernels.kernel_class]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of the kernels that have any, sizes of factors that are rounded up to tiles together, [kernels, factors + 1].

    The last column is of no factor.
    """

    kernels: np.ndarray
    op_row: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, sizes: np.ndarray, op_row: np.ndarray) -> "_Sizes":
        """`sizes` [all kernels, factors] and `op_row` [all kernels]."""
        kernels = np.flatnonzero((sizes > 1).any(axis=1))
        alone = np.ones((len(kernels), 1), sizes.dtype)
        return cls(kernels, op_row[kernels], np.hstack([sizes[kernels], alone]))

    def local(self, sharding: Shardings) -> np.ndarray:
        """Their products on a device, [kernels]."""
        factor = sharding.factor_of_axis[self.op_row]
        is_split = np.take_along_axis(self.sizes, factor, axis=1) > 1 if len(factor) else factor > 0
        return self.sizes.prod(axis=1) / np.where(is_split, sharding.sizes, 1).prod(axis=1)


def _rounded(size: np.ndarray, tile: int) -> np.ndarray:
    """By how much tiles are larger than `size`."""
    return np.where(size > 1, np.ceil(size / tile) * tile / size, 1.0)
