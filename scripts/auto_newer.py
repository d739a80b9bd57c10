"""What today's TPU compiler makes of the plans that AUTO's compiler compared.

It is asked about the fastest of each kind by AUTO's compiler, and about presets within a quarter of
the fastest preset, as the two compilers do not always agree which that is. A plan that it cannot
take (or that cannot be carried over) keeps a note of why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
import math
from typing import Final, TypeAlias

from automap.api.plan import Plan
from automap.errors import CompilerError, PlanError
from scripts.auto_report import BEST_PRESET, KINDS, PRESETS, Row, fastest, witness_seconds


# Near the fastest is enough: two compilers do not always agree on which that is.
_NEAR: Final = 1.25
# What carries a row's plan over to today's compiler; None if its shardings cannot be.
PlanOf: TypeAlias = Callable[[], Plan | None]
# The step that today's compiler makes of a plan; None if it does not fit.
SecondsOf: TypeAlias = Callable[[Plan], float | None]


def with_newer(rows: Sequence[Row], plans: Mapping[Row, PlanOf], measure: SecondsOf) -> list[Row]:
    """The rows of a model, with the steps of those that today's compiler is asked about."""
    asked = set(_asked(rows))
    return [_by_newer(row, plans[row], measure) if row in asked else row for row in rows]


def _asked(rows: Sequence[Row]) -> Iterator[Row]:
    for kind in KINDS:
        best = fastest(rows, kind)
        if best is not None:
            yield best
            # Rows may be asked for twice; the set of the caller keeps each once.
            yield from _near(best, rows) if kind == BEST_PRESET else ()


def _near(best: Row, rows: Sequence[Row]) -> Iterator[Row]:
    most_seconds = _NEAR * (witness_seconds(best) or 0.0)
    for row in rows:
        if row.origin in PRESETS and (witness_seconds(row) or math.inf) <= most_seconds:
            yield row


def _by_newer(row: Row, make_plan: PlanOf, measure: SecondsOf) -> Row:
    try:
        plan = make_plan()
        if plan is None:
            return replace(row, note="newer: not to be carried over")
        seconds = measure(plan)
    except (PlanError, CompilerError) as error:
        return replace(row, note=f"newer: {str(error).partition(chr(10))[0][:100]}")
    if seconds is None:
        return replace(row, note="newer: does not fit")
    return replace(row, newer_seconds=seconds)
