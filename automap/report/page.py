"""The report of a plan as one HTML page that needs no network.

plan -> texts and tables as HTML, with no script needed            -> in: `_sections`
     -> values for the pictures, as JSON (`automap.report.page_data`)
     -> style, scripts and the libraries that draw (d3, Observable Plot), all inside of the page

Nothing in a plan file can run in the page: texts are escaped (`automap.report.html`), the JSON has
no character that ends its element (`_json`), scripts put texts into text nodes only, and the page's
own policy lets no script run but the page's own, by their digests, and nothing be loaded
                                                                   -> in: `_policy`
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
import hashlib
from importlib import resources
import json
from pathlib import Path
import re
from string import Template
from typing import Any, Final

from automap.atomic_file import write_atomically
from automap.plan.explain import (
    conflict_lines,
    is_update_alone,
    order_text,
    search_text,
    unsure_text,
    verified_text,
)
from automap.plan.levers import levers_lines
from automap.plan.parts import DecisionRecord
from automap.plan.rates import ChangeRecord
from automap.plan.record import PlanRecord, mesh_text
from automap.plan.refined import refined_lines
from automap.quantities import bytes_text, seconds_text
from automap.report.html import element, escaped, spec_chips, table, tiles, verdict
from automap.report.layers import LeafRow, axis_names, folded_leaves
from automap.report.page_data import page_data, sentence, summary_numbers
from automap.report.priced import frontier_table
from automap.simulate.simulation import (
    CollectiveRow,
    OpRow,
    SimulationRecord,
    simulated_program,
)
from automap.topology.model import Topology


_LIBRARIES: Final = ("d3.min.js", "plot.min.js")
_SCRIPTS: Final = ("marks.js", "charts.js", "pictures.js")
_LONGEST: Final = 12
_MOST_COVERED: Final = 8


def save_report(plan: PlanRecord, path: str | Path) -> None:
    """Write the report of a plan, whole or not at all; raises `PlanError` if that cannot be
    done.
    """
    write_atomically(path, report(plan))


def report(plan: PlanRecord) -> str:
    """The whole page."""
    simulated = None
    if plan.program is not None:
        machine = Topology.from_dict(plan.topology)
        simulated = simulated_program(plan, plan.program, machine)
    own = "\n".join(_asset(name) for name in _SCRIPTS)
    scripts = [*(_asset(name) for name in _LIBRARIES), own]
    return Template(_asset("page.html")).substitute(
        policy=_policy(scripts),
        title=escaped(f"{plan.workload.target} on {plan.topology['name']}"),
        heading=_breakable(f"{plan.workload.target} on {plan.topology['name']}"),
        style=_asset("page.css"),
        sections="\n".join(_sections(plan, simulated)),
        footer=escaped(_origin(plan)),
        data=_json(page_data(plan, simulated)),
        scripts="\n".join(f"<script>{text}</script>" for text in scripts),
    )


def _breakable(name: str) -> str:
    """A name that a narrow screen may break behind its parts, and not within a word."""
    return re.sub(r"([:._])", r"\1<wbr>", escaped(name))


def _asset(name: str) -> str:
    return (resources.files("automap.report") / "assets" / name).read_text(encoding="utf-8")


def _json(values: Mapping[str, Any]) -> str:
    """JSON that is safe inside of a script element: no character of it starts or ends a tag."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _policy(scripts: Sequence[str]) -> str:
    """What a browser lets this page do: run these scripts and nothing else, load nothing."""
    digests = (hashlib.sha256(text.encode()).digest() for text in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'"
    )


def _origin(plan: PlanRecord) -> str:
    work = plan.workload
    arguments = "".join(f" --arg {name}={value}" for name, value in work.arguments)
    made_by = f", traced by JAX {work.jax_version}" if work.jax_version else ""
    return (
        f"Planned: {work.target}{arguments} on {plan.topology['name']}{made_by}; found by "
        f"{search_text(plan)}. SHA-256 of the program: {work.hlo_sha256}. Drawn with d3 and "
        "Observable Plot (ISC licence)."
    )


def _sections(plan: PlanRecord, simulated: SimulationRecord | None) -> Iterator[str]:
    shown = [section for section in _SECTIONS if section.has(plan)]
    yield _summary(plan)
    links = (element("a", escaped(each.title), href=f"#{each.name}") for each in shown)
    yield element("nav", "".join(links), aria_label="Sections")
    for each in shown:
        title = element("h2", escaped(each.title), id=f"{each.name}-title")
        about = element("p", escaped(each.about), class_="about")
        inner = title + about + "".join(each.contents(plan, simulated))
        yield element("section", inner, id=each.name, aria_labelledby=f"{each.name}-title")


