"""One plan given to the compiler: what was predicted, expected and compiled."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from automap.config import Options
from automap.errors import CompilerError, InputError
from automap.jaxpr.blocks import BlockGroup, block_groups
from automap.plan.record import PlanRecord
from automap.plan.refined import CompiledPlanRecord
from automap.planner.rebuild import levered_workload
from automap.planner.records import Outcome
from automap.planner.remat import KeptValues, keep_nothing, keep_products, remat_records
from automap.planner.sharding import find
from automap.program.trace import Workload
from automap.search.context import Candidate
from automap.space.point import Point
from automap.step.call import TracedCall
from automap.verify.confirm import (
    Confirmation,
    compile_candidate,
    is_confirmed,
    verified_record,
    with_verified,
)


_POLICIES: Final[Mapping[str, Callable[[Sequence[BlockGroup]], KeptValues] | None]] = {
    "all kept": None,
    "nothing of each layer kept": keep_nothing,
    "products of each layer kept": keep_products,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that was given to the compiler, and the `program` that it made, a serialized HLO
    proto; `plan` is None where it failed, `program` where there is none. `policy` is what people do
    in place of the levers of the search; "" of a plan that has these.
    """

    point: Point
    record: CompiledPlanRecord
    plan: PlanRecord | None
    program: bytes | None
    policy: str = ""

    def under(self, policy: str) -> "Trial":
        """The same of a policy in place of the search's levers."""
        named = replace(self.record, plan=f"{self.record.plan}, {policy}")
        return replace(self, record=named, policy=policy)


def compiled_trial(
    outcome: Outcome,
    candidate: Candidate,
    call: TracedCall,
    options: Options,
    confirmation: Confirmation,
    *,
    expected_seconds: float,
    number: int,
) -> Trial:
    """A candidate of a search, compiled as the plan `number` of those that were.

    Raises what `automap.verify.confirm.compile_candidate` raises.
    """
    plan, compiled = compile_candidate(outcome, candidate, call, confirmation)
    witness = compiled.witness
    # A witness without bytes says nothing that a plan could record as verified.
    peak_bytes = witness.peak_bytes
    fits = peak_bytes is not None and is_confirmed(witness, options)
    if fits and peak_bytes is not None:
        plan = with_verified(plan, verified_record(witness, peak_bytes, number), options)
    record = replace(
        _predicted(candidate, expected_seconds),
        compiled_seconds=None if witness.step is None else witness.step.seconds,
        compiled_bytes=peak_bytes,
        fits=fits,
        compile_seconds=witness.compile_seconds,
    )
    return Trial(point=candidate.point, record=record, plan=plan, program=compiled.program)


def failed_trial(
    candidate: Candidate, error: CompilerError, *, expected_seconds: float, spent_seconds: float
) -> Trial:
    """A candidate at which the compiler failed."""
    record = replace(
        _predicted(candidate, expected_seconds), compile_seconds=spent_seconds, note=str(error)
    )
    return Trial(point=candidate.point, record=record, plan=None, program=None)


def _predicted(candidate: Candidate, expected_seconds: float) -> CompiledPlanRecord:
    """What is known of a candidate before it is compiled."""
    axes = " x ".join(f"{name}={size}" for name, size in candidate.point.mesh.axes)
    return CompiledPlanRecord(
        plan=f"{candidate.origin} on {axes or 'one device'}",
        predicted_seconds=candidate.estimate.step_seconds,
        predicted_bytes=round(candidate.estimate.peak_bytes),
        expected_seconds=expected_seconds,
        compiled_seconds=None,
        compiled_bytes=None,
        fits=False,
        compile_seconds=0.0,
        note="",
    )


def fastest(trials: Sequence[Trial]) -> int | None:
    """Which of the plans that fit is fastest; one without seconds is behind all others, None if
    none fits.
    """

    def key(index: int) -> tuple[bool, float]:
        seconds = trials[index].record.compiled_seconds
        return (seconds is None, seconds or 0.0)

    return min((i for i, t in enumerate(trials) if t.record.fits), key=key, default=None)


def policy_outcomes(
    workload: Workload, levered: Outcome, options: Options
) -> Iterator[tuple[str, Outcome]]:
    """What people do in place of the levers that a search chose, in words, with the best preset
    that fits: they keep all of the forward pass, or where the options allow to compute it again,
    nothing of each layer, or its products. What the search chose itself is left out; of a step
    without levers there is nothing.
    """
    if levered.levers is None or workload.reemitter is None:
        return
    own = (
        levered.levers if levered.levers.microbatches == 1 and not levered.levers.offload else None
    )
    groups, topology = block_groups(workload.reemitter.flat), levered.topology
    may_keep_less = bool({"auto", "remat"} & set(options.levers))
    options = replace(options, levers=())
    for words, keep in _POLICIES.items():
        if keep is not None and not may_keep_less:
            continue
        records = () if keep is None else remat_records(groups, keep(groups))
        levers, step = None, workload
        if records:
            levers = replace(
                levered.levers, remat=records, microbatches=1, offload=(), recompute_seconds=0.0
            )
            step = levered_workload(workload, levers, topology.platform)
        # A policy that changes nothing is the step as it is.
        if keep is not None and (levers is None or (own is not None and records == own.remat)):
            continue
        outcome = _best_preset(step, levered, options)
        if outcome is not None:
            yield words, replace(outcome, levers=levers)


def _best_preset(workload: Workload, levered: Outcome, options: Options) -> Outcome | None:
    """The fastest preset that is predicted to fit, as the outcome of its search."""
    # Not the first there is, which may not divide the batch.
    names = list(levered.context.best_per_preset)
    if not names:
        return None
    try:
        # A preset's own price takes no search, and each prices all of them.
        outcome = find(workload, levered.topology, replace(options, preset=names[0]))
    except InputError:
        return None
    context = outcome.context
    presets = context.best_per_preset.values()
    fitting = [each for each in presets if context.objective.fits(each.estimate)]
    if not fitting:
        return None
    return replace(outcome, best=min(fitting, key=lambda each: each.estimate.step_seconds))
