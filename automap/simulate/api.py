"""`simulate`: a plan's step on one representative device and its links, task by task.

plan, step, args -> the point again, priced -> program -> task graph -> timeline -> events -> summary
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from automap.cost.profile import KernelProfile
from automap.plan import Plan
from automap.plan_rebuild import planned_workload, rebuilt
from automap.simulate.naming import spmd_events
from automap.simulate.simulation import Simulation, summary
from automap.simulate.spmd import simulate_spmd
from automap.simulate.spmd_program import program_of
from automap.topology import Topology, get_topology
from automap.workload.trace import Workload


def simulate(
    plan: Plan,
    step: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    topology: Topology | str | None = None,
    profile: str | Path | None = None,
) -> Simulation:
    """Run the planned step task by task; touches no device.

    Args:
        plan: a plan of this step.
        step: the function that was planned.
        args: its positional arguments: arrays, or `jax.ShapeDtypeStruct`s.
        kwargs: its keyword arguments.
        topology: another machine with as many devices, or its name; by default the plan's own.
        profile: a file of kernels measured on the topology's device, by `automap calibrate`.

    Raises:
        PlanError: a plan of another step, or one that does not say which point it stands for.
        MeshMismatchError: a topology on which the plan's mesh does not lie.
        InputError: a step that cannot be traced.
        TopologyError: a topology that is not known.
        ProfileError: a profile that cannot be read.
    """
    workload = planned_workload(plan, step, tuple(args), kwargs or {})
    return simulated(plan, workload, topology=topology, profile=profile)


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
