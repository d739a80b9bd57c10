"""The best pipeline of replicas: search, records, plan."""

from collections.abc import Callable
import time

from automap.config import Options
from automap.pipeline.search import PipelineProgress, find_pipeline, nothing_fits
from automap.plan.record import PlanRecord, SearchRecord
from automap.planner.pipeline_records import (
    bound_gap,
    fabric_warning,
    pipeline_record,
    predicted_record,
)
from automap.planner.stages import Setup, pipeline_plan


def plan_stages(
    setup: Setup, options: Options, on_stages: Callable[[PipelineProgress], None]
) -> PlanRecord:
    """The best pipeline found by the deadline; `on_stages` is called with every choice that is
    looked at.

    Raises `InfeasiblePlanError` if none fits.
    """
    start = time.monotonic()
    points, fabric, limits = setup.points, setup.fabric, setup.limits
    result = find_pipeline(points, fabric, limits, options.strategy, on_stages)
    if result.best is None:
        raise nothing_fits(result, limits, points, fabric)
    search = SearchRecord(
        strategy=options.strategy,
        seconds=time.monotonic() - start,
        evaluations=result.tried,
        seed=options.seed,
        gap=bound_gap(result),
    )
    return pipeline_plan(
        setup,
        pipeline_record(result.best, points),
        predicted_record(result.best, points),
        search,
        (*result.warnings, *fabric_warning(fabric)),
    )