def _summary(plan: PlanRecord) -> str:
    cost = plan.predicted
    parts = [
        f'<p class="lead">{escaped(sentence(plan))} {verdict(fits=cost.fits)}'
        f"{escaped(unsure_text(cost))}</p>",
        tiles(summary_numbers(plan)),
    ]
    if plan.warnings:
        listed = "".join(element("li", escaped(text)) for text in plan.warnings)
        title = "<strong>What you should know</strong>"
        parts.append(element("div", f"{title}<ul>{listed}</ul>", class_="warnings", role="note"))
    return "".join(parts)


def _figure(chart: str, caption: str, **attributes: str) -> str:
    inner = element("figcaption", escaped(caption)) + '<div class="canvas"></div>'
    return element("figure", inner, data_chart=chart, **attributes)


def _details(summary: str, inner: str) -> str:
    return element("details", element("summary", escaped(summary)) + inner)


def _time(plan: PlanRecord, simulated: SimulationRecord | None) -> Iterator[str]:
    yield _figure("time", "Seconds of the step and of its phases")
    if simulated is not None:
        yield _figure(
            "profile", "The step from its beginning to its end, on one device and its links"
        )
    if plan.predicted.rates is not None and plan.predicted.rates.changes:
        yield _changes(plan.predicted.rates.changes)
    rows = [
        (row.kind, "+".join(row.axes), row.phase, f"{row.count:,}", bytes_text(row.bytes))
        for row in plan.predicted.collectives
    ]
    if rows:
        heads = ("collective", "over", "phase", "number", "bytes")
        yield table("All collectives of a step", heads, ([*map(escaped, row)] for row in rows))
    if simulated is not None:
        longest = ("Longest kernels", simulated.ops), ("Longest collectives", simulated.collectives)
        for title, tasks in longest:
            if tasks:
                yield _details(title, _longest(title, tasks[:_LONGEST], simulated.step_seconds))


def _changes(changes: Sequence[ChangeRecord]) -> str:
    cells = [
        (
            escaped(row.what),
            f"{row.speedup:.3g} times",
            seconds_text(row.step_seconds),
            bytes_text(row.peak_bytes),
        )
        for row in changes
    ]
    heads = ("change", "samples a second", "step", "peak memory")
    return table("What would help most, by the same prediction", heads, cells)


def _longest(title: str, rows: Sequence[OpRow | CollectiveRow], step_seconds: float) -> str:
    cells = []
    for row in rows:
        what = row.opcode if isinstance(row, OpRow) else f"{row.kind} over {'+'.join(row.axes)}"
        tensor = row.result if isinstance(row, OpRow) else row.tensor
        share = f"{row.seconds / step_seconds:.1%}" if step_seconds else ""
        texts = (seconds_text(row.seconds), share, row.phase, what, tensor, row.op_name, row.source)
        cells.append([*map(escaped, texts)])
    heads = ("seconds", "of the step", "phase", "what", "tensor", "operation", "line of code")
    return table(title, heads, cells)


