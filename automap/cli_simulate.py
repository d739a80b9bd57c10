"""`automap simulate`: options -> `automap.simulate` -> text, JSON, a trace file.

A plan has the seconds of its tasks, or of its stages: neither the target function nor a program file is needed, unless
another machine or profile is to price them.
"""

from collections.abc import Mapping, Sequence
import json

import click

from automap.cli_target import (
    ARGUMENTS_OPTION,
    TARGET_OPTION,
    is_program_file,
    needs_target,
    saying_the_arguments,
    step_of,
)
from automap.cli_verify import leave_accelerators_alone
from automap.errors import InputError
from automap.plan import Plan
from automap.plan_file import check_can_be_written
from automap.plan_rebuild import planned_program_file
from automap.simulate.api import (
    check_seconds_are_its_own,
    simulate,
    simulate_recorded,
    simulated,
)
from automap.simulate.pipelined import PipelineSimulation, simulate_pipeline
from automap.simulate.simulation import Simulation


@click.command("simulate")
@click.argument("plan_file", type=click.Path())
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="write the timeline here: open it at https://ui.perfetto.dev (Open trace file) or chrome://tracing (Load)",
)
@click.option(
    "--topology",
    help="another machine with as many devices, as `automap plan` takes it; needs --target; not for a pipeline",
)
@TARGET_OPTION
@ARGUMENTS_OPTION
@click.option(
    "--profile",
    type=click.Path(dir_okay=False),
    help="kernels measured on the topology's device, as `automap calibrate` writes them; needs --target; not for a pipeline",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def simulate_command(
    plan_file: str,
    trace: str | None,
    topology: str | None,
    target: str | None,
    arguments: tuple[str, ...],
    profile: str | None,
    as_json: bool,  # noqa: FBT001 - click passes flags
) -> None:
    """Run a plan's step task by task on one device and its links; no accelerator is touched.

    The plan has the seconds of its tasks. For those of another machine or profile, --target names what was planned, to be priced again.

    Prints the simulated step beside the plan's prediction, how busy the device and its links are, what is waited for, and the longest
    kernels and collectives with the lines of code they come from.

    A trace has a lane for kernels and, where collectives run beside them (GPUs), one for these; click a task for its phase, bytes and
    line of code, press w and s to zoom.  Trips of a loop follow one another; of very long loops a task stands
    for several trips.

    A pipeline (--space pipeline or hybrid) is run pass by pass on all its stages and the links between them, by the seconds
    in the plan.  Prints how long each stage is busy, how long it waits for other
    stages and for transfers, and what it sends.  A trace has, for each stage, a lane for its passes, one for each direction of the
    link to the next stage, and one for its all-reduce and update; click a task for its microbatch and bytes.
    """
    if topology != "local":
        leave_accelerators_alone()
    if trace is not None:
        check_can_be_written("--trace", trace)
    plan = Plan.load(plan_file)
    options = {"--topology": topology, "--profile": profile}
    found = (
        _of_record(plan, options | {"--arg": arguments})
        if target is None
        else _of_target(plan, target, arguments, options)
    )
    if trace is not None:
        found.save_trace(trace)
        click.echo(
            f"trace written to {trace}; open it at https://ui.perfetto.dev or chrome://tracing",
            err=True,
        )
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else found.explain(), nl=as_json)


def _of_record(plan: Plan, options: Mapping[str, object]) -> Simulation | PipelineSimulation:
    """By the seconds that the plan has; none of `options` may be given."""
    if plan.pipeline is not None:
        check_seconds_are_its_own(plan.pipeline, options)
        return simulate_pipeline(plan, plan.pipeline)
    for name, value in options.items():
        if value:
            raise needs_target(plan, "simulate", f"{name} needs what was planned")
    if plan.program is None:
        why = "the plan was written by an earlier automap, which did not record its tasks"
        raise needs_target(plan, "simulate", why)
    return simulate_recorded(plan)


def _of_target(
    plan: Plan, target: str, arguments: Sequence[str], options: Mapping[str, str | None]
) -> Simulation | PipelineSimulation:
    """What was planned again, priced as `options` say."""
    if plan.pipeline is not None:
        check_seconds_are_its_own(plan.pipeline, {"--target": target, **options})
    topology, profile = options["--topology"], options["--profile"]
    if is_program_file(target):
        if arguments:
            raise InputError(f"--arg {arguments[0]!r}: {target} is a program, not a function")
        workload = planned_program_file(plan, target)
        return simulated(plan, workload, topology=topology, profile=profile)
    step, args = step_of(target, arguments, "simulate")
    with saying_the_arguments(plan, arguments):
        return simulate(plan, step, args, topology=topology, profile=profile)
