"""`automap simulate`: options -> `automap.simulate` -> text, JSON, a trace file.

A pipeline needs neither the target function nor a program file: its plan has the seconds of its stages.
"""

import json

import click

from automap.cli_verify import leave_accelerators_alone, names_and_values, rebuilt_step
from automap.plan import Plan
from automap.plan_file import check_can_be_written
from automap.plan_rebuild import planned_program_file
from automap.simulate.api import check_seconds_are_its_own, simulate, simulated
from automap.simulate.pipelined import simulate_pipeline


@click.command("simulate")
@click.argument("plan_file", type=click.Path())
@click.option(
    "--trace",
    type=click.Path(dir_okay=False),
    help="write the timeline here: open it at https://ui.perfetto.dev (Open trace file) or chrome://tracing (Load)",
)
@click.option(
    "--topology",
    help="another machine with as many devices, as `automap plan` takes it; not for a pipeline",
)
@click.option(
    "--arg",
    "arguments",
    multiple=True,
    help="name=value for the target function, instead of the plan's; not for a pipeline",
)
@click.option(
    "--profile",
    type=click.Path(dir_okay=False),
    help="kernels measured on the topology's device, as `automap calibrate` writes them; not for a pipeline",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def simulate_command(
    plan_file: str,
    trace: str | None,
    topology: str | None,
    arguments: tuple[str, ...],
    profile: str | None,
    as_json: bool,  # noqa: FBT001 - click passes flags
) -> None:
    """Run a plan's step task by task on one device and its links; no accelerator is touched.

    Prints the simulated step beside the plan's prediction, how busy the device and its links are, what is waited for, and the longest
    kernels and collectives with the lines of code they come from.

    A trace has a lane for kernels and, where collectives run beside them (GPUs), one for these; click a task for its phase, bytes and
    line of code, press w and s to zoom.  Trips of a loop follow one another; of very long loops a task stands
    for several trips.

    A pipeline (--space pipeline or hybrid) is run pass by pass on all its stages and the links between them, by the seconds
    in the plan: nothing is traced, so it works without the step.  Prints how long each stage is busy, how long it waits for other
    stages and for transfers, and what it sends.  A trace has, for each stage, a lane for its passes, one for each direction of the
    link to the next stage, and one for its all-reduce and update; click a task for its microbatch and bytes.
    """
    if topology != "local":
        leave_accelerators_alone()
    if trace is not None:
        check_can_be_written("--trace", trace)
    plan = Plan.load(plan_file)
    if plan.pipeline is not None:
        options = {"--topology": topology, "--arg": arguments, "--profile": profile}
        check_seconds_are_its_own(plan.pipeline, options)
        found = simulate_pipeline(plan, plan.pipeline)
    elif plan.workload.jaxpr_sha256 is None:
        workload = planned_program_file(plan)
        found = simulated(plan, workload, topology=topology, profile=profile)
    else:
        replaced = names_and_values(arguments, "--arg")
        step, args = rebuilt_step(plan, replaced, "simulate")
        found = simulate(plan, step, args, topology=topology, profile=profile)
    if trace is not None:
        found.save_trace(trace)
        click.echo(
            f"trace written to {trace}; open it at https://ui.perfetto.dev or chrome://tracing",
            err=True,
        )
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else found.explain(), nl=as_json)
