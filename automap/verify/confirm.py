"""`automap plan --verify`: the best candidates of a search, compiled until one is confirmed to fit.

    candidates by predicted cost, those predicted to fit first -> compile one after the other
    -> the first that the compiler confirms, which is the best of those confirmed

A plan that the prediction refuses and the compiler accepts is returned as well: the compiler has
the last word.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS, DEFAULT_VERIFY_TOP
from automap.config import Options
from automap.errors import InfeasiblePlanError, InputError
from automap.plan.record import PlanRecord, VerifiedRecord
from automap.planner.records import Outcome, build_plan
from automap.quantities import bytes_text
from automap.search.context import Candidate
from automap.step.call import TracedCall
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS
from automap.verify.compiling import Compiled, compile_planned
from automap.verify.program import planned_program
from automap.verify.witness import Witness


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """How to confirm: at most `top` candidates, `timeout_seconds` for each, `cache_folder` None for
    none.
    """

    top: int = DEFAULT_VERIFY_TOP
    timeout_seconds: float = DEFAULT_COMPILE_TIMEOUT_SECONDS
    cache_folder: Path | None = field(default_factory=default_folder)

    def __post_init__(self) -> None:
        """Raise `InputError` for numbers out of range."""
        if self.top < 1:
            raise InputError(f"verify top {self.top}: must be a number of plans, at least 1")
        if not self.timeout_seconds > 0:
            raise InputError(
                f"timeout {self.timeout_seconds}: must be a positive number of seconds"
            )


def confirmed_plan(
    outcome: Outcome,
    call: TracedCall,
    options: Options,
    confirmation: Confirmation,
    *,
    on_witness: Callable[[PlanRecord, Witness], None] = lambda plan, witness: None,
) -> PlanRecord:
    """The best plan of a search that the compiler of its topology confirms to fit, with `verified`
    set.

    `on_witness` is called with each candidate. Raises `InfeasiblePlanError` if none is confirmed,
    and what `compile_candidate` raises.
    """
    name = COMPILER_BY_PLATFORM[outcome.topology.platform]
    # Before the first plan is exported, which takes seconds for a large step.
    COMPILERS[name].check_installed()
    smallest: int | None = None
    candidates = _candidates(outcome, options, confirmation.top)
    for tried, candidate in enumerate(candidates, start=1):
        plan, compiled = compile_candidate(outcome, candidate, call, confirmation)
        witness = compiled.witness
        on_witness(plan, witness)
        # A witness without bytes says nothing that a plan could record as verified.
        peak = witness.peak_bytes
        if peak is not None and is_confirmed(witness, options):
            return with_verified(plan, verified_record(witness, peak, tried))
        # For the message: how far the plan that needs least is from fitting.
        smallest = peak if smallest is None else min(smallest, peak or smallest)
    needs = "" if smallest is None else f", the smallest with {bytes_text(smallest)} on each device"
    raise InfeasiblePlanError(
        f"{COMPILERS[name].title} confirms none of the {len(candidates)} best plans{needs}; "
        "compile more with --verify-top, use more devices, a smaller batch, or bfloat16"
    )


def _candidates(outcome: Outcome, options: Options, top: int) -> list[Candidate]:
    """What may be returned, the best first: where the plan is a preset, or was chosen by another
    objective than the step, no other plan stands for it.
    """
    ranked = outcome.context.best_candidates(top)
    is_chosen_otherwise = outcome.context.is_better(ranked[0], outcome.best)
    return [outcome.best] if options.preset is not None or is_chosen_otherwise else ranked


def compile_candidate(
    outcome: Outcome, candidate: Candidate, call: TracedCall, confirmation: Confirmation
) -> tuple[PlanRecord, Compiled]:
    """The plan of a candidate of a search, and what the compiler of its topology makes of it: its
    bytes on a device, and the seconds of its schedule.

    Raises what `automap.verify.compiling.compile_planned` raises.
    """
    plan = build_plan(replace(outcome, best=candidate))
    compiled = compile_planned(
        planned_program(plan, call),
        COMPILER_BY_PLATFORM[outcome.topology.platform],
        timeout_seconds=confirmation.timeout_seconds,
        cache_folder=confirmation.cache_folder,
    )
    return plan, compiled


def is_confirmed(witness: Witness, options: Options) -> bool:
    """Whether a compiler confirms that a plan fits, within the user's own limit if there is one."""
    limit = options.memory_limit_bytes
    return witness.fits and (limit is None or (witness.peak_bytes or 0) <= limit)


def with_verified(plan: PlanRecord, verified: VerifiedRecord) -> PlanRecord:
    """A plan with what a compiler said of it, which is sure then."""
    return replace(plan, predicted=replace(plan.predicted, unsure=False), verified=verified)


def verified_record(witness: Witness, peak_bytes: int, tried: int) -> VerifiedRecord:
    """What a plan says of the compiler that confirmed it, after `tried` plans were compiled."""
    return VerifiedRecord(
        compiler=witness.compiler,
        versions=witness.versions,
        fits=True,
        peak_bytes=peak_bytes,
        compile_seconds=witness.compile_seconds,
        tried=tried,
    )
