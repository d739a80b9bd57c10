"""The evaluator: seconds per step and peak bytes per device of one point.

step = compute + waiting + host
compute     sum over kernels of their seconds, by a roofline, or measured ones
            -> in: `automap.cost.kernels.roofline`
            where a step's memory is new to it, also its first touch: bytes that are no input's, at
            the peak                                            -> in: `Evaluator.fresh_seconds`
            and of the kernels that copy what goes as one message
            -> in: `automap.cost.schedule.placing`
collective  sum over collectives of their seconds (`automap.cost.collectives`); compilers merge the
            collectives of gradients and parameters into messages of the backend's `combine_bytes`,
            but not those of a loop's trips                     -> in: `automap.cost.messages`
waiting     all of collective where a device does one thing after the other; where collectives run
            beside kernels, what is left of it
            -> in: `automap.cost.schedule.overlap`, `automap.cost.kernels.rings`,
               `automap.cost.kernels.gathers`
host        what a device waits for its host's memory, if state or kept values are there
            -> in: `automap.cost.hosted`, `automap.cost.host_copies`
peak        max over schedule positions of the bytes of live buffers and gathered copies
            -> in: `automap.cost.memory`
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from automap.backends import Backend, backend_for
from automap.backends.effects import CollectiveWork
from automap.cost import host_copies
from automap.cost.collectives import CollectiveCost
from automap.cost.hosted import host_waiting_seconds
from automap.cost.kernels.rings import with_rings
from automap.cost.kernels.roofline import Roofline
from automap.cost.memory import Memory, MemoryTimeline
from automap.cost.messages import CollectivePrices
from automap.cost.on_chip import chip_room
from automap.cost.profile import KernelPrices, KernelProfile
from automap.cost.schedule.order import Order
from automap.cost.schedule.overlap import exposed_seconds
from automap.cost.schedule.work import Work, step_work
from automap.cost.shardings import Shardings, shardings
from automap.cost.stored_shapes import StoredShapes
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import ALL_GATHER, ALL_TO_ALL, last_dim_splits
from automap.errors import TopologyError
from automap.plan.memory_curve import MemoryCurveRecord
from automap.space.point import SplitClasses
from automap.topology.mesh import Mesh
from automap.topology.model import Topology


# Seconds that are all waited for are one sum in two orders, up to this fraction.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one point costs, per step and per device.

    `collective_seconds` are those in which a device waits, `hidden_seconds` those of collectives
    beside computation; in `host_seconds` it waits for what its host's memory has.
    """

    compute_seconds: float
    collective_seconds: float
    hidden_seconds: float
    peak_bytes: float
    host_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Seconds of one step."""
        return self.compute_seconds + self.collective_seconds + self.host_seconds


@dataclass(frozen=True)
class Priced:
    """One point in parts: seconds of one run of each distinct kernel, `kernel_seconds` [kernels],
    and of each entry of `collectives`, `collective_seconds` [entries].

    `overlapped_seconds` [entries] are those of a collective that go on within a kernel
    (`automap.cost.kernels.rings`, `automap.cost.kernels.gathers`); they are not in
    `collective_seconds`. `copying_seconds` [entries] are of the kernels that turn what is
    gathered or scattered, or copy state that is gathered (`automap.cost.traffic.turned`), and of
    those that copy what is summed
    into an array with others and out of it, which are left out while nothing is known of others.
    """

    sharding: Shardings
    collectives: Collectives
    kernel_seconds: np.ndarray
    collective_seconds: np.ndarray
    overlapped_seconds: np.ndarray
    copying_seconds: np.ndarray


@dataclass(frozen=True)
class Together:
    """What the parts of one point are only beside all others: seconds of each collective and of the
    kernels that copy it, as in `Priced`, and what a device does when (None where it does one thing
    after the other); `local` are bytes on a device for each byte of the stored shapes, [shapes].
    """

    collective_seconds: np.ndarray
    copying_seconds: np.ndarray
    work: Work | None
    local: np.ndarray


@dataclass(frozen=True)
class Evaluator:
    """Prices points on one topology. Pure; `_costs` only remembers the lines of links by mesh.

    `has_parts` is whether what it gives is the `estimate` of what `price_point` gives.
    """

    has_parts: ClassVar[bool] = True
    tables: Tables
    n_classes: int
    topology: Topology
    kernel_profile: KernelProfile | None = None
    prices: KernelPrices | None = None
    _costs: dict[object, CollectiveCost] = field(default_factory=dict, repr=False)

    def evaluate(self, split_classes: SplitClasses) -> Estimate:
        """Seconds and bytes of one step under `split_classes`."""
        if any(split_classes.classes) or self.tables.imposed.values or self.tables.imposed.ops:
            return self.estimate(self._price_apart(split_classes))
        return self._unsplit

    @cached_property
    def _unsplit(self) -> Estimate:
        """What a step takes that nothing splits: on any mesh the same."""
        whole = SplitClasses(Mesh(("all",), (1,)), ((),))
        return self.estimate(self._price_apart(whole))

    def estimate(self, priced: Priced) -> Estimate:
        """The parts of one point taken together."""
        one = np.zeros(len(priced.collectives.kind), int)
        order = self.tables.order if self.is_scheduled else None
        return self.add_up(priced, self.together(priced, one, order))

    @property
    def is_scheduled(self) -> bool:
        """Whether collectives run beside kernels, so that the order of a step matters."""
        return self.backend.schedule_numbers is not None

    def together(self, priced: Priced, point: np.ndarray, order: Order | None) -> Together:
        """What the parts of points are beside the others of their `point` [entries]; `order` is
        that of the points' programs one after the other, None where nothing `is_scheduled`.
        """
        collectives, sizes = priced.collectives, priced.sharding.sizes
        seconds, scheduled = priced.collective_seconds, self.backend.schedule_numbers
        copying, work = priced.copying_seconds, None
        if scheduled is not None and order is not None:
            messages = None
            if self.backend.loop_messages == "all":
                seconds = self.collective_prices.seconds(collectives, sizes, point)
                messages = self.collective_prices.messages(collectives, sizes)
            work, taken = step_work(
                order,
                priced.kernel_seconds,
                collectives,
                seconds,
                messages,
                scheduled.unseen_seconds,
            )
            if messages is not None:
                runs = np.maximum(collectives.count, 1)
                seconds = taken.sent / runs
                copying = taken.joined / runs + self._copying_seconds(collectives)
        return Together(seconds, copying, work, self.stored_local(priced.sharding))

    def add_up(self, priced: Priced, together: Together) -> Estimate:
        """The estimate of one point."""
        collectives, kernel_seconds = priced.collectives, priced.kernel_seconds
        busy = float(together.collective_seconds @ collectives.count)
        waiting = busy if together.work is None else exposed_seconds(together.work)
        # The walk adds the same seconds in another order than the product above: without the
        # threshold a plan that hides nothing would show 1e-18 hidden seconds.
        hidden = busy - waiting if busy - waiting > _ROUNDING * busy else 0.0
        peak_bytes, fresh_seconds = self._peak(together.local, collectives)
        copying_seconds = float(together.copying_seconds @ collectives.count)
        busy_seconds = float(kernel_seconds @ self.tables.kernels.count) + copying_seconds
        return Estimate(
            # A step of scalars alone is a program too, which is begun.
            compute_seconds=max(busy_seconds + fresh_seconds, self.backend.launch_gap_seconds),
            collective_seconds=waiting,
            hidden_seconds=hidden + float(priced.overlapped_seconds @ collectives.count),
            peak_bytes=peak_bytes,
            host_seconds=self._host_seconds(priced),
        )

    def hosted_bytes(self, sharding: Shardings) -> np.ndarray:
        """Of a device, of each hosted leaf, in the order of `BufferTable.hosted_bytes`."""
        n_bytes = self.tables.buffers.hosted_bytes
        shape = self.tables.buffers.shape[n_bytes > 0]
        return n_bytes[n_bytes > 0] * self.stored_local(sharding)[shape]

    def _host_seconds(self, priced: Priced) -> float:
        device, copies = self.topology.device, self.tables.host_copies
        copied = 0.0
        in_line = self.backend.host_copies == "in line"
        if copies is not None and device.host_bytes_per_s:
            link = device.host_bytes_per_s
            copied = (
                host_copies.in_line_seconds(copies, priced.sharding, link)
                if in_line
                else host_copies.waiting_seconds(
                    copies, priced.sharding, priced.kernel_seconds, link
                )
            )
        if not self.tables.buffers.hosted_bytes.any():
            return copied
        if not device.host_bytes_per_s:
            raise TopologyError(
                f"device {device.name!r}: host_bytes_per_s is missing, and the plan keeps state in "
                "the host's memory; give the machine's device one, or plan with --levers none"
            )
        hosted = self.hosted_bytes(priced.sharding)
        return copied + host_waiting_seconds(hosted, device.host_bytes_per_s)

    def _peak(self, local: np.ndarray, collectives: Collectives) -> tuple[float, float]:
        """Peak bytes, and the seconds in which a step takes those that are new to it."""
        timeline, device = self.memory_timeline, self.topology.device
        peak_bytes = timeline.peak_bytes(local, collectives.held_bytes, collectives.is_repeat)
        if not device.fresh_seconds_per_byte:
            return peak_bytes, 0.0
        # Inputs are there already when a step begins; the rest of the peak is mapped page by page.
        fresh_bytes = max(peak_bytes - timeline.input_bytes(local), 0.0)
        return peak_bytes, fresh_bytes * device.fresh_seconds_per_byte

    def fresh_seconds(self, priced: Priced) -> float:
        """Seconds in which a step takes memory that is new to it; 0 where the runtime keeps a
        pool.
        """
        return self._peak(self.stored_local(priced.sharding), priced.collectives)[1]

    def price_point(self, split_classes: SplitClasses) -> Priced:
        """What every kernel and every collective takes under `split_classes`."""
        return self.as_one_point(self._price_apart(split_classes))

    def _price_apart(self, split_classes: SplitClasses) -> Priced:
        return self.price(shardings(self.tables, self.n_classes, split_classes))

    def as_one_point(self, priced: Priced) -> Priced:
        """`priced` with collectives that are merged with each other, as those of one point are."""
        if self.backend.loop_messages != "all":
            return priced
        one = np.zeros(len(priced.collectives.kind), int)
        together = self.together(priced, one, self.tables.order)
        return replace(
            priced,
            collective_seconds=together.collective_seconds,
            copying_seconds=together.copying_seconds,
        )

    def price(self, sharding: Shardings) -> Priced:
        """What every kernel and every collective takes if the rows are split so."""
        collectives = self.tables.collectives(sharding)
        return self.combine(sharding, collectives, self.roofline.seconds(sharding))

    def combine(
        self, sharding: Shardings, collectives: Collectives, kernel_seconds: np.ndarray
    ) -> Priced:
        """`price` with given collectives, and seconds of kernels that nothing else runs within."""
        collective_seconds = self.collective_prices.seconds(collectives, sharding.sizes)
        added = np.zeros(len(collective_seconds))
        if self.backend.collective_effects and self.backend.pads(self.topology.device):
            work = self.collective_work(sharding, collectives)
            for effect in self.backend.collective_effects:
                added += effect.seconds(work)
        collective_seconds += added
        overlapped = self.tables.hidden_gathers.hidden_seconds(
            collectives, kernel_seconds, collective_seconds
        )
        if self.backend.scattered_products == "rings":
            rings = with_rings(
                self.tables.kernels,
                self.topology.device,
                self.backend.tile_numbers,
                kernel_seconds,
                sharding,
                collectives,
                collective_seconds,
                # A ring hides what its shards take with all that is added to them.
                self.collective_prices.passed_seconds(collectives, sharding.sizes) + added,
            )
            kernel_seconds = rings.kernel_seconds
            overlapped = overlapped + rings.overlapped_seconds
            collective_seconds = rings.collective_seconds
        return Priced(
            sharding=sharding,
            collectives=collectives,
            kernel_seconds=kernel_seconds,
            collective_seconds=collective_seconds - overlapped,
            overlapped_seconds=overlapped,
            copying_seconds=self._copying_seconds(collectives),
        )

    def _copying_seconds(self, collectives: Collectives) -> np.ndarray:
        """Of the kernels that turn what collectives gather or scatter, and of those that copy state
        which is gathered, once if the chip's memory has room for it and for more, else twice,
        [entries].
        """
        device, gap_seconds = self.topology.device, self.backend.launch_gap_seconds
        turned, handed_on = collectives.turned_bytes, collectives.handed_on_bytes
        least = max(gap_seconds, device.launch_seconds)
        seconds = 2 * turned / device.memory_bytes_per_s("copy")
        seconds = np.where(turned > 0, np.maximum(seconds + gap_seconds, least), 0.0)
        plain = 2 * handed_on / device.memory_bytes_per_s("elementwise")
        copies = np.where(handed_on >= device.on_chip_bytes, 2, 1) * (handed_on > 0)
        return seconds + copies * np.maximum(plain + gap_seconds, least)

    def collective_work(self, sharding: Shardings, collectives: Collectives) -> CollectiveWork:
        """What the backend's effects read of `collectives`."""
        sizes, n_entries = sharding.sizes, len(collectives.kind)
        is_gather, is_exchange = (collectives.kind == kind for kind in (ALL_GATHER, ALL_TO_ALL))
        last_size = np.zeros(n_entries)
        stored, computed = np.zeros((2, n_entries, len(sizes)), bool)
        for edges, on_operand in ((self.tables.operands, True), (self.tables.results, False)):
            # Only of these two kinds, the only ones that move a tensor along its last dimension.
            here = np.flatnonzero(
                (is_gather | is_exchange) & (collectives.on_operand == on_operand)
            )
            edge = collectives.edge[here]
            stored[here], computed[here] = last_dim_splits(edges, sharding, edge)
            last_size[here] = edges.last_size[edge]
        return CollectiveWork(
            device=self.topology.device,
            sizes=sizes,
            n_bytes=collectives.n_bytes,
            is_gather=is_gather,
            is_exchange=is_exchange,
            takes_part=collectives.mask[:, None] >> np.arange(len(sizes)) & 1 != 0,
            on_operand=collectives.on_operand,
            last_size=last_size,
            splits_stored=stored,
            splits_computed=computed,
        )

    def memory(self, split_classes: SplitClasses) -> Memory:
        """What the peak under `split_classes` consists of."""
        return self.memory_timeline.memory(*self._in_memory(split_classes))

    def memory_curve(self, split_classes: SplitClasses) -> MemoryCurveRecord:
        """What a device holds over the step under `split_classes`."""
        graph = self.tables.program.problem.graph
        return self.memory_timeline.curve(*self._in_memory(split_classes), graph)

    def _in_memory(self, split_classes: SplitClasses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        sharding = shardings(self.tables, self.n_classes, split_classes)
        collectives = self.tables.collectives(sharding)
        return self.stored_local(sharding), collectives.held_bytes, collectives.is_repeat

    def stored_local(self, sharding: Shardings) -> np.ndarray:
        """Bytes on a device for each byte of the stored shapes, [shapes]."""
        shapes = self.tables.shapes
        return self.shapes_local(shapes, sharding.dim_of_axis[shapes.row], sharding.sizes)

    def shapes_local(
        self, shapes: StoredShapes, dim_of_axis: np.ndarray, sizes: tuple[int, ...]
    ) -> np.ndarray:
        """The same of given shapes, whose rows are split along `dim_of_axis` [shapes, axes]."""
        pads = self.backend.pads(self.topology.device)
        arrays = self.backend.arrays if pads or self.backend.layout == "rows" else None
        memory_bytes = self.topology.device.memory_bytes
        return shapes.local(dim_of_axis, sizes, arrays, self.backend.tile_numbers, memory_bytes)

    @property
    def backend(self) -> Backend:
        """The compiler of the topology, and its library for collectives."""
        return backend_for(self.topology.platform)

    @cached_property
    def roofline(self) -> Roofline:
        """Seconds of kernels."""
        return Roofline(self.tables.kernels, self.topology, self.kernel_profile, self.prices)

    @cached_property
    def collective_prices(self) -> CollectivePrices:
        """Seconds of collectives."""
        return CollectivePrices(self.tables, self.topology, self.backend, self._costs)

    @cached_property
    def memory_timeline(self) -> MemoryTimeline:
        """Buffers and copies over the schedule."""
        tables = self.tables
        # As `Collectives.held_bytes` has them.
        n_edges = 2 * (len(tables.operands.count) + len(tables.results.count))
        chip = chip_room(self.topology.device, self.backend.tile_numbers)
        return MemoryTimeline(tables.buffers, len(tables.shapes.row), n_edges, chip)

    def collectives(self, split_classes: SplitClasses) -> Collectives:
        """Every collective of one step under `split_classes`."""
        sharding = shardings(self.tables, self.n_classes, split_classes)
        return self.tables.collectives(sharding)
