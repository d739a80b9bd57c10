"""`automap verify`, and the options with which `automap plan` has its plans verified."""

from collections.abc import Callable
from functools import wraps
import json
from pathlib import Path
from typing import Any, Final, get_args

import click
import jax

from automap.cli_target import (
    ARGUMENTS_OPTION,
    TARGET_OPTION,
    needs_target,
    saying_the_arguments,
    step_of,
)
from automap.plan import Plan
from automap.plan_explain import bytes_text, seconds_text
from automap.verify.api import (
    DEFAULT_NUMERICS_GIB,
    check_options,
    verify,
)
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILERS, CompilerName
from automap.verify.compiling import DEFAULT_TIMEOUT_SECONDS
from automap.verify.confirm import DEFAULT_TOP, Confirmation
from automap.verify.witness import Witness


PLAN_THE_STEP: Final = "plan module:function, which returns the step, to verify it"
_DOES_NOT_FIT: Final = 1

_TIMEOUT: Final = click.option(
    "--timeout",
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    help="seconds for each compilation",
)
_CACHE: Final = (
    click.option("--cache-dir", type=click.Path(file_okay=False), help="where witnesses are kept"),
    click.option("--cache/--no-cache", default=True, help="use and keep witnesses"),
)


@click.command("verify")
@click.argument("plan_file", type=click.Path())
@click.option(
    "--compiler",
    type=click.Choice(get_args(CompilerName)),
    help="default: that of the plan's topology",
)
@TARGET_OPTION
@ARGUMENTS_OPTION
@_TIMEOUT
@_CACHE[0]
@_CACHE[1]
@click.option("--numerics/--no-numerics", default=True, help="run both steps on the CPU")
@click.option(
    "--numerics-limit",
    default=DEFAULT_NUMERICS_GIB,
    show_default=True,
    help="GiB that running both steps may take",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON")
@click.pass_context
def verify_command(
    context: click.Context,
    plan_file: str,
    target: str | None,
    arguments: tuple[str, ...],
    compiler: CompilerName | None,
    as_json: bool,  # noqa: FBT001 - click passes flags
    **given: Any,
) -> None:
    """Compile a plan ahead of time, without the hardware, and hold it against its prediction.

    Exit status 0 if the compiler confirms that the plan fits and both steps agree, 1 if not.
    """
    leave_accelerators_alone()
    plan = Plan.load(plan_file)
    name = check_options(plan, compiler, given["timeout"], given["numerics_limit"])
    COMPILERS[name].check_installed()
    if target is None:
        raise needs_target(plan, "verify", "verifying compiles the step")
    step, args = step_of(target, arguments, "verify")
    with saying_the_arguments(plan, arguments):
        found = verify(plan, step, args, compiler=name, **given)
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else found.explain(), nl=as_json)
    agrees = found.numerics is None or found.numerics.agrees
    context.exit(0 if found.fits and agrees else _DOES_NOT_FIT)


def confirmation_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options of `automap plan` that make its `confirmation`, None without `--verify`."""

    @wraps(command)
    def confirming(
        *,
        verify: bool,
        verify_top: int,
        timeout: float,
        cache_dir: str | None,
        cache: bool,
        **given: Any,
    ) -> Any:
        folder = (default_folder() if cache_dir is None else Path(cache_dir)) if cache else None
        confirmation = Confirmation(top=verify_top, timeout_seconds=timeout, cache_folder=folder)
        return command(confirmation=confirmation if verify else None, **given)

    options = (
        click.option(
            "--verify", is_flag=True, help="compile the best plans; take the best that fits"
        ),
        click.option(
            "--verify-top", default=DEFAULT_TOP, show_default=True, help="plans to compile at most"
        ),
        _TIMEOUT,
        *_CACHE,
    )
    wrapped: Callable[..., Any] = confirming
    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def leave_accelerators_alone() -> None:
    """Let JAX use the CPU only in this process, unless the user chose.

    It would load libtpu if that is installed, and hold the lock that the compiler's process needs.
    """
    if not getattr(jax.config, "jax_platforms", None):
        jax.config.update("jax_platforms", "cpu")


def tell(plan: Plan, witness: Witness) -> None:
    """A line on stderr for each plan that was compiled."""
    peak = "?" if witness.peak_bytes is None else bytes_text(witness.peak_bytes)
    verdict = "fits" if witness.fits else "does not fit"
    click.echo(
        f"compiled a plan of predicted {seconds_text(plan.predicted.step_seconds)}: peak {peak}, "
        f"predicted {bytes_text(plan.predicted.peak_bytes)}: {verdict}",
        err=True,
    )
