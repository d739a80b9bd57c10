"""The `automap` command, thin: options -> planner -> text or JSON.

Results go to stdout, progress and warnings to stderr.  Exit status: 0, 1 if no plan fits (or a compiler
says that it does not), 2 for usage or bad input.
"""

from collections.abc import Callable
from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.table import Table

from automap.calibrate.command import calibrate_command
from automap.cli_simulate import simulate_command
from automap.cli_target import ARGUMENTS_OPTION, is_program_file, names_and_values
from automap.cli_verify import (
    PLAN_THE_STEP,
    confirmation_options,
    leave_accelerators_alone,
    tell,
    verify_command,
)
from automap.compare import compared
from automap.errors import AutomapError, InputError
from automap.options import Options, SearchSpace, read_options
from automap.plan import Plan
from automap.plan_file import check_can_be_written
from automap.planner import find, plan_workload
from automap.report.progress import SearchProgress
from automap.report.topologies import show_catalogue, show_machine
from automap.search import STRATEGIES
from automap.space.presets import PRESETS
from automap.space.problem import Layers
from automap.topology import catalogue, get_machine, get_topology
from automap.topology.model import Topology
from automap.verify.confirm import Confirmation, confirmed_plan
from automap.workload import Workload, load_target, read_workload
from automap.workload.call import TracedCall, jitted, trace_call
from automap.workload.rules import user_rules
from automap.workload.trace import lower_call
from hlo_tools.collector import collector_paused, spare_the_last_collection


# As a shell reports a process that SIGINT ended.
_INTERRUPTED = 130


