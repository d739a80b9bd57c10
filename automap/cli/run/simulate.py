"""`automap simulate`: options -> `automap.simulate` -> text, JSON, a trace file.

A plan has the seconds of its tasks, or of its stages: neither the target function nor a program
file is needed, unless another machine or profile is to price them.
"""

from collections.abc import Mapping, Sequence

from automap.api.simulation import (
    PipelineSimulation,
    PlacementSimulation,
    Simulation,
    check_seconds_are_its_own,
    simulate,
    simulate_recorded,
    simulate_workload,
)
from automap.atomic_file import check_can_be_written
from automap.cli.run.target import (
    hide_accelerators,
    is_program_file,
    load_step,
    naming_planned_arguments,
    needs_target,
)
from automap.errors import InputError
from automap.pipeline.simulation import simulate_pipeline
from automap.plan.record import PlanRecord
from automap.planner.rebuild import planned_program_file
from automap.program.contained import contained
from automap.progress_bar import Bar
from automap.simulate.placed import simulate_placement
from automap.terminal import say, say_json, say_result


AnySimulation = Simulation | PipelineSimulation | PlacementSimulation


def run(
    *,
    plan_file: str,
    trace: str | None,
    topology: str | None,
    target: str | None,
    arguments: tuple[str, ...],
    profile: str | None,
    as_json: bool,
) -> None:
    """Simulate a plan, write its trace and print what it says."""
    # Nothing is run on a device; only the topology of this machine is read from JAX.
    if topology != "local":
        hide_accelerators()
    if trace is not None:
        check_can_be_written("--trace", trace)
    plan = PlanRecord.load(plan_file)
    # By the flags that messages name.
    options = {"--topology": topology, "--profile": profile}
    simulation = (
        _of_record(plan, options | {"--arg": arguments})
        if target is None
        else _of_target(plan, target, arguments, options)
    )
    if trace is not None:
        simulation.save_trace(trace)
        say(f"trace written to {trace}; open it at https://ui.perfetto.dev or chrome://tracing")
    if as_json:
        say_json(simulation.to_json())
    else:
        say_result(simulation.explain())


def _of_record(plan: PlanRecord, options: Mapping[str, object]) -> AnySimulation:
    """By the seconds that the plan has; none of `options` may be given."""
    if plan.pipeline is not None:
        check_seconds_are_its_own(plan, options)
        return PipelineSimulation.from_record(simulate_pipeline(plan, plan.pipeline))
    if plan.placement is not None:
        check_seconds_are_its_own(plan, options)
        return PlacementSimulation.from_record(simulate_placement(plan, plan.placement))
    for name, value in options.items():
        if value:
            raise needs_target(plan, "simulate", f"{name} needs what was planned")
    if plan.program is None:
        why = "the plan was written by an earlier automap, which did not record its tasks"
        raise needs_target(plan, "simulate", why)
    return Simulation.from_record(simulate_recorded(plan))


def _of_target(
    plan: PlanRecord, target: str, arguments: Sequence[str], options: Mapping[str, str | None]
) -> AnySimulation:
    """What was planned again, priced as `options` say."""
    if plan.pipeline is not None or plan.placement is not None:
        check_seconds_are_its_own(plan, {"--target": target, **options})
    topology, profile = options["--topology"], options["--profile"]
    if is_program_file(target):
        if arguments:
            raise InputError(f"--arg {arguments[0]!r}: {target} is a program, not a function")
        workload = planned_program_file(plan, target)
        return Simulation.from_record(
            simulate_workload(plan, workload, topology=topology, profile=profile)
        )
    # The target is imported and called, and the step that it returns traced.
    with Bar("tracing and pricing"), contained(), naming_planned_arguments(plan, arguments):
        step, args = load_step(target, arguments, "simulate")
        return simulate(plan, step, args, topology=topology, profile=profile)
