"""The search for a pipeline with sharded stages: S, M, schedule, cuts, devices and inner plans
together.

Inner plans are chosen first, for average stages (`automap.pipeline.hybrid.inner_plans`); then the
exact solver takes them as kinds of stages, beside replicas, for every choice of (S, M, schedule).
Interleaved pipelines have stages of one kind on equal groups of devices, and the search of those of
replicas (`automap.pipeline.interleaved`), which is given an inner plan's seconds and bytes as if
they were replicas'                                                      -> in: `_Search.interleave`

As for pure pipelines, V is never above the simulated step, so the best simulated step so far, also
of plans of other spaces, bounds what is still looked for. A first bound comes from stages of equal
devices. Where nothing fits yet, equal stages of presets come before all else, as they need no
search of inner plans                                                         -> in: `_Search.fit`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.arrays import Terms, pipeline_arrays
from automap.pipeline.fabric import Fabric
from automap.pipeline.hybrid.average import Setting
from automap.pipeline.hybrid.inner_plans import (
    InnerSearch,
    KindOptions,
    StageKinds,
    climb_inner_plans,
    find_inner_plans,
    presets_by_rank,
)
from automap.pipeline.hybrid.pricing import InnerPlan, Pricer
from automap.pipeline.interleaved import (
    Grouped,
    best_cuts,
    group_bytes,
    group_choices,
    in_rounds,
    least_step,
)
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import (
    ONE_FORWARD_ONE_BACKWARD,
    Interleaved,
    in_flight,
    late_weights,
    pass_order,
)
from automap.pipeline.search import (
    AUTO_STAGES,
    Limits,
    choices,
    microbatch_counts,
)
from automap.pipeline.solvers.exact import Partition, solve
from automap.pipeline.solvers.stage_options import (
    StageOptions,
    device_bytes,
    least_bytes,
    reduce_seconds,
    transfer_seconds,
)
from automap.pipeline.task_graph import StageSeconds, pipeline_seconds
from automap.search.context import OutOfBudget
from automap.search.progress import ChoiceProgress
from automap.topology.parts import sub_topology


_SEARCH_SHARE: Final = 0.2
"""Of the budget, for the search of inner plans."""
_INTERLEAVED_SHARE: Final = 0.2
"""Of the budget, for interleaved pipelines."""
_PER_STAGE: Final = (4, 16)
"""Microbatches for each stage for which inner plans are chosen: few, and where memory is short
many.
"""


@dataclass(frozen=True)
class HybridChoice:
    """A partition into stages of these kinds, with its simulated step."""

    terms: Terms
    kind_options: KindOptions
    partition: Partition
    step_seconds: float
    grouped: Grouped | None = None

    @property
    def groups(self) -> int:
        """How many groups of devices there are."""
        return len(self.partition.device_cuts) - 1

    @property
    def stages(self) -> Sequence[StageSeconds]:
        """Seconds of each stage."""
        if self.grouped is not None:
            return self.grouped.stages(self.partition.cuts, self.groups)
        return hybrid_stage_seconds(self.kind_options.options, self.partition)

    def group_memory(self, stage: int) -> Mapping[str, float] | None:
        """Bytes on each device of an interleaved stage by the kinds of `MemoryRecord`, with those
        of all stages there; None for another one.
        """
        schedule = self.terms.schedule
        if self.grouped is None or not isinstance(schedule, Interleaved):
            return None
        group = stage % self.groups
        return group_bytes(self.grouped.arrays, schedule, self.partition.cuts, group, self.groups)

    def inner(self, stage: int) -> InnerPlan | None:
        """How a stage is sharded; None for replicas."""
        return self.kind_options.inners[self.partition.kinds[stage]]

    def stage_bytes(self, stage: int) -> float:
        """Bytes on each device of a stage; of interleaved ones those of all that are there."""
        memory, partition = self.group_memory(stage), self.partition
        if memory is not None:
            return sum(memory.values())
        i, j = (int(x) for x in partition.cuts[stage : stage + 2])
        options, kind = self.kind_options.options, partition.kinds[stage]
        flight = in_flight(options.order, options.microbatches, partition.stages - stage)
        late = late_weights(options.order, options.microbatches, partition.stages - stage, stage)
        return float(_python(device_bytes)(options, kind, i, j, flight, late))


@dataclass(frozen=True)
class HybridSearchResult:
    """The best choice, None if nothing is better than the bound; `least_bytes` of all that was
    tried.
    """

    best: HybridChoice | None
    least_bytes: float
    tried: int
    warnings: tuple[str, ...]


def hybrid_stage_seconds(options: StageOptions, partition: Partition) -> list[StageSeconds]:
    """The seconds of a partition's stages."""
    stages = []
    cuts, device_cuts, kinds = partition.cuts, partition.device_cuts, partition.kinds
    for s, kind in enumerate(kinds):
        i, j, d, e = cuts[s], cuts[s + 1], device_cuts[s], device_cuts[s + 1]
        transfer = 0.0
        if s + 1 < len(kinds):
            transfer = _python(transfer_seconds)(options, kind, kinds[s + 1], j, e)
        stages.append(
            StageSeconds(
                forward=float(options.forward[kind, j] - options.forward[kind, i]),
                backward=float(options.backward[kind, j] - options.backward[kind, i]),
                transfer=float(transfer),
                reduce=float(_python(reduce_seconds)(options, kind, i, j, d)),
                weights=float(options.weights[kind, j] - options.weights[kind, i]),
            )
        )
    return stages


