"""Auto-MAP's operator partitioning and auto data parallelism: what is split, and how long the
agents take to find it (Wang et al. 2020, Tables 3 to 6 and figure 16).

    python -m scripts.reproduce_automap -o docs/reports/automap_tables.md

For each model and task the exact optimum of the paper's count, what greed finds, the paper's agent
with and without learning, and ours; in Tables 3, 4 and 6 by variable. One figure has the best plan
of each agent by the decisions made, the other the paper's agent on T5-base as the paper's figure 16
does. The page's other tables are by `scripts.reproduce_pipelines`, `reproduce_online_pipelines`,
`reproduce_pipeline_agent` and `hybrid_agents`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
import platform
import shlex
import statistics
import time
from typing import Any, Final

import click
import numpy as np
from rich.progress import track
import torch

from automap.search.counts.agent import Found, find
from automap.search.counts.game import Mode
from automap.search.counts.solvers import greedy, optimum
from automap.space.space import starred
from scripts.automap_puzzles import MODELS, RANDOM, Puzzle, puzzles, random_choices
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_automap"
_FIGURE_16: Final = "T5-base"
_ENDLESS = 10**9


MODES: tuple[Mode, ...] = ("faithful", "ours")


@dataclass(frozen=True)
class Case:
    """A puzzle, solved in every way; the agents' runs are by seed."""

    puzzle: Puzzle
    best: np.ndarray
    faithful: Sequence[Found]
    unlearned: Sequence[Found]
    ours: Sequence[Found]
    ours_unlearned: Sequence[Found]

    @property
    def optimum(self) -> int:
        """The greatest count."""
        return self.puzzle.choices.count(self.best)


def solved(puzzle: Puzzle, budget_seconds: float, seeds: Sequence[int]) -> Case:
    """Every way to solve a puzzle. All players are told the optimum, only to know when to stop;
    those that do not learn make as many decisions as those that do.
    """
    best = optimum(puzzle.choices)

    def play(mode: Mode, seed: int, most_steps: int = _ENDLESS, *, learns: bool = True) -> Found:
        until = time.process_time() + budget_seconds
        return find(
            puzzle.choices,
            mode,
            puzzle.task,
            seed=seed,
            is_over=lambda: time.process_time() > until,
            most_steps=most_steps,
            target_count=puzzle.choices.count(best),
            learns=learns,
        )

    def unlearned(mode: Mode, learnt: Sequence[Found]) -> list[Found]:
        pairs = zip(seeds, learnt, strict=True)
        return [play(mode, seed, run.steps, learns=False) for seed, run in pairs]

    faithful, ours = ([play(mode, seed) for seed in seeds] for mode in MODES)
    return Case(
        puzzle, best, faithful, unlearned("faithful", faithful), ours, unlearned("ours", ours)
    )


COUNT_HEADER = [
    "model",
    "task",
    "variables or tensors",
    "decisions",
    "dimensions",
    "paper's dimensions",
    "paper's target",
    "exact optimum",
    "greedy",
]
AGENT_HEADER = [
    "model",
    "task",
    "optimum",
    "paper, first stage",
    "paper, second stage",
    "faithful, first stage",
    "faithful, both",
    "decisions made",
    "seconds",
    "without learning",
    "ours",
    "decisions made",
    "seconds",
    "ours without learning",
]


def count_row(case: Case) -> list[str]:
    """What there is to decide, and the best of it."""
    puzzle, choices = case.puzzle, case.puzzle.choices
    return [
        puzzle.model,
        puzzle.task,
        f"{puzzle.variables or ''}",
        f"{len(choices)}",
        f"{choices.weights.sum()}",
        puzzle.paper.dimensions,
        puzzle.paper.target,
        f"{case.optimum}",
        f"{choices.count(greedy(choices))}",
    ]


def agent_row(case: Case) -> list[str]:
    """What the players reach, and how soon."""
    puzzle = case.puzzle

    def counts(runs: Sequence[Found]) -> str:
        return spread([puzzle.choices.count(run.split) for run in runs])

    return [
        puzzle.model,
        puzzle.task,
        f"{case.optimum}",
        puzzle.paper.first_stage,
        puzzle.paper.second_stage,
        spread([run.first_stage_count() for run in case.faithful]),
        counts(case.faithful),
        spread([run.steps for run in case.faithful]),
        spread([run.seconds for run in case.faithful], digits=1),
        counts(case.unlearned),
        counts(case.ours),
        spread([run.steps for run in case.ours]),
        spread([run.seconds for run in case.ours], digits=1),
        counts(case.ours_unlearned),
    ]


def spread(numbers: Sequence[float], digits: int = 0) -> str:
    """The median of the seeds, and the least and greatest where they differ."""
    low, median, high = (f"{f(numbers):,.{digits}f}" for f in (min, statistics.median_low, max))
    return median if low == high else f"{median} ({low} to {high})"


SPLIT_HEADER = [
    "model",
    "variable or tensor",
    "dimension",
    "there are",
    "exact optimum",
    "faithful",
    "without learning",
    "ours",
    "ours without learning",
]


def split_table(puzzle: Puzzle) -> str:
    """Which of the paper's tables says what is split of a puzzle."""
    if puzzle.task == "auto data parallelism":
        return "table 6"
    return "table 4" if puzzle.model == "VGG-19" else "table 3"


