"""The search for a pipeline: over the number of stages S, microbatches M and schedules, the best
partition of each.

V is never above the simulated step (`automap.pipeline.value`), so with B the least simulated step
so far

    a choice of (S, M, schedule) whose least V is above B need not be looked at further: B bounds
    the solver
    the least V over all choices that were solved, or B, is a lower bound of every pipeline's step

and the plan's gap is B over that bound, less one. A partition is simulated before it counts
                                                                    -> in: `simulated_seconds`

Strategies: `exact` and `auto` go over all choices three times: even splits, local search from them,
and the exact solver (`automap.pipeline.solvers.exact`), each time in the order of what is known by
then. The first takes milliseconds a choice, so that there is a plan soon, and a bound near the
optimum before anything is solved                                               -> in: `_Search`

Interleaved pipelines have a search of their own, which proves nothing
(`automap.pipeline.interleaved`): it comes before the exact solver, and in its place the least step
that there can be of each choice is part of the bound        -> in: `_Search.interleave`

Agents learnt of schedules whose backward pass is one, so they try those only
                                                                    -> in: `_schedules`
`agent` infers in milliseconds (`automap.pipeline.agent`, Auto-MAP section 3.5), `agent-gap` solves
after it to say what it lost; `rainbow` and `pivots` learn (`automap.pipeline.online`, sections 3.4
and 4.4), in our game and in the paper's; the others are baselines
(`automap.pipeline.solvers.local`). Only those of `PROVING` give a bound.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from automap.deadline import Deadline
from automap.pipeline.agent.network import shipped_weights
from automap.pipeline.agent.play import infer
from automap.pipeline.arrays import Arrays, Terms, pipeline_arrays
from automap.pipeline.fabric import Fabric
from automap.pipeline.interleaved import (
    best_cuts,
    group_choices,
    in_rounds,
    interleaved_stages,
    least_step,
)
from automap.pipeline.online.game import ideal_seconds
from automap.pipeline.online.pivots import pivot_filter
from automap.pipeline.profile.points import Points
from automap.pipeline.schedules import (
    ONE_FORWARD_ONE_BACKWARD,
    SEARCHED,
    Interleaved,
    Schedule,
    pass_order,
)
from automap.pipeline.solvers.exact import Partition, Solved, solve
from automap.pipeline.solvers.local import at_servers, even_split, local_search
from automap.pipeline.solvers.stage_options import least_bytes
from automap.pipeline.task_graph import StageSeconds, pipeline_seconds, stage_seconds
from automap.plan.pipeline import MOST_PASSES
from automap.search.context import OutOfBudget
from automap.search.progress import ChoiceProgress


if TYPE_CHECKING:
    from automap.pipeline.online.strategy import Mode

# Small numbers densely, then in wider steps: each is tried with all microbatches and schedules.
AUTO_STAGES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Numbers of stages that `auto` tries; of interleaved pipelines, numbers of groups of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a search keeps to: `stages` and `microbatches` None leave them open; `schedules` are
    those that it tries.
    """

    stages: int | None
    microbatches: int | None
    memory_limit_bytes: float
    deadline: Deadline
    seed: int
    schedules: Sequence[Schedule] = SEARCHED


@dataclass(frozen=True)
class Choice:
    """A partition with what it was found for, the seconds of its stages, and its simulated step.

    Of an interleaved one `arrays` are those of 1F1B, whose passes are the same.
    """

    terms: Terms
    arrays: Arrays
    partition: Partition
    stages: Sequence[StageSeconds]
    step_seconds: float

    @property
    def groups(self) -> int:
        """How many groups of devices there are."""
        return len(self.partition.device_cuts) - 1


@dataclass(frozen=True)
class PipelineSearchResult:
    """The best choice, None if nothing fits; `bound_seconds` is None unless every choice was
    solved.

    `least_bytes` is what the smallest of all partitions needs on a device.
    """

    best: Choice | None
    bound_seconds: float | None
    least_bytes: float
    tried: int
    warnings: tuple[str, ...]


def simulated_seconds(arrays: Arrays, partition: Partition, schedule: Schedule) -> float:
    """The step of a partition by the task graph simulator."""
    stages = stage_seconds(arrays, partition.cuts, partition.device_cuts)
    return pipeline_seconds(stages, arrays.microbatches, schedule)


def find_pipeline(
    points: Points,
    fabric: Fabric,
    limits: Limits,
    strategy: str = "auto",
    on_progress: Callable[[ChoiceProgress], None] = lambda tried: None,
) -> PipelineSearchResult:
    """The best pipeline; stops at the deadline or at Ctrl-C with the best one so far."""
    limits = replace(limits, schedules=_schedules(limits, strategy))
    search = _Search(points, fabric, limits, on_progress)
    warnings: tuple[str, ...] = ()
    try:
        for each in _ROUNDS.get(strategy, (PIPELINE_STRATEGIES[strategy],)):
            if each is _exact:
                search.interleave()
            search.go_over(each)
        if strategy == "local-search":
            search.interleave()
    except OutOfBudget as end:
        warnings = (f"{end}; this is the best pipeline it had",)
    best, is_proven = search.best, strategy in PROVING and search.is_proven and not warnings
    # A choice that was left with nothing under its bound says only that none of it is below B.
    least = min(search.bound_seconds, search.least_interleaved_seconds)
    bound = min(least, best.step_seconds) if best and is_proven else None
    return PipelineSearchResult(best, bound, search.least_bytes, search.tried, warnings)