def _python(function: Callable[..., float]) -> Callable[..., float]:
    """A part of compiled functions as Python runs it: numba's cannot be called from outside."""
    dispatcher: Any = function
    return dispatcher.py_func


def find_hybrid(
    pricer: Pricer,
    points: Points,
    fabric: Fabric,
    limits: Limits,
    bound_seconds: float,
    on_progress: Callable[[ChoiceProgress], None],
    inner_search: InnerSearch = climb_inner_plans,
) -> HybridSearchResult:
    """The best pipeline faster than the bound; stops at the deadline or at Ctrl-C with the best one
    so far.

    At the deadline it goes on only if nothing fits yet, and the bound is infinite.
    """
    wanted = list(choices(points, fabric, limits))
    search = _Search(bound_seconds, len(wanted), on_progress)
    warnings: tuple[str, ...] = ()
    try:
        first = None if search.has_plan else search.fit(pricer, points, fabric, limits, wanted)
        if first is not None:
            # Numbers of stages with which something fits before those with which nothing may.
            wanted.sort(key=lambda choice: choice[0] != first.stages)
        kinds = stage_kinds(pricer, points, fabric, limits, on_progress, inner_search, first)
        # Equal devices first: that is fast, and bounds the rest.
        for boundaries in ("even", "any"):
            for stages, terms in wanted:
                if search.has_plan and limits.deadline.is_over:
                    raise OutOfBudget
                search.look(kinds, stages, terms, boundaries, limits.deadline)
            if boundaries == "even":
                search.interleave(kinds, points, fabric, limits)
    except OutOfBudget:
        warnings = (f"{limits.deadline.why_over}; this is the best pipeline it had",)
    return HybridSearchResult(search.best, float(search.least_bytes), search.tried, warnings)


class _Search:
    """A search in progress."""

    def __init__(
        self, bound_seconds: float, choices: int, on_progress: Callable[[ChoiceProgress], None]
    ) -> None:
        self.best: HybridChoice | None = None
        self.least_bytes, self.tried = np.inf, 0
        self._seconds, self._looks, self._on_progress = bound_seconds, 2 * choices, on_progress
        self._kind_options: dict[int, KindOptions] = {}

    @property
    def has_plan(self) -> bool:
        """Whether something fits, here or in another space."""
        return np.isfinite(self._seconds)

    def fit(
        self,
        pricer: Pricer,
        points: Points,
        fabric: Fabric,
        limits: Limits,
        wanted: Sequence[tuple[int, Terms]],
    ) -> Setting | None:
        """Look at equal stages of presets with many microbatches, until something fits; the setting
        that it was found for, None if nothing fits so.
        """
        settings = [
            _setting(stages, _PER_STAGE[-1], points, limits)
            for stages in dict.fromkeys(stages for stages, _ in wanted)
            if fabric.n_units % stages == 0
        ]
        for setting, inners in presets_by_rank(pricer, settings, limits.deadline):
            kinds = StageKinds(pricer, points, fabric, tuple(inners))
            for stages, terms in wanted:
                if (stages, terms.microbatches) == (setting.stages, setting.microbatches):
                    self._looks += 1
                    self.look(kinds, stages, terms, "even", limits.deadline)
            # They are of these kinds alone.
            self._kind_options.clear()
            if self.has_plan:
                return setting
        return None

    def look(
        self,
        kinds: StageKinds,
        stages: int,
        terms: Terms,
        boundaries: Literal["even", "any"],
        deadline: Deadline,
    ) -> None:
        """Solve one choice of S, M and schedule; with `even` boundaries all stages have as many
        devices.
        """
        # Tables depend on M alone: all numbers of stages and all schedules share them.
        m = terms.microbatches
        if m not in self._kind_options:
            self._kind_options[m] = kinds.options(m, terms.memory_limit_bytes)
        kind_options = self._kind_options[m].scheduled(terms.schedule)
        options = kind_options.options
        if boundaries == "even":
            # Before boundaries are taken away: it is said of all pipelines if none fits.
            self.least_bytes = min(self.least_bytes, least_bytes(options, stages))
            options = options._replace(
                may_cut_devices=options.may_cut_devices & _even(options.n_units, stages)
            )
        best = None
        if least_bytes(options, stages) <= options.memory_limit_bytes:
            best = solve(options, stages, self._seconds, deadline=deadline).best
        if best is not None:
            seconds = pipeline_seconds(hybrid_stage_seconds(options, best), m, terms.schedule)
            if seconds < self._seconds:
                self.best, self._seconds = HybridChoice(terms, kind_options, best, seconds), seconds
        self.tried += 1
        what = f"hybrid pipelines of {stages} stages"
        self._on_progress(ChoiceProgress(what, self.tried, self._looks, self._seconds))

    def interleave(self, kinds: StageKinds, points: Points, fabric: Fabric, limits: Limits) -> None:
        """Interleaved pipelines whose stages are all of one kind, where one may be faster."""
        own = replace(limits, deadline=limits.deadline.share(_INTERLEAVED_SHARE))
        for schedule, groups in _group_choices(points, fabric, limits):
            for m in in_rounds(microbatch_counts(points, limits), schedule, groups):
                self._interleave(kinds, groups, schedule, m, points, fabric, own)

    def _interleave(
        self,
        kinds: StageKinds,
        groups: int,
        schedule: Interleaved,
        microbatches: int,
        points: Points,
        fabric: Fabric,
        limits: Limits,
    ) -> None:
        plain = Terms(
            microbatches=microbatches,
            schedule=ONE_FORWARD_ONE_BACKWARD,
            memory_limit_bytes=limits.memory_limit_bytes,
        )
        if microbatches not in self._kind_options:
            known = kinds.options(microbatches, limits.memory_limit_bytes)
            self._kind_options[microbatches] = known
        kind_options = self._kind_options[microbatches].scheduled(plain.schedule)
        options, arrays = kind_options.options, pipeline_arrays(points, fabric, plain)
        for kind, inner in enumerate(kind_options.inners):
            if self.has_plan and limits.deadline.is_over:
                return
            # Stages of replicas have a search of their own.
            if inner is None or options.units[kind] * groups != options.n_units:
                continue
            grouped = Grouped.from_kind(options, kind, arrays, fabric)
            if least_step(grouped.arrays, groups) >= self._seconds:
                continue
            best = best_cuts(grouped.arrays, grouped.fabric, schedule, groups, limits.deadline)
            if best is not None and best.seconds < self._seconds:
                stages = groups * schedule.stages_per_group
                partition = replace(best, kinds=(kind,) * stages)
                terms = replace(plain, schedule=schedule)
                seconds = pipeline_seconds(
                    grouped.stages(best.cuts, groups), microbatches, schedule
                )
                self.best = HybridChoice(terms, kind_options, partition, seconds, grouped)
                self._seconds = seconds


