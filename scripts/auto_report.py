"""The tables of AUTO, presets and ours: which plan of each is fastest by the witness, which by
today's compiler, and every plan that was compiled.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import statistics
from typing import Final, TypeAlias

from hlo_tools.compiled.replay import ReplayedStep
from scripts.tables import markdown


# Those that people would write for the models compared.
PRESETS: Final = ("data-parallel", "zero-3", "megatron")
AUTO: Final = "AUTO"
OURS: Final = "ours"
BEST_PRESET: Final = "best preset"
KINDS: Final = {AUTO: (AUTO,), BEST_PRESET: PRESETS, OURS: (OURS,)}
GIB: Final = 2**30
_HEADER: Final = [
    "model",
    "AUTO ms",
    "best preset ms",
    "ours ms",
    "ours / best",
    "AUTO's pass s",
    "AUTO with compiling s",
    "ours s",
]
_NEWER_HEADER: Final = [
    "model",
    "AUTO's carried over ms",
    "best preset ms",
    "ours ms",
    "ours / best",
]
_DETAIL: Final = [
    "model",
    "plan",
    "mesh",
    "compute ms",
    "collectives ms",
    "step ms",
    "newer ms",
    "GiB",
    "planning s",
    "compiling s",
    "note",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan of one model as the witness sees it; `step` is None if it does not fit, or was not
    compiled.

    `origin` is AUTO, a preset's name or ours; `planning_seconds` are the pass alone as its log says
    it, or the processor's for our tracing and search; `newer_seconds` are the step by today's
    compiler.
    """

    model: str
    origin: str
    where: str
    step: ReplayedStep | None
    note: str
    peak_bytes: int | None
    planning_seconds: float | None
    compile_seconds: float
    newer_seconds: float | None = None


# Of a row, in some compiler; None if that did not compile it.
_SecondsOf: TypeAlias = Callable[[Row], float | None]


def witness_seconds(row: Row) -> float | None:
    """The step in AUTO's own compiler."""
    return None if row.step is None else row.step.seconds


def newer_seconds(row: Row) -> float | None:
    """The step in today's compiler."""
    return row.newer_seconds


def fastest(
    rows: Sequence[Row], kind: str, read_seconds: _SecondsOf = witness_seconds
) -> Row | None:
    """The row of a kind with the shortest step, None if none was compiled."""
    compiled = [
        (s, r) for r in rows if r.origin in KINDS[kind] and (s := read_seconds(r)) is not None
    ]
    return min(compiled, key=lambda pair: pair[0], default=(None, None))[1]


def report(rows: Sequence[Row]) -> str:
    """The tables, and how ours does."""
    models = {
        name: [r for r in rows if r.model == name] for name in dict.fromkeys(r.model for r in rows)
    }
    lines = []
    for model_rows in models.values():
        tried = [r for r in model_rows if r.origin == AUTO]
        own = next((r.planning_seconds for r in model_rows if r.origin == OURS), None)
        # AUTO has no say which mesh is best: all that were tried are its price.
        compiling = sum(r.compile_seconds for r in tried)
        side_by_side = _Sides.of(model_rows, witness_seconds).cells()
        lines.append([*side_by_side, _passed(tried), _seconds(compiling), _seconds(own)])
    # Without `--newer` no row has such seconds, and the page no second table.
    newer = [_Sides.of(model_rows, newer_seconds) for model_rows in models.values()]
    parts = [
        _summary("", [_Sides.of(model_rows, witness_seconds) for model_rows in models.values()]),
        markdown(_HEADER, lines),
    ]
    if any(sides.seconds[OURS] is not None for sides in newer):
        summary = _summary(" by today's compiler", newer)
        parts += ["\n", summary, markdown(_NEWER_HEADER, [sides.cells() for sides in newer])]
    return "".join([*parts, "\n", markdown(_DETAIL, [cells(r) for r in rows])])


@dataclass(frozen=True, slots=True)
class _Sides:
    """The fastest of each kind for one model in one compiler, None where there is none."""

    model: str
    best: Mapping[str, Row | None]
    seconds: Mapping[str, float | None]

    @classmethod
    def of(cls, rows: Sequence[Row], read_seconds: _SecondsOf) -> "_Sides":
        """Of the rows of a model."""
        best = {kind: fastest(rows, kind, read_seconds) for kind in KINDS}
        return cls(rows[0].model, best, {k: r and read_seconds(r) for k, r in best.items()})

    def ratio_to(self, *kinds: str) -> float | None:
        """Ours over the best of these kinds."""
        ours = self.seconds[OURS]
        others = [s for kind in kinds if (s := self.seconds[kind]) is not None]
        # Over the best of the others, so that a good preset is not outweighed by a bad AUTO.
        return None if ours is None or not others else ours / min(others)

    def cells(self) -> list[str]:
        """The model, the kinds and the ratio."""
        ratio = self.ratio_to(AUTO, BEST_PRESET)
        texts = [_fastest_text(self.best[kind], self.seconds[kind]) for kind in KINDS]
        return [self.model, *texts, "" if ratio is None else f"{ratio:.2f}"]


def _passed(tried: Sequence[Row]) -> str:
    """Seconds of all passes together."""
    seconds = [r.planning_seconds for r in tried if r.planning_seconds is not None]
    # A sum over some of the passes would look faster than it was.
    return _seconds(sum(seconds)) if len(seconds) == len(tried) else "not done"


def _summary(where: str, models: Sequence[_Sides]) -> str:
    ratios = [r for sides in models if (r := sides.ratio_to(AUTO, BEST_PRESET)) is not None]
    preset_ratios = [r for sides in models if (r := sides.ratio_to(BEST_PRESET)) is not None]
    if not ratios:
        return ""
    beside_auto = sum(sides.ratio_to(AUTO) is not None for sides in models)
    text = (
        f"Ours over the best of all{where}: geometric mean "
        f"{statistics.geometric_mean(ratios):.2f}, worst "
        f"{max(ratios):.2f}, of {len(ratios)} models, for {beside_auto} of which AUTO had a plan"
    )
    if preset_ratios:
        text += f"; over the best preset {statistics.geometric_mean(preset_ratios):.2f}"
    return text + ".\n\n"


def _fastest_text(row: Row | None, seconds: float | None) -> str:
    if row is None or seconds is None:
        return "none"
    name = "" if row.origin in (AUTO, OURS) else f"{row.origin} "
    return f"{seconds * 1e3:.2f} ({name}{row.where})"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def cells(row: Row) -> list[str]:
    """A row of the second table."""
    times = ["", "", ""]
    if row.step is not None:
        step = row.step
        parts = (step.kernel_seconds, step.waited_seconds, step.seconds)
        times = [f"{s * 1e3:.2f}" for s in parts]
    peak = "" if row.peak_bytes is None else f"{row.peak_bytes / GIB:.2f}"
    newer = "" if row.newer_seconds is None else f"{row.newer_seconds * 1e3:.2f}"
    return [
        row.model,
        row.origin,
        row.where,
        *times,
        newer,
        peak,
        _seconds(row.planning_seconds),
        _seconds(row.compile_seconds),
        row.note,
    ]
