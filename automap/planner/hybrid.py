"""Pipelines whose stages are sharded inside: search, records, plan."""

from collections.abc import Callable
import time

from automap.backends import backend_for
from automap.config import Options
from automap.errors import InfeasiblePlanError
from automap.pipeline.hybrid.pricing import Pricer
from automap.pipeline.hybrid.search import find_hybrid, no_hybrid_fits
from automap.pipeline.search import PipelineProgress
from automap.plan.record import PlanRecord, SearchRecord
from automap.planner.hybrid_records import Records
from automap.planner.pipeline_records import fabric_warning
from automap.planner.stages import Setup, pipeline_plan
from automap.space.space import Space


def plan_hybrid(
    setup: Setup,
    options: Options,
    bound_seconds: float,
    on_stages: Callable[[PipelineProgress], None],
) -> tuple[PlanRecord | None, InfeasiblePlanError | None]:
    """The best pipeline with sharded stages that is faster than a bound, else why there is none."""
    start = time.monotonic()
    workload, topology, limits = setup.workload, setup.topology, setup.limits
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    pricer = Pricer(setup.points.profile, space, topology, options.profile)
    search = find_hybrid(pricer, setup.points, setup.fabric, limits, bound_seconds, on_stages)
    if search.best is None:
        return None, no_hybrid_fits(search, limits, topology.name)
    records = Records(workload, pricer, setup.points, search.best)
    plan = pipeline_plan(
        setup,
        records.pipeline(),
        records.predicted(),
        SearchRecord(
            strategy=options.strategy,
            seconds=time.monotonic() - start,
            evaluations=search.tried,
            seed=options.seed,
            gap=None,
        ),
        (*search.warnings, *fabric_warning(setup.fabric)),
    )
    return plan, None
