"""`automap verify`: a plan file and the step -> what the compiler says, as text or JSON."""

from typing import Any

import click

from automap.api.verification import PipelineVerification, Verification, verify
from automap.choices import CompilerName
from automap.cli.run.target import (
    hide_accelerators,
    load_step,
    naming_planned_arguments,
    needs_target,
)
from automap.exit_status import ExitStatus
from automap.plan.record import PlanRecord
from automap.program.contained import contained
from automap.progress_bar import Bar
from automap.terminal import say_json, say_result
from automap.verify.compilers import COMPILERS
from automap.verify.verification import check_options


def run(
    *,
    plan_file: str,
    target: str | None,
    arguments: tuple[str, ...],
    compiler: CompilerName | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Print what the compiler says of a plan; exits with another status than 0 if it does not
    confirm it.
    """
    hide_accelerators()
    plan = PlanRecord.load(plan_file)
    # What would fail is said first, before the target is imported, which may take a minute.
    name = check_options(plan, compiler, given["timeout"], given["numerics_limit"])
    COMPILERS[name].check_installed()
    if target is None:
        raise needs_target(plan, "verify", "verifying compiles the step")
    # A pipeline's programs are compiled, and not run.
    runs = "" if plan.pipeline is not None else ", and running both steps"
    doing = f"compiling with {COMPILERS[name].title}{runs}"
    with Bar(doing), contained(), naming_planned_arguments(plan, arguments):
        step, args = load_step(target, arguments, "verify")
        verification = verify(plan, step, args, compiler=name, **given)
    if as_json:
        say_json(verification.to_json())
    else:
        say_result(verification.explain())
    # After the report: the status says the same for scripts.
    click.get_current_context().exit(_status(verification))


def _status(verification: Verification | PipelineVerification) -> ExitStatus:
    if verification.is_verdict and not verification.fits:
        return ExitStatus.DOES_NOT_FIT
    if verification.numerics is not None and not verification.numerics.agrees:
        return ExitStatus.WRONG_NUMBERS
    return ExitStatus.DONE
