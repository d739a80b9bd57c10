"""The evaluator: seconds per step and peak bytes per device of one point.

step = compute + waiting
compute     sum over kernels of their seconds, by a roofline, or measured ones -> in: `automap.cost.kernels.roofline`;
            where a step's memory is new to it, also its first touch: bytes that are no input's, at the peak
collective  sum over collectives of their seconds (`automap.cost.collectives`); XLA merges the
            collectives of gradients and parameters into messages of the backend's `combine_bytes`, but not those of a loop's trips
                                                                              -> in: `_collective`
waiting     all of collective where a device does one thing after the other; where collectives run beside
            kernels, what is left of it                   -> in: `automap.cost.schedule.overlap`, `automap.cost.kernels.rings`
peak        max over schedule positions of the bytes of live buffers and gathered copies
                                                                              -> in: `automap.cost.memory`
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from automap.backends import Backend, backend_for
from automap.cost.collectives import CollectiveCost, collective_cost
from automap.cost.kernels.rings import with_rings
from automap.cost.kernels.roofline import Roofline
from automap.cost.memory import Memory, Profile
from automap.cost.profile import KernelProfile
from automap.cost.profile.measured import MeasuredKernels
from automap.cost.schedule.overlap import waiting_seconds
from automap.cost.shardings import Shardings, shardings
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_GATHER, KINDS
from automap.cost.traffic.lane_copies import copy_seconds
from automap.space.point import SplitClasses
from automap.topology.model import Topology


# Seconds that are all waited for are one sum in two orders, up to this fraction.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one point costs, per step and per device.

    `collective_seconds` are those in which a device waits, `hidden_seconds` those of collectives
    beside computation.
    """

    compute_seconds: float
    collective_seconds: float
    hidden_seconds: float
    peak_bytes: float

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.compute_seconds + self.collective_seconds


@dataclass(frozen=True)
class Priced:
    """One point in parts: seconds of one run of each distinct kernel and of each entry of `found`.

    `beside` are those of an entry that go on within a kernel (`automap.cost.kernels.rings`), not in
    `of_collective`.
    """

    sharding: Shardings
    found: Collectives
    of_kernel: np.ndarray
    of_collective: np.ndarray
    beside: np.ndarray


