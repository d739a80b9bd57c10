"""`simulate`: a plan's step, task by task.

one program   plan, step, args -> the point again, priced -> program -> task graph -> timeline -> events -> summary,
              on one representative device and its links
pipeline      plan -> its record's seconds -> task graph -> timeline -> events and summary, on stages and the links between
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from automap.cost.profile import KernelProfile
from automap.errors import InputError
from automap.plan import Plan
from automap.plan_pipeline import PipelineRecord
from automap.plan_rebuild import planned_call, planned_workload, rebuilt
from automap.simulate.naming import spmd_events
from automap.simulate.pipelined import PipelineSimulation, simulate_pipeline
from automap.simulate.simulation import Simulation, summary
from automap.simulate.spmd import simulate_spmd
from automap.simulate.spmd_program import program_of
from automap.topology import Topology, get_topology
from automap.workload.trace import Workload


@overload
def simulate(plan: Plan) -> PipelineSimulation: ...
@overload
def simulate(
    plan: Plan,
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> Simulation | PipelineSimulation: ...
def simulate(
    plan: Plan,
    step: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> Simulation | PipelineSimulation:
    """Run the planned step task by task; touches no device.

    A pipeline is simulated by the seconds that its plan has of each stage: `simulate(plan)` is enough. A step that is
    given all the same must be the planned one.

    Args:
        plan: a plan of this step.
        step: the function that was planned.
        args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        topology: another machine with as many devices, or its name; by default the plan's own. Not for a pipeline.
        profile: a file of kernels measured on the topology's device, by `automap calibrate`. Not for a pipeline.

    Returns:
        A `PipelineSimulation` for a plan with a pipeline, a `Simulation` for any other.

    Raises:
        PlanError: a plan of another step, or one that does not say which point it stands for.
        MeshMismatchError: a topology on which the plan's mesh does not lie.
        InputError: a step that cannot be traced or is missing; a topology or a profile for a pipeline.
        TopologyError: a topology that is not known.
        ProfileError: a profile that cannot be read.
    """
    if plan.pipeline is not None:
        check_seconds_are_its_own(plan.pipeline, {"topology": topology, "profile": profile})
        if step is not None:
            planned_call(plan, step, args, kwargs or {})
        return simulate_pipeline(plan, plan.pipeline)
    if step is None:
        raise InputError(
            "the plan's step is one program for all devices, whose kernels are not in the plan; give the step: "
            "automap.simulate(plan, step, args)"
        )
    workload = planned_workload(plan, step, tuple(args), kwargs or {})
    return simulated(plan, workload, topology=topology, profile=profile)


def check_seconds_are_its_own(record: PipelineRecord, options: Mapping[str, object]) -> None:
    """Raise `InputError` if any of the named options is given, which would give a pipeline other seconds."""
    for name, value in options.items():
        if value:
            space = "hybrid" if record.is_sharded_inside else "pipeline"
            raise InputError(
                f"{name} is not for a pipeline, whose plan says itself what its stages take; plan again with --space {space} "
                "for another machine, other arguments or another profile, or leave it out"
            )


def simulated(
    plan: Plan,
    workload: Workload,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> Simulation:
    """`simulate` of a step that is analysed already; raises the same for the plan, topology and profile."""
    machine = get_topology(topology) if isinstance(topology, str) else topology
    machine = machine or Topology.from_dict(plan.topology)
    known = None if profile is None else KernelProfile.load(profile)
    point = rebuilt(plan, workload, machine, known)
    fresh_seconds = point.evaluator.fresh_seconds(point.priced)
    program = program_of(point.evaluator.tables, point.priced, fresh_seconds)
    found = simulate_spmd(program, machine.platform)
    return summary(
        tuple(spmd_events(point, found)), target=plan.workload.target, topology=machine.name,
        mesh=plan.mesh.axes, predicted_seconds=plan.predicted.step_seconds, warnings=point.warnings,
    )  # fmt: skip
