"""Plans beside each other: what people write by hand, what was compiled, and the frontier.

The frontier has, of all plans that were priced, those that no other one is faster and smaller than:
the best step at each limit of memory (`automap.plan.parts.FrontierRecord`). A plan that is not
there was never priced, so one that is still better may exist; that is said where it is shown.
"""

from collections.abc import Iterator
from typing import Any, Final

from automap.plan.explain import memory_bytes
from automap.plan.record import PlanRecord
from automap.quantities import bytes_text, seconds_text
from automap.report.html import table


Values = dict[str, Any]
_MOST_ROWS: Final = 12


def priced_plans(plan: PlanRecord) -> Iterator[Values]:
    """Every preset, what was compiled, and the plan itself, beside each other."""
    for row in plan.presets:
        yield _outcome(row.name, "preset", row.step_seconds, row.peak_bytes, fits=row.fits)
    if plan.levers is not None:
        row = plan.levers.without
        yield _outcome("no levers", "preset", row.step_seconds, row.peak_bytes, fits=row.fits)
        if row.fastest_seconds is not None and row.fastest_bytes is not None:
            fastest = row.fastest_seconds, row.fastest_bytes
            yield _outcome("no levers, fastest", "preset", *fastest, fits=False)
    for row in plan.refined.compiled if plan.refined else ():
        if row.compiled_seconds is not None and row.compiled_bytes is not None:
            name = f"{row.plan}, compiled"
            seconds, count = row.compiled_seconds, row.compiled_bytes
            yield _outcome(name, "compiled", seconds, count, fits=row.fits)
    cost = plan.predicted
    yield _outcome("this plan", "this plan", cost.step_seconds, cost.peak_bytes, fits=cost.fits)


def _outcome(name: str, kind: str, seconds: float, count: int, *, fits: bool) -> Values:
    return {
        "name": name,
        "kind": kind,
        "seconds": seconds,
        "bytes": count,
        "fits": fits,
        "text": f"{name}\nstep {seconds_text(seconds)}, peak {bytes_text(count)}: "
        + ("fits" if fits else "does not fit"),
    }


def frontier(plan: PlanRecord) -> Iterator[Values]:
    """The points of the frontier, the fastest first."""
    for row in plan.search.frontier:
        fits = row.peak_bytes <= memory_limit_bytes(plan)
        yield _outcome(
            "best at this memory", "frontier", row.step_seconds, row.peak_bytes, fits=fits
        )


def frontier_table(plan: PlanRecord) -> str:
    """The frontier in words: the best step at some limits of memory, from the most."""
    rows = plan.search.frontier
    step = max(len(rows) // _MOST_ROWS, 1)
    cells = [
        (
            bytes_text(row.peak_bytes),
            seconds_text(row.step_seconds),
            f"{row.step_seconds / rows[0].step_seconds:.3g} times",
            "yes" if row.peak_bytes <= memory_limit_bytes(plan) else "no",
        )
        for row in rows[::step]
    ]
    heads = ("memory of a device", "best step", "over the fastest", "fits")
    return table(
        "The best step at each limit of memory, of the plans that were priced", heads, cells
    )


def memory_limit_bytes(plan: PlanRecord) -> int:
    """What a device may hold: what was given, else its memory."""
    given = plan.search.memory_limit_bytes
    return memory_bytes(plan) if given is None else given
