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
            by_row, by_column = (
                self._padding(sharding, table.row_sizes, n)[table.traffic_kernel] for n in _TILE
            )
            local *= np.where(local * by_row <= _LARGEST_BY_ROW, by_row, by_column)
        if device.on_chip_bytes:
            local *= self._off_chip(table.near_bytes / parts / device.on_chip_bytes)
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if device.matmul_tile > 1:
            for sizes in table.side_sizes:
                flops = flops * self._padding(sharding, sizes, device.matmul_tile)
        memory = moved / self._bytes_per_s
        each = np.maximum(np.maximum(flops / self._flops_per_s, memory), device.launch_seconds)
        if self.measured is not None:
            each = self.measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        return each

    def _off_chip(self, share: np.ndarray) -> np.ndarray:
        """The part of accesses that goes to memory, by the share of the chip's that the value takes, [accesses]."""
        doublings = np.log2(np.maximum(share, _STAYS) / _STAYS) / np.log2(_LEAVES / _STAYS)
        return np.where(self.kernels.near_bytes > 0, np.minimum(doublings, 1.0), 1.0)

    def _padding(self, sharding: Shardings, sizes: np.ndarray, tile: int) -> np.ndarray:
        """By how much tiles are larger than the products of `sizes` [kernels, factors] on a device, [kernels]."""
        factor_of_axis = sharding.factor_of_axis[self.kernels.op_row]
        size = sizes.prod(axis=1).astype(float)
        for axis, parts in enumerate(sharding.sizes):
            factor = factor_of_axis[:, axis]
            is_split = (factor >= 0) & (factor < sizes.shape[1])
            rows = np.flatnonzero(is_split)
            rows = rows[sizes[rows, factor[rows]] > 1]
            size[rows] /= parts
        return np.where(size > 1, np.ceil(size / tile) * tile / size, 1.0)

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
