"""`automap plan`: options -> planner -> text, JSON, a plan file."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from automap.atomic_file import check_can_be_written
from automap.cli.run.target import is_program_file, leave_accelerators_alone, names_and_values
from automap.cli.run.verify import PLAN_THE_STEP, read_confirmation, tell
from automap.config import Options, read_options
from automap.errors import InputError
from automap.interrupts import noted
from automap.plan.explain import overview
from automap.plan.record import PlanRecord
from automap.planner.sharding import find
from automap.planner.spaces import plan_workload
from automap.program import Workload, load_target, read_workload
from automap.program.contained import contained
from automap.program.trace import lower_call
from automap.report.progress import SearchProgress
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import traced_call
from automap.terminal import say, say_json, say_result
from automap.topology import get_topology
from automap.topology.model import Topology
from automap.verify.confirm import Confirmation, confirmed_plan
from hlo_tools.collector import collector_paused


def run(
    *,
    output: str | None,
    as_json: bool,
    verify: bool,
    verify_top: int,
    timeout: float,
    cache_dir: str | None,
    cache: bool,
    **given: Any,
) -> None:
    """Plan, keep the plan and print it."""
    if output is not None:
        check_can_be_written("-o", output)
    confirmation = read_confirmation(verify_top, timeout, cache_dir, is_cached=cache)
    with ExitStack() as until_the_end:
        plan = _plan(given, confirmation if verify else None, until_the_end)
        # A plan that was found is kept and printed.
        until_the_end.enter_context(noted())
        if output is not None:
            plan.save(output)
            say(f"plan written to {output}")
        if as_json:
            say_json(plan.to_json())
        else:
            say_result(overview(plan))


@dataclass(frozen=True)
class Request:
    """What a command was asked to plan."""

    target: str
    arguments: tuple[str, ...]
    topology: Topology
    options: Options


def read_request(given: dict[str, Any]) -> Request:
    """What was asked for, checked; the topology, target and options as the command has them."""
    target, arguments = given.pop("target"), given.pop("arguments")
    name = given.pop("topology")
    if name != "local":
        leave_accelerators_alone()
    topology = get_topology(name)
    given["rules"] = names_and_values(given["rules"], "--rule")
    return Request(target, arguments, topology, read_options(**given))


@collector_paused()
def _plan(
    given: dict[str, Any],
    confirmation: Confirmation | None,
    until_the_end: ExitStack,
) -> PlanRecord:
    """The plan; Ctrl-C is noted from the search `until_the_end`, where there is no compiler to wait
    for after it.
    """
    request = read_request(given)
    topology, options = request.topology, request.options
    with SearchProgress(options.budget_seconds) as progress:
        workload, call = read_target(request)
        if confirmation is None:
            until_the_end.enter_context(noted())
            plan = plan_workload(
                workload,
                topology,
                options,
                on_progress=progress.update,
                on_stages=progress.update_stages,
            )
            if plan.pipeline is not None and call is not None:
                from automap.runtime.pipeline.step import check_separable

                with contained():
                    check_separable(call, plan.pipeline)
            return plan
        if call is None:
            raise InputError(
                f"--verify: {request.target} is a program without a step; {PLAN_THE_STEP}"
            )
        outcome = find(workload, topology, options, on_progress=progress.update)
    with contained():
        return confirmed_plan(outcome, call, options, confirmation, on_witness=tell)


def read_target(request: Request) -> tuple[Workload, TracedCall | None]:
    """The workload, with the traced call if the target is a function."""
    target, options = request.target, request.options
    rules = user_rules(options.rules)
    if is_program_file(target):
        return read_workload(target, rules, options.layers), None
    given = names_and_values(request.arguments, "--arg")
    with contained():
        step, args = load_target(target, given)
        call = traced_call(step, args, mesh=options.axes, name=target)
        workload = lower_call(
            call,
            platform=request.topology.platform,
            target=target,
            rules=rules,
            layers=options.layers,
            arguments=given,
        )
    return workload, call
