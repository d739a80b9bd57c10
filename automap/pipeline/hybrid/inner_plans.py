"""Inner plans, the ways in which a stage is sharded inside: which of them stages may have, and what
they cost, as the exact solver takes it.

devices    all numbers that are a part of the machine (`automap.topology.parts`), from two on
presets    on every mesh of such a part, the compute decisions of every preset with every level of
           storage, so also tensor parallelism with ZeRO         -> in: `preset_inner_plans`
search     climbs through the sharding space from the best of them, for a stage of average size
                                                                 -> in: `climb_inner_plans`
           or roll-outs of the pretrained agent, from the best of each mesh
                                                                 -> in: `roll_out_inner_plans`
choice     by `automap.pipeline.hybrid.average`                  -> in: `find_inner_plans`

Inner plans and replicas together are the kinds of a table of stage options, for one number of
microbatches (`automap.pipeline.solvers.stage_options`). Kinds 0 .. P - 1 are replicated stages, as
in a pure pipeline; the others are inner plans, which may begin where their devices are a part of
the machine. What crosses a cut is counted as if all of it were split as the layout says
                                                                 -> in: `StageKinds.options`
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Terms, pipeline_arrays
from automap.pipeline.fabric import Fabric
from automap.pipeline.hybrid.average import (
    Candidate,
    Setting,
    StageEvaluator,
    candidate,
    choose_best,
)
from automap.pipeline.hybrid.pricing import Costs, InnerPlan, Pricer
from automap.pipeline.profile.points import Points
from automap.pipeline.profile.traffic import segment_bytes, segment_maximum
from automap.pipeline.schedules import ZERO_BUBBLE, Schedule, pass_order
from automap.pipeline.solvers.stage_options import StageOptions, replicated_options
from automap.pipeline.transfers import Layout, transfer_table
from automap.search.agent.options import Seen
from automap.search.agent.play import Player, mesh_starts, roll_out, shipped_player
from automap.search.context import Objective, OutOfBudget, SearchContext
from automap.search.greedy import climb
from automap.space.point import Point, SplitClasses, StorageLevel
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import mesh_shapes
from automap.topology.mesh import Mesh
from automap.topology.parts import may_begin, sub_topology


InnerSearch = Callable[[Pricer, Sequence[Candidate], Setting, Deadline, int], Iterator[InnerPlan]]
"""Inner plans that a search comes to from candidates by a deadline, with a seed."""

# An axis for the batch and one for features: a third one is what several stages are for.
_AXIS_NAMES: Final = {1: ("data",), 2: ("data", "model")}
# Of the climb: each tries all moves from the point that it has come to.
_MOST_ROUNDS: Final = 4


def preset_inner_plans(pricer: Pricer, devices: int) -> Iterator[InnerPlan]:
    """Presets on all meshes of that many devices, with every level of storage."""
    space, part = pricer.space, sub_topology(pricer.topology, devices)
    seen: set[SplitClasses] = set()
    for shape in mesh_shapes(part, max_axes=len(_AXIS_NAMES)) if part else ():
        mesh = Mesh(_AXIS_NAMES[len(shape)], shape)
        for name, preset in PRESETS.items():
            for point in preset.points(space, mesh):
                # What leaves an axis idle is what fewer devices do.
                if not space.is_valid(point) or not all(point.compute):
                    continue
                for level in StorageLevel:
                    stored = _stored(space, point, level)
                    split_classes = space.split_classes(stored)
                    if split_classes not in seen:
                        seen.add(split_classes)
                        yield InnerPlan(devices, stored, split_classes, name)


def _stored(space: Space, point: Point, level: StorageLevel) -> Point:
    """The point with all leaves at one level, or its own where that is higher."""
    levels = tuple(tuple(max(own, level) for own in axis) for axis in point.storage)
    return replace(point, storage=levels)


def find_inner_plans(
    pricer: Pricer,
    settings: Sequence[Setting],
    devices: Sequence[int],
    deadline: Deadline,
    seed: int,
    on_progress: Callable[[str], None],
    search: InnerSearch,
) -> list[InnerPlan]:
    """The inner plans to choose from for any of the settings.

    Each number of devices and each setting has an equal share of the time that is left; at the end
    of its own it has the presets that are priced by then, the first in any case, and at the
    deadline the rest is left out.
    """
    chosen: dict[SplitClasses, InnerPlan] = {}
    rest = len(settings) * len(devices)
    for count in devices:
        on_progress(f"plans inside stages of {count} devices")
        presets = list(preset_inner_plans(pricer, count))
        for setting in settings:
            if chosen and deadline.is_over:
                return list(chosen.values())
            until = deadline.share(1 / rest)
            rest -= 1
            candidates = list(_priced(pricer, presets, setting, until))
            # None of the presets can run where its parts do not divide the batch.
            if not candidates:
                continue
            for inner in search(pricer, candidates, setting, until, seed):
                more = candidate(pricer, inner, setting)
                candidates += [more] if more is not None else []
            for inner in choose_best(candidates, setting):
                chosen.setdefault(inner.split_classes, inner)
    return list(chosen.values())


def _priced(
    pricer: Pricer, inners: Sequence[InnerPlan], setting: Setting, until: Deadline
) -> Iterator[Candidate]:
    """The candidates of inner plans, at least one if any can run."""
    is_any = False
    for inner in inners:
        if is_any and until.is_over:
            return
        priced = candidate(pricer, inner, setting)
        if priced is not None:
            is_any = True
            yield priced


def presets_by_rank(
    pricer: Pricer, settings: Sequence[Setting], deadline: Deadline
) -> list[tuple[Setting, list[InnerPlan]]]:
    """The presets to choose from for equal stages, first the setting whose best average stage fits
    and is fast, or lacks the least memory. At the deadline what is not priced yet is left out.
    """
    rated = []
    for setting in settings:
        if rated and deadline.is_over:
            break
        presets = preset_inner_plans(pricer, pricer.topology.device_count // setting.stages)
        candidates = list(_priced(pricer, list(presets), setting, deadline))
        if candidates:
            rank = min(c.rank(setting) for c in candidates)
            rated.append((rank, setting, choose_best(candidates, setting)))
    return [(setting, inners) for _, setting, inners in sorted(rated, key=lambda each: each[0])]


def climb_inner_plans(
    pricer: Pricer, candidates: Sequence[Candidate], setting: Setting, until: Deadline, seed: int
) -> Iterator[InnerPlan]:
    """What a climb reaches from the best of `candidates`, on its mesh: one inner plan, or none."""
    best = min(candidates, key=lambda c: c.rank(setting))
    start, setting = best.inner, best.adapt(setting)
    meshes = (start.point.mesh,)
    context = stage_search(pricer, start.devices, meshes, setting, seed, until)
    try:
        first = context.evaluate(start.point, start.origin)
        if first is not None:
            climb(context, first, _MOST_ROUNDS)
    except OutOfBudget:
        pass
    if context.best is not None and context.best.point != start.point:
        point = context.best.point
        yield InnerPlan(start.devices, point, pricer.space.split_classes(point), "search")


def roll_out_inner_plans(
    pricer: Pricer,
    candidates: Sequence[Candidate],
    setting: Setting,
    until: Deadline,
    seed: int,
    player: Player | None = None,
) -> Iterator[InnerPlan]:
    """Where roll-outs of the pretrained agent, or of another player, lead: an inner plan for each
    mesh of `candidates`.
    """
    player = player or shipped_player()
    most = max(candidates, key=lambda c: c.microbatches)
    devices, meshes = most.inner.devices, dict.fromkeys(c.inner.point.mesh for c in candidates)
    context = stage_search(pricer, devices, tuple(meshes), most.adapt(setting), seed, until)
    try:
        for each in candidates:
            context.evaluate(each.inner.point, each.inner.origin)
        seen = Seen(context)
        for start in player.ranked(context, seen, mesh_starts(context)):
            point = roll_out(context, seen, player, start).point
            yield InnerPlan(devices, point, pricer.space.split_classes(point), "agent")
    except OutOfBudget:
        return


INNER_SEARCHES: Final[Mapping[str, InnerSearch]] = {
    "auto": climb_inner_plans,
    "agent": roll_out_inner_plans,
}
"""By the strategy of the hybrid space."""


def stage_search(
    pricer: Pricer,
    devices: int,
    meshes: Sequence[Mesh],
    setting: Setting,
    seed: int,
    until: Deadline,
) -> SearchContext:
    """A search of the inner plan of an average stage that has priced nothing yet."""
    evaluator = pricer.evaluator(devices)
    return SearchContext(
        space=pricer.space,
        evaluator=StageEvaluator(
            evaluator.tables,
            evaluator.n_classes,
            evaluator.topology,
            evaluator.kernel_profile,
            pricer=pricer,
            setting=setting,
        ),
        meshes=meshes,
        objective=Objective(setting.memory_limit_bytes),
        pins=(),
        seed=seed,
        deadline=until,
        on_progress=lambda _: None,
    )


@dataclass(frozen=True)
class StageKinds:
    """What stages may be: replicas, and `inners` on the machine of `fabric`."""

    pricer: Pricer
    points: Points
    fabric: Fabric
    inners: tuple[InnerPlan, ...]

    @cached_property
    def layouts(self) -> tuple[Layout, ...]:
        """Those of 1 .. U replicas, and then of the inner plans."""
        unit = self.fabric.unit_devices
        replicas = [Layout(tuple(range(r * unit))) for r in range(1, self.fabric.n_units + 1)]
        layouts = dict.fromkeys(replicas)
        layouts.update(dict.fromkeys(map(self._layout, self.inners)))
        return tuple(layouts)

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

    def options(self, microbatches: int, memory_limit_bytes: float) -> "KindOptions":
        """The options of M microbatches, weights apart until it is `scheduled`."""
        # Only the order of passes depends on the schedule, so the tables are made once for all.
        terms = Terms(
            microbatches=microbatches,
            schedule=ZERO_BUBBLE,
            memory_limit_bytes=memory_limit_bytes,
        )
        plain = replicated_options(pipeline_arrays(self.points, self.fabric, terms))
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
        # Layout r - 1 is that of r replicas.
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
            weights=_stacked(plain.weights, [row.weights for row in rows]),
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
            saved=_stacked(plain.saved, [row.saved for row in rows]),
            kept=_stacked(plain.kept, [row.kept for row in rows]),
            working=_stacked(plain.working, [row.working for row in rows]),
            entering=_stacked(plain.entering, [row.entering for row in rows]),
            # Table 0 is of all numbers of replicas, which share its bytes evenly; the table of an
            # inner plan has the bytes of one device already.
            table=np.concatenate([plain.table, 1 + np.arange(len(runs))]),
            share=np.concatenate([plain.share, np.ones(len(runs))]),
        )
        replicated = tuple(None for _ in plain.units)
        return KindOptions(options, (*replicated, *(self.inners[place] for place in runs)))

    # Seconds and bytes of the whole batch become those of one microbatch here.
    def _row(self, inner: InnerPlan, costs: Costs, microbatches: int) -> "_Row":
        points, n = self.points, self.points.n_points
        entering = points.at_cuts(costs.held.cut_bytes) / microbatches
        working = costs.held.working_bytes / microbatches + costs.gathered_bytes
        total = points.profile.gradients.total_bytes
        return _Row(
            forward=points.sums(costs.forward),
            backward=points.sums(costs.backward - costs.weights),
            weights=points.sums(costs.weights),
            reduce=points.sums(costs.reduce),
            update_seconds_per_byte=costs.update_seconds / total if total else 0.0,
            crossing=entering * self._layout(inner).n_parts,
            entering=entering,
            state=segment_bytes(points.moved(costs.held.state), n),
            saved=segment_bytes(points.moved(costs.held.saved), n) / microbatches,
            kept=segment_bytes(points.moved(costs.held.kept), n) / microbatches,
            working=segment_maximum(np.maximum.reduceat(working, points.first[:-1])),
        )


@dataclass(frozen=True)
class KindOptions:
    """Options of stages, and the inner plan of each of their kinds; None for a replicated stage."""

    options: StageOptions
    inners: tuple[InnerPlan | None, ...]

    def scheduled(self, schedule: Schedule) -> "KindOptions":
        """The same under a schedule, whose backward passes may have the weights'."""
        options, order = self.options, pass_order(schedule)
        if not order.weights_apart:
            options = options._replace(
                backward=options.backward + options.weights,
                weights=np.zeros_like(options.weights),
            )
        return replace(self, options=options._replace(order=order))


@dataclass(frozen=True)
class _Row:
    """One inner plan's rows of the tables of `StageOptions`."""

    forward: np.ndarray
    backward: np.ndarray
    weights: np.ndarray
    reduce: np.ndarray
    update_seconds_per_byte: float
    crossing: np.ndarray
    entering: np.ndarray
    state: np.ndarray
    saved: np.ndarray
    kept: np.ndarray
    working: np.ndarray


def _stacked(plain: np.ndarray, rows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([plain, *[row[None] for row in rows]])


def _interfaces(layout: np.ndarray, crossing: np.ndarray) -> np.ndarray:
    """One number for each pair of a layout and what crosses."""
    return np.unique(np.column_stack([layout, crossing]), axis=0, return_inverse=True)[1].reshape(
        -1
    )
