"""Which inner plans a stage may have: presets and what a search finds, for each number of devices.

devices    all numbers that are a part of the machine (`automap.topology.parts`), from two on
presets    on every mesh of such a part, the compute decisions of every preset with every level of storage, so also
           tensor parallelism with ZeRO                                          -> in: `preset_inners`
searched   climbs through the sharding space from the best of them, for a stage of average size
                                                                                 -> in: `searched`
kept       those that no other one beats in seconds, bytes, and what it sends, of these at most `MOST_KEPT` of each number
           of devices: the fastest, the smallest, and between them the best trades  -> in: `best_of`
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.hybrid.average import Setting, StageEvaluator, Totals, totals
from automap.pipeline.hybrid.pricing import Costs, InnerPlan, Pricer
from automap.search.context import Objective, OutOfBudget, SearchContext
from automap.search.greedy import climb
from automap.space.point import Level, Point, SplitClasses
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import mesh_shapes
from automap.topology.mesh import Mesh
from automap.topology.parts import sub_topology


MOST_KEPT: Final = 8
# An axis for the batch and one for features: a third one is what several stages are for.
_AXIS_NAMES: Final = {1: ("data",), 2: ("data", "model")}
# Bytes that a second is worth, in shares of the greatest: from seconds alone to bytes alone.
_TRADES: Final = (0.0, 0.02, 0.1, 0.3, 1.0, 3.0, 10.0, 1e6)
_MOST_ROUNDS: Final = 4
# Inner plans that differ by no more are one.
_ALIKE: Final = 1e-3


def preset_inners(pricer: Pricer, devices: int) -> Iterator[InnerPlan]:
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
                for level in Level:
                    stored = _stored(space, point, level)
                    split_classes = space.split_classes(stored)
                    if split_classes not in seen:
                        seen.add(split_classes)
                        yield InnerPlan(devices, stored, split_classes, name)


def _stored(space: Space, point: Point, level: Level) -> Point:
    """The point with all leaves at one level, or its own where that is higher."""
    levels = tuple(tuple(max(own, level) for own in of_axis) for of_axis in point.storage)
    return replace(point, storage=levels)


@dataclass(frozen=True)
class Candidate:
    """An inner plan with its costs for as many of the wanted microbatches as it can run."""

    inner: InnerPlan
    costs: Costs
    microbatches: int
    batch_parts: int
    layout_parts: int

    def column(self, setting: Setting) -> tuple[float, ...]:
        """Numbers of which less is better."""
        found = self.totals(setting)
        return (
            found.seconds,
            found.reduce_seconds,
            found.state_bytes,
            found.kept_bytes,
            found.working_bytes,
            self.batch_parts,
            -self.layout_parts,
            -self.microbatches,
        )

    def of(self, setting: Setting) -> Setting:
        """The setting with the microbatches that it can run."""
        in_flight = min(setting.in_flight, self.microbatches)
        return replace(setting, microbatches=self.microbatches, in_flight=in_flight)

    def totals(self, setting: Setting) -> Totals:
        """Its average stage."""
        return totals(self.costs, self.of(setting))

    def step_seconds(self, setting: Setting) -> float:
        """A step of average stages."""
        return self.totals(setting).step_seconds(self.of(setting))

    def peak_bytes(self, setting: Setting) -> float:
        """Bytes of a device of an average stage."""
        return self.totals(setting).peak_bytes(self.of(setting))


def candidate(pricer: Pricer, inner: InnerPlan, setting: Setting) -> Candidate | None:
    """An inner plan with its costs; None if it cannot run at all."""
    m = setting.microbatches
    allowed = [n for n in range(m, 0, -1) if m % n == 0 and pricer.may_run(inner.split_classes, n)]
    if not allowed:
        return None
    return Candidate(
        inner,
        pricer.costs(inner, allowed[0]),
        allowed[0],
        pricer.batch_parts(inner.split_classes),
        pricer.layout(inner.split_classes).n_parts,
    )


def best_of(found: Sequence[Candidate], setting: Setting) -> list[InnerPlan]:
    """Those that are kept of one number of devices."""
    columns = np.array([c.column(setting) for c in found])
    alive: list[int] = []
    for row in np.lexsort(columns.T[::-1]).tolist():
        limit = columns[row] + _ALIKE * abs(columns[row])
        if not any((columns[other] <= limit).all() for other in alive):
            alive.append(row)
    if len(alive) > MOST_KEPT:
        seconds = np.array([found[r].step_seconds(setting) for r in alive])
        n_bytes = np.array([found[r].peak_bytes(setting) for r in alive])
        chosen: dict[int, None] = {}
        for trade in _TRADES:
            cost = seconds / seconds.min() + trade * n_bytes / n_bytes.max()
            chosen.setdefault(next(r for r in np.argsort(cost).tolist() if r not in chosen))
        alive = [alive[place] for place in chosen]
    return [found[row].inner for row in alive]


def inners_of(
    pricer: Pricer,
    settings: Sequence[Setting],
    devices: Sequence[int],
    deadline: Deadline,
    seed: int,
    on_progress: Callable[[str], None],
) -> list[InnerPlan]:
    """The inner plans to choose from for any of the settings.

    Each number of devices and each setting has an equal share of the time that is left; at the end
    of its own it has the presets that are priced by then, the first in any case, and at the
    deadline the rest is left out.
    """
    kept: dict[SplitClasses, InnerPlan] = {}
    rest = len(settings) * len(devices)
    for count in devices:
        on_progress(f"plans inside stages of {count} devices")
        presets = list(preset_inners(pricer, count))
        for setting in settings:
            if kept and deadline.is_over:
                return list(kept.values())
            until = deadline.share(1 / rest)
            rest -= 1
            found = list(_priced(pricer, presets, setting, until))
            for inner in searched(pricer, found, setting, until, seed) if found else ():
                more = candidate(pricer, inner, setting)
                found += [more] if more is not None else []
            for inner in best_of(found, setting) if found else ():
                kept.setdefault(inner.split_classes, inner)
    return list(kept.values())


def _priced(
    pricer: Pricer, inners: Sequence[InnerPlan], setting: Setting, until: Deadline
) -> Iterator[Candidate]:
    """The candidates of inner plans, at least one if any can run."""
    is_any = False
    for inner in inners:
        if is_any and until.is_over:
            return
        found = candidate(pricer, inner, setting)
        if found is not None:
            is_any = True
            yield found


def searched(
    pricer: Pricer, found: Sequence[Candidate], setting: Setting, until: Deadline, seed: int
) -> Iterator[InnerPlan]:
    """What a climb reaches from the best of `found`, on its mesh."""
    objective = Objective(setting.memory_limit_bytes)

    def key(c: Candidate) -> tuple[bool, float]:
        peak_bytes = c.peak_bytes(setting)
        over = peak_bytes > objective.memory_limit_bytes
        return over, peak_bytes if over else c.step_seconds(setting)

    best = min(found, key=key)
    start, setting = best.inner, best.of(setting)
    evaluator = pricer.evaluator(start.devices)
    context = SearchContext(
        space=pricer.space,
        evaluator=StageEvaluator(
            evaluator.tables,
            evaluator.n_classes,
            evaluator.topology,
            evaluator.kernel_profile,
            pricer=pricer,
            setting=setting,
        ),
        meshes=(start.point.mesh,),
        objective=objective,
        pins=(),
        seed=seed,
        deadline=until,
        on_progress=lambda _: None,
    )
    try:
        first = context.evaluate(start.point, start.origin)
        if first is not None:
            climb(context, first, _MOST_ROUNDS)
    except OutOfBudget:
        pass
    if context.best is not None and context.best.point != start.point:
        point = context.best.point
        yield InnerPlan(start.devices, point, pricer.space.split_classes(point), "search")
