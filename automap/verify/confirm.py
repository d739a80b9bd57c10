"""`automap plan --verify`: the best candidates of a search, compiled until one is confirmed to fit.

    candidates by predicted cost, those predicted to fit first -> compile one after the other
    -> the first that the compiler confirms, which is the best of those confirmed

A plan that the prediction refuses and the compiler accepts is returned as well: the compiler has
the last word.

A search for pipelines keeps its best plan alone, and so does one of levers. That plan is compiled,
a pipeline stage by stage, and where the compiler needs C bytes for P predicted the search goes on
with the limit L as if it were L P / C, since near plans are off alike
                                             -> in: `confirmed_pipeline`, `confirmed_plan`
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from automap.choices import DEFAULT_COMPILE_TIMEOUT_SECONDS, DEFAULT_VERIFY_TOP, CompilerName
from automap.config import Options
from automap.errors import InfeasiblePlanError, InputError
from automap.plan.record import PlanRecord, VerifiedRecord
from automap.planner.records import Outcome, build_plan
from automap.quantities import bytes_text
from automap.search.context import Candidate
from automap.step.call import TracedCall
from automap.topology.model import Platform, Topology
from automap.verify.cache import default_folder
from automap.verify.compilers import COMPILER_BY_PLATFORM, COMPILERS
from automap.verify.compiling import Compiled, compile_planned
from automap.verify.pipelines import verify_pipeline
from automap.verify.program import planned_program
from automap.verify.stages import list_programs
from automap.verify.verification import PipelineVerificationRecord
from automap.verify.witness import Witness


Said = Witness | PipelineVerificationRecord
"""What a compiler says of a plan."""
CONFIRMED_BY_STAGES: Final = ("pipeline", "hybrid")
"""Spaces whose searches `confirmed_pipeline` confirms."""


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
    search_again: Callable[[Options], Outcome],
    on_witness: Callable[[PlanRecord, Witness], None] = lambda plan, witness: None,
) -> PlanRecord:
    """The best plan of a search that the compiler of its topology confirms to fit, with `verified`
    set; `search_again` goes on with a plan of levers in less memory.

    `on_witness` is called with each candidate. Raises `InfeasiblePlanError` if none is confirmed,
    and what `compile_candidate` raises.
    """
    name = COMPILER_BY_PLATFORM[outcome.topology.platform]
    # Before the first plan is exported, which takes seconds for a large step.
    COMPILERS[name].check_installed()
    smallest: int | None = None
    allowed, tried = options, 0
    while tried < confirmation.top:
        for candidate in _candidates(outcome, options, confirmation.top - tried):
            tried += 1
            plan, compiled = compile_candidate(outcome, candidate, call, confirmation)
            witness = compiled.witness
            on_witness(plan, witness)
            # A witness without bytes says nothing that a plan could record as verified.
            peak = witness.peak_bytes
            if peak is not None and is_confirmed(witness, options):
                return with_verified(plan, verified_record(witness, peak, tried), options)
            # For the message: how far the plan that needs least is from fitting.
            smallest = peak if smallest is None else min(smallest, peak or smallest)
            limit = tightened_limit(plan, outcome.topology, allowed, peak)
        if outcome.levers is None:
            break
        allowed = replace(options, memory_limit_bytes=limit)
        outcome = search_again(allowed)
    needs = "" if smallest is None else f", the smallest with {bytes_text(smallest)} on each device"
    raise InfeasiblePlanError(
        f"{COMPILERS[name].title} confirms none of the {tried} best plans{needs}; "
        "compile more with --verify-top, use more devices, a smaller batch, or bfloat16"
    )


def _candidates(outcome: Outcome, options: Options, top: int) -> list[Candidate]:
    """What may be returned, the best first: where the plan is a preset, or was chosen by another
    objective than the step, no other plan stands for it, nor for one whose levers were chosen with
    it.
    """
    if outcome.levers is not None:
        return [outcome.best]
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


def confirmed_pipeline(
    plan_within: Callable[[Options], PlanRecord],
    call: TracedCall,
    platform: Platform,
    options: Options,
    confirmation: Confirmation,
    *,
    on_compiled: Callable[[PlanRecord, Said], None] = lambda plan, said: None,
) -> PlanRecord:
    """The best pipeline, or plan of one program, that the compiler confirms to fit, with `verified`
    set; `plan_within` searches a machine of the platform, with options of which only the limit of
    memory changes.

    `on_compiled` is called with each plan. Raises `InfeasiblePlanError` if none is confirmed, and
    what `automap.verify.pipelines.verify_pipeline` raises.
    """
    name = COMPILER_BY_PLATFORM[platform]
    # Before the search rather than after it.
    COMPILERS[name].check_installed()
    allowed, texts = options, list[str]()
    for tried in range(1, confirmation.top + 1):
        try:
            plan = plan_within(allowed)
        except InfeasiblePlanError:
            if texts:
                break
            raise
        topology = Topology.from_dict(plan.topology)
        said = compiler_says(plan, call, name, confirmation)
        on_compiled(plan, said)
        peak = said.peak_bytes
        if peak is not None and is_confirmed(said, options):
            return with_verified(plan, verified_record(said, peak, tried), options)
        texts.append(_refused_text(said))
        limit = tightened_limit(plan, topology, allowed, peak)
        allowed = replace(options, memory_limit_bytes=limit)
    raise InfeasiblePlanError(
        f"the compiler confirms none of {len(texts)} plans: {'; '.join(texts)}; compile more with "
        "--verify-top, use more devices, a smaller batch, or bfloat16"
    )


def compiler_says(
    plan: PlanRecord, call: TracedCall, name: CompilerName, confirmation: Confirmation
) -> Said:
    """What a compiler says of a plan of one program, or of a pipeline stage by stage.

    Raises what `automap.verify.compiling.compile_planned` and
    `automap.verify.pipelines.verify_pipeline` raise.
    """
    timeout, folder = confirmation.timeout_seconds, confirmation.cache_folder
    if plan.pipeline is not None:
        listing = list_programs(plan, call, COMPILERS[name].platform)
        return verify_pipeline(plan, listing, name, timeout_seconds=timeout, cache_folder=folder)
    program = planned_program(plan, call)
    return compile_planned(program, name, timeout_seconds=timeout, cache_folder=folder).witness


def _refused_text(said: Said) -> str:
    """`stage 2 needs 17.1 GiB`; of one program what it needs."""
    if isinstance(said, Witness):
        return f"one program needs {_needs(said.peak_bytes)}"
    # Within the device's memory, but not within the user's own limit: the fullest ones.
    refused = [stage for stage in said.stages if not stage.fits] or [
        stage for stage in said.stages if stage.compiled.peak_bytes == said.peak_bytes
    ]
    return ", ".join(f"stage {s.stage} needs {_needs(s.compiled.peak_bytes)}" for s in refused)


def _needs(peak_bytes: int | None) -> str:
    return "more than there is" if peak_bytes is None else bytes_text(peak_bytes)


def tightened_limit(
    plan: PlanRecord, topology: Topology, allowed: Options, peak_bytes: int | None
) -> float:
    """The limit for predictions after a plan was refused."""
    predicted = plan.predicted.peak_bytes
    # Less than the plan itself in any case, so that it is not found again.
    limit = min(allowed.memory_limit_bytes or topology.device.memory_bytes, predicted - 1)
    # A compiler that does not say what it needs needs more than was predicted: by the margin.
    needed = peak_bytes or predicted * (1.0 + plan.predicted.memory_margin)
    return max(limit * min(predicted / needed, 1.0), 1.0)


def is_confirmed(witness: Said, options: Options) -> bool:
    """Whether a compiler confirms that a plan fits, within the user's own limit if there is one."""
    limit = options.memory_limit_bytes
    return witness.fits and (limit is None or (witness.peak_bytes or 0) <= limit)


def with_verified(plan: PlanRecord, verified: VerifiedRecord, options: Options) -> PlanRecord:
    """A plan with what a compiler said of it, which is sure then; its limit is that of the user's
    `options`, with how much less it was searched.
    """
    memory = Topology.from_dict(plan.topology).device.memory_bytes
    limit = round(options.memory_limit_bytes or memory)
    fits = plan.predicted.peak_bytes <= limit
    return replace(
        plan,
        predicted=replace(plan.predicted, unsure=False, fits=fits),
        search=replace(plan.search, memory_limit_bytes=None if limit == memory else limit),
        verified=verified,
    )


def verified_record(witness: Said, peak_bytes: int, tried: int) -> VerifiedRecord:
    """What a plan says of the compiler that confirmed it, after `tried` plans were compiled."""
    return VerifiedRecord(
        compiler=witness.compiler,
        versions=witness.versions,
        fits=True,
        peak_bytes=peak_bytes,
        compile_seconds=witness.compile_seconds,
        tried=tried,
    )
