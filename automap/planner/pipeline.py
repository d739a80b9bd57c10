"""Pipelines of a step on a machine: what they are searched with, and the best of those whose stages
are replicas.

    options, workload, topology -> profile, fabric and limits     -> in: `set_up`
    search of stages of replicas -> records -> plan               -> in: `plan_stages`
    records of any pipeline -> plan                               -> in: `pipeline_plan`

Stages that are sharded inside begin with the same set-up: `automap.planner.hybrid`.
"""

from collections.abc import Callable
from dataclasses import dataclass
import time

import numpy as np

from automap.backends import backend_for
from automap.config import Options
from automap.cost.kernels.roofline import Roofline
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError
from automap.pipeline.fabric import Fabric, pipeline_fabric
from automap.pipeline.profile.points import Points, coarsen
from automap.pipeline.profile.profile import Profile, pipeline_profile, stage_tables
from automap.pipeline.schedules import SEARCHED
from automap.pipeline.search import Limits, PipelineSearchResult, find_pipeline
from automap.plan.explain import all_the_same_text
from automap.plan.parts import PredictedRecord
from automap.plan.pipeline import MOST_PASSES
from automap.plan.record import MeshRecord, PipelineRecord, PlanRecord, SearchRecord
from automap.planner.known_limits import backend_warnings
from automap.planner.pipeline_records import (
    AXIS,
    bound_gap,
    fabric_warning,
    pipeline_record,
    predicted_record,
)
from automap.planner.records import whole_leaves, workload_record
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.search.progress import ChoiceProgress
from automap.topology.model import Topology
from hlo_tools.collector import collector_paused


@dataclass(frozen=True)
class Setup:
    """What pipelines of a step on a machine are searched with."""

    workload: Workload
    topology: Topology
    points: Points
    fabric: Fabric
    limits: Limits


def set_up(workload: Workload, topology: Topology, options: Options, deadline: Deadline) -> Setup:
    """Profile and limits. Raises `InputError` for a step that cannot be cut, and options that do
    not suit it.
    """
    points = coarsen(_profile(workload, topology, options))
    _check(options, points, topology)
    limits = Limits(
        stages=options.stages,
        microbatches=options.microbatches,
        memory_limit_bytes=options.memory_limit_bytes or topology.device.memory_bytes,
        deadline=deadline,
        seed=options.seed,
    )
    return Setup(workload, topology, points, pipeline_fabric(topology), limits)


def plan_stages(
    setup: Setup, options: Options, on_stages: Callable[[ChoiceProgress], None]
) -> PlanRecord:
    """The best pipeline found by the deadline; `on_stages` is called with every choice that is
    looked at.

    Raises `InfeasiblePlanError` if none fits.
    """
    start = time.monotonic()
    points, fabric, limits = setup.points, setup.fabric, setup.limits
    result = find_pipeline(points, fabric, limits, options.strategy, on_stages)
    if result.best is None:
        raise _nothing_fits(result, limits, points, fabric)
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
        predicted_record(result.best, points, setup.workload.problem, setup.topology),
        search,
        (*result.warnings, *fabric_warning(fabric)),
    )


def pipeline_plan(
    setup: Setup,
    pipeline: PipelineRecord,
    predicted: PredictedRecord,
    search: SearchRecord,
    warnings: tuple[str, ...],
) -> PlanRecord:
    """The plan of a pipeline's records."""
    workload, problem = setup.workload, setup.workload.problem
    return PlanRecord(
        workload=workload_record(workload),
        topology=setup.topology.to_dict(),
        mesh=MeshRecord(axes=((AXIS, setup.topology.device_count),)),
        inputs=whole_leaves(workload, "inputs"),
        outputs=whole_leaves(workload, "outputs"),
        pipeline=pipeline,
        predicted=predicted,
        search=search,
        warnings=(
            *warnings,
            *problem.warnings,
            *backend_warnings(backend_for(setup.topology.platform), workload),
        ),
    )


