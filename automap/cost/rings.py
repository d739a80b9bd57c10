"""Products whose partial sums are scattered, on a TPU: loops that pass shards around while they multiply.

A TPU does not scatter the partial sums of a product after it has made them.  It goes round a ring, both ways at once,
and multiplies for each step what it passes on (seen in programs of libtpu 0.0.51, 2026-11, for rings of 4 and 8): a shard
for each direction in each of n steps, so everything twice, and two partial shards are started, received, added and
written in each step; the two shards are the columns of the product, rounded up to tiles. That are six kernels in each of
n / 2 rounds, of which the compiler adds 1.2 us for each to what they compute or move:

    ring = 2 * padding * product + 8 * (bytes that are scattered) / (bandwidth * e_b) + 6 * n / 2 * launch

where product is the seconds of the product alone (`automap.cost.compute`).  The shards travel while it multiplies, so
of the reduce-scatter only what is longer than the ring is left.

A ring is made if it has more than two devices, and the product FLOPS_PER_BYTE flops or more on a device for each byte of
a shard.  (Products of 1 and 8 matrices, of f32 and bf16, on v5e:2x4, v5p:2x2x2 and 2x2x4: rings of 4 and 8 at 4,224 flops
for a byte and more, none at 4,160, none of 2. Four chips of v5p in a square made none, which is left out.)
                                                                                -> in: `with_rings`
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from automap.cost.flows import REDUCE_SCATTER
from automap.cost.kernel_table import KernelTable
from automap.cost.shardings import Shardings
from automap.cost.traffic import Collectives
from automap.topology.model import Device


_PRODUCTS, _ACCESSES, _KERNELS = 2.0, 8.0, 6.0
FLOPS_PER_BYTE: Final = 4190.0
_FEWEST_DEVICES = 3


@dataclass(frozen=True, slots=True)
class Rings:
    """Seconds of each kernel [kernels] with the rings, and those of each collective [entries] that go on beside them."""

    of_kernel: np.ndarray
    beside: np.ndarray


def with_rings(
    table: KernelTable,
    device: Device,
    of_kernel: np.ndarray,
    sharding: Shardings,
    found: Collectives,
    of_collective: np.ndarray,
) -> Rings:
    """Kernels and collectives of a backend that makes rings, from what each takes alone."""
    n_edges = table.product_edge.max(initial=-1) + 2
    entry_of_edge = np.full(n_edges, -1, np.int64)
    is_scatter = (found.kind == REDUCE_SCATTER) & ~found.on_operand & (found.edge < n_edges - 1)
    entry_of_edge[found.edge[is_scatter]] = np.flatnonzero(is_scatter)
    entry = entry_of_edge[table.product_edge]
    rows = np.flatnonzero(entry >= 0)
    devices = _devices(found.mask[entry[rows]], sharding.sizes)
    flops = table.flops[rows] / sharding.parts_of_op[table.op_row[rows]]
    is_long = flops * devices >= FLOPS_PER_BYTE * found.n_bytes[entry[rows]]
    kept = is_long & (devices >= _FEWEST_DEVICES)
    rows, devices = rows[kept], devices[kept]
    at = entry[rows]
    bytes_per_s = device.hbm_bytes_per_s * device.memory_efficiency
    padding = _padding(table, device.matmul_tile, rows, found.mask[at], devices, sharding)
    ringed = of_kernel.copy()
    ringed[rows] = (
        _PRODUCTS * padding * of_kernel[rows]
        + _ACCESSES * found.n_bytes[at] / bytes_per_s
        + _KERNELS * devices / 2 * device.launch_seconds
    )
    # Of kernels that are of one collective's row the shortest hides least.
    hidden = np.full(len(of_collective), np.inf)
    np.minimum.at(hidden, at, ringed[rows])
    beside = np.where(np.isfinite(hidden), np.minimum(hidden, of_collective), 0.0)
    return Rings(ringed, beside)


def _padding(
    table: KernelTable,
    tile: int,
    rows: np.ndarray,
    mask: np.ndarray,
    devices: np.ndarray,
    sharding: Shardings,
) -> np.ndarray:
    """By how much tiles are larger than two shards of the results of `rows`, scattered over axes `mask` of so many devices."""
    columns = np.ones(len(rows))
    for axis in range(len(sharding.sizes)):
        has = (mask >> axis & 1).astype(bool)
        dim = sharding.dim_of_axis[table.product_row[rows], axis]
        columns = np.where(has, table.product_sizes[rows, dim], columns)
    columns *= 2 / devices
    return np.maximum(np.ceil(columns / tile) * tile / columns, 1.0)


def _devices(mask: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """How many devices the axes of each of `mask` have."""
    parts = np.ones(len(mask))
    for axis, size in enumerate(sizes):
        parts *= np.where(mask >> axis & 1, size, 1)
    return parts