class _Search:
    """A search in progress: the best choice, and what the last round proved of all choices."""

    def __init__(
        self,
        points: Points,
        fabric: Fabric,
        limits: Limits,
        on_progress: Callable[[ChoiceProgress], None],
    ) -> None:
        self._points, self._fabric, self._limits = points, fabric, limits
        self._on_progress = on_progress
        self._known = dict.fromkeys(choices(points, fabric, limits), np.inf)
        # Memory does not depend on the strategy: what did not fit in one round is left out of the
        # next ones.
        self._never_fits = set[tuple[int, Terms]]()
        self.best: Choice | None = None
        self.bound_seconds, self.least_bytes = np.inf, np.inf
        self.least_interleaved_seconds = np.inf
        self.tried, self.is_proven = 0, True

    @property
    def seconds(self) -> float:
        """The best step so far."""
        return self.best.step_seconds if self.best else np.inf

    def go_over(self, strategy: "PipelineStrategy") -> None:
        """Give every choice to a strategy; raises `OutOfBudget` once there is a pipeline."""
        deadline = self._limits.deadline
        # The round proves anew: only the last round's bounds are of all choices.
        self.bound_seconds, self.is_proven = np.inf, True
        for stages, terms in sorted(self._known, key=lambda choice: self._known[choice]):
            what = f"pipelines of {stages} stages"
            self._on_progress(ChoiceProgress(what, self.tried, len(self._known), self.seconds))
            if self.best and deadline.is_over:
                raise OutOfBudget(deadline.why_over)
            if (stages, terms) not in self._never_fits:
                self._look(strategy, stages, terms)
                self.tried += 1

    def _look(self, strategy: "PipelineStrategy", stages: int, terms: Terms) -> None:
        limits = self._limits
        arrays = pipeline_arrays(self._points, self._fabric, terms)
        needed = least_bytes(arrays, stages)
        self.least_bytes = min(self.least_bytes, needed)
        if needed > limits.memory_limit_bytes:
            self._never_fits.add((stages, terms))
            return
        solved = strategy(arrays, stages, self.seconds, self._fabric, limits)
        self.is_proven &= solved.proven
        if solved.best is not None and np.isfinite(solved.best.seconds):
            self.bound_seconds = min(
                self.bound_seconds, solved.least_seconds or solved.best.seconds
            )
            stages_seconds = stage_seconds(arrays, solved.best.cuts, solved.best.device_cuts)
            seconds = pipeline_seconds(stages_seconds, terms.microbatches, terms.schedule)
            choice = Choice(terms, arrays, solved.best, stages_seconds, seconds)
            at = stages, terms
            self._known[at] = min(self._known[at], choice.step_seconds)
            if choice.step_seconds < self.seconds:
                self.best = choice

    def interleave(self) -> None:
        """Look for interleaved pipelines, where one may be faster than the best step so far."""
        limits, points = self._limits, self._points
        pairs = group_choices(points, self._fabric, limits.schedules, limits.stages, AUTO_STAGES)
        for schedule, groups in pairs:
            for m in in_rounds(microbatch_counts(points, limits), schedule, groups):
                if self.best and limits.deadline.is_over:
                    raise OutOfBudget(limits.deadline.why_over)
                what = f"interleaved pipelines on {groups} groups of devices"
                all_tried = max(len(self._known), self.tried)
                self._on_progress(ChoiceProgress(what, self.tried, all_tried, self.seconds))
                self._look_interleaved(groups, schedule, m)

    def _look_interleaved(self, groups: int, schedule: Interleaved, microbatches: int) -> None:
        limits = self._limits
        terms = Terms(
            microbatches=microbatches,
            schedule=ONE_FORWARD_ONE_BACKWARD,
            memory_limit_bytes=limits.memory_limit_bytes,
        )
        arrays = pipeline_arrays(self._points, self._fabric, terms)
        if not arrays.usable[arrays.n_units // groups]:
            return
        least = least_step(arrays, groups)
        self.least_interleaved_seconds = min(self.least_interleaved_seconds, least)
        self.tried += 1
        if least >= self.seconds:
            return
        cuts = best_cuts(arrays, self._fabric, schedule, groups, limits.deadline)
        if cuts is not None and cuts.seconds < self.seconds:
            stages = interleaved_stages(arrays, self._fabric, cuts.cuts, groups)
            terms = replace(terms, schedule=schedule)
            self.best = Choice(terms, arrays, cuts, stages, cuts.seconds)


def choices(points: Points, fabric: Fabric, limits: Limits) -> Iterator[tuple[int, Terms]]:
    """What a search tries of pipelines with one stage a group: S, and M with a schedule."""
    most = min(fabric.n_units, int(points.may_cut[1:-1].sum()) + 1)
    schedules = [s for s in limits.schedules if not isinstance(s, Interleaved)]
    stage_counts = (limits.stages,) if limits.stages else AUTO_STAGES
    counts = microbatch_counts(points, limits)
    for stages in stage_counts:
        # One microbatch keeps all stages but one idle.
        several = [
            m
            for m in counts
            if m * stages <= MOST_PASSES and (m > 1 or stages == 1 or limits.microbatches)
        ]
        # Few microbatches leave bubbles, many leave small ones: the middle bounds the rest soonest.
        for microbatches in sorted(several or counts, key=lambda m: abs(np.log2(m / (4 * stages)))):
            for schedule in schedules if stages <= most else ():
                # One stage waits for nothing that weight passes could fill.
                if stages == 1 and pass_order(schedule).weights_apart:
                    continue
                yield (
                    stages,
                    Terms(
                        microbatches=microbatches,
                        schedule=schedule,
                        memory_limit_bytes=limits.memory_limit_bytes,
                    ),
                )


def _schedules(limits: Limits, strategy: str) -> Sequence[Schedule]:
    """Those of the limits that a strategy knows."""
    if strategy not in _LEARNT:
        return limits.schedules
    plain = [s for s in limits.schedules if not isinstance(s, Interleaved)]
    return [s for s in plain if not pass_order(s).weights_apart]


def microbatch_counts(points: Points, limits: Limits) -> tuple[int, ...]:
    """What is asked for; else 1 and the powers of two that divide the batch."""
    if limits.microbatches:
        return (limits.microbatches,)
    batch = points.profile.batch_size
    return tuple(2**k for k in range(batch.bit_length()) if batch % 2**k == 0)


def _exact(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    return solve(arrays, stages, bound, deadline=limits.deadline)


def _local(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    return Solved(local_search(arrays, stages, limits.seed), proven=False, widest=0, work=0)


def _even(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    return Solved(even_split(arrays, stages), proven=False, widest=0, work=0)


def _servers(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    return at_servers(arrays, stages, fabric.boundary_level, limits.deadline)


def _rainbow(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    return _learnt(arrays, stages, bound, fabric, limits, "ours")


def _pivots(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    # Devices that follow the computation may leave no partition; then torch need not be loaded.
    if pivot_filter(arrays, stages, fabric.boundary_level) is None:
        return Solved(None, proven=False, widest=0, work=0)
    return _learnt(arrays, stages, bound, fabric, limits, "faithful")


def _learnt(
    arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits, mode: "Mode"
) -> Solved:
    # Its agent is of `rl`, which needs torch.
    from automap.pipeline.online.strategy import find

    # Learning takes seconds even where the best step so far cannot be beaten.
    if ideal_seconds(arrays) > bound:
        return Solved(None, proven=False, widest=0, work=0)
    result = find(
        arrays, stages, fabric.boundary_level, mode, seed=limits.seed, deadline=limits.deadline
    )
    # Second thoughts are not the paper's.
    best = result.improved if mode == "ours" else result.played
    return Solved(best, proven=False, widest=0, work=0)


def _agent(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    best = infer(arrays, stages, shipped_weights())
    return Solved(best, proven=False, widest=0, work=0)


def _agent_gap(arrays: Arrays, stages: int, bound: float, fabric: Fabric, limits: Limits) -> Solved:
    best = infer(arrays, stages, shipped_weights())
    least = min(bound, best.seconds if best else np.inf)
    solved = solve(arrays, stages, least, deadline=limits.deadline)
    # inf where the solver has nothing below the least of both: such a choice lowers no bound.
    least = solved.best.seconds if solved.best else np.inf
    return replace(solved, best=best or solved.best, least_seconds=least)


PipelineStrategy = Callable[[Arrays, int, float, Fabric, Limits], Solved]
PIPELINE_STRATEGIES: Final[Mapping[str, PipelineStrategy]] = {
    "auto": _exact,
    "exact": _exact,
    "rainbow": _rainbow,
    "pivots": _pivots,
    "local-search": _local,
    "even": _even,
    "servers": _servers,
    "agent": _agent,
    "agent-gap": _agent_gap,
}
"""By name: (arrays, stages, bound in seconds, fabric, limits) -> the best partition that it finds.
"""
_ROUNDS: Final[Mapping[str, tuple[PipelineStrategy, ...]]] = {
    "auto": (_even, _local, _exact),
    "exact": (_even, _local, _exact),
}
"""What goes over all choices, one after the other; of other names the strategy alone."""
_LEARNT: Final = frozenset({"agent", "agent-gap", "rainbow"})
"""Strategies of agents."""
PROVING: Final = frozenset({"auto", "exact", "agent-gap"})
"""Strategies that know how far what they found can be from the optimum."""
