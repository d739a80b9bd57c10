"""`automap plan`: options -> planner -> text, JSON, a plan file; with --apply the plan is run."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from automap.atomic_file import check_can_be_written
from automap.choices import NEAR_LIMIT_COMPILE_SECONDS
from automap.cli.run.apply import applied_status, apply_target
from automap.cli.run.target import Request, is_program_file, read_request, read_target
from automap.errors import InputError
from automap.interrupts import note_interrupts
from automap.plan.explain import overview
from automap.plan.record import PlanRecord
from automap.plan.refined import compiled_plan_text
from automap.planner.levers import find_with_levers
from automap.planner.spaces import plan_workload
from automap.program.contained import contained
from automap.progress_bar import Bar
from automap.quantities import seconds_text
from automap.refine.loop import RefinementProgress, refined_plan
from automap.refine.refinement import (
    Refinement,
    check_can_refine,
    check_one_compiler_option,
)
from automap.report.applied import applied_report
from automap.report.page import save_report
from automap.report.progress import SearchProgress
from automap.report.verification import compiled_text
from automap.terminal import say, say_json, say_result
from automap.topology import regular
from automap.verify.cache import default_folder
from automap.verify.confirm import (
    CONFIRMED_BY_STAGES,
    Confirmation,
    Said,
    confirmed_pipeline,
    confirmed_plan,
)
from automap.verify.near_limit import settled
from automap.verify.verification import check_numerics_limit
from hlo_tools.collector import collector_paused


@collector_paused()
def run(
    *,
    output: str | None,
    report: str | None,
    as_json: bool,
    verify: bool,
    verify_top: int,
    refine: float | None,
    timeout: float,
    cache_dir: str | None,
    cache: bool,
    applies: bool,
    numerics: bool,
    numerics_limit: float,
    **given: Any,
) -> None:
    """Plan, keep the plan and print it; run it, if that is asked for."""
    if output is not None:
        # Before minutes of planning rather than after.
        check_can_be_written("-o", output)
    if report is not None:
        check_can_be_written("--report", report)
    check_one_compiler_option(
        verify=verify, refine=refine, preset=given["preset"], space=given["space"]
    )
    _check_numerics(numerics_limit, applies=applies)
    confirmation = _read_confirmation(verify_top, timeout, cache_dir, is_cached=cache)
    refinement = None if refine is None else _read_refinement(refine, confirmation)
    with ExitStack() as until_the_end:
        near_limit = replace(confirmation, timeout_seconds=min(timeout, NEAR_LIMIT_COMPILE_SECONDS))
        request = read_request(given, runs=applies)
        if applies and is_program_file(request.target):
            raise _needs_step("--apply", request, "run")
        plan = _plan(
            request, confirmation if verify else None, refinement, near_limit, until_the_end
        )
        # A plan that was found is kept and printed.
        # Ctrl-C ends the search and no more: what it had is written and printed.
        until_the_end.enter_context(note_interrupts())
        if output is not None:
            plan.save(output)
            say(f"plan written to {output}")
        if report is not None:
            save_report(plan, report)
            say(f"report written to {report}")
        if as_json:
            say_json(plan.to_json())
        else:
            say_result(overview(plan))
    # After the search Ctrl-C ends the command again: all that was found is kept.
    if applies:
        applied = apply_target(
            plan,
            request.target,
            request.arguments,
            compares=numerics,
            limit_gib=numerics_limit,
        )
        text = applied_report(applied)
        say(text) if as_json else say_result(text)
        click.get_current_context().exit(applied_status(applied))


def _plan(
    request: Request,
    confirmation: Confirmation | None,
    refinement: Refinement | None,
    near_limit: Confirmation,
    until_the_end: ExitStack,
) -> PlanRecord:
    """The plan; Ctrl-C is noted from the search `until_the_end`, unless all that comes after it is
    a compiler to wait for.
    """
    topology, options = request.topology, request.options
    if refinement is not None:
        check_can_refine(regular(topology))
    with SearchProgress(options.budget_seconds) as progress:
        workload, call = read_target(request)

        plan_within = partial(
            plan_workload,
            workload,
            topology,
            on_progress=progress.update,
            on_stages=progress.update_stages,
            folder=near_limit.cache_folder,
        )

        if confirmation is None and refinement is None:
            until_the_end.enter_context(note_interrupts())
            plan = settled(
                plan_within(options),
                call,
                options,
                plan_within,
                confirmation=near_limit,
                say=say,
            )
            if plan.pipeline is not None and call is not None:
                from automap.runtime.pipeline.step import check_separable

                with contained():
                    check_separable(call, plan.pipeline)
            return plan
        # A compiler is given the step, which a program file does not have.
        if call is None:
            raise _needs_step("--verify, --refine", request, "compiled")
        if refinement is not None:
            until_the_end.enter_context(note_interrupts())
        elif options.space in CONFIRMED_BY_STAGES:
            with contained():
                return confirmed_pipeline(
                    plan_within,
                    call,
                    topology.platform,
                    options,
                    confirmation or Confirmation(),
                    on_compiled=_say_compiled,
                )
        outcome = find_with_levers(
            workload, regular(topology), options, on_progress=progress.update
        )
    # The step is the user's code: what it prints goes to stderr.
    with Bar("compiling"), contained():
        if refinement is not None:
            return refined_plan(
                workload, outcome, call, options, refinement, on_compiled=_say_refined
            )
        return confirmed_plan(
            outcome,
            call,
            options,
            confirmation or Confirmation(),
            search_again=lambda less: find_with_levers(workload, regular(topology), less),
            on_witness=_say_compiled,
        )


def _check_numerics(limit_gib: float, *, applies: bool) -> None:
    """Raise `InputError` for a limit out of range, or for either option where nothing is run."""
    context = click.get_current_context()
    for name, option in (("numerics", "--no-numerics"), ("numerics_limit", "--numerics-limit")):
        if not applies and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise InputError(f"{option} is about what --apply runs; give that too")
    check_numerics_limit(limit_gib)


def _needs_step(options: str, request: Request, done: str) -> InputError:
    return InputError(
        f"{options}: {request.target} is a program without a step; plan module:function, which "
        f"returns the step, to have it {done}"
    )


def _read_confirmation(
    top: int, timeout_seconds: float, cache_dir: str | None, *, is_cached: bool
) -> Confirmation:
    """How plans are confirmed, from the options of `automap plan`."""
    folder = default_folder() if cache_dir is None else Path(cache_dir)
    return Confirmation(
        top=top, timeout_seconds=timeout_seconds, cache_folder=folder if is_cached else None
    )


def _read_refinement(seconds: float, confirmation: Confirmation) -> Refinement:
    """How a search is refined, with the time-out and the cache of all that asks a compiler."""
    return Refinement(
        seconds=seconds,
        timeout_seconds=confirmation.timeout_seconds,
        cache_folder=confirmation.cache_folder,
    )


def _say_refined(progress: RefinementProgress) -> None:
    """A line on stderr for each plan that was compiled: what it is, the best so far, the time
    left.
    """
    best = progress.best_seconds
    say(
        f"{compiled_plan_text(progress.compiled)}; best so far "
        f"{'none' if best is None else seconds_text(best)}, {progress.seconds_left:.0f} s left"
    )


def _say_compiled(plan: PlanRecord, witness: Said) -> None:
    """A line on stderr for each plan that was compiled: a compilation may take minutes."""
    say(compiled_text(plan, witness))
