"""Seconds of every kernel on one device: the roofline, what was measured for like kernels instead
of it, and what a compiler said of like kernels as a correction of both.

    kernel = max(max(flops / (parts * peak * e_m), bytes / (bandwidth * e_b)) + gap, launch)

parts is how many ways the operation's factors are split, bytes are local, e_m and e_b the device's
efficiencies for matmuls and for the memory accesses of a class of operations (`OP_CLASSES`), gap
the backend's time between two kernels, launch the least that the device takes for one with its gap.
A user's own kernel has the flops, and instead of e_m the efficiency, that its rule states.
Where a product's kernel goes on with its result the shorter one of its two sides is seen in part
                                                -> in: `automap.cost.kernels.beside_products`

flops   where the backend pads, are those of whole tiles of the matrix unit
        -> in: `automap.cost.kernels.matrix_tiles`
bytes   where the backend pads, are those of whole tiles of memory: each `automap.backends.effects`
        of the backend adds to them, or to the seconds that they take

Sums over rows, and what is in a kernel with one, move no more than a few blocks do on backends that
sum so                                                 -> in: `automap.cost.kernels.column_sums`
Where blocks hold the same row of many matrices they reach `strided_tile_share` of the bandwidth
                                                           -> in: `automap.cost.kernels.column_sums`

Sorts, top-k and sums over windows take time within the cores besides, and convolutions what a
library reaches, on backends that have them so               -> in: `automap.cost.kernels.on_core`,
                                                            `automap.cost.kernels.convolutions`

Products whose rows are no multiple of what a GPU's fast paths move take longer than measured ones
                                                        -> in: `automap.cost.kernels.unaligned_rows`

Scatters that add take the longer the more additions meet   -> in: `automap.cost.kernels.additions`
Factorizations of matrices wait for column after column
                                                       -> in: `automap.cost.kernels.factorizations`
Operands that lie in another order than they are read in are copied, unless a plan leaves no other
order                                                  -> in: `automap.cost.kernels.relaid_copies`

What is made and read may stay on the chip and move no bytes: the less, the more others want the
memory there while it is needed                                -> in: `automap.cost.on_chip`
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.backends import Backend, ConvolutionNumbers, backend_for
from automap.backends.effects import KernelWork
from automap.cost.kernels.beside_memory import with_launches
from automap.cost.kernels.beside_products import HeldSeconds, beside
from automap.cost.kernels.column_sums import limit_by_blocks
from automap.cost.kernels.convolutions import LEAST_WINOGRAD_FLOPS, library_flops
from automap.cost.kernels.matrix_tiles import FactorSizes, Sides
from automap.cost.kernels.table import KernelTable
from automap.cost.kernels.unaligned_rows import RowRates
from automap.cost.profile import KernelProfile
from automap.cost.profile.measured import MeasuredKernels, measured_kernels
from automap.cost.profile.prices import KernelPrices, correcting_kernels
from automap.cost.shardings import Shardings
from automap.topology.gpu_devices import has_matrix_units
from automap.topology.model import OP_CLASSES, Topology


@dataclass(frozen=True)
class Roofline:
    """The kernels of a program on the devices of a topology, with a user's `profile` and a
    compiler's `prices`, or without.
    """

    kernels: KernelTable
    topology: Topology
    profile: KernelProfile | None = None
    prices: KernelPrices | None = None

    def seconds(self, sharding: Shardings) -> np.ndarray:
        """Of each distinct kernel once, [kernels]."""
        busy, moved = self._busy(sharding)
        each = self._launched(busy)
        if self._measured is not None:
            each = self._measured.override(each, moved, sharding.factor_of_axis, sharding.sizes)
        for which, least in (
            self._unaligned(sharding),
            self._additions(sharding),
            self._factorizations(sharding),
        ):
            each[which] = np.maximum(each[which], least)
        if self._corrections is not None:
            ones = np.ones(len(each))
            each = each * self._corrections.override(
                ones, moved, sharding.factor_of_axis, sharding.sizes
            )
        return each * self._is_run(sharding)

    def launch_seconds(self, sharding: Shardings) -> np.ndarray:
        """What being launched adds to each distinct kernel, [kernels]."""
        busy, _ = self._busy(sharding)
        return (self._launched(busy) - busy) * self._is_run(sharding)

    def padding_seconds(self, sharding: Shardings) -> np.ndarray:
        """What whole tiles add to each distinct kernel, beyond what is in them, [kernels]."""
        without, _ = self._busy(sharding, is_padded=False)
        return np.maximum(self._busy(sharding)[0] - without, 0.0)

    def least_seconds(self, devices: int) -> np.ndarray:
        """What no sharding over so many devices makes less, of each distinct kernel, [kernels]:
        everything split over all of them, products at the peak, without tiles.
        """
        table, device = self.kernels, self.topology.device
        local = table.traffic_bytes / devices
        if device.on_chip_bytes:
            numbers = self._backend.tile_numbers
            share = numbers.crowded_out(table.rival_bytes / devices / device.on_chip_bytes)
            local = local * np.where(table.rival_bytes > 0, share, 1.0)
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(table.flops))
        peaks = np.array([device.peak_flops_per_s(d) if d else np.inf for d in table.dtype])
        # What is measured of a product may be faster than its bytes say.
        memory = np.where(np.isinf(peaks), moved / device.hbm_bytes_per_s, 0.0)
        if self._backend.pads(device):
            piece_seconds = self._backend.tile_numbers.product_piece_seconds
            memory[table.held.kernels] *= self._held.least_seen(piece_seconds, devices)
        flops = table.flops / devices
        if self._backend.convolution_numbers is not None:
            fewer = table.convolutions.kernels[self._on_vectors & (table.convolutions.tiles > 0)]
            flops[fewer] *= LEAST_WINOGRAD_FLOPS
        least = np.maximum(flops / peaks, memory)
        least[table.relaid.kernels] = 0.0
        return least

    def _is_run(self, sharding: Shardings) -> np.ndarray:
        """1 for kernels that there are on a device, 0 for copies that are not made, [kernels]."""
        table = self.kernels
        copies, is_run = table.relaid.kernels, np.ones(len(table.op_row))
        read = table.traffic_row[np.searchsorted(table.traffic_kernel, copies)]
        is_run[copies] = table.relaid.is_made(read, sharding)
        return is_run

    def _launched(self, busy: np.ndarray) -> np.ndarray:
        return with_launches(
            busy,
            self.kernels.is_launched,
            self.kernels.kernel_class == OP_CLASSES.index("product"),
            self._backend,
            self.topology.device.launch_seconds,
        )

    def _busy(
        self, sharding: Shardings, *, is_padded: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of each distinct kernel's work, and the bytes that it moves, [kernels]; without
        what fills tiles where it is not padded.
        """
        table, device = self.kernels, self.topology.device
        has_tiles, numbers = self._backend.pads(device), self._backend.tile_numbers
        flops = table.flops / sharding.parts_of_op[table.op_row]
        parts = sharding.parts_of_value[table.traffic_row]
        local = table.traffic_bytes / parts
        off_chip = np.ones(len(local))
        if device.on_chip_bytes:
            share = numbers.crowded_out(table.rival_bytes / parts / device.on_chip_bytes)
            off_chip = np.where(table.rival_bytes > 0, share, 1.0)
        # Effects add to these, and to `local`, in place.
        extra_seconds, waits, ahead_bytes = np.zeros((3, len(flops)))
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
                off_chip=off_chip,
                local_bytes=local,
                extra_seconds=extra_seconds,
                waits=waits,
                ahead_bytes=ahead_bytes,
            )
            for effect, uses in zip(self._backend.effects, table.effects, strict=True):
                if is_padded or not effect.pads:
                    uses.add_to(work)
        local *= off_chip
        fast = device.memory_bytes_per_s("elementwise")
        moved = np.bincount(table.traffic_kernel, weights=local, minlength=len(flops))
        if has_tiles and is_padded:
            flops *= self._sides.flops_per_flop(sharding, device.matmul_tile)
            flops *= self._group_flops
        # Zeros of a loop are written at the plain bandwidth up to a size, beyond it like copies.
        is_fast = table.is_fill & (moved <= numbers.fast_fill_bytes * device.cores) & has_tiles
        bytes_per_s = np.where(is_fast, fast, self._bytes_per_s)
        columns, column_numbers = table.column_sums, self._backend.column_numbers
        if column_numbers is not None:
            slow = table.strided.are_slow(table.op_row, sharding)
            bytes_per_s[slow] *= column_numbers.strided_tile_share
            bytes_per_s = limit_by_blocks(
                bytes_per_s, columns, table.op_row, sharding, column_numbers
            )
        core_numbers, library = self._backend.core_numbers, self._backend.convolution_numbers
        if core_numbers is not None and len(table.on_core.kernels):
            extra_seconds[table.on_core.kernels] += table.on_core.seconds(
                table.op_row, sharding, core_numbers, device
            )
        if library is not None and len(table.convolutions.kernels):
            which = table.convolutions.kernels
            flops[which] = self._convolution_flops(flops[which], sharding, library)
        memory = moved / bytes_per_s + extra_seconds
        if not has_tiles:
            return np.maximum(flops / self._flops_per_s, memory), moved
        held = table.held.kernels
        parts_of_held = sharding.parts_of_op[table.op_row[held]]
        memory[held] *= self._held.seen(numbers.product_piece_seconds, parts_of_held)
        # What is fetched ahead is moved beside other kernels too.
        later = np.maximum(memory - ahead_bytes / bytes_per_s, 0.0)
        busy = beside(flops / self._flops_per_s, later, numbers.product_piece_seconds)
        busy += waits * self._backend.launch_gap_seconds
        return np.maximum(busy, memory), moved

    def _unaligned(self, sharding: Shardings) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of the products, what each takes at least for its rows)."""
        table, numbers = self.kernels, self._backend.alignment_numbers
        rows = table.product_rows
        if numbers is None or not len(rows.kernels):
            return rows.kernels, np.zeros(len(rows.kernels))
        least = rows.seconds(table.op_row, self._row_rates, sharding, numbers, self.topology.device)
        return rows.kernels, least + np.where(least > 0, self._backend.launch_gap_seconds, 0.0)

    def _additions(self, sharding: Shardings) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of the scatters, what each takes at least for what it adds)."""
        table, numbers = self.kernels, self._backend.addition_numbers
        additions = table.additions
        if numbers is None or not len(additions.kernels):
            return additions.kernels, np.zeros(len(additions.kernels))
        least = additions.seconds(table.op_row, sharding, numbers, self.topology.device)
        return additions.kernels, least + self._backend.launch_gap_seconds

    def _factorizations(self, sharding: Shardings) -> tuple[np.ndarray, np.ndarray]:
        """(numbers of the factorizations, what each takes at least for its columns)."""
        table, numbers = self.kernels, self._backend.factorization_numbers
        those = table.factorizations
        if numbers is None or not len(those.kernels):
            return those.kernels, np.zeros(len(those.kernels))
        least = those.seconds(table.op_row, sharding, numbers, self.topology.device)
        return those.kernels, least + self._backend.launch_gap_seconds

    def _convolution_flops(
        self, flops: np.ndarray, sharding: Shardings, numbers: ConvolutionNumbers
    ) -> np.ndarray:
        """What products could do in the time of convolutions, [those]."""
        table = self.kernels.convolutions
        sizes = table.local_sizes(self.kernels.op_row, sharding)
        rates = self._flops_per_s[table.kernels]
        return library_flops(flops, sizes, self._on_vectors, numbers, self.topology.device, rates)

    @cached_property
    def _held(self) -> HeldSeconds:
        """What is done besides in products' kernels."""
        held, device = self.kernels.held, self.topology.device
        rates = {d: device.peak_flops_per_s(d) * device.matmul_efficiency for d in {*held.dtype}}
        return held.seconds(device, rates)

    @cached_property
    def _row_rates(self) -> RowRates:
        table = self.kernels
        # What the user measured is of the rows that were measured.
        dots = () if self.profile is None else self.profile.dots
        return RowRates.build(
            [table.dtype[k] for k in table.product_rows.kernels],
            self.topology.device,
            frozenset(row.signature.dtype for row in dots),
        )

    @cached_property
    def _on_vectors(self) -> np.ndarray:
        """Whether each convolution is of a type without matrix units, [those]."""
        device = self.topology.device
        types = [self.kernels.dtype[k] for k in self.kernels.convolutions.kernels]
        return np.array([bool(d) and not has_matrix_units(device, d) for d in types], bool)

    @cached_property
    def _measured(self) -> MeasuredKernels | None:
        return measured_kernels(
            self.kernels.shape,
            self.kernels.op_row,
            self.profile,
            self.topology.device,
            self._backend.merged_product_bytes,
        )

    @cached_property
    def _corrections(self) -> MeasuredKernels | None:
        table = self.kernels
        return self.prices and correcting_kernels(table.shape, table.op_row, self.prices)

    @property
    def _backend(self) -> Backend:
        return backend_for(self.topology.platform)

    @cached_property
    def _sides(self) -> Sides:
        table = self.kernels
        each = (FactorSizes.build(sizes, table.op_row) for sizes in table.side_sizes)
        return Sides(*each, taps=table.taps)

    @cached_property
    def _group_flops(self) -> np.ndarray:
        return self.kernels.groups.flops_per_flop(
            self.topology.device.matmul_tile, self._backend.tile_numbers.group_tile_parts
        )

    @cached_property
    def _flops_per_s(self) -> np.ndarray:
        device = self.topology.device
        # Type "" is of kernels that memory bounds: their few flops take no time.
        peaks: Mapping[str, float] = {
            d: device.peak_flops_per_s(d) if d else np.inf for d in set(self.kernels.dtype)
        }
        stated = self.kernels.efficiency
        reached = np.where(stated > 0, stated, device.matmul_efficiency)
        return np.array([peaks[d] for d in self.kernels.dtype]) * reached

    @cached_property
    def _bytes_per_s(self) -> np.ndarray:
        by_class = np.array([self.topology.device.memory_bytes_per_s(c) for c in OP_CLASSES])
        return by_class[self.kernels.kernel_class]