@collector_paused()
def _profile(workload: Workload, topology: Topology, options: Options) -> Profile:
    problem = workload.problem
    tables = stage_tables(problem, topology.platform)
    if options.profile is not None:
        options.profile.check_suits(topology)
    return pipeline_profile(problem, tables, Roofline(tables.kernels, topology, options.profile))


def _check(options: Options, points: Points, topology: Topology) -> None:
    """Refuse stages and microbatches that there cannot be."""
    # Before the first and after the last point there is nothing to cut off.
    most = int(points.may_cut[1:-1].sum()) + 1
    devices, asked_stages = topology.device_count, options.stages or 1
    # Interleaved, equal groups of devices have several each.
    is_interleaved = any(
        asked_stages % each == 0 and devices % (asked_stages // each) == 0 and asked_stages > each
        for each in (schedule.stages_per_group for schedule in SEARCHED)
    )
    if asked_stages > most or (asked_stages > devices and not is_interleaved):
        raise InputError(
            f"--stages {asked_stages}: {topology.name} has {devices} devices and the step at "
            f"most {most} stages; allowed: 1 to {min(most, devices)}, auto, or interleaved two to "
            "four stages on each of equal groups of devices"
        )
    batch, asked = points.profile.batch_size, options.microbatches
    # A plan file of more passes would be refused, as its simulation and its run go pass by pass.
    if asked is not None and asked * (options.stages or 1) > MOST_PASSES:
        raise InputError(
            f"--microbatches {asked}: with the stages that is over {MOST_PASSES} passes; use fewer "
            "of either"
        )
    if options.microbatches is not None and batch % options.microbatches:
        raise InputError(
            f"--microbatches {options.microbatches}: does not divide the batch of {batch}; "
            "allowed: a divisor, "
            "or auto"
        )


def _nothing_fits(
    result: PipelineSearchResult, limits: Limits, points: Points, fabric: Fabric
) -> InfeasiblePlanError:
    """The error when no partition fits."""
    # One microbatch keeps all stages but one idle, so it is tried only where it is asked for.
    asked = (
        f"{limits.stages or 'any number of'} stages and {limits.microbatches or '2 or more'} "
        f"microbatches on {fabric.n_units * fabric.unit_devices} devices"
    )
    if np.isinf(result.least_bytes):
        fewer = _dividing_microbatches(limits, points.profile.batch_size, fabric)
        help_text = f"give --microbatches {fewer}, or" if fewer else "give"
        return InfeasiblePlanError(
            f"there is no pipeline of {asked}: the devices of each stage must divide a "
            f"microbatch's examples, of a batch of {points.profile.batch_size}; {help_text} "
            "another number of stages, a larger batch, or --space sharding"
        )
    needed = round(result.least_bytes)
    asked_for = {"other stages": limits.stages, "more microbatches": limits.microbatches}
    more = "".join(f", {what}" for what, given in asked_for.items() if given)
    return InfeasiblePlanError(
        f"no pipeline of {asked} fits: the smallest needs {bytes_text(needed)} on a device, "
        f"{bytes_text(round(limits.memory_limit_bytes))} are allowed; use --space hybrid, whose "
        "stages can be sharded "
        f"inside (ZeRO, tensor parallelism){more}; {all_the_same_text(needed)}"
    )


def _dividing_microbatches(limits: Limits, batch: int, fabric: Fabric) -> int:
    """The most microbatches of which the stages' devices divide the examples; 0 if there are
    none.
    """
    units, stages = range(1, fabric.n_units + 1), limits.stages or 1
    for count in range(batch, 0, -1):
        sizes = [r for r in units if batch % (count * r * fabric.unit_devices) == 0]
        reached = {0}
        for _ in range(stages):
            reached = {a + b for a in reached for b in sizes if a + b <= fabric.n_units}
        if fabric.n_units in reached:
            return count
    return 0
