"""Workload and topology -> the best of all spaces: one program, a pure pipeline, a pipeline with sharded stages.

The first two are planned by their own planners, so that what is returned is never slower than either; their steps bound
the search for the third. One program is no choice where several stages or microbatches are asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
import time
from typing import Final

import numpy as np

from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError
from automap.options import Options
from automap.pipeline.build import fabric_warning
from automap.pipeline.hybrid.build import Records
from automap.pipeline.hybrid.pricing import Pricer
from automap.pipeline.hybrid.search import find_hybrid, no_hybrid_fits
from automap.pipeline.planner import pipeline_plan, plan_stages, set_up
from automap.pipeline.search import Tried
from automap.plan import Plan, SearchRecord
from automap.planner import plan_workload, with_advice
from automap.search.context import SearchContext
from automap.space.space import Space
from automap.topology.model import Topology
from automap.workload.trace import Workload


_SHARE: Final = 1 / 3
"""Of the budget, for one program."""
_PIPELINE_SHARE: Final = 1 / 2
"""Of what is left then, for pipelines of replicas."""


@dataclass(frozen=True)
class Pipelines:
    """The best pipeline of replicas, and of stages that may be sharded; None where nothing fits.

    `hybrid` is the first one where no sharding makes it faster, or None where it was not to be faster than a bound.
    `refused` says why nothing was found.
    """

    pipeline: Plan | None
    hybrid: Plan | None
    refused: InfeasiblePlanError | None


def plan_hybrid(
    workload: Workload, topology: Topology, options: Options,
    on_progress: Callable[[SearchContext], None], on_stages: Callable[[Tried], None],
    deadline: Deadline,
) -> Plan:  # fmt: skip
    """The best plan of all spaces by the deadline.

    Raises `InfeasiblePlanError` if none fits, `InputError` for a step that cannot be cut, one with shardings of its
    own, and options that do not suit it.
    """
    sharding = None
    if options.stages in (None, 1) and options.microbatches in (None, 1):
        alone = replace(options, space="sharding", stages=None, microbatches=None)
        until = deadline.share(_SHARE)
        sharding = _plan_or_none(
            lambda: plan_workload(
                workload, topology, alone, on_progress=on_progress, deadline=until
            )
        )
    if sharding is not None and deadline.is_over:
        note = f"{deadline.why_over}, before pipelines were looked at"
        return replace(sharding, warnings=(*sharding.warnings, note))
    bound = sharding.predicted.step_seconds if sharding else np.inf
    found = plan_pipelines(workload, topology, options, on_stages, deadline, bound)
    plans = [plan for plan in (sharding, found.pipeline, found.hybrid) if plan is not None]
    if not plans:
        refused = found.refused or InfeasiblePlanError("no plan fits")
        raise with_advice(refused, workload, topology, options, deadline)
    best = min(plans, key=lambda plan: plan.predicted.step_seconds)
    if best.pipeline is not None and best.pipeline.is_sharded_inside:
        return best
    what = "one program for all devices" if best is sharding else "a pipeline of replicas"
    note = f"no pipeline with sharded stages was found that is faster than {what}"
    if deadline.interrupts.is_asked:
        note = f"{deadline.why_over}: {note}"
    return replace(best, warnings=(*best.warnings, note))


def plan_pipelines(
    workload: Workload, topology: Topology, options: Options, on_stages: Callable[[Tried], None],
    deadline: Deadline, bound_seconds: float = np.inf,
) -> Pipelines:  # fmt: skip
    """The best pipelines, the second only if it is faster than the bound; raises as `plan_hybrid` for bad input."""
    if workload.mesh is not None:
        raise InputError(
            f"the step's own shardings (first: {workload.mesh.where}) are on one mesh, the stages of --space hybrid "
            "have one each; plan with --space sharding, or take them out"
        )
    start = time.monotonic()
    setup = set_up(workload, topology, options, deadline.share(_PIPELINE_SHARE))
    pipeline = _plan_or_none(lambda: plan_stages(setup, options, on_stages))
    of_pipeline = pipeline.predicted.step_seconds if pipeline else np.inf
    limits = replace(setup.limits, deadline=deadline)
    pricer = Pricer(setup.points.profile, Space(workload.problem), topology, options.profile)
    found = find_hybrid(
        pricer, setup.points, setup.fabric, limits, min(of_pipeline, bound_seconds), on_stages
    )
    if found.best is None:
        hybrid = pipeline if of_pipeline <= bound_seconds else None
        return Pipelines(pipeline, hybrid, no_hybrid_fits(found, limits, topology.name))
    records = Records(workload, pricer, setup.points, found.best)
    plan = pipeline_plan(
        setup, records.pipeline(), records.predicted(),
        SearchRecord(
            strategy=options.strategy, seconds=time.monotonic() - start, evaluations=found.tried,
            seed=options.seed, gap=None,
        ),
        (*found.warnings, *fabric_warning(setup.fabric)),
    )  # fmt: skip
    return Pipelines(pipeline, plan, None)


def _plan_or_none(plan: Callable[[], Plan]) -> Plan | None:
    try:
        return plan()
    except InfeasiblePlanError:
        return None
