"""`automap apply`: a plan file and the step -> a few steps on the devices that are there."""

from collections.abc import Sequence

import click

from automap.choices import DEFAULT_NUMERICS_GIB
from automap.cli.run.target import load_step, naming_planned_arguments, needs_target
from automap.exit_status import ExitStatus
from automap.plan.record import PlanRecord
from automap.program.contained import contained
from automap.progress_bar import Bar
from automap.report.applied import applied_report
from automap.step.step import traced_call
from automap.terminal import say_json, say_result
from automap.verify.applied import AppliedRecord, apply_plan, chosen_devices, make_cpu_devices
from automap.verify.verification import check_can_apply


def run(
    *,
    plan_file: str,
    target: str | None,
    arguments: tuple[str, ...],
    numerics: bool,
    numerics_limit: float,
    as_json: bool,
) -> None:
    """Print what came of running a plan; exits with another status than 0 if its numbers differ
    from those of one device.
    """
    plan = PlanRecord.load(plan_file)
    check_can_apply(plan, numerics_limit)
    if target is None:
        raise needs_target(plan, "apply", "applying a plan runs the step")
    make_cpu_devices(plan.mesh.device_count)
    applied = apply_target(plan, target, arguments, compares=numerics, limit_gib=numerics_limit)
    if as_json:
        say_json(applied.to_json())
    else:
        say_result(applied_report(applied))
    # After the report: the status says the same for scripts.
    click.get_current_context().exit(applied_status(applied))


def apply_target(
    plan: PlanRecord,
    target: str,
    arguments: Sequence[str],
    *,
    compares: bool = True,
    limit_gib: float = DEFAULT_NUMERICS_GIB,
) -> AppliedRecord:
    """Run a plan of what a target returns on the devices of this process."""
    # The step is the user's code, and so is what it prints.
    with Bar("running the plan"), contained(), naming_planned_arguments(plan, arguments):
        step, args = load_step(target, arguments, "apply")
        call = traced_call(step, args, name=target, mesh=plan.mesh.axes)
        devices = chosen_devices(plan.mesh.device_count)
        return apply_plan(plan, call, devices, compares=compares, limit_bytes=limit_gib * 2**30)


def applied_status(applied: AppliedRecord) -> ExitStatus:
    """What the command ends with."""
    if applied.numerics is not None and not applied.numerics.agrees:
        return ExitStatus.WRONG_NUMBERS
    return ExitStatus.DONE
