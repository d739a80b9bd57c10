"""What the spaces of plans come to, side by side: presets, the sharding search, the best pipeline,
the best hybrid.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError
from automap.interrupts import noted
from automap.plan.record import PlanRecord
from automap.planner.advice import advice
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.planner.spaces import plan_pipelines
from automap.program.trace import Workload
from automap.search.context import Candidate, Objective, SearchContext
from automap.topology.model import Topology


if TYPE_CHECKING:
    from automap.pipeline.search import PipelineProgress


_SHARE = 1 / 3
"""Of the budget, for one program where pipelines are compared too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan; `step_seconds` and `peak_bytes` are None where none fits and nothing is known of
    the smallest.
    """

    name: str
    step_seconds: float | None
    peak_bytes: float | None
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows; `advice` says what would make the step fit if no row does."""

    rows: tuple[Row, ...]
    advice: tuple[str, ...]


def compared(
    workload: Workload,
    topology: Topology,
    options: Options,
    *,
    on_progress: Callable[[SearchContext], None] = lambda context: None,
    on_stages: Callable[["PipelineProgress"], None] = lambda tried: None,
) -> Comparison:
    """One program in every case, and what the space of the options adds.

    Raises `InputError` or `TopologyError` for bad options.
    """
    with noted() as interrupts:
        deadline = Deadline.after(options.budget_seconds, interrupts=interrupts)
        sharding_deadline = deadline if options.space == "sharding" else deadline.share(_SHARE)
        outcome = _sharding(workload, topology, options, on_progress, sharding_deadline)
        rows = [*_rows(outcome), *_pipeline_rows(workload, topology, options, on_stages, deadline)]
    fits = any(row.fits for row in rows)
    levers = () if fits else advice(outcome.context, outcome.best.point, options)
    return Comparison(rows=tuple(rows), advice=levers)


def _pipeline_rows(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_stages: Callable[["PipelineProgress"], None],
    deadline: Deadline,
) -> Iterator[Row]:
    """What the space of the options adds to one program."""
    if options.space == "pipeline":
        # The pipeline's solvers are compiled when they are imported.
        from automap.planner.pipeline import plan_stages
        from automap.planner.stages import set_up

        setup = set_up(workload, topology, options, deadline)
        try:
            yield _row("pipeline", plan_stages(setup, options, on_stages))
        except InfeasiblePlanError:
            yield _row("pipeline", None)
    if options.space == "hybrid":
        search = plan_pipelines(workload, topology, options, on_stages, deadline)
        yield _row("pipeline", search.pipeline)
        yield _row("hybrid", search.hybrid)


def _sharding(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_progress: Callable[[SearchContext], None],
    deadline: Deadline,
) -> Outcome:
    """What the search for one program finds, with the presets."""
    if options.space != "sharding":
        options = replace(
            options, space="sharding", strategy="auto", stages=None, microbatches=None
        )
    return find(workload, topology, options, on_progress=on_progress, deadline=deadline)


def _rows(outcome: Outcome) -> Iterator[Row]:
    """Presets, and what the search found."""
    objective = outcome.context.objective
    for name, candidate in outcome.context.best_per_preset.items():
        yield _candidate(name, candidate, objective)
    yield _candidate(f"search ({outcome.strategy})", outcome.best, objective)


def _candidate(name: str, candidate: Candidate, objective: Objective) -> Row:
    estimate = candidate.estimate
    return Row(
        name=name,
        step_seconds=estimate.step_seconds,
        peak_bytes=estimate.peak_bytes,
        fits=objective.fits(estimate),
    )


def _row(name: str, plan: PlanRecord | None) -> Row:
    if plan is None:
        return Row(name=name, step_seconds=None, peak_bytes=None, fits=False)
    predicted = plan.predicted
    return Row(
        name=name,
        step_seconds=predicted.step_seconds,
        peak_bytes=predicted.peak_bytes,
        fits=predicted.fits,
    )
