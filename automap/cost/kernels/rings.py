"""Products whose partial sums are scattered while they are made: loops that pass shards around
while they multiply (a collective matmul).

A backend may not scatter the partial sums of a product after it has made them. It goes round a ring
of n devices, both ways at once: in each of n / 2 rounds it multiplies two shards of the product,
one for each way, and adds to them what it was sent. The two shards are the columns of the product,
rounded up to tiles; additions read two and write one, in float32 whatever they hold; three kernels
are launched in each round:

    ring = padding * product + 3 * 4 bytes * elements / (bandwidth * e_b) + 3 * n / 2 * launch
           + written / (bandwidth * e_b) + transposed / (bandwidth * e_t)

where product is the seconds of the product alone (`automap.cost.kernels.roofline`), elements are
those that a device has of it before they are scattered, written and transposed are the bytes moved
for its operands (`automap.cost.kernels.ring_operands`), and e_t is the device's efficiency of
transposing. The shards travel while it multiplies, and are added once they are there, so of what
they take on their way only what is longer than padding * product is left. That is the step from
neighbour to neighbour along the plan's order of the devices, n / 2 times
(`automap.cost.collectives`), and not the reduce-scatter of the same bytes, which may be an
all-reduce. Products whose sum is scattered go round a ring each.

A ring is made if it has at least `ring_fewest_devices` devices and at most `ring_most_devices`, and
the product `ring_flops_per_byte` flops or more on a device for each byte of a shard: about as many
as the device computes while one of its links carries a byte. What these numbers, and the 3 and 4
above, were fitted on stands in the backend's data file.    -> in: `with_rings`
"""

from dataclasses import dataclass

import numpy as np

from automap.backends import TileNumbers
from automap.cost.kernels.table import KernelTable
from automap.cost.shardings import Shardings, n_parts
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import REDUCE_SCATTER, devices_over
from automap.topology.model import Device


@dataclass(frozen=True, slots=True)
class Rings:
    """Seconds of each kernel [kernels] with the rings, of each collective [entries], and the part
    of the latter that goes on beside the rings.
    """

    kernel_seconds: np.ndarray
    collective_seconds: np.ndarray
    overlapped_seconds: np.ndarray


def with_rings(
    table: KernelTable,
    device: Device,
    numbers: TileNumbers,
    kernel_seconds: np.ndarray,
    sharding: Shardings,
    collectives: Collectives,
    collective_seconds: np.ndarray,
    passed_seconds: np.ndarray,
) -> Rings:
    """Kernels and collectives of a backend that makes rings, from what each takes alone;
    `passed_seconds` [entries] are those of a collective whose shards go round a ring.
    """
    scatters = _Scatters.build(collectives, len(collectives.scattered_again.mask) + 1)
    # Kernels that are no product have edge -1, which is the last row: nothing is scattered there.
    entry, mask = scatters.entry[table.product_edge], scatters.mask[table.product_edge]
    n_bytes = scatters.n_bytes[table.product_edge]
    rows = np.flatnonzero(mask)
    devices = devices_over(mask[rows], sharding.sizes)
    flops = table.flops[rows] / sharding.parts_of_op[table.op_row[rows]]
    is_long = flops * devices >= n_bytes[rows] * numbers.least_ring_flops_per_byte(device.name)
    has_enough = devices >= numbers.ring_fewest_devices
    is_ring = is_long & has_enough & (devices <= numbers.ring_most_devices)
    rows, devices = rows[is_ring], devices[is_ring]
    bytes_per_s = device.hbm_bytes_per_s * device.memory_efficiency
    made = table.product_row[rows]
    # The row's parts count the devices of the ring, too: before the scatter a device has n times
    # as many.
    elements = table.product_sizes[rows].prod(axis=1) * devices / sharding.parts_of_value[made]
    padding = _padding(table, device.matmul_tile, rows, mask[rows], devices, sharding)
    multiplied, seconds = np.zeros(len(kernel_seconds)), kernel_seconds.copy()
    multiplied[rows] = padding * kernel_seconds[rows]
    seconds[rows] = (
        multiplied[rows]
        + numbers.ring_element_bytes * elements / bytes_per_s
        + numbers.ring_kernels * devices / 2 * device.launch_seconds
        + _written_bytes(table, rows, sharding) / bytes_per_s
        + _transposed_bytes(table, rows, mask[rows], sharding, device, numbers)
        / device.memory_bytes_per_s("turn")
    )
    # Of kernels that are of one collective's row the shortest hides least.
    hidden = np.full(len(collective_seconds), np.inf)
    first = rows[entry[rows] >= 0]
    np.minimum.at(hidden, entry[first], multiplied[first])
    is_passed = np.isfinite(hidden)
    collective_seconds = np.where(is_passed, passed_seconds, collective_seconds)
    overlapped = np.where(is_passed, np.minimum(hidden, collective_seconds), 0.0)
    return Rings(seconds, collective_seconds, overlapped)