class _Group(click.Group):
    """Turns the errors made on purpose into one message and their exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        spare_the_last_collection()
        try:
            return super().invoke(ctx)
        except AutomapError as error:
            click.echo(f"automap: {error}", err=True)
            ctx.exit(error.exit_status)
        except KeyboardInterrupt:
            click.echo("automap: interrupted before there was a result", err=True)
            ctx.exit(_INTERRUPTED)


@click.group(cls=_Group)
@click.version_option(package_name="jax-automap")
def main() -> None:
    """Plan how to run a single-device JAX step on many devices."""


def _workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.argument("target"),
        click.option(
            "--topology",
            required=True,
            help="v5e:4x4, 8xh100, 4x8xv100, flexflow-p100, local, or a TOML file",
        ),
        click.option(
            "--mesh",
            default="auto",
            help="auto (names and sizes of shardings in the step's code, if it has any, else all shapes), or sizes by "
            "name in any order: data=4,model=2; the best order on the links is taken",
        ),
        ARGUMENTS_OPTION,
        click.option("--memory-limit", type=float, help="GiB per device (default: all of it)"),
        click.option("--budget", default=30.0, show_default=True, help="seconds of search"),
        click.option("--seed", default=0, show_default=True, help="same seed, same plan"),
        click.option(
            "--strategy",
            default="auto",
            show_default=True,
            help=f"{', '.join(STRATEGIES)}; with --space pipeline auto, exact, rainbow, local-search, even, servers, agent "
            "(pretrained), agent-gap (and how far it is from the optimum), with --space hybrid auto",
        ),
        click.option(
            "--pin",
            multiple=True,
            metavar="PATH=SPEC",
            help="decide an input's sharding: \"[0]['params']['w']=null,model\", \"[1]*=data,null\"; "
            "per dimension null, an axis, or axes joined by +; * stands for anything",
        ),
        click.option(
            "--rule",
            "rules",
            multiple=True,
            metavar="NAME=RULE",
            help="how a custom call or a jitted function may be split: "
            '"my_attention=bthd,bshd,bshd->bthd replicate=t,s,d"; a letter on both sides passes, one of '
            "the operands only is summed over",
        ),
        click.option(
            "--layers",
            type=click.Choice(get_args(Layers)),
            default="folded",
            show_default=True,
            help="whether equal layers share their decisions, or each has its own",
        ),
        click.option(
            "--profile",
            type=click.Path(dir_okay=False),
            help="kernels measured on the topology's device, as `automap calibrate` writes them",
        ),
        click.option("--strict", is_flag=True, help="refuse ops without a sharding rule"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _stage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option(
            "--space",
            type=click.Choice(get_args(SearchSpace)),
            default="sharding",
            show_default=True,
            help="one program for all devices, pipeline stages of replicas on devices of their own, or the best of both "
            "and of stages that are sharded inside",
        ),
        click.option("--stages", default="auto", show_default=True, help="of a pipeline"),
        click.option("--microbatches", default="auto", show_default=True, help="of a pipeline"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@main.command("plan")
@_workload_options
@_stage_options
@click.option("--preset", help=f"skip the search: {', '.join(PRESETS)}")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="write the plan file here")
@click.option("--json", "as_json", is_flag=True, help="print the plan file to stdout")
@confirmation_options
def plan_command(
    output: str | None,
    as_json: bool,  # noqa: FBT001 - click passes flags
    preset: str | None,
    confirmation: Confirmation | None,
    **given: Any,
) -> None:
    """Find the fastest plan for TARGET that fits on a topology.

    TARGET is module:function returning (step, args), or a path to HLO text, an HLO proto, StableHLO or
    an XLA dump folder.
    """
    if output is not None:
        check_can_be_written("-o", output)
    plan = _plan(preset, given, confirmation)
    if output is not None:
        plan.save(output)
        click.echo(f"plan written to {output}", err=True)
    click.echo(json.dumps(plan.to_json(), indent=1) if as_json else plan.explain())


@main.command("compare")
@_workload_options
@_stage_options
def compare_command(**given: Any) -> None:
    """Every preset and the search side by side; with --space pipeline or hybrid the best of those spaces too."""
    request = _read(None, given)
    with SearchProgress(request.options.budget_seconds) as progress:
        workload, *_ = _workload(request)
        rows = compared(
            workload, request.topology, request.options, on_progress=progress.update,
            on_stages=progress.update_stages,
        )  # fmt: skip
    table = Table("plan", "step", "peak memory", "fits")
    for row in rows:
        step = "-" if row.step_seconds is None else f"{row.step_seconds * 1e3:.3f} ms"
        peak = "-" if row.peak_bytes is None else f"{row.peak_bytes / 2**30:.2f} GiB"
        table.add_row(row.name, step, peak, "yes" if row.fits else "NO")
    Console(width=100).print(table)


@main.command("explain")
@click.argument("plan_file", type=click.Path())
@click.argument("what", required=False)
def explain_command(plan_file: str, what: str | None) -> None:
    """Why a plan is as it is; WHAT is an input path, a group, or a second plan file to compare with."""
    plan = Plan.load(plan_file)
    if what is not None and Path(what).is_file():
        click.echo(plan.diff(Plan.load(what)))
    else:
        click.echo(plan.explain(what))


@main.command("topologies")
@click.argument("name", required=False)
def topologies_command(name: str | None) -> None:
    """The catalogue of machines; with NAME (or a TOML file) one machine, its meshes and its sources."""
    if name is None:
        show_catalogue(catalogue())
    else:
        show_machine(get_machine(name))


main.add_command(verify_command)
main.add_command(simulate_command)
main.add_command(calibrate_command)


@dataclass(frozen=True)
class _Request:
    """What a command was asked to plan."""

    target: str
    arguments: tuple[str, ...]
    topology: Topology
    options: Options


def _read(preset: str | None, given: dict[str, Any]) -> _Request:
    target, arguments = given.pop("target"), given.pop("arguments")
    name = given.pop("topology")
    if name != "local":
        leave_accelerators_alone()
    topology = get_topology(name)
    given["rules"] = names_and_values(given["rules"], "--rule")
    return _Request(target, arguments, topology, read_options(preset=preset, **given))


@collector_paused()
def _plan(preset: str | None, given: dict[str, Any], confirmation: Confirmation | None) -> Plan:
    request = _read(preset, given)
    topology, options = request.topology, request.options
    with SearchProgress(options.budget_seconds) as progress:
        workload, call, step = _workload(request)
        if confirmation is None:
            plan = plan_workload(
                workload, topology, options, on_progress=progress.update,
                on_stages=progress.update_stages,
            )  # fmt: skip
            if plan.pipeline is not None and call is not None:
                from automap.apply.pipeline.step import check_separable

                check_separable(jitted(step, {}), call, plan.pipeline)
            return plan
        if call is None:
            raise InputError(
                f"--verify: {request.target} is a program without a step; {PLAN_THE_STEP}"
            )
        outcome = find(workload, topology, options, on_progress=progress.update)
    return confirmed_plan(outcome, call, options, confirmation, on_witness=tell)


def _workload(request: _Request) -> tuple[Workload, TracedCall | None, Any]:
    target, options = request.target, request.options
    rules = user_rules(options.rules)
    if is_program_file(target):
        return read_workload(target, rules, options.layers), None, None
    given = names_and_values(request.arguments, "--arg")
    step, args = load_target(target, given)
    call = trace_call(jitted(step, {}), args, {}, target, options.axes)
    workload = lower_call(
        call, platform=request.topology.platform, target=target, rules=rules, layers=options.layers,
        arguments=given,
    )  # fmt: skip
    return workload, call, step
