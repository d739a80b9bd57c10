"""Plans near the limit of memory: compiled before they are called fitting, if the compiler is here.

A prediction may be less than what the compiler needs, by the backend's `memory_margin`. A plan that
fits, and would not with the margin, is unsure. It is compiled, a pipeline stage by stage:

    it fits                 it is returned, with what the compiler says of it
    the compiler needs C    the search goes on, where the limit is L, as if it were L * P / C for
    for P predicted         the predictions, since near plans are off alike; at most
                            `_MOST_REFUSALS` times, and a plan that is refused is never returned
    no compiler, or it      it is returned as unsure, with a warning that says why
    fails or takes too long
                                                                            -> in: `settled`
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from automap.choices import NEAR_LIMIT_COMPILE_SECONDS, CompilerName
from automap.config import Options
from automap.errors import CompilerError, InfeasiblePlanError, InputError
from automap.interrupts import note_interrupts
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text
from automap.step.call import TracedCall
from automap.topology.model import Topology
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS
from automap.verify.confirm import (
    Confirmation,
    Said,
    compiler_says,
    is_confirmed,
    tightened_limit,
    verified_record,
    with_verified,
)


_MOST_REFUSALS: Final = 4


def near_limit_confirmation() -> Confirmation:
    """How a plan is confirmed that nobody asked to be verified."""
    return Confirmation(timeout_seconds=NEAR_LIMIT_COMPILE_SECONDS)


def settled(
    plan: PlanRecord,
    call: TracedCall | None,
    options: Options,
    plan_again: Callable[[Options], PlanRecord],
    *,
    confirmation: Confirmation | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> PlanRecord:
    """A plan of which is known whether it fits, as far as it can be: `plan` itself if it is sure.

    `plan_again` plans with other options; `call` is None for a program without a step, and `say`
    is told of each compilation before it begins. Raises `InfeasiblePlanError` if the compiler
    refuses all that the search finds.
    """
    # Of several programs on devices of several kinds no compiler says the sum.
    if plan.placement is not None:
        return plan
    confirmation, allowed = confirmation or near_limit_confirmation(), options
    topology = Topology.from_dict(plan.topology)
    for tried in range(1, _MOST_REFUSALS + 1):
        if not plan.predicted.unsure:
            return plan
        witness = _compiled(plan, call, topology, confirmation, say)
        if isinstance(witness, str):
            return _unsure(plan, witness)
        peak = witness.peak_bytes
        if peak is not None and is_confirmed(witness, options):
            return with_verified(plan, verified_record(witness, peak, tried), options)
        needs = "more" if peak is None else bytes_text(peak)
        say(f"{COMPILERS[witness.compiler].title} needs {needs}: the search goes on with less")
        allowed = replace(
            options, memory_limit_bytes=tightened_limit(plan, topology, allowed, peak)
        )
        plan = plan_again(allowed)
    raise InfeasiblePlanError(
        f"the compiler refuses the {_MOST_REFUSALS} plans that are predicted to fit; plan with "
        "less of --memory-limit, more devices, a smaller batch, or bfloat16"
    )


def _compiled(
    plan: PlanRecord,
    call: TracedCall | None,
    topology: Topology,
    confirmation: Confirmation,
    say: Callable[[str], None],
) -> Said | str:
    """What the compiler says of a plan, or why it cannot be asked."""
    if call is None:
        return "a program without a step cannot be compiled again"
    name: CompilerName = COMPILER_BY_PLATFORM[topology.platform]
    try:
        COMPILERS[name].check_installed()
        with note_interrupts() as interrupts:
            if interrupts.is_asked:
                return "planning was interrupted"
        say(
            f"the plan is predicted to take {bytes_text(plan.predicted.peak_bytes)} of a device, "
            f"which is near the limit: {COMPILERS[name].title} is asked"
        )
        return compiler_says(plan, call, name, confirmation)
    except (CompilerError, InputError) as error:
        return str(error)


def _unsure(plan: PlanRecord, why: str) -> PlanRecord:
    warning = (
        f"memory: the predicted {bytes_text(plan.predicted.peak_bytes)} fit, but the compiler may "
        f"need up to {plan.predicted.memory_margin:.0%} more, and it was not asked ({why}); "
        "verify the plan, or plan with less of --memory-limit"
    )
    return replace(plan, warnings=(*plan.warnings, warning))