@dataclass(frozen=True, slots=True)
class _Scatters:
    """What is scattered at each result edge, and nothing at one more for kernels that are no
    product, [edges + 1].

    `entry` is where it is among the collectives, -1 if another term of the same sum has it; `mask`
    its axes.
    """

    entry: np.ndarray
    mask: np.ndarray
    n_bytes: np.ndarray

    @classmethod
    def build(cls, collectives: Collectives, n_edges: int) -> "_Scatters":
        """The reduce-scatters of a step."""
        at = np.flatnonzero((collectives.kind == REDUCE_SCATTER) & ~collectives.on_operand)
        entry, mask, n_bytes = np.full(n_edges, -1), np.zeros(n_edges, np.int64), np.zeros(n_edges)
        # A term whose sum another one scatters is no entry, but its product goes round a ring too.
        mask[:-1] = collectives.scattered_again.mask
        n_bytes[:-1] = collectives.scattered_again.n_bytes
        edge = collectives.edge[at]
        entry[edge], mask[edge], n_bytes[edge] = at, collectives.mask[at], collectives.n_bytes[at]
        return cls(entry, mask, n_bytes)


def _padding(
    table: KernelTable,
    tile: int,
    rows: np.ndarray,
    mask: np.ndarray,
    devices: np.ndarray,
    sharding: Shardings,
) -> np.ndarray:
    """By how much tiles are larger than two shards of the results of `rows`, scattered over axes
    `mask` of so many devices. Of convolutions, whose taps fill tiles, they are no larger.
    """
    columns = np.ones(len(rows))
    for axis in range(len(sharding.sizes)):
        has = (mask >> axis & 1).astype(bool)
        dim = sharding.dim_of_axis[table.product_row[rows], axis]
        columns = np.where(has, table.product_sizes[rows, dim], columns)
    # Two shards are multiplied at once. At least 1 but for the rounding of floats.
    columns *= 2 / devices
    is_dot = np.array([table.shape[row].convolution is None for row in rows.tolist()], bool)
    return np.where(is_dot, np.maximum(np.ceil(columns / tile) * tile / columns, 1.0), 1.0)


def _written_bytes(table: KernelTable, rows: np.ndarray, sharding: Shardings) -> np.ndarray:
    """Bytes on a device that are moved to write the operands of `rows`."""
    return (table.written_bytes[:, rows] / _parts_of_operands(table, rows, sharding)).sum(axis=0)


def _transposed_bytes(
    table: KernelTable,
    rows: np.ndarray,
    mask: np.ndarray,
    sharding: Shardings,
    device: Device,
    numbers: TileNumbers,
) -> np.ndarray:
    """Bytes in memory on a device that are moved to transpose the operands of `rows`, scattered
    over axes `mask`.
    """
    is_cut = np.zeros((2, len(rows)), bool)
    for axis in range(len(sharding.sizes)):
        dim = sharding.dim_of_axis[table.product_row[rows], axis]
        has = (mask >> axis & 1).astype(bool) & (dim >= 0)
        is_cut |= has & (table.cut_dims[:, rows] >> np.maximum(dim, 0) & 1).astype(bool)
    local = is_cut * table.transposed_bytes[:, rows] / _parts_of_operands(table, rows, sharding)
    # What fits on the chip is not written to memory. Each trip of the ring reads it, so it has the
    # claim of a loop.
    if device.on_chip_bytes:
        local *= numbers.off_chip(
            local * numbers.ring_held_share / numbers.loop_claim / device.on_chip_bytes
        )
    return local.sum(axis=0)


def _parts_of_operands(table: KernelTable, rows: np.ndarray, sharding: Shardings) -> np.ndarray:
    """In how many parts the operands of `rows` are, [2, rows]."""
    factor = sharding.factor_of_axis[table.op_row[rows]]
    # `written_factors` has a bit for each factor that an operand holds; `maximum` only keeps the
    # shift legal where an axis splits none.
    is_split = table.written_factors[:, rows, None] >> np.maximum(factor, 0) & (factor >= 0)
    return n_parts(is_split, sharding.sizes)
