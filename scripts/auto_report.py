"""The tables of AUTO, presets and ours: which plan of each is fastest by the witness, and every plan that was compiled."""

from collections.abc import Sequence
from dataclasses import dataclass
import statistics
from typing import Final

from scripts.scheduled import ScheduledStep
from scripts.tables import markdown


PRESETS: Final = ("data-parallel", "zero-3", "megatron")
AUTO: Final = "AUTO"
OURS: Final = "ours"
KINDS: Final = {"AUTO": (AUTO,), "best preset": PRESETS, "ours": (OURS,)}
GIB: Final = 2**30
_HEADER: Final = [
    "model", "AUTO ms", "best preset ms", "ours ms", "ours / best", "AUTO's pass s", "AUTO with compiling s", "ours s",
]  # fmt: skip
_DETAIL: Final = [
    "model", "plan", "mesh", "compute ms", "collectives ms", "step ms", "newer ms", "GiB", "planning s", "compiling s",
    "note",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of one model as the witness sees it; `step` is None if it does not fit, or was not compiled.

    `origin` is AUTO, a preset's name or ours; `planning_seconds` are the pass alone as its log says it, or the
    processor's for our tracing and search; `newer_seconds` are the step by today's compiler.
    """

    model: str
    origin: str
    where: str
    step: ScheduledStep | None
    note: str
    peak_bytes: int | None
    planning_seconds: float | None
    compile_seconds: float
    newer_seconds: float | None = None


def fastest(rows: Sequence[Row], kind: str) -> Row | None:
    """The row of a kind with the shortest step, None if none was compiled."""
    compiled = [r for r in rows if r.origin in KINDS[kind] and r.step is not None]
    return min(compiled, key=lambda r: r.step.seconds if r.step else 0.0, default=None)


def report(rows: Sequence[Row]) -> str:
    """Both tables, and how ours does."""
    lines, ratios, of_presets, beside_auto = [], [], [], 0
    for name in dict.fromkeys(r.model for r in rows):
        of_model = [r for r in rows if r.model == name]
        seconds = {kind: _step_seconds(fastest(of_model, kind)) for kind in KINDS}
        ours = seconds.pop("ours")
        others = [s for s in seconds.values() if s is not None]
        ratio = "" if ours is None or not others else f"{ours / min(others):.2f}"
        if ours is not None and others:
            ratios.append(ours / min(others))
            beside_auto += seconds["AUTO"] is not None
        if ours is not None and seconds["best preset"] is not None:
            of_presets.append(ours / seconds["best preset"])
        tried = [r for r in of_model if r.origin == AUTO]
        own = next((r.planning_seconds for r in of_model if r.origin == OURS), None)
        lines.append(
            [
                name, *(_found(fastest(of_model, kind)) for kind in KINDS), ratio,
                _passed(tried),
                _seconds(sum(r.compile_seconds for r in tried)), _seconds(own),
            ]
        )  # fmt: skip
    detail = markdown(_DETAIL, [cells(r) for r in rows])
    return f"{_summary(ratios, of_presets, beside_auto)}{markdown(_HEADER, lines)}\n{detail}"


def _passed(tried: Sequence[Row]) -> str:
    """Seconds of all passes together."""
    seconds = [r.planning_seconds for r in tried if r.planning_seconds is not None]
    return _seconds(sum(seconds)) if len(seconds) == len(tried) else "not done"


def _summary(ratios: Sequence[float], of_presets: Sequence[float], beside_auto: int) -> str:
    if not ratios:
        return ""
    text = (
        f"Ours over the best of all: geometric mean {statistics.geometric_mean(ratios):.2f}, worst "
        f"{max(ratios):.2f}, of {len(ratios)} models, for {beside_auto} of which AUTO had a plan"
    )
    if of_presets:
        text += f"; over the best preset {statistics.geometric_mean(of_presets):.2f}"
    return text + ".\n\n"


def _step_seconds(row: Row | None) -> float | None:
    return None if row is None or row.step is None else row.step.seconds


def _found(row: Row | None) -> str:
    if row is None or row.step is None:
        return "none"
    name = "" if row.origin in (AUTO, OURS) else f"{row.origin} "
    return f"{row.step.seconds * 1e3:.2f} ({name}{row.where})"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def cells(row: Row) -> list[str]:
    """A row of the second table."""
    times = ["", "", ""]
    if row.step is not None:
        step = row.step
        found = (step.compute_seconds, step.collective_seconds, step.seconds)
        times = [f"{s * 1e3:.2f}" for s in found]
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / GIB:.2f}"
    newer = "" if row.newer_seconds is None else f"{row.newer_seconds * 1e3:.2f}"
    return [
        row.model, row.origin, row.where, *times, newer, peak, _seconds(row.planning_seconds),
        _seconds(row.compile_seconds), row.note,
    ]  # fmt: skip
