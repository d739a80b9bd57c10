"""Auto-MAP's operator partitioning and auto data parallelism: what is split, and how long the
agents take to find it.

    python -m scripts.reproduce_automap -o docs/reports/automap_tables.md

For each model and task the exact optimum of the paper's count, what greed finds, and the agents of
both modes: the paper's and ours. The figure has the best plan of each agent by the decisions made.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
import platform
import time

import click
import numpy as np
from rich.progress import track
import torch

from automap.program.problem import Problem
from automap.program.trace import trace_step
from automap.search.counts.agent import Found, find
from automap.search.counts.choices import Choices, data_parallelism, operator_partitioning
from automap.search.counts.solvers import greedy, optimum
from automap.search.counts.views import Mode
from automap.space.space import Space, starred
from models import t5, vgg
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_automap -o docs/reports/automap_tables.md"
# One mesh axis: four devices, as the twelve heads of T5-base cannot be split in eight.
AXIS_SIZE = 4
MODES: tuple[Mode, ...] = ("faithful", "ours")
_ENDLESS = 10**9


@dataclass(frozen=True, slots=True)
class Paper:
    """The paper's figures for a model: the count that is searched for, and hours until it was
    found.
    """

    target: str
    hours: str


@dataclass(frozen=True, slots=True)
class Model:
    """A model with the paper's figures."""

    make: Callable[[], Target]
    paper: Paper


MODELS: Mapping[str, Model] = {
    "VGG-19": Model(vgg.vgg_19, Paper("38 (5)", "")),
    "T5-base": Model(t5.t5_base, Paper("111", "0.5")),
    "T5-3B": Model(t5.t5_3b, Paper("432", "0.94")),
    "T5-11B": Model(t5.t5_11b, Paper("432", "1.45")),
}
PARTITIONING = "operator partitioning"
TASKS: Mapping[str, Callable[[Problem, int], Choices]] = {
    PARTITIONING: operator_partitioning,
    "auto data parallelism": data_parallelism,
}
# Decisions as a program might have them of which greed misses the best, by number.
RANDOM: Mapping[str, int] = {"random, 87": 87, "random, 314": 314}
# Share of dimensions that cannot be split, and rivals of each in the mean.
_NEVER, _RIVALS = 0.15, 2.5


def random_choices(n: int, seed: int) -> Choices:
    """Groups of a few dimensions, a seventh never to be split, with some rivals each at random."""
    source = np.random.default_rng(seed)
    meets = np.triu(source.random((n, n)) < _RIVALS / n, 1)
    return Choices(
        labels=tuple(f"{i}" for i in range(n)),
        weights=np.sort(1 + source.geometric(0.4, size=n))[::-1].copy(),
        allowed=source.random(n) >= _NEVER,
        conflicts=meets | meets.T,
        linked=np.zeros((n, n), bool),
    )


@dataclass(frozen=True)
class Case:
    """One model and task, solved in every way; `without_residual` is the optimum with the residual
    stream whole.
    """

    model: str
    task: str
    choices: Choices
    best: np.ndarray
    optimum_seconds: float
    without_residual: int | None
    results: Mapping[Mode, Found]

    @property
    def target(self) -> int:
        """The exact optimum."""
        return self.choices.count(self.best)


def model_cases(name: str, budget_seconds: float, seed: int) -> list[Case]:
    """All tasks of one model, or one random case."""
    if name in RANDOM:
        choices = random_choices(RANDOM[name], seed)
        return [solved(name, PARTITIONING, choices, None, budget_seconds, seed)]
    step, args = MODELS[name].make()
    problem = trace_step(step, args, platform="cuda", layers="apart").problem
    cases = []
    for task, make_choices in TASKS.items():
        choices = make_choices(problem, AXIS_SIZE)
        without = _without_residual(problem, choices) if task == PARTITIONING else None
        cases.append(solved(name, task, choices, without, budget_seconds, seed))
    return cases


def solved(
    name: str,
    task: str,
    choices: Choices,
    without_residual: int | None,
    budget_seconds: float,
    seed: int,
) -> Case:
    """Every way to solve a case, each with a budget of its own."""
    start = time.perf_counter()
    best = optimum(choices)
    took = time.perf_counter() - start
    # Both modes with equal seeds and budgets, told the optimum only to know when to stop.
    results = {
        mode: find(
            choices,
            mode,
            seed=seed,
            budget_seconds=budget_seconds,
            most_steps=_ENDLESS,
            target_count=choices.count(best),
        )
        for mode in MODES
    }
    return Case(name, task, choices, best, took, without_residual, results)


def _without_residual(problem: Problem, choices: Choices) -> int | None:
    residual = Space(problem).residual
    if residual is None:
        return None
    held = (problem.compute_classes(value) for value in problem.graph.inputs)
    paths = zip(problem.paths, held, strict=True)
    # The paper's counts leave the residual stream whole: the optimum under that rule beside ours.
    dims = {f"{p}[{d}]" for p, classes in paths for d, c in enumerate(classes) if c == residual}
    allowed = choices.allowed & np.array([label not in dims for label in choices.labels])
    return choices.count(optimum(replace(choices, allowed=allowed)))