@dataclass(frozen=True)
class Evaluator:
    """Prices points on one topology. Pure; `_links` only remembers costs by mesh.

    `has_parts` is whether what it gives is the `estimate` of what is `priced`.
    """

    has_parts: ClassVar[bool] = True
    tables: Tables
    n_classes: int
    topology: Topology
    kernel_profile: KernelProfile | None = None
    _links: dict[object, CollectiveCost] = field(default_factory=dict, repr=False)

    def evaluate(self, split_classes: SplitClasses) -> Estimate:
        """Seconds and bytes of one step under `split_classes`."""
        return self.estimate(self.priced(split_classes))

    def estimate(self, priced: Priced) -> Estimate:
        """The parts of one point taken together."""
        found, of_kernel = priced.found, priced.of_kernel
        busy = float(priced.of_collective @ found.count)
        waiting = busy
        if self.backend.collectives == "beside kernels":
            waiting = waiting_seconds(self.tables.order, of_kernel, found, priced.of_collective)
        hidden = busy - waiting if busy - waiting > _ROUNDING * busy else 0.0
        peak_bytes, fresh_seconds = self._peak(priced.sharding, found)
        return Estimate(
            compute_seconds=float(of_kernel @ self.tables.kernels.count) + fresh_seconds,
            collective_seconds=waiting,
            hidden_seconds=hidden + float(priced.beside @ found.count),
            peak_bytes=peak_bytes,
        )

    def _peak(self, sharding: Shardings, found: Collectives) -> tuple[float, float]:
        """Peak bytes, and the seconds in which a step takes those that are new to it."""
        parts, device = sharding.parts_of_value, self.topology.device
        peak_bytes = self.profile.peak_bytes(parts, found.copied, found.is_repeat)
        if not device.fresh_seconds_per_byte:
            return peak_bytes, 0.0
        fresh_bytes = max(peak_bytes - self.profile.input_bytes(parts), 0.0)
        return peak_bytes, fresh_bytes * device.fresh_seconds_per_byte

    def fresh_seconds(self, priced: Priced) -> float:
        """Seconds in which a step takes memory that is new to it; 0 where the runtime keeps a pool."""
        return self._peak(priced.sharding, priced.found)[1]

    def priced(self, split_classes: SplitClasses) -> Priced:
        """What every kernel and every collective takes under `split_classes`."""
        return self.price(shardings(self.tables, self.n_classes, split_classes))

    def price(self, sharding: Shardings) -> Priced:
        """What every kernel and every collective takes if the rows are split so."""
        found = self.tables.collectives(sharding)
        return self.timed(sharding, found, self.roofline.seconds(sharding))

    def timed(self, sharding: Shardings, found: Collectives, of_kernel: np.ndarray) -> Priced:
        """`price` with given collectives, and seconds of kernels that nothing else runs within."""
        of_collective = self._collective(found, sharding.sizes)
        if self.backend.pads(self.topology.device):
            of_collective += copy_seconds(
                self.tables.operands, self.tables.results, sharding, found, self.topology.device
            )
        beside = np.zeros(len(of_collective))
        if self.backend.scattered_products == "rings":
            rings = with_rings(
                self.tables.kernels,
                self.topology.device,
                self.backend.tile_numbers,
                of_kernel,
                sharding,
                found,
                of_collective,
            )
            of_kernel, beside = rings.of_kernel, rings.beside
        return Priced(sharding, found, of_kernel, of_collective - beside, beside)

    def memory(self, split_classes: SplitClasses) -> Memory:
        """What the peak under `split_classes` consists of."""
        sharding = shardings(self.tables, self.n_classes, split_classes)
        found = self.tables.collectives(sharding)
        return self.profile.memory(sharding.parts_of_value, found.copied, found.is_repeat)

    @property
    def backend(self) -> Backend:
        """The compiler of the topology, and its library for collectives."""
        return backend_for(self.topology.platform)

    @cached_property
    def roofline(self) -> Roofline:
        """Seconds of kernels."""
        table, profile = self.tables.kernels, self.kernel_profile
        measured = profile and MeasuredKernels(table.shape, table.op_row, profile)
        return Roofline(table, self.topology, measured)

    @cached_property
    def profile(self) -> Profile:
        """Buffers and copies over the schedule."""
        tables = self.tables
        return Profile(tables.buffers, len(tables.value_rows), len(tables.operands.count))

    def collectives(self, split_classes: SplitClasses) -> Collectives:
        """Every collective of one step under `split_classes`."""
        sharding = shardings(self.tables, self.n_classes, split_classes)
        return self.tables.collectives(sharding)

    def _collective(self, found: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        """Seconds of each entry of `found` once."""
        merged = found.combinable
        if self.backend.combines == "sums":
            merged = merged & (found.kind != ALL_GATHER)
        of_edge = found.edge + np.where(found.on_operand, len(self.tables.results.count), 0)
        messages = np.clip(
            found.n_bytes / self.backend.combine_bytes, self._least_messages[of_edge], 1.0
        )
        messages = np.where(merged, messages, 1.0)
        seconds = np.zeros(len(messages))
        of_link = (found.kind << len(sizes)) + found.mask
        for link in np.unique(of_link).tolist():
            rows = of_link == link
            cost = self._link(link >> len(sizes), link & (1 << len(sizes)) - 1, sizes)
            seconds[rows] = cost.seconds(found.n_bytes[rows], messages[rows])
        return seconds

    @cached_property
    def _least_messages(self) -> np.ndarray:
        """Those of result edges, then of operand edges."""
        tables = (self.tables.results, self.tables.operands)
        return np.concatenate([t.least_messages for t in tables])

    def _link(self, kind: int, mask: int, sizes: tuple[int, ...]) -> CollectiveCost:
        key = (kind, mask, sizes)
        if key not in self._links:
            axes = tuple(a for a in range(len(sizes)) if mask >> a & 1)
            self._links[key] = collective_cost(KINDS[kind], self.topology, sizes, axes)
        return self._links[key]