def _group_choices(points: Points, fabric: Fabric, limits: Limits) -> list[tuple[Interleaved, int]]:
    return group_choices(points, fabric, limits.schedules, limits.stages, AUTO_STAGES)


def _even(units: int, stages: int) -> np.ndarray:
    """The boundaries of stages of equal devices, as far as there are such, bool [U + 1]."""
    allowed = np.zeros(units + 1, bool)
    allowed[[units * s // stages for s in range(stages + 1)]] = True
    return allowed


def stage_kinds(
    pricer: Pricer,
    points: Points,
    fabric: Fabric,
    limits: Limits,
    on_progress: Callable[[ChoiceProgress], None],
    inner_search: InnerSearch,
    first: Setting | None = None,
) -> StageKinds:
    """The inner plans for the pipelines that are looked for; something is known to fit with
    `first`.
    """
    groups = {groups for _, groups in _group_choices(points, fabric, limits)}
    counts = sorted({stages for stages, _ in choices(points, fabric, limits)} | groups)
    most = pricer.topology.device_count - fabric.unit_devices * (min(counts, default=1) - 1)
    devices = [
        count
        for count in range(2, most + 1)
        if sub_topology(pricer.topology, count) is not None and count % fabric.unit_devices == 0
    ]
    # The number with which something fits, or the least and the middle one: each setting takes a
    # search of its own.
    some = {counts[0], counts[len(counts) // 2]} if counts else set[int]()
    some = {first.stages} if first else some
    settings = dict.fromkeys(
        _setting(stages, per_stage, points, limits)
        for stages in sorted(some)
        for per_stage in _PER_STAGE
    )
    inners = find_inner_plans(
        pricer,
        list(settings),
        devices,
        limits.deadline.share(_SEARCH_SHARE),
        limits.seed,
        lambda text: on_progress(ChoiceProgress(text, 0, 0, np.inf)),
        inner_search,
    )
    return StageKinds(pricer, points, fabric, tuple(inners))


def _setting(stages: int, per_stage: int, points: Points, limits: Limits) -> Setting:
    """S stages with about so many microbatches for each."""
    batch = points.profile.batch_size
    counts = [m for m in range(1, min(per_stage * stages, batch) + 1) if batch % m == 0]
    microbatches = limits.microbatches or counts[-1]
    return Setting(
        stages=stages,
        microbatches=microbatches,
        in_flight=min(
            (
                in_flight(pass_order(schedule), microbatches, stages)
                for schedule in limits.schedules
                if not isinstance(schedule, Interleaved)
            ),
            default=microbatches,
        ),
        memory_limit_bytes=limits.memory_limit_bytes,
    )
