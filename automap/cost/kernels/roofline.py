"""Seconds of every kernel on one device: the roofline, and what was measured for like kernels
instead of it.

    kernel = max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b), launch)

parts is how many ways the op's factors are split, bytes are local, e_m and e_b the device's efficiencies for
matmuls and for the memory accesses of a class of ops (`OP_CLASSES`).  The matrix unit of a TPU multiplies tiles:
what it sums over and the columns of the result are rounded up to them (of convolutions in groups:
`automap.cost.kernels.group_tiles`).  So are the rows or columns of tables that are
looked up and updated to those of its memory                                    -> in: `automap.backends.xla_tpu.row_layouts`
Arrays of few rows have more tiles for as many bytes                             -> in: `automap.backends.xla_tpu.few_rows`

What is made and read within a phase may stay on the chip and move no bytes: all of it up to 1/16 of
    the memory
there, nothing from 1/2, between them less with each doubling.  (Of such tensors the compiler for
    v5e, with 128 MiB,
keeps about 2 of 3 of 8 to 16 MiB on the chip, 1 of 3 of 16 to 32, and hardly any of 64; of what
    every trip of a loop
reads, such as sums of gradients, it keeps 3 of 4 of 32 MiB.)
                                                                                -> in: `off_chip`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.backends import Backend, TileNumbers, backend_for
from automap.backends.effects import KernelWork
from automap.cost.kernels.table import KernelTable
from automap.cost.profile.measured import MeasuredKernels
from automap.cost.shardings import Shardings
from automap.topology.model import OP_CLASSES, Topology


@dataclass(frozen=True)
class Roofline:
    """The kernels of a program on the devices of a topology."""

    kernels: KernelTable
    topology: Topology
    measured: MeasuredKernels | None = None

    def seconds(self, sharding: Shardings) -> np.ndarray:
        """Of each distinct kernel once, [kernels]."""
        table, device = self.kernels, self.topology.device
        has_tiles, numbers = self._backend.pads(device), self._backend.tile_numbers
        flops = table.flops / sharding.parts_of_op[table.op_row]
        parts = sharding.parts_of_value[table.traffic_row]
        local = table.traffic_bytes / parts
        extra_seconds = np.zeros(len(flops))
        if has_tiles:
            work = KernelWork(
                device=device,
                numbers=numbers,
                sizes=sharding.sizes,
                dim_of_axis=sharding.dim_of_axis,
                factor_of_axis=sharding.factor_of_axis,
                op_row=table.op_row,
                access_kernel=table.traffic_kernel,
                access_row=table.traffic_row,
                local_bytes=local,
                extra_seconds=extra_seconds,
            )
            for effect in table.effects:
                effect.add_to(work)
        if device.on_chip_bytes:
            share = off_chip(table.near_bytes / parts / device.on_chip_bytes, numbers)
            local *= np.where(table.near_bytes > 0, share, 1.0)
        fast = device.memory_bytes_per_s("elementwise")
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if has_tiles:
            for side in self._sides:
                flops[side.kernels] *= _rounded(side.local(sharding), device.matmul_tile)
            flops *= self._group_flops
        is_fast = table.is_fill & (moved <= numbers.fast_fill_bytes * device.cores) & has_tiles
        memory = moved / np.where(is_fast, fast, self._bytes_per_s) + extra_seconds
        each = np.maximum(np.maximum(flops / self._flops_per_s, memory), device.launch_seconds)
        if self.measured is not None:
            each = self.measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        return each

    @property
    def _backend(self) -> Backend:
        return backend_for(self.topology.platform)

    @cached_property
    def _sides(self) -> tuple["_Sizes", ...]:
        return tuple(_Sizes.of(sizes, self.kernels.op_row) for sizes in self.kernels.side_sizes)

    @cached_property
    def _group_flops(self) -> np.ndarray:
        return self.kernels.groups.flops_per_flop(
            self.topology.device.matmul_tile, self._backend.tile_numbers.group_tile_parts
        )

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
        of_class = np.array([self.topology.device.memory_bytes_per_s(c) for c in OP_CLASSES])
        return of_class[self.kernels.kernel_class]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Of the kernels that have any, sizes of factors that are rounded up to tiles together,
    [kernels, factors + 1].

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


def off_chip(share: np.ndarray, numbers: TileNumbers) -> np.ndarray:
    """The part of accesses that goes to memory, by the share of the chip's that a value takes."""
    stays, leaves = numbers.kept_share, numbers.spilled_share
    doublings = np.log2(np.maximum(share, stays) / stays) / np.log2(leaves / stays)
    return np.minimum(doublings, 1.0)


def _rounded(size: np.ndarray, tile: int) -> np.ndarray:
    """By how much tiles are larger than `size`."""
    return np.where(size > 1, np.ceil(size / tile) * tile / size, 1.0)
