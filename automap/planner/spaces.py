"""Workload, topology and options -> the best plan of the space that is asked for.

sharding   one program for all devices                                -> `automap.planner.sharding`
streams    operators of one device at once, or merged              -> `automap.planner.streams`
placement  operators on devices                                      -> `automap.planner.placement`
pipeline   stages of replicas                                         -> `automap.planner.pipeline`
hybrid     the best of one program, stages of replicas, and stages that are sharded inside, which
           `automap.planner.hybrid` finds. The first two are planned first, so that what is returned
           is never slower than either; their steps bound the search for the third. One program is
           no choice where several stages or microbatches are asked for  -> in: `_plan_best`

What each of them comes to, side by side: presets, the sharding search, the best pipeline, the best
hybrid                                                                   -> in: `compare_spaces`
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from automap.config import Options
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError
from automap.interrupts import note_interrupts
from automap.plan.rates import LostRecord
from automap.plan.record import PlanRecord
from automap.planner.advice import advice, listed
from automap.planner.levers import plan_sharding
from automap.planner.rates import rates_record
from automap.planner.records import Outcome
from automap.planner.sharding import check_known, find
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.search.context import Candidate, SearchContext
from automap.topology import Graph, Topology, regular


if TYPE_CHECKING:
    from automap.search.progress import ChoiceProgress


_SHARE: Final = 1 / 3
"""Of the budget, for one program."""
_PIPELINE_SHARE: Final = 1 / 2
"""Of what is left then, for pipelines of replicas."""
# For one program where no pipeline fits, to say what would.
_ADVICE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Pipelines:
    """The best pipeline of replicas, and of stages that may be sharded; None where nothing fits.

    `hybrid` is the first one where no sharding makes it faster, or None where it was not to be
    faster than a bound. `refused` says why nothing was found.
    """

    pipeline: PlanRecord | None
    hybrid: PlanRecord | None
    refused: InfeasiblePlanError | None


def plan_workload(
    workload: Workload,
    machine: Topology | Graph,
    options: Options,
    *,
    on_progress: Callable[[SearchContext], None] = lambda context: None,
    on_stages: Callable[["ChoiceProgress"], None] = lambda progress: None,
    deadline: Deadline | None = None,
    folder: Path | None = None,
) -> PlanRecord:
    """The best plan found by the deadline, if None by the end of the options' budget, which begins
    now. A machine that is a graph is for operators on devices of their own; what is learnt of
    placements is kept in the folder, and goes on from there.

    `on_progress` is called with every better candidate of the sharding space, `on_stages` with
    every choice of stages, microbatches and schedule, and with what a search of placements does.

    Raises `InfeasiblePlanError` if nothing fits, `InputError` or `TopologyError` for bad options.
    """
    # The first Ctrl-C only ends the deadline: the search returns the best plan that it has. A
    # second one is raised.
    with note_interrupts() as interrupts:
        until = deadline or Deadline.after(options.budget_seconds, interrupts=interrupts)
        check_known(workload, options)
        if options.space == "placement":
            # Its simulation is compiled.
            from automap.planner.placement import plan_placement

            return plan_placement(workload, machine, options, until, on_stages, folder)
        topology = regular(machine)
        if options.space == "streams":
            # As for pipelines: its solvers are compiled.
            from automap.planner.streams import plan_streams

            return plan_streams(workload, topology, options, until)
        if options.space == "pipeline":
            return _plan_pipeline(workload, topology, options, on_stages, until)
        if options.space == "hybrid":
            return _plan_best(workload, topology, options, on_progress, on_stages, until)
        return plan_sharding(workload, topology, options, on_progress, until)


def _plan_pipeline(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_stages: Callable[["ChoiceProgress"], None],
    deadline: Deadline,
) -> PlanRecord:
    """The best pipeline by the deadline.

    Raises `InfeasiblePlanError` if none fits, `InputError` for a step that cannot be cut and for
    options that do not suit it.
    """
    # The pipeline's solvers are compiled when they are imported, which one program need not wait
    # for.
    from automap.planner.pipeline import plan_stages, set_up

    try:
        return plan_stages(set_up(workload, topology, options, deadline), options, on_stages)
    except InfeasiblePlanError as error:
        raise add_advice(error, workload, topology, options, deadline) from None


def _plan_best(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_progress: Callable[[SearchContext], None],
    on_stages: Callable[["ChoiceProgress"], None],
    deadline: Deadline,
) -> PlanRecord:
    """The best plan of all spaces by the deadline.

    Raises `InfeasiblePlanError` if none fits, `InputError` for a step that cannot be cut, one with
    shardings of its own, and options that do not suit it.
    """
    sharding = None
    # Who asks for several stages or microbatches asks for a pipeline: one program has neither.
    if options.stages in (None, 1) and options.microbatches in (None, 1):
        alone = replace(options, space="sharding", stages=None, microbatches=None)
        until = deadline.share(_SHARE)
        sharding = _plan_or_none(
            lambda: plan_sharding(workload, topology, alone, on_progress, until)
        )
    # Only where there is a plan to return: without one pipelines are looked at all the same.
    if sharding is not None and deadline.is_over:
        note = f"{deadline.why_over}, before pipelines were looked at"
        return replace(sharding, warnings=(*sharding.warnings, note))
    # What a hybrid has to beat. Infinite where one program does not fit: any pipeline is better
    # then.
    bound = sharding.predicted.step_seconds if sharding else math.inf
    search = plan_pipelines(workload, topology, options, on_stages, deadline, bound)
    plans = [plan for plan in (sharding, search.pipeline, search.hybrid) if plan is not None]
    if not plans:
        refused = search.refused or InfeasiblePlanError("no plan fits")
        raise add_advice(refused, workload, topology, options, deadline)
    best = min(plans, key=lambda plan: plan.predicted.step_seconds)
    if best.pipeline is not None and best.pipeline.is_sharded_inside:
        return best
    what = "one program for all devices" if best is sharding else "a pipeline of replicas"
    note = f"no pipeline with sharded stages was found that is faster than {what}"
    if deadline.interrupts.is_asked:
        note = f"{deadline.why_over}: {note}"
    return replace(best, warnings=(*best.warnings, note))


def plan_pipelines(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_stages: Callable[["ChoiceProgress"], None],
    deadline: Deadline,
    bound_seconds: float = math.inf,
) -> Pipelines:
    """The best pipelines, the second only if it is faster than the bound.

    Raises `InputError` for a step that cannot be cut, one with shardings of its own, and options
    that do not suit it.
    """
    # The pipeline's solvers are compiled when they are imported.
    from automap.planner.hybrid import plan_hybrid
    from automap.planner.pipeline import plan_stages, set_up

    if workload.mesh is not None:
        raise InputError(
            f"the step's own shardings (first: {workload.mesh.where}) are on one mesh, the stages "
            "of --space hybrid "
            "have one each; plan with --space sharding, or take them out"
        )
    setup = set_up(workload, topology, options, deadline.share(_PIPELINE_SHARE))
    pipeline = _plan_or_none(lambda: plan_stages(setup, options, on_stages))
    pipeline_seconds = pipeline.predicted.step_seconds if pipeline else math.inf
    # The set-up has the deadline of the first search; the second one has all of the time that is
    # left.
    late = replace(setup, limits=replace(setup.limits, deadline=deadline))
    hybrid, refused = plan_hybrid(late, options, min(pipeline_seconds, bound_seconds), on_stages)
    # No sharding inside of stages makes it faster, so the pipeline of replicas is the best hybrid
    # too.
    if hybrid is None and pipeline_seconds <= bound_seconds:
        hybrid = pipeline
    return Pipelines(pipeline, hybrid, refused)


def _plan_or_none(plan: Callable[[], PlanRecord]) -> PlanRecord | None:
    try:
        return plan()
    except InfeasiblePlanError:
        return None


def add_advice(
    error: InfeasiblePlanError,
    workload: Workload,
    topology: Topology,
    options: Options,
    deadline: Deadline,
) -> InfeasiblePlanError:
    """An error of another space, with what one program for all devices comes to, or what would make
    it fit.

    That takes at most `_ADVICE_SECONDS` more than the budget, and is left out after Ctrl-C.
    """
    if deadline.interrupts.is_asked:
        return error
    until = Deadline.after(_ADVICE_SECONDS, interrupts=deadline.interrupts)
    # Greedy, as there are seconds only: what it comes to is read for advice and never returned.
    alone = replace(options, space="sharding", strategy="greedy", stages=None, microbatches=None)
    try:
        outcome = find(workload, topology, alone, deadline=until)
    except InputError:
        return error
    context, peak_bytes = outcome.context, round(outcome.best.estimate.peak_bytes)
    needed = f"one program for all devices needs {bytes_text(peak_bytes)} on each"
    if context.objective.fits(outcome.best.estimate):
        texts = (f"{needed}: plan with --space sharding",)
    else:
        texts = (needed, *advice(context, outcome.workload, outcome.best.point, options))
    return InfeasiblePlanError(listed(str(error), texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan; numbers are None where none fits and nothing is known of the smallest.

    `mfu` and the rates are those of `automap.plan.rates`; `tokens_per_second` is 0 without tokens.
    """

    name: str
    step_seconds: float | None
    mfu: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    peak_bytes: float | None
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All rows; `notes` are what the search has to say of them, such as presets that time did not
    suffice for; `advice` says what would make the step fit if no row does.
    """

    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    advice: tuple[str, ...]


def compare_spaces(
    workload: Workload,
    topology: Topology,
    options: Options,
    *,
    on_progress: Callable[[SearchContext], None] = lambda context: None,
    on_stages: Callable[["ChoiceProgress"], None] = lambda progress: None,
) -> Comparison:
    """One program in every case, and what the space of the options adds.

    Raises `InputError` or `TopologyError` for bad options.
    """
    with note_interrupts() as interrupts:
        deadline = Deadline.after(options.budget_seconds, interrupts=interrupts)
        # Deadlines are shares of one budget, so a search that ends early leaves its time to the
        # next one.
        sharding_deadline = deadline if options.space == "sharding" else deadline.share(_SHARE)
        outcome = _find_sharding(workload, topology, options, on_progress, sharding_deadline)
        rows = [*_rows(outcome), *_pipeline_rows(workload, topology, options, on_stages, deadline)]
    fits = any(row.fits for row in rows)
    levers = () if fits else advice(outcome.context, outcome.workload, outcome.best.point, options)
    return Comparison(
        rows=tuple(rows),
        notes=(*outcome.context.notes, *outcome.context.kept_preset),
        advice=levers,
    )


def _pipeline_rows(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_stages: Callable[["ChoiceProgress"], None],
    deadline: Deadline,
) -> Iterator[Row]:
    """What the space of the options adds to one program."""
    if options.space == "streams":
        from automap.planner.streams import plan_streams

        try:
            yield _row("streams", plan_streams(workload, topology, options, deadline))
        except InfeasiblePlanError:
            yield _row("streams", None)
    if options.space == "placement":
        from automap.planner.placement import plan_placement

        try:
            yield _row("placement", plan_placement(workload, topology, options, deadline))
        except InfeasiblePlanError:
            yield _row("placement", None)
    if options.space == "pipeline":
        # The pipeline's solvers are compiled when they are imported.
        from automap.planner.pipeline import plan_stages, set_up

        setup = set_up(workload, topology, options, deadline)
        try:
            yield _row("pipeline", plan_stages(setup, options, on_stages))
        except InfeasiblePlanError:
            yield _row("pipeline", None)
    if options.space == "hybrid":
        search = plan_pipelines(workload, topology, options, on_stages, deadline)
        yield _row("pipeline", search.pipeline)
        yield _row("hybrid", search.hybrid)


def _find_sharding(
    workload: Workload,
    topology: Topology,
    options: Options,
    on_progress: Callable[[SearchContext], None],
    deadline: Deadline,
) -> Outcome:
    """What the search for one program finds, with the presets."""
    # Strategies of pipelines have names of their own, which mean nothing to this search.
    if options.space != "sharding":
        options = replace(
            options,
            space="sharding",
            strategy="auto",
            stages=None,
            microbatches=None,
            groups=None,
            group_size=None,
        )
    return find(workload, topology, options, on_progress=on_progress, deadline=deadline)


def _rows(outcome: Outcome) -> Iterator[Row]:
    """Presets, and what the search found."""
    for name, candidate in outcome.context.best_per_preset.items():
        yield _candidate(name, candidate, outcome)
    yield _candidate(f"search ({outcome.strategy})", outcome.best, outcome)


def _candidate(name: str, candidate: Candidate, outcome: Outcome) -> Row:
    estimate = candidate.estimate
    lost = LostRecord(collectives=estimate.collective_seconds, bubbles=0.0)
    rates = rates_record(outcome.workload.problem, outcome.topology, estimate.step_seconds, lost)
    return Row(
        name=name,
        step_seconds=estimate.step_seconds,
        mfu=rates.mfu,
        samples_per_second=rates.samples_per_second,
        tokens_per_second=rates.tokens_per_second,
        peak_bytes=estimate.peak_bytes,
        fits=outcome.context.objective.fits(estimate),
    )


def _row(name: str, plan: PlanRecord | None) -> Row:
    predicted = plan.predicted if plan else None
    rates = predicted.rates if predicted else None
    return Row(
        name=name,
        step_seconds=predicted.step_seconds if predicted else None,
        mfu=rates.mfu if rates else None,
        samples_per_second=rates.samples_per_second if rates else None,
        tokens_per_second=rates.tokens_per_second if rates else None,
        peak_bytes=predicted.peak_bytes if predicted else None,
        fits=predicted.fits if predicted else False,
    )
