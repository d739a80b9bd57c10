"""Seconds of every kernel on one device: the roofline, and what was measured for like kernels instead of it.

    kernel = max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)

parts is how many ways the op's factors are split, bytes are local, e_m and e_b the device's efficiencies for
matmuls and for the memory accesses of a class of ops (`KernelClass`).  The matrix unit of a TPU multiplies tiles:
what it sums over and the columns of the result are rounded up to them -> in: `Roofline._padding`.  What is made and read within a phase and takes at most a share of the memory on the chip stays
there and moves no bytes: on a v5e the compiler keeps half of the tensors of 16 to 32 MiB there and none above 64,
of 128.                                                                          -> in: `Roofline.seconds`

A TPU does not scatter the partial sums of a product after it has made them.  It goes round a ring, both ways at
once, and multiplies for each step what it passes on (seen in programs of libtpu 0.0.51, 2026-11, for rings of 4 and
8): a shard for each direction in each of n steps, so everything twice, and two partial shards are started,
received, added and written in each step:

    ring = 2 * kernel + 8 * (bytes that are scattered) / (bandwidth * e_b)     -> in: `Roofline._ringed`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.cost.backends import HABITS, Habit
from automap.cost.flows import REDUCE_SCATTER
from automap.cost.kernel_table import CLASSES, KernelTable
from automap.cost.measured import MeasuredKernels
from automap.cost.shardings import Shardings
from automap.cost.traffic import Collectives
from automap.topology.model import Topology


_ON_CHIP_SHARE = 1 / 4
_RING_PRODUCTS, _RING_ACCESSES = 2.0, 8.0
# ... unless the reduce-scatter takes much longer than the product: 2.0 times as long was a ring, 6.7 times not.
_RING_MOST = 4.0


@dataclass(frozen=True)
class Roofline:
    """The kernels of a program on the devices of a topology."""

    kernels: KernelTable
    topology: Topology
    measured: MeasuredKernels | None = None

    def seconds(
        self, sharding: Shardings, found: Collectives, of_collective: np.ndarray
    ) -> np.ndarray:
        """Of each distinct kernel once, [kernels]; `of_collective` are the seconds of each of `found` once."""
        table, device = self.kernels, self.topology.device
        flops = table.flops / sharding.parts_of_op[table.op_row]
        local = table.traffic_bytes / sharding.parts_of_value[table.traffic_row]
        stays = table.traffic_is_near & (local <= device.on_chip_bytes * _ON_CHIP_SHARE)
        local = np.where(stays, 0.0, local)
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if device.matmul_tile > 1:
            flops = flops * self._padding(sharding)
        memory = moved / self._bytes_per_s
        each = np.maximum(np.maximum(flops / self._flops_per_s, memory), device.launch_seconds)
        if Habit.RINGS in HABITS[self.topology.platform]:
            each = self._ringed(each, found, of_collective)
        if self.measured is not None:
            each = self.measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        return each

    def _padding(self, sharding: Shardings) -> np.ndarray:
        """By how much the matrix unit's tiles are larger than what is multiplied, [kernels]."""
        table, tile = self.kernels, self.topology.device.matmul_tile
        factor_of_axis = sharding.factor_of_axis[table.op_row]
        padding = np.ones(len(table.op_row))
        for sizes in table.side_sizes:
            size = sizes.prod(axis=1).astype(float)
            for axis, parts in enumerate(sharding.sizes):
                factor = factor_of_axis[:, axis]
                is_split = (factor >= 0) & (factor < sizes.shape[1])
                rows = np.flatnonzero(is_split)
                rows = rows[sizes[rows, factor[rows]] > 1]
                size[rows] /= parts
            padding *= np.where(size > 1, np.ceil(size / tile) * tile / size, 1.0)
        return padding

    def _ringed(
        self, each: np.ndarray, found: Collectives, of_collective: np.ndarray
    ) -> np.ndarray:
        product_edge = self.kernels.product_edge
        scattered, seconds = np.zeros((2, product_edge.max(initial=-1) + 2))
        is_scatter = (found.kind == REDUCE_SCATTER) & ~found.on_operand
        chosen = np.flatnonzero(is_scatter & (found.edge < len(scattered) - 1))
        scattered[found.edge[chosen]] = found.n_bytes[chosen]
        seconds[found.edge[chosen]] = of_collective[chosen]
        of_kernel = scattered[product_edge]
        is_ring = (of_kernel > 0) & (seconds[product_edge] <= _RING_MOST * each)
        device = self.topology.device
        bytes_per_s = device.hbm_bytes_per_s * device.memory_efficiency
        ring = _RING_PRODUCTS * each + _RING_ACCESSES * of_kernel / bytes_per_s
        return np.where(is_ring, ring, each)

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
        of_class = np.array([shares.get(c, device.memory_efficiency) for c in CLASSES])
        return device.hbm_bytes_per_s * of_class[self.kernels.kernel_class]
