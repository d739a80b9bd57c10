"""Plans and comparisons as a notebook shows them: a few lines of HTML that need no script.

The colours and words are those of the page (`automap.report.page`); styles stand on the elements,
as a notebook keeps no style sheet of ours. Texts are escaped by `automap.report.html`.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from automap.plan.explain import decision_text
from automap.plan.record import PlanRecord
from automap.planner.spaces import Comparison
from automap.quantities import bytes_text, seconds_text
from automap.report.html import element, escaped
from automap.report.page_data import sentence, summary_numbers


_COLOURS: Final = {
    "compute": "#3d6fd1",
    "exposed collectives": "#d9741c",
    "bubbles": "#9aa4b1",
    "host memory": "#7a57b8",
}
_CELL: Final = "text-align:left;padding:2px 14px 2px 0"
_MOST_DECISIONS: Final = 6


def plan_html(plan: PlanRecord) -> str:
    """A plan: what it comes to, where the time goes, the presets beside it, the decisions."""
    title = f"{plan.workload.target} on {plan.topology['name']}"
    cost = plan.predicted
    presets = [
        (row.name, seconds_text(row.step_seconds), bytes_text(row.peak_bytes), _fits(row.fits))
        for row in plan.presets
    ]
    own = seconds_text(cost.step_seconds), bytes_text(cost.peak_bytes), _fits(cost.fits)
    shown = plan.decisions[:_MOST_DECISIONS]
    rest = len(plan.decisions) - len(shown)
    decisions = [decision_text(plan, row) for row in shown] + ([f"and {rest} more"] if rest else [])
    return element(
        "div",
        element("strong", escaped(title))
        + f"<div>{escaped(sentence(plan))} {_fits(cost.fits)}</div>"
        + _bar(plan)
        + _table(("", "", ""), ((n, a, b) for n, (a, b) in summary_numbers(plan).items()))
        + _table(("plan", "step", "peak", ""), [("this plan", *own), *presets])
        + "".join(element("div", escaped(line)) for line in (*decisions, *plan.warnings)),
        class_="automap-plan",
    )


def comparison_html(comparison: Comparison) -> str:
    """Every preset and what the searches came to, a row each, and what is said of them."""
    rows = [
        (
            row.name,
            "-" if row.step_seconds is None else seconds_text(row.step_seconds),
            "-" if row.peak_bytes is None else bytes_text(round(row.peak_bytes)),
            _fits(row.fits),
        )
        for row in comparison.rows
    ]
    texts = (*comparison.notes, *comparison.advice)
    said = "".join(element("div", escaped(text)) for text in texts)
    inner = _table(("plan", "step", "peak", ""), rows) + said
    return element("div", inner, class_="automap-comparison")


def _fits(fits: bool) -> str:  # noqa: FBT001 - of one cell
    return "✓ fits" if fits else "✗ does not fit"


def _bar(plan: PlanRecord) -> str:
    """The step as a bar of its parts, and what their colours mean."""
    cost = plan.predicted
    seconds = (
        cost.compute_seconds,
        cost.collective_seconds,
        cost.bubble_seconds,
        cost.host_seconds,
    )
    parts = [(name, each) for name, each in zip(_COLOURS, seconds, strict=True) if each]
    pieces = "".join(
        element(
            "span", "", style=f"flex:{each / cost.step_seconds:.6f};background:{_COLOURS[name]}"
        )
        for name, each in parts
    )
    words = "; ".join(f"{name} {seconds_text(each)}" for name, each in parts)
    style = "display:flex;height:12px;max-width:40em;margin:6px 0"
    bar = element("div", pieces, style=style, role="img", aria_label=words)
    names = "".join(
        element("span", "■ ", style=f"color:{_COLOURS[name]}")
        + escaped(f"{name} {seconds_text(each)}  ")
        for name, each in parts
    )
    return bar + element("div", names)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(element("th", escaped(text), style=_CELL) for text in heads)
    body = "".join(
        element("tr", "".join(element("td", escaped(text), style=_CELL) for text in cells))
        for cells in rows
    )
    headed = element("tr", head) if any(heads) else ""
    return element("table", headed + body)
