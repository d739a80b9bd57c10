"""What the spaces of plans come to, side by side: presets, the sharding search, the best pipeline, the best hybrid."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError
from automap.interrupts import noted
from automap.options import Options
from automap.plan import Plan
from automap.planner import find
from automap.search.candidate import Candidate, Objective
from automap.search.context import SearchContext
from automap.topology.model import Topology
from automap.workload.trace import Workload


if TYPE_CHECKING:
    from automap.pipeline.search import Tried


_SHARE = 1 / 3
"""Of the budget, for one program where pipelines are compared too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan; `step_seconds` and `peak_bytes` are None where none fits and nothing is known of the smallest."""

    name: str
    step_seconds: float | None
    peak_bytes: float | None
    fits: bool


def compared(
    workload: Workload, topology: Topology, options: Options, *,
    on_progress: Callable[[SearchContext], None] = lambda context: None,
    on_stages: Callable[["Tried"], None] = lambda tried: None,
) -> list[Row]:  # fmt: skip
    """One program in every case, and what the space of the options adds.

    Raises `InputError` or `TopologyError` for bad options.
    """
    with noted() as interrupts:
        deadline = Deadline.after(options.budget_seconds, interrupts=interrupts)
        of_sharding = deadline if options.space == "sharding" else deadline.share(_SHARE)
        rows = list(_sharding(workload, topology, options, on_progress, of_sharding))
        if options.space == "pipeline":
            # The pipeline's solvers are compiled when they are imported.
            from automap.pipeline.planner import plan_pipeline

            try:
                rows.append(
                    _row(
                        "pipeline", plan_pipeline(workload, topology, options, on_stages, deadline)
                    )
                )
            except InfeasiblePlanError:
                rows.append(_row("pipeline", None))
        if options.space == "hybrid":
            from automap.pipeline.hybrid.planner import plan_pipelines

            found = plan_pipelines(workload, topology, options, on_stages, deadline)
            rows += [_row("pipeline", found.pipeline), _row("hybrid", found.hybrid)]
        return rows


def _sharding(
    workload: Workload, topology: Topology, options: Options,
    on_progress: Callable[[SearchContext], None], deadline: Deadline,
) -> Iterator[Row]:  # fmt: skip
    """Presets, and what the search finds."""
    if options.space != "sharding":
        options = replace(
            options, space="sharding", strategy="auto", stages=None, microbatches=None
        )
    outcome = find(workload, topology, options, on_progress=on_progress, deadline=deadline)
    objective = outcome.context.objective
    for name, candidate in outcome.context.best_per_preset.items():
        yield _candidate(name, candidate, objective)
    yield _candidate(f"search ({outcome.strategy})", outcome.best, objective)


def _candidate(name: str, candidate: Candidate, objective: Objective) -> Row:
    found = candidate.estimate
    return Row(
        name=name, step_seconds=found.step_seconds, peak_bytes=found.peak_bytes,
        fits=objective.fits(found),
    )  # fmt: skip


def _row(name: str, plan: Plan | None) -> Row:
    if plan is None:
        return Row(name=name, step_seconds=None, peak_bytes=None, fits=False)
    found = plan.predicted
    return Row(
        name=name, step_seconds=found.step_seconds, peak_bytes=found.peak_bytes, fits=found.fits
    )
