"""`simulate`: a plan's step, task by task.

one program   plan -> its record's tasks -> region -> timeline -> events -> summary, on one
              representative device and its links; with the step, on another machine too: the point
              again, priced -> a record
placement     plan -> its record's tasks and transfers -> events and summary, on every device
pipeline      plan -> its record's seconds -> task graph -> timeline -> events and summary, on
              stages and the links between
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import math
from pathlib import Path
from typing import Any, Final

from automap.api.records import FromRecord
from automap.cost.profile import KernelProfile
from automap.errors import InputError, PlanError
from automap.pipeline.simulation import PipelineSimulationRecord, simulate_pipeline
from automap.plan.record import PlanRecord
from automap.planner.rebuild import planned_call, planned_workload, reprice_plan
from automap.program.trace import Workload
from automap.quantities import seconds_text
from automap.report import simulation
from automap.simulate.placed import PlacementSimulationRecord, simulate_placement
from automap.simulate.recorded import recorded_program
from automap.simulate.simulation import SimulationRecord, simulated_program
from automap.topology import Topology, get_topology


_SAME: Final = 1e-6
_LEAST_SECONDS: Final = 1e-12


class Simulation(FromRecord, SimulationRecord):
    """One simulated step of one program: `step_seconds` with its parts, rows of `ops` and
    `collectives`, the longest first, and `events`, when each task ran.

    `automap.simulate.simulation.SimulationRecord` has all attributes.
    """

    __slots__ = ()

    def explain(self) -> str:
        """All of it as text."""
        return simulation.report(self)


class PipelineSimulation(FromRecord, PipelineSimulationRecord):
    """One simulated step of a pipeline: `step_seconds`, `bubble_fraction`, a row for each of
    `stages`, and `events`, when each pass and transfer ran.

    `automap.pipeline.simulation.PipelineSimulationRecord` has all attributes.
    """

    __slots__ = ()

    def explain(self) -> str:
        """All of it as text."""
        return simulation.pipeline_report(self)


class PlacementSimulation(FromRecord, PlacementSimulationRecord):
    """One simulated step of a placement: `step_seconds`, a row for each of `devices`, and `events`,
    when each task and transfer ran.

    `automap.simulate.placed.PlacementSimulationRecord` has all attributes.
    """

    __slots__ = ()

    def explain(self) -> str:
        """All of it as text."""
        return simulation.placement_report(self)


def simulate(
    plan: PlanRecord,
    step: Callable[..., Any] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> Simulation | PipelineSimulation | PlacementSimulation:
    """Run the planned step task by task; touches no device.

    `simulate(plan)` is enough: a plan has the seconds of its tasks, that of a pipeline those of its
    stages. With the step, which must be the planned one, a plan of one program is priced again,
    which another machine or profile needs; pipelines, placements and streams are not.

    Args:
        plan: a plan.
        step: the function that was planned.
        args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        topology: another machine with as many devices, or its name; by default the plan's own. For
            one program only.
        profile: a file of kernels measured on the topology's device, by `automap calibrate`. For
            one program only.

    Returns:
        A `PipelineSimulation` for a plan with a pipeline, a `PlacementSimulation` for one with a
        placement, a `Simulation` for any other. Times are seconds from the beginning of the step,
        on one device and its links, on all stages, or on all devices of a placement.

    Raises:
        PlanError: a plan of another step, an older one that has not recorded what is needed, or
            one of streams with the step.
        MeshMismatchError: a topology on which the plan's mesh does not lie.
        InputError: a step that cannot be traced, or is missing where a topology or profile is
            given; these for a pipeline or a placement.
        TopologyError: a topology that is not known.
        ProfileError: a profile that cannot be read.
    """
    if plan.pipeline is not None:
        check_seconds_are_its_own(plan, {"topology": topology, "profile": profile})
        if step is not None:
            planned_call(plan, step, args, kwargs or {})
        return PipelineSimulation.from_record(simulate_pipeline(plan, plan.pipeline))
    if plan.placement is not None:
        check_seconds_are_its_own(plan, {"topology": topology, "profile": profile})
        if step is not None:
            planned_call(plan, step, args, kwargs or {})
        return PlacementSimulation.from_record(simulate_placement(plan, plan.placement))
    if step is None:
        if topology is not None or profile is not None:
            raise InputError(
                "the plan has the seconds of its own machine and profile only; give the step for "
                "others: "
                "automap.simulate(plan, step, args, topology=..., profile=...)"
            )
        return Simulation.from_record(simulate_recorded(plan))
    # Priced again, as another machine or profile has other seconds for the same point.
    workload = planned_workload(plan, step, args, kwargs or {})
    return Simulation.from_record(
        simulate_workload(plan, workload, topology=topology, profile=profile)
    )


def check_seconds_are_its_own(plan: PlanRecord, options: Mapping[str, object]) -> None:
    """Raise `InputError` if any of the named options is given, which would give a pipeline or a
    placement other seconds.
    """
    what = "pipeline, whose plan says itself what its stages take"
    space = "hybrid" if plan.pipeline and plan.pipeline.is_sharded_inside else "pipeline"
    if plan.placement is not None:
        what, space = "placement, whose plan says itself what its tasks take", "placement"
    for name, value in options.items():
        # `--arg` without arguments is an empty tuple, which asks for nothing.
        if value:
            raise InputError(
                f"{name} is not for a {what}; plan again with --space {space} "
                "for another machine, other arguments or another profile, or leave it out"
            )


def simulate_recorded(plan: PlanRecord) -> SimulationRecord:
    """The step of a plan that is one program, by its own record. Raises `PlanError` if there is
    none.
    """
    if plan.program is None:
        raise PlanError(
            "program: missing: the plan was written by an earlier automap, which did not record "
            "its tasks; plan again, or "
            "give the step that was planned"
        )
    machine = Topology.from_dict(plan.topology)
    record = simulated_program(plan, plan.program, machine)
    # The two are written beside each other, so they differ only in a file that somebody has edited.
    then = plan.predicted.compute_seconds
    if math.isclose(record.compute_seconds, then, rel_tol=_SAME, abs_tol=_LEAST_SECONDS):
        return record
    changed = (
        f"the plan predicts {seconds_text(then)} of computation, but its kernels take "
        f"{seconds_text(record.compute_seconds)}: it was changed after it was planned; plan again"
    )
    return replace(record, warnings=(changed,))


def simulate_workload(
    plan: PlanRecord,
    workload: Workload,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> SimulationRecord:
    """`simulate` of a step that is analysed already; raises the same for the plan, topology and
    profile.
    """
    machine = get_topology(topology) if isinstance(topology, str) else topology
    machine = machine or Topology.from_dict(plan.topology)
    known = None if profile is None else KernelProfile.load(profile)
    point = reprice_plan(plan, workload, machine, known)
    reemitter = workload.reemitter
    # The same path as a plan's own tasks take, so that both ways to simulate agree.
    program = recorded_program(
        point.evaluator,
        point.priced,
        point.split_classes.mesh.names,
        {} if reemitter is None else reemitter.source_by_path,
    )
    return simulated_program(plan, program, machine, point.warnings)
