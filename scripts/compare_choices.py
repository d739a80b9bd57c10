"""Which plan to compile next: rules beside each other on plans that were compiled once.

    python -m scripts.compare_choices -o docs/reports/refine.md

Steps are those of `scripts/data/compiled_plans.jsonl` that are held out (`scripts.halves`); no
compiler is needed. A rule says one plan after the other, and is told what was compiled
(`scripts.compiled_plans.Replay`)                                               -> in: `replayed`

    predicted   the best predicted plans, in order
    presets     the search's plan, then the best predicted presets, then as predicted
    learnt      what `--refine` does       -> in: `automap.refine.candidates.Candidates.next_index`
    learning off
                the same, but compiled plans say nothing of others: prices and errors stay as they
                were believed before                                     -> in: `_learning_off`
    to the end  the same, going on where `--refine` ends as nothing faster is expected
    random      any, the mean of all orders                                   -> in: `mean_least`
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from pathlib import Path
import platform
import sys
from typing import Final

import click
import jax

from automap.errors import AutomapError
from automap.refine.candidates import Beliefs, Candidates, ErrorScale
from automap.space.point import Point
from scripts.compiled_plans import RECORDED, Replay, Step, step_seconds, steps
from scripts.halves import is_held_out
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_choices -o docs/reports/refine.md"
COMPILES: Final = 8
_COUNTS: Final = (2, 3, 4, 6, COMPILES)
# Two steps that differ by less are equal: the last digit that they are told with.
_EQUAL: Final = 1e-3


def _predicted(replay: Replay) -> int | None:
    order = replay.by_prediction(range(len(replay.candidates)))
    return next((i for i in order if i not in replay.indices), None)


def _presets(replay: Replay) -> int | None:
    order = [*replay.by_prediction(range(len(replay.candidates)))[:1]]
    order += replay.by_prediction(replay.presets)
    return next((i for i in order if i not in replay.indices), None) or _predicted(replay)


def _first(replay: Replay) -> list[Point]:
    """What is compiled before anything is learnt: the search's plan and the best preset."""
    best = replay.by_prediction(range(len(replay.candidates)))[:1]
    first = best + replay.by_prediction(replay.presets)[:1]
    return [replay.candidates[i].point for i in first]


def _learnt(replay: Replay) -> int | None:
    return replay.priced().next_index(_first(replay))


class _Unlearnt(Candidates):
    """Candidates of whose errors nothing is known but what was before."""

    def _beliefs(self, known: Sequence[tuple[Point, float]], scale: ErrorScale) -> Beliefs:
        return super()._beliefs((), scale)


def _learning_off(replay: Replay) -> int | None:
    pool = replace(replay, context=replay.first_context).priced()
    return _Unlearnt(pool.context, pool.candidates, pool.trials).next_index(_first(replay))


def _to_the_end(replay: Replay) -> int | None:
    context = replay.context
    # Any gain is enough; where none can be told from zero it ends.
    policy = replace(context.policy, least_improvement=sys.float_info.min)
    return _learnt(replace(replay, context=replace(context, policy=policy)))


RULES: Final[Mapping[str, Callable[[Replay], int | None]]] = {
    "predicted": _predicted,
    "presets": _presets,
    "learnt": _learnt,
    "learning off": _learning_off,
    "to the end": _to_the_end,
}


def replayed(replay: Replay, rule: Callable[[Replay], int | None], compiles: int) -> list[int]:
    """The plans that a rule compiles, in order: at most so many, fewer if it says that no other is
    worth it.
    """
    replay = replace(replay, trials=[], learned=[], indices=[], context=replay.first_context)
    while len(replay.indices) < compiles:
        index = rule(replay)
        if index is None:
            break
        replay.told(index)
    return replay.indices


def mean_least(seconds: Sequence[float], count: int) -> float:
    """The mean over all choices of `count` numbers of the least of them.

    The k-th least of n is the least chosen in C(n - k, count - 1) of C(n, count) choices.
    """
    n = len(seconds)
    ways = [math.comb(n - k, count - 1) for k in range(1, n + 1)]
    return math.fsum(s * w for s, w in zip(sorted(seconds), ways) if w) / math.comb(n, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step: the least seconds of all its plans, and those of each rule by how many compiles."""

    step: Step
    least: float
    reached: Mapping[str, Mapping[int, float]]
    learnt_compiles: int


def row(step: Step) -> Row:
    """What the rules reach on a step. Raises `AutomapError` as `Replay.begin` does."""
    replay = Replay.begin(step)
    seconds = [step_seconds(plan) for plan in step.plans]
    orders = {name: replayed(replay, rule, COMPILES) for name, rule in RULES.items()}
    reached: dict[str, Mapping[int, float]] = {
        # One that ended keeps what it had.
        name: {n: min(seconds[i] for i in order[:n]) for n in _COUNTS}
        for name, order in orders.items()
    }
    # A plan that is refused is worth as much as the slowest that is not: a mean has no use for inf.
    slowest = max(s for s in seconds if math.isfinite(s))
    finite = [min(s, slowest) for s in seconds]
    reached["random"] = {n: mean_least(finite, min(n, len(finite))) for n in _COUNTS}
    return Row(
        step=step, least=min(seconds), reached=reached, learnt_compiles=len(orders["learnt"])
    )


def summary(rows: Sequence[Row]) -> str:
    """On how many steps a rule is as good as the best predicted plans, by numbers of compiles."""
    header = ["compiles", *(f"{name}: as good, better" for name in RULES if name != "predicted")]
    header += [f"{name}, mean above the best" for name in (*RULES, "random")]
    lines = []
    for n in _COUNTS:
        cells = [str(n)]
        for name in RULES:
            if name == "predicted":
                continue
            ratios = [r.reached[name][n] / r.reached["predicted"][n] for r in rows]
            as_good = sum(ratio <= 1 + _EQUAL for ratio in ratios)
            better = sum(ratio < 1 - _EQUAL for ratio in ratios)
            cells.append(f"{as_good} of {len(rows)}, {better}")
        for name in (*RULES, "random"):
            above = [math.log(r.reached[name][n] / r.least) for r in rows]
            cells.append(f"{math.expm1(math.fsum(above) / len(above)):.1%}")
        lines.append(cells)
    return markdown(header, lines)


def table(rows: Sequence[Row]) -> str:
    """What each rule reaches with all compiles, above the best plan of all."""
    header = ["step", "machine", "plans", "best, ms", *RULES, "random", "learnt compiled"]
    lines = [
        [
            r.step.target.partition(":")[2],
            r.step.topology,
            str(len(r.step.plans)),
            f"{r.least * 1e3:.3f}",
            *(f"{r.reached[name][COMPILES] / r.least - 1:+.1%}" for name in (*RULES, "random")),
            str(r.learnt_compiles),
        ]
        for r in rows
    ]
    return markdown(header, lines)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--data", type=click.Path(path_type=Path, dir_okay=False), default=RECORDED)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(data: Path, output: Path | None) -> None:
    """Print the tables, or put them in OUTPUT."""
    jax.config.update("jax_platforms", "cpu")
    try:
        rows = [row(step) for step in steps(data) if is_held_out(step.target)]
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    text = made_by(COMMAND, f"jax {jax.__version__}, {platform.machine()}")
    text += summary(rows) + "\n" + table(rows)
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "choices")


if __name__ == "__main__":
    main()