def _memory(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    yield _figure("memory", "What a device holds when it holds most")
    if plan.levers is not None:
        yield _text("\n".join(levers_lines(plan.levers)))
    curve = plan.memory_curve
    if curve is None:
        return
    yield _figure("curve", "What a device holds from the first operation of the step to the last")
    if curve.held:
        rows = [(escaped(row.name), str(row.count), bytes_text(row.bytes)) for row in curve.held]
        title = "The largest that is alive at the peak, besides what is stored; whole shapes"
        yield table(title, ("what", "number", "bytes on a device"), rows)


def _plans(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    steps = _figure("plans", "Seconds of a step", data_value="seconds")
    yield element("div", steps + _figure("plans", "Peak memory", data_value="bytes"), class_="pair")
    if plan.search.frontier:
        yield _figure("frontier", "The best step at each limit of memory")
        yield frontier_table(plan)


def _machine(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    yield _figure("machine", f"{plan.topology['name']}: mesh {mesh_text(plan)}")
    devices = plan.mesh.devices
    yield f"<p>{escaped(f'Devices in the order of the mesh: {order_text(devices)}.')}</p>"


def _model(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    yield _figure("layers", "Each tensor as large as its bytes, in the colours of what splits it")
    axes = axis_names(plan)
    rows = [
        [
            escaped(f"{row.block}.{row.name}"),
            escaped(row.role),
            str(len(row.paths)),
            escaped(row.dtype),
            spec_chips(row, axes),
            bytes_text(row.whole_bytes),
            bytes_text(row.device_bytes),
        ]
        for row in folded_leaves(plan)
    ]
    heads = ("tensor", "role", "times", "type", "dimensions", "bytes", "on a device")
    yield _details(f"All {len(rows)} kinds of tensors", table("Inputs of the step", heads, rows))


def _staged(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    if plan.pipeline is not None:
        yield _figure("timeline", "Passes of each stage over the step, numbered by microbatch")
    if plan.placement is not None:
        yield _figure("timeline", "What each device runs over the step")
    if plan.streams is not None:
        yield _figure("streams", "Stages one after another; what stands in a column runs at once")


def _compiled(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    if plan.verified is not None:
        predicted, compiled = plan.predicted.expected_bytes, plan.verified.peak_bytes
        change = f" ({compiled / predicted - 1:+.1%})" if predicted else ""
        text = (
            f"Verified by {verified_text(plan.verified)}. Predicted were {bytes_text(predicted)}"
            f"{change}."
        )
        yield f"<p>{escaped(text)}</p>"
    if plan.refined is not None:
        yield element("pre", escaped("\n".join(refined_lines(plan.refined))))


def _why(plan: PlanRecord, _: SimulationRecord | None) -> Iterator[str]:
    rows, leaves = [], folded_leaves(plan)
    for row in plan.decisions:
        over = "+".join(row.axes) or "whole on every device"
        what = {None: "computed split", "full": "stored split", "optimizer": "optimizer split"}
        how = "update split" if is_update_alone(plan, row) else what[row.level]
        # A decision covers a leaf of every layer: said once for all layers.
        covered = [f"{each.block}.{each.name}" for each in _covered(leaves, row)]
        rest = len(covered) - _MOST_COVERED
        covers = ", ".join(covered[:_MOST_COVERED]) + (f" and {rest} more" if rest > 0 else "")
        rows.append([*map(escaped, (row.group, how, over, row.reason, covers))])
    if rows:
        yield table("Decisions", ("what", "how", "over", "why", "covers"), rows)
    if plan.conflicts:
        lines = "\n".join(line for row in plan.conflicts for line in conflict_lines(row))
        yield _details(f"Conflicts that were settled: {len(plan.conflicts)}", _text(lines))


def _covered(leaves: Sequence[LeafRow], decision: DecisionRecord) -> list[LeafRow]:
    """The rows of leaves of which a decision covers one."""
    covers = frozenset(decision.covers)
    return [row for row in leaves if not covers.isdisjoint(row.paths)]


def _text(lines: str) -> str:
    return element("pre", escaped(lines))


@dataclass(frozen=True, kw_only=True)
class _Section:
    """A part of the page, of plans that have what it shows."""

    name: str
    title: str
    about: str
    contents: Callable[[PlanRecord, SimulationRecord | None], Iterator[str]]
    has: Callable[[PlanRecord], object] = lambda _: True


_SECTIONS: Final = (
    _Section(
        name="time",
        title="Where the time goes",
        about="Exposed collectives are those that computation waits for; hidden ones run beside "
        "it.",
        contents=_time,
    ),
    _Section(
        name="memory",
        title="What the memory holds",
        about="Of one device, of a pipeline the fullest one.",
        contents=_memory,
    ),
    _Section(
        name="plans",
        title="Beside what people write by hand",
        about="The best plan of each preset, by the same evaluator. Below, the best step over the "
        "memory of a device, of all plans that this search has priced, without levers; another "
        "search may find better ones.",
        contents=_plans,
        has=lambda plan: plan.presets,
    ),
    _Section(
        name="staged",
        title="What runs when",
        about="By the seconds that the plan has of its stages or operators.",
        contents=_staged,
        has=lambda plan: plan.pipeline or plan.streams or plan.placement,
    ),
    _Section(
        name="machine",
        title="The machine and the mesh on it",
        about="Devices of the same shade have the same place along the axis that you choose; the "
        "line is the way of a collective over it, for the devices of one group.",
        contents=_machine,
    ),
    _Section(
        name="model",
        title="The model and how it is split",
        about="Repeated layers are drawn once. A tensor in several colours is split over several "
        "axes, a grey one is whole on each device that has it.",
        contents=_model,
    ),
    _Section(
        name="compiled",
        title="What the compiler says",
        about="Plans that were compiled ahead of time, and how they differ from what is predicted.",
        contents=_compiled,
        has=lambda plan: plan.verified or plan.refined,
    ),
    _Section(
        name="why",
        title="Why it is so",
        about="Each decision, and what the same plan would cost without it.",
        contents=_why,
        has=lambda plan: plan.decisions or plan.conflicts,
    ),
)
