"""Seconds of every kernel on one device: the roofline, and what was measured for like kernels instead of it.

    kernel = max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)

parts is how many ways the op's factors are split, bytes are local, e_m and e_b the device's efficiencies for
matmuls and for the memory accesses of a class of ops (`KernelClass`).  The matrix unit of a TPU multiplies tiles:
what it sums over and the columns of the result are rounded up to them -> in: `Roofline._padding`.  What is made and read within a phase may stay on the chip and move no bytes: all of it up to 1/16
of the memory there, nothing from 1/2, between them less with each doubling.  (Of such tensors the compiler for v5e,
with 128 MiB, keeps about 2 of 3 of 8 to 16 MiB on the chip, 1 of 3 of 16 to 32, and hardly any of 64.)
                                                                                -> in: `Roofline._off_chip`

A TPU does not scatter the partial sums of a product after it has made them.  It goes round a ring, both ways at
once, and multiplies for each step what it passes on (seen in programs of libtpu 0.0.51, 2026-11, for rings of 4 and
8): a shard for each direction in each of n steps, so everything twice, and two partial shards are started,
received, added and written in each step; the two shards are the columns, rounded up to tiles:

    ring = 2 * padding * kernel + 8 * (bytes that are scattered) / (bandwidth * e_b)  -> in: `Roofline._ringed`
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


_STAYS, _LEAVES = 1 / 16, 1 / 2
_RING_PRODUCTS, _RING_ACCESSES = 2.0, 8.0
# ... unless the reduce-scatter takes much longer than the product: 1.6 times as long was a ring, 2.1 times not.
_RING_MOST = 1.8


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
        parts = sharding.parts_of_value[table.traffic_row]
        local = table.traffic_bytes / parts
        if device.on_chip_bytes:
            local *= self._off_chip(table.near_bytes / parts / device.on_chip_bytes)
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if device.matmul_tile > 1:
            flops = flops * self._padding(sharding)
        memory = moved / self._bytes_per_s
        each = np.maximum(np.maximum(flops / self._flops_per_s, memory), device.launch_seconds)
        if Habit.RINGS in HABITS[self.topology.platform]:
            each = self._ringed(each, sharding, found, of_collective)
        if self.measured is not None:
            each = self.measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        return each

    def _off_chip(self, share: np.ndarray) -> np.ndarray:
        """The part of accesses that goes to memory, by the share of the chip's that the value takes, [accesses]."""
        doublings = np.log2(np.maximum(share, _STAYS) / _STAYS) / np.log2(_LEAVES / _STAYS)
        return np.where(self.kernels.near_bytes > 0, np.minimum(doublings, 1.0), 1.0)

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
        self,
        each: np.ndarray,
        sharding: Shardings,
        found: Collectives,
        of_collective: np.ndarray,
    ) -> np.ndarray:
        product_edge = self.kernels.product_edge
        n_edges = product_edge.max(initial=-1) + 2
        scattered, seconds, mask = np.zeros(n_edges), np.zeros(n_edges), np.zeros(n_edges, np.int64)
        is_scatter = (found.kind == REDUCE_SCATTER) & ~found.on_operand
        chosen = np.flatnonzero(is_scatter & (found.edge < n_edges - 1))
        scattered[found.edge[chosen]] = found.n_bytes[chosen]
        seconds[found.edge[chosen]] = of_collective[chosen]
        mask[found.edge[chosen]] = found.mask[chosen]
        rows = np.flatnonzero(mask[product_edge])
        rows = rows[seconds[product_edge[rows]] <= _RING_MOST * each[rows]]
        device = self.topology.device
        added = _RING_ACCESSES * scattered[product_edge[rows]]
        padding = self._shard_padding(rows, mask[product_edge[rows]], sharding)
        result = each.copy()
        result[rows] *= _RING_PRODUCTS * padding
        result[rows] += added / (device.hbm_bytes_per_s * device.memory_efficiency)
        return result

    def _shard_padding(self, rows: np.ndarray, mask: np.ndarray, sharding: Shardings) -> np.ndarray:
        """By how much tiles are larger than two shards of the results of `rows` scattered over `mask`."""
        table, tile = self.kernels, self.topology.device.matmul_tile
        columns, parts = np.ones(len(rows)), np.ones(len(rows))
        for axis, size in enumerate(sharding.sizes):
            has = (mask >> axis & 1).astype(bool)
            dim = sharding.dim_of_axis[table.product_row[rows], axis]
            columns = np.where(has, table.product_sizes[rows, dim], columns)
            parts *= np.where(has, size, 1)
        columns *= 2 / parts
        return np.maximum(np.ceil(columns / tile) * tile / columns, 1.0)

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
