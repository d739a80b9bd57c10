"""`automap verify`, and how `automap plan --verify` has its plans confirmed."""

from pathlib import Path
from typing import Any, Final

import click

from automap.api.verification import Verification, verify
from automap.choices import CompilerName
from automap.cli.run.target import (
    leave_accelerators_alone,
    load_step,
    needs_target,
    saying_the_arguments,
)
from automap.exit_status import ExitStatus
from automap.plan.record import PlanRecord
from automap.program.contained import contained
from automap.quantities import bytes_text, seconds_text
from automap.terminal import say, say_json, say_result
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILERS
from automap.verify.confirm import Confirmation
from automap.verify.verification import check_options
from automap.verify.witness import Witness


PLAN_THE_STEP: Final = "plan module:function, which returns the step, to verify it"


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
    leave_accelerators_alone()
    plan = PlanRecord.load(plan_file)
    name = check_options(plan, compiler, given["timeout"], given["numerics_limit"])
    COMPILERS[name].check_installed()
    if target is None:
        raise needs_target(plan, "verify", "verifying compiles the step")
    with contained(), saying_the_arguments(plan, arguments):
        step, args = load_step(target, arguments, "verify")
        verification = verify(plan, step, args, compiler=name, **given)
    if as_json:
        say_json(verification.to_json())
    else:
        say_result(verification.explain())
    click.get_current_context().exit(_status(verification))


def _status(verification: Verification) -> ExitStatus:
    if verification.is_verdict and not verification.fits:
        return ExitStatus.DOES_NOT_FIT
    if verification.numerics is not None and not verification.numerics.agrees:
        return ExitStatus.WRONG_NUMBERS
    return ExitStatus.DONE


def read_confirmation(
    top: int, timeout_seconds: float, cache_dir: str | None, *, is_cached: bool
) -> Confirmation:
    """How plans are confirmed, from the options of `automap plan`."""
    folder = default_folder() if cache_dir is None else Path(cache_dir)
    return Confirmation(
        top=top, timeout_seconds=timeout_seconds, cache_folder=folder if is_cached else None
    )


def tell(plan: PlanRecord, witness: Witness) -> None:
    """A line on stderr for each plan that was compiled."""
    peak = "?" if witness.peak_bytes is None else bytes_text(witness.peak_bytes)
    verdict = "fits" if witness.fits else "does not fit"
    say(
        f"compiled a plan of predicted {seconds_text(plan.predicted.step_seconds)}: peak {peak}, "
        f"predicted {bytes_text(plan.predicted.peak_bytes)}: {verdict}"
    )
