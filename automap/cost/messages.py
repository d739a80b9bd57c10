"""Seconds of a plan's collectives, and what they are of the messages that compilers make of them.

A tensor that is merged with others is a fraction of a message: it pays that part of the latency.
What a message takes that is known whole                -> in: `automap.cost.schedule.placing`
One of at least `combine_bytes`, or `scatter_combine_bytes`, is a message by itself, never several
                                                               -> in: `CollectivePrices.parts`
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from automap.backends import Backend
from automap.backends.believed import hosts_over
from automap.cost.collectives import CollectiveCost, collective_cost, ring_scatter_cost
from automap.cost.edges.loops import whole_messages
from automap.cost.schedule.placing import Messages
from automap.cost.tables import Tables
from automap.cost.traffic import Collectives
from automap.cost.traffic.flows import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    KINDS,
    REDUCE_SCATTER,
    devices_over,
)
from automap.topology.model import Topology
from hlo_tools.analyses.phases import Phase


@dataclass(frozen=True)
class CollectivePrices:
    """Prices collectives of `tables` on one topology; `costs` remembers lines of links by mesh."""

    tables: Tables
    topology: Topology
    backend: Backend
    costs: dict[object, CollectiveCost]

    def seconds(
        self, collectives: Collectives, sizes: tuple[int, ...], point: np.ndarray | None = None
    ) -> np.ndarray:
        """Seconds of each entry of `collectives` once, [entries]: each alone, or all of the `point`
        [entries] that they are of together.
        """
        messages = self.merged_parts(collectives, sizes)
        seconds = np.zeros(len(messages))
        # One number for (kind, axes): there are few different ones, and each has its own lines.
        group = (collectives.kind << len(sizes)) + collectives.mask
        numbers = np.flatnonzero(np.bincount(group)) if len(group) else group
        if point is not None:
            edge = self._edges(collectives)
            _, loop, trips = self._loops[:, edge]
            runs = collectives.count / trips
            loop = np.where(self._is_merged(collectives), loop, -2)
            apart = group + (point << len(sizes) + len(KINDS).bit_length())
            # XLA's combiners add up one type in a message, and gather all types in one.
            dtype = np.where(_is_sum(collectives), self._dtypes[edge], 0)
            apart = apart * (self._dtypes.max(initial=0) + 1) + dtype
            # Outside of loops those of one phase may be merged.
            apart = apart * len(Phase) + np.where(loop < 0, collectives.phase, 0)
            messages = whole_messages(messages, apart, loop, runs)
        for number in numbers.tolist():
            rows = group == number
            cost = self._cost(number >> len(sizes), number & (1 << len(sizes)) - 1, sizes)
            seconds[rows] = cost.seconds(collectives.n_bytes[rows], messages[rows])
        return seconds

    def _is_merged(self, collectives: Collectives) -> np.ndarray:
        # No compiler merges exchanges.
        is_merged = collectives.combinable & (collectives.kind != ALL_TO_ALL)
        # Of activations only what is summed side by side (`Edges.least_messages`).
        is_merged |= _is_sum(collectives) & ~collectives.on_operand
        if self.backend.combines == "sums":
            is_merged &= collectives.kind != ALL_GATHER
        return is_merged

    def merged_parts(self, collectives: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        """What each entry of `collectives` is of a message by itself, [entries]: 1 for what is not
        merged.
        """
        least = self._loops[0, self._edges(collectives)]
        messages = np.clip(self.parts(collectives, sizes), least, 1.0)
        return np.where(self._is_merged(collectives), messages, 1.0)

    def parts(self, collectives: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        """What each entry of `collectives` is of a message that merged ones make, [entries].

        XLA counts the bytes that come out (collective_combiner_utils.h). Where only small sums of
        a loop go together those that go in are counted: so the numbers of these backends were
        fitted.
        """
        is_scatter = collectives.kind == REDUCE_SCATTER
        limit = np.where(is_scatter, self.backend.scatter_combine_bytes, self.backend.combine_bytes)
        messages = collectives.n_bytes / limit
        if self.backend.loop_messages != "all":
            return messages
        devices = devices_over(collectives.mask, sizes)
        return messages / np.where(is_scatter, devices, 1)

    def messages(self, collectives: Collectives, sizes: tuple[int, ...]) -> Messages:
        """What each entry of `collectives` is of messages, and what a scheduler believes of it."""
        believed = self.backend.believed(self.topology.device)
        trips = self._loops[2, self._edges(collectives)]
        rows = np.full(len(trips), -1)
        if believed is not None:
            mask = collectives.mask
            group = devices_over(mask, sizes), hosts_over(mask, sizes)
            rows = believed.rows(KINDS, collectives.kind, *group)
        # One number for (kind, axes), and the cost that it stands for.
        numbers = (collectives.kind << len(sizes)) + collectives.mask
        group, cost = np.unique(numbers, return_inverse=True)
        costs = [
            self._cost(number >> len(sizes), number & (1 << len(sizes)) - 1, sizes)
            for number in group.tolist()
        ]
        return Messages(
            parts=self.parts(collectives, sizes),
            rows=rows,
            trip_bytes=collectives.n_bytes * collectives.count / trips,
            trips=trips,
            cost=cost,
            costs=costs,
            copy_seconds=self._copy_seconds,
            believed=believed,
        )

    def _copy_seconds(self, n_bytes: np.ndarray) -> np.ndarray:
        """Of kernels that move so many bytes."""
        device = self.topology.device
        busy = n_bytes / device.memory_bytes_per_s("elementwise")
        return np.maximum(busy + self.backend.launch_gap_seconds, device.launch_seconds)

    def _edges(self, collectives: Collectives) -> np.ndarray:
        """Numbers of edges where result edges are listed first, then operand edges."""
        first_operand = len(self.tables.results.count)
        return collectives.edge + np.where(collectives.on_operand, first_operand, 0)

    def passed_seconds(self, collectives: Collectives, sizes: tuple[int, ...]) -> np.ndarray:
        """Seconds of each reduce-scatter of a result if its shards go round a ring, [entries]; 0 of
        all others.
        """
        seconds = np.zeros(len(collectives.kind))
        is_scatter = (collectives.kind == REDUCE_SCATTER) & ~collectives.on_operand
        for mask in np.unique(collectives.mask[is_scatter]).tolist():
            rows = is_scatter & (collectives.mask == mask)
            seconds[rows] = self._ring_cost(mask, sizes).seconds(collectives.n_bytes[rows])
        return seconds

    @cached_property
    def _loops(self) -> np.ndarray:
        """Least messages, loop, trips of it: of result edges, then operand edges, [3, edges]."""
        tables = (self.tables.results, self.tables.operands)
        columns = [np.stack((t.least_messages, t.loop, t.loop_trips)) for t in tables]
        return np.concatenate(columns, axis=1)

    @cached_property
    def _dtypes(self) -> np.ndarray:
        """A number for the type of what each result edge sums, 0 for operand edges, [edges]."""
        results, values = self.tables.results, self.tables.program.problem.graph.values
        numbers: dict[str, int] = {}
        # Not by incidences, which copies of a program (`automap.search.factored`) do not have.
        made = (values[value].dtype for value in results.value.tolist())
        summed = [numbers.setdefault(dtype, len(numbers)) for dtype in made]
        return np.array([*summed, *[0] * self.tables.operands.count.size], np.int64)

    def _cost(self, kind: int, mask: int, sizes: tuple[int, ...]) -> CollectiveCost:
        # The key has the sizes, as one evaluator prices points of many meshes.
        key = (kind, mask, sizes)
        if key not in self.costs:
            axes = _axes(mask, sizes)
            self.costs[key] = collective_cost(KINDS[kind], self.topology, sizes, axes)
        return self.costs[key]

    def _ring_cost(self, mask: int, sizes: tuple[int, ...]) -> CollectiveCost:
        key = ("ring", mask, sizes)
        if key not in self.costs:
            self.costs[key] = ring_scatter_cost(self.topology, sizes, _axes(mask, sizes))
        return self.costs[key]


def _axes(mask: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(len(sizes)) if mask >> a & 1)


def _is_sum(collectives: Collectives) -> np.ndarray:
    return (collectives.kind == ALL_REDUCE) | (collectives.kind == REDUCE_SCATTER)
