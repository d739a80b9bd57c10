"""One plan given to the compiler: what was predicted, expected and compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from automap.config import Options
from automap.errors import CompilerError
from automap.plan.record import PlanRecord
from automap.plan.refined import CompiledPlanRecord
from automap.planner.records import Outcome
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan that was given to the compiler, and the `program` that it made, a serialized HLO
    proto; `plan` is None where it failed, `program` where there is none.
    """

    point: Point
    record: CompiledPlanRecord
    plan: PlanRecord | None
    program: bytes | None


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
        plan = with_verified(plan, verified_record(witness, peak_bytes, number))
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
