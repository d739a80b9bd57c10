"""Inner plans and replicas as one options of stages, for one number of microbatches
(`automap.pipeline.solvers.stage_options`).

Kinds 0 .. P - 1 are replicated stages, as in a pure pipeline; the others are inner plans, which may
begin where their devices are a part of the machine. What crosses a cut is counted as if all of it
were split as the layout says.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from automap.pipeline.arrays import Terms, arrays_of
from automap.pipeline.fabric import Fabric
from automap.pipeline.hybrid.pricing import Costs, InnerPlan, Pricer
from automap.pipeline.profile.points import Points
from automap.pipeline.profile.uses import segment_bytes, segment_maximum
from automap.pipeline.schedules import GPIPE, Schedule, pass_order
from automap.pipeline.solvers.stage_options import StageOptions, replicated_options
from automap.pipeline.transfers import Layout, transfer_table
from automap.topology.parts import may_begin


@dataclass(frozen=True)
class Kinds:
    """What may be on a options: `inners` on the machine of `fabric`."""

    pricer: Pricer
    points: Points
    fabric: Fabric
    inners: tuple[InnerPlan, ...]

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Those of 1 .. U replicas, and then of the inner plans."""
        unit = self.fabric.unit_devices
        replicas = [Layout(tuple(range(r * unit))) for r in range(1, self.fabric.n_units + 1)]
        found = dict.fromkeys(replicas)
        found.update(dict.fromkeys(map(self._layout, self.inners)))
        return tuple(found)

    def _layout(self, inner: InnerPlan) -> Layout:
        return self.pricer.layout(inner.split_classes)

    @cached_property
    def transfer(self) -> np.ndarray:
        """Seconds per byte [L, L, U + 1]."""
        return transfer_table(self.pricer.topology, self.layouts, self.fabric.unit_devices)

    @cached_property
    def _may_begin(self) -> np.ndarray:
        """Whether an inner plan may begin at each unit, [inner plans, U + 1]."""
        unit = self.fabric.unit_devices
        begins = range(self.fabric.n_units + 1)
        return np.array(
            [
                [may_begin(self.pricer.topology, inner.devices, d * unit) for d in begins]
                for inner in self.inners
            ]
        ).reshape(len(self.inners), len(begins))

    def options(self, microbatches: int, memory_limit_bytes: float) -> "Offer":
        """The options of M microbatches; its schedule is GPipe until it is `scheduled`."""
        terms = Terms(
            microbatches=microbatches,
            schedule=GPIPE,
            memory_limit_bytes=memory_limit_bytes,
        )
        plain = replicated_options(arrays_of(self.points, self.fabric, terms))
        runs = [
            place
            for place, inner in enumerate(self.inners)
            if self.pricer.may_run(inner.split_classes, microbatches)
            and inner.devices % self.fabric.unit_devices == 0
        ]
        costs = [self.pricer.costs(self.inners[place], microbatches) for place in runs]
        rows = [
            self._row(self.inners[p], c, microbatches) for p, c in zip(runs, costs, strict=True)
        ]
        number = {layout: index for index, layout in enumerate(self.layouts)}
        layout = np.array(
            [int(r) - 1 for r in plain.units]
            + [number[self._layout(self.inners[place])] for place in runs],
            np.int64,
        )
        crossing = np.concatenate([plain.crossing, *[row.crossing[None] for row in rows]])
        units = [self.inners[place].devices // self.fabric.unit_devices for place in runs]
        options = plain._replace(
            units=np.concatenate([plain.units, np.array(units, np.int64)]),
            forward=_stacked(plain.forward, [row.forward for row in rows]),
            backward=_stacked(plain.backward, [row.backward for row in rows]),
            reduce=_stacked(plain.reduce, [row.reduce for row in rows]),
            rate=_stacked(
                plain.rate,
                [
                    np.where(self._may_begin[place], row.update_seconds_per_byte, np.inf)
                    for place, row in zip(runs, rows, strict=True)
                ],
            ),
            crossing=crossing,
            interface=_interfaces(layout, crossing),
            layout=layout,
            transfer=self.transfer,
            state=_stacked(plain.state, [row.state for row in rows]),
            kept=_stacked(plain.kept, [row.kept for row in rows]),
            working=_stacked(plain.working, [row.working for row in rows]),
            entering=_stacked(plain.entering, [row.entering for row in rows]),
            table=np.concatenate([plain.table, 1 + np.arange(len(runs))]),
            share=np.concatenate([plain.share, np.ones(len(runs))]),
        )
        replicated = tuple(None for _ in plain.units)
        return Offer(options, (*replicated, *(self.inners[place] for place in runs)))

    def _row(self, inner: InnerPlan, costs: Costs, microbatches: int) -> "_Row":
        points, n = self.points, self.points.n_points
        entering = points.at_cuts(costs.held.cut_bytes) / microbatches
        working = costs.held.working_bytes / microbatches + costs.gathered_bytes
        total = points.profile.gradients.total_bytes
        return _Row(
            forward=points.sums(costs.forward),
            backward=points.sums(costs.backward),
            reduce=points.sums(costs.reduce),
            update_seconds_per_byte=costs.update_seconds / total if total else 0.0,
            crossing=entering * self._layout(inner).n_parts,
            entering=entering,
            state=segment_bytes(points.moved(costs.held.state), n),
            kept=segment_bytes(points.moved(costs.held.kept), n) / microbatches,
            working=segment_maximum(np.maximum.reduceat(working, points.first[:-1])),
        )


@dataclass(frozen=True)
class Offer:
    """A options, and the inner plan of each of its kinds; None for a replicated stage."""

    options: StageOptions
    inners: tuple[InnerPlan | None, ...]

    def scheduled(self, schedule: Schedule) -> "Offer":
        """The same under a schedule."""
        return replace(self, options=self.options._replace(order=pass_order(schedule)))


@dataclass(frozen=True)
class _Row:
    """One inner plan's rows of a options."""

    forward: np.ndarray
    backward: np.ndarray
    reduce: np.ndarray
    update_seconds_per_byte: float
    crossing: np.ndarray
    entering: np.ndarray
    state: np.ndarray
    kept: np.ndarray
    working: np.ndarray


def _stacked(plain: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([plain, *[row[None] for row in rows]])


def _interfaces(layout: np.ndarray, crossing: np.ndarray) -> np.ndarray:
    """One number for each pair of a layout and what crosses."""
    return np.unique(np.column_stack([layout, crossing]), axis=0, return_inverse=True)[1].reshape(
        -1
    )