def split_rows(case: Case) -> list[list[str]]:
    """By variable or tensor and dimension, those of equal names in all layers together: how many
    each plan splits.
    """
    puzzle = case.puzzle
    every = _named(puzzle, np.ones(len(case.best), bool))
    plans = {
        "exact optimum": [_named(puzzle, case.best)],
        **{
            who: [_named(puzzle, run.split) for run in runs]
            for who, runs in (
                ("faithful", case.faithful),
                ("without learning", case.unlearned),
                ("ours", case.ours),
                ("ours without learning", case.ours_unlearned),
            )
        },
    }
    split = {name for counts in plans.values() for each in counts for name in each}
    return [
        [
            puzzle.model,
            f"`{path}`",
            dim,
            f"{every[path, dim]}",
            *(spread([each[path, dim] for each in counts]) for counts in plans.values()),
        ]
        for path, dim in sorted(split)
    ]


def _named(puzzle: Puzzle, split: np.ndarray) -> Counter[tuple[str, str]]:
    """How many dimensions a plan splits, by (path, dimension)."""
    names = Counter[tuple[str, str]]()
    for i in np.flatnonzero(split):
        for dimension in puzzle.choices.dimensions[i]:
            path, _, dim = dimension.rpartition("[")
            names[starred(path), dim[:-1]] += 1
    return names


TABLES: Final = ("counts", "agents", "table 3", "table 4", "table 6")


def table(name: str, cases: Sequence[Case]) -> str:
    """One of the tables."""
    if name == "counts":
        return markdown(COUNT_HEADER, [count_row(case) for case in cases])
    if name == "agents":
        return markdown(AGENT_HEADER, [agent_row(case) for case in cases])
    shown = [c for c in cases if c.puzzle.paper.target and split_table(c.puzzle) == name]
    return markdown(SPLIT_HEADER, [row for case in shown for row in split_rows(case)])


def draw(cases: list[Case], path: Path) -> None:
    """The best plan of each agent over the optimum, by decisions made; of the first seed."""

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for index, case in enumerate(cases):
            for style, name, runs in (("--", "faithful", case.faithful), ("-", "ours", case.ours)):
                run = runs[0]
                steps = [it.steps for it in run.improvements] + [run.steps]
                shares = [it.count / case.optimum for it in run.improvements]
                axes.step(
                    steps,
                    shares + shares[-1:] if shares else [0.0],
                    style,
                    where="post",
                    color=f"C{index}",
                    label=f"{case.puzzle.model}, {name}",
                    marker=".",
                )
        axes.set(
            xscale="log", xlabel="decisions made", ylabel="best plan / optimum", ylim=(0, 1.05)
        )
        axes.legend(fontsize="small")

    _save(fill, (7, 4), path)


def draw_figure_16(case: Case, path: Path) -> None:
    """Score, progress of propagation and loss of the faithful agent by decisions, all seeds."""

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, 3)
        names = ("score", "decided_share", "loss")
        titles = ("sum of rewards", "share decided at the end", "loss")
        for axes, name, title in zip(panels, names, titles, strict=True):
            for index, run in enumerate(case.faithful):
                steps = [point.steps for point in run.curve]
                axes.plot(steps, [getattr(p, name) for p in run.curve], color=f"C{index}")
            axes.set(xlabel="decisions made", title=title)

    _save(fill, (9, 3), path)


def _save(fill: Callable[[Any], None], size: tuple[float, float], path: Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    # The same bytes in every run, and letters that stay letters.
    with matplotlib.rc_context({"svg.hashsalt": "automap", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        fill(figure)
        figure.savefig(path, metadata={"Date": None})


@click.command()
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--budget",
    default=100.0,
    show_default=True,
    help="Processor seconds for each agent, case and seed; the paper's took half an hour at least.",
)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--only", multiple=True, type=click.Choice([*MODELS, *RANDOM]), help="These alone.")
@click.option("--table", "tables", multiple=True, type=click.Choice(TABLES), help="default: all")
def main(
    output: Path | None, budget: float, seeds: int, only: tuple[str, ...], tables: tuple[str, ...]
) -> None:
    """Print the tables, or put them in OUTPUT with the figures beside it."""
    # So that loading torch and compiling are in nobody's time.
    warm_up = random_choices(9, 0)
    for mode in MODES:
        find(
            warm_up,
            mode,
            "operator partitioning",
            seed=0,
            most_steps=1_000,
            target_count=_ENDLESS,
        )
    names = only or [*MODELS, *RANDOM]
    cases = [
        solved(puzzle, budget, range(seeds))
        for name in track(names, "models")
        for puzzle in puzzles(name)
    ]
    machine = (
        f"torch {torch.__version__}, {platform.machine()}, one thread, at most {budget:g} s of the "
        f"processor for each agent, {seeds} seeds"
    )
    given = "".join(f" --only {shlex.quote(name)}" for name in only)
    given += "".join(f" --table {shlex.quote(name)}" for name in tables)
    for name in tables or TABLES:
        text = made_by(f"{COMMAND}{given} -o {output}", machine) + table(name, cases)
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)
    if output is not None and not tables:
        partitioned = [case for case in cases if case.puzzle.task == "operator partitioning"]
        draw(partitioned, output.with_name("automap_convergence.svg"))
        for case in partitioned:
            if case.puzzle.model == _FIGURE_16:
                draw_figure_16(case, output.with_name("automap_figure_16.svg"))


if __name__ == "__main__":
    main()
