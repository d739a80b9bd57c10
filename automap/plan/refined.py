"""What `automap plan --refine` compiled, as records of the plan file and as text."""

from dataclasses import dataclass
from typing import Literal

from automap.errors import PlanError
from automap.plan.checks import check_numbers, refuse
from automap.quantities import bytes_text, number_text, seconds_text


RefinementEnd = Literal["nothing faster is expected", "the seconds were over", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlanRecord:
    """One plan that was compiled, and how the compiler differs from the prediction.

    - `plan`: where it comes from, and its mesh.
    - `predicted_seconds`, `predicted_bytes`: of a step and of a device, by the evaluator alone.
    - `expected_seconds`: what was expected after the plans that were compiled before it.
    - `compiled_seconds`: of the compiled schedule, replayed; null where it has none.
    - `compiled_bytes`: of the compiler's buffers on one device; null where it does not say.
    - `fits`: whether the compiler says so, and the user's own limit if there is one.
    - `compile_seconds`: what the compilation took.
    - `note`: why there is nothing of the compiler; empty where it was compiled.
    """

    plan: str
    predicted_seconds: float
    predicted_bytes: int
    expected_seconds: float
    compiled_seconds: float | None
    compiled_bytes: int | None
    fits: bool
    compile_seconds: float
    note: str

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, and a verdict on what was not compiled."""
        check_numbers(self)
        if self.note and (self.fits or self.compiled_seconds is not None):
            raise refuse("note", self.note, "an empty text for a plan that was compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinedRecord:
    """The compiler in the loop of the search.

    - `compiler`: which one.
    - `seconds`: how many were given, on the clock.
    - `ended`: why no further plan was compiled.
    - `compiled`: all plans that were, in this order.
    - `chosen`: which of them this plan is, counted from 0; null where none was compiled in time,
      and this plan is the search's own.
    """

    compiler: Literal["gpu", "tpu"]
    seconds: float
    ended: RefinementEnd
    compiled: tuple[CompiledPlanRecord, ...]
    chosen: int | None

    def __post_init__(self) -> None:
        """Raise `PlanError` for a number out of range, and a chosen plan that is none that fits."""
        check_numbers(self)
        if self.chosen is None:
            return
        if self.chosen >= len(self.compiled):
            raise refuse("chosen", self.chosen, f"null, or from 0 to {len(self.compiled) - 1}")
        if not self.compiled[self.chosen].fits:
            raise PlanError(
                f"compiled[{self.chosen}].fits: false; allowed: true for what is chosen"
            )


def refined_lines(row: RefinedRecord) -> list[str]:
    """What was compiled, a line each; the chosen plan has a star."""
    plans = number_text(len(row.compiled), "plan")
    lines = [
        f"refined with the {row.compiler.upper()} compiler, {row.seconds:g} s: {plans} compiled, "
        f"then {row.ended}"
    ]
    for index, each in enumerate(row.compiled):
        lines.append(f"  {'*' if index == row.chosen else '-'} {compiled_plan_text(each)}")
    return lines


def compiled_plan_text(row: CompiledPlanRecord) -> str:
    """`zero-3 on data=8: step predicted 1 ms, expected 1.1 ms, compiled 1.2 ms (+20.0%); ...`."""
    start = (
        f"{row.plan}: step predicted {seconds_text(row.predicted_seconds)}, expected "
        f"{seconds_text(row.expected_seconds)}"
    )
    if row.note:
        return f"{start}; not compiled: {row.note}"
    step = "compiled without seconds"
    if row.compiled_seconds is not None:
        step = f"compiled {seconds_text(row.compiled_seconds)}"
        step += _difference(row.predicted_seconds, row.compiled_seconds)
    peak = "an unknown peak"
    if row.compiled_bytes is not None:
        peak = f"peak predicted {bytes_text(row.predicted_bytes)}, compiled "
        peak += bytes_text(row.compiled_bytes)
        peak += _difference(row.predicted_bytes, row.compiled_bytes)
    return f"{start}, {step}; {peak}: {'fits' if row.fits else 'DOES NOT FIT'}"


def _difference(predicted: float, compiled: float) -> str:
    """By how much the compiler is above the prediction; of nothing there is no fraction."""
    return f" ({compiled / predicted - 1:+.1%})" if predicted else ""