RESULT_HEADER = [
    "model",
    "task",
    "decisions",
    "dimensions",
    "paper's target",
    "exact optimum",
    "greedy",
    "faithful",
    "ours",
    "optimum, residual stream whole",
]
TIME_HEADER = [
    "model",
    "task",
    "paper, h",
    "exact, ms",
    "faithful, s",
    "faithful, decisions made",
    "faithful, before second thoughts",
    "ours, s",
    "ours, decisions made",
]


def result_row(case: Case) -> list[str]:
    """What is split."""
    choices = case.choices
    counts = [choices.count(case.results[mode].split) for mode in MODES]
    return [
        case.model,
        case.task,
        f"{len(choices)}",
        f"{choices.weights.sum()}",
        _paper(case).target,
        f"{case.target}",
        f"{choices.count(greedy(choices))}",
        *map(str, counts),
        "" if case.without_residual is None else f"{case.without_residual}",
    ]


def time_row(case: Case) -> list[str]:
    """How long it took to find the optimum; in brackets the whole budget where it was not found."""
    paper_mode, our_mode = (case.results[mode] for mode in MODES)
    return [
        case.model,
        case.task,
        _paper(case).hours,
        f"{case.optimum_seconds * 1e3:.1f}",
        *_effort(case, paper_mode),
        f"{paper_mode.improvements[-1].count if paper_mode.improvements else 0}",
        *_effort(case, our_mode),
    ]


def _paper(case: Case) -> Paper:
    is_papers = case.task == PARTITIONING and case.model in MODELS
    return MODELS[case.model].paper if is_papers else Paper("", "")


def _effort(case: Case, result: Found) -> tuple[str, str]:
    is_best = bool(result.improvements) and result.improvements[-1].count >= case.target
    texts = f"{result.seconds:.1f}", f"{result.steps:,}"
    return texts if is_best else (f"({texts[0]})", f"({texts[1]})")


def split_rows(case: Case) -> list[list[str]]:
    """The decisions that the optimum splits, equal ones of all layers together."""
    choices, rows = case.choices, Counter[tuple[str, int]]()
    for i in np.flatnonzero(case.best):
        rows[starred(choices.labels[i]), int(choices.weights[i])] += 1
    return [
        [case.model, case.task, f"`{label}`", f"{weight}", f"{count}"]
        for (label, weight), count in sorted(rows.items(), key=lambda row: (-row[0][1], row[0][0]))
    ]


def draw(cases: list[Case], path: Path) -> None:
    """The best plan of each agent over the optimum, by decisions made, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    styles = {"faithful": "--", "ours": "-"}
    # The same bytes in every run, and letters that stay letters.
    with matplotlib.rc_context({"svg.hashsalt": "automap", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for index, case in enumerate(cases):
            for mode, result in case.results.items():
                steps = [it.steps for it in result.improvements] + [result.steps]
                shares = [it.count / case.target for it in result.improvements]
                axes.step(
                    steps,
                    shares + shares[-1:] if shares else [0.0],
                    styles[mode],
                    where="post",
                    color=f"C{index}",
                    label=f"{case.model}, {mode}",
                    marker=".",
                )
        axes.set(
            xscale="log", xlabel="decisions made", ylabel="best plan / optimum", ylim=(0, 1.05)
        )
        axes.legend(fontsize="small")
        figure.savefig(path, metadata={"Date": None})


@click.command()
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--budget",
    default=1800.0,
    show_default=True,
    help="Seconds for each agent and case; the paper's took half an hour at least.",
)
@click.option("--seed", default=0, show_default=True)
def main(output: Path | None, budget: float, seed: int) -> None:
    """Print the tables, or put them in OUTPUT with the figure beside it."""
    for mode in MODES:  # so that loading torch and compiling are in nobody's time
        find(
            random_choices(9, 0),
            mode,
            seed=0,
            budget_seconds=60.0,
            most_steps=1_000,
            target_count=_ENDLESS,
        )
    names = [*MODELS, *RANDOM]
    cases = [case for name in track(names, "models") for case in model_cases(name, budget, seed)]
    machine = (
        f"torch {torch.__version__}, {platform.machine()}, one thread, "
        f"at most {budget:g} s for each agent, seed {seed}"
    )
    tables = {
        "partition results": markdown(RESULT_HEADER, [result_row(case) for case in cases]),
        "time to target": markdown(TIME_HEADER, [time_row(case) for case in cases]),
        "what is split": markdown(
            ["model", "task", "decision", "dimensions", "times"],
            [row for case in cases if case.model in MODELS for row in split_rows(case)],
        ),
    }
    for name, table in tables.items():
        text = made_by(COMMAND, machine) + table
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)
    if output is not None:
        partitioned = [case for case in cases if case.task == PARTITIONING]
        draw(partitioned, output.with_name("automap_convergence.svg"))


if __name__ == "__main__":
    main()
