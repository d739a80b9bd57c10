"""The shipped agent on held-out problems, on real profiles, and in Auto-MAP's Table 8, beside the
paper's form of the agent.

    python -m scripts.reproduce_pipeline_agent --table held-out -o docs/reports/pipeline_agent.md
    python -m scripts.reproduce_pipeline_agent --table "table 8" -o docs/reports/automap_tables.md \
        --flat FOLDER

The first page has the tables held-out, unproven and profiles, the second table 8 and baseline, and
with table 8 the figures 12 to 15. Problems of unproven are kept in the folder `--kept`, which
several runs may share. `--flat` is a folder of `scripts.flat_pipeline_agent`, with medians over
its seeds and the least and greatest. Gaps are above the
optimum that the exact solver proved; problems for which it could not, in two seconds, are left
out and counted. Milliseconds are of the processor, in one thread, medians.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
import os
from pathlib import Path
import platform
import shlex
from typing import Any

import click
import numpy as np
from rich.progress import track

from automap.pipeline.agent.network import shipped_weights
from automap.pipeline.agent.play import infer
from automap.pipeline.agent.problems import (
    TRAINED_SCHEDULES,
    Problem,
    Size,
    generate,
    generate_as_paper,
    generate_plain,
)
from automap.pipeline.arrays import Arrays, Terms, pipeline_arrays
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.profile.points import coarsen
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import optimum
from automap.topology import get_topology
from models.gpt import gpt_124m
from models.resnet import resnet_50
from rl.agent import Agent
from scripts import flat_pipeline_agent
from scripts.flat_pipeline_agent import RETURNS, Kept
from scripts.pipeline_agent_cases import (
    AGENT,
    METHOD_HEADER,
    METHODS,
    PAIRED_HEADER,
    UNLEARNED,
    Gaps,
    HeldOut,
    Optima,
    beside_unlearned,
    measured,
    method_rows,
    paired_cells,
    paired_seconds,
)
from scripts.reproduce_pipelines import CONFIGURATIONS, MICROBATCHES, MODELS, Case, profile
from scripts.tables import kept, made_by, markdown, replace_table, spread


COMMAND = "python -m scripts.reproduce_pipeline_agent"
# Training uses seeds from a million on.
FIRST_SEED = 10_000
SIZES = (
    # (problems, size); the second row of four stages has the paper's machine with twice the servers
    (100, Size(stages=2, points=128, servers=2, per_server=8)),
    (100, Size(stages=3, points=128, servers=3, per_server=8)),
    (100, Size(stages=4, points=128, servers=4, per_server=8)),
    (20, Size(stages=4, points=96, servers=8, per_server=8)),
    (25, Size(stages=5, points=64, servers=4, per_server=5)),
    (25, Size(stages=6, points=48, servers=4, per_server=4)),
    (25, Size(stages=7, points=40, servers=4, per_server=4)),
    (25, Size(stages=8, points=40, servers=4, per_server=4)),
)
# Where the exact solver seldom comes to its end, up to the most stages that the agent is for.
WIDE_SIZES = (
    # (problems that are tried, size)
    (80, Size(stages=6, points=64, servers=8, per_server=8)),
    (60, Size(stages=8, points=64, servers=8, per_server=8)),
    (70, Size(stages=8, points=64, servers=32, per_server=8)),
)
REAL = {**MODELS, "GPT-124M": gpt_124m, "ResNet-50": resnet_50}
TABLE_8 = [
    "model",
    "config",
    "the agent's pivots",
    "device cuts",
    "step, s",
    "ms",
    UNLEARNED,
    "gap",
    UNLEARNED,
    "greedy, gap",
    UNLEARNED,
    "paper's form: pivots",
    "device cuts",
    "gap",
    "with whole returns: pivots",
    "device cuts",
    "gap",
    "untrained",
    "pivots of the optimum",
    "its device cuts",
]
_TABLE_8_PLAYED = ("beams and local search", "greedy")
DRAWN = ("Bert-48", "C")
"""The case of the figures."""
BASELINE_COUNT = 25
BASELINE_METHODS = ("even split", "13-start local search")
BASELINE_PLAYED = ("greedy", "beams and local search")
TABLES = ("held-out", "unproven", "profiles", "table 8", "baseline")
_MACHINE = f"{platform.machine()}, {os.cpu_count()} cores"


def held_out(optima: Optima) -> list[list[str]]:
    """Rows of all methods for every size."""
    rows = []
    for count, size in track(SIZES, "held-out problems"):
        held = HeldOut(range(FIRST_SEED, FIRST_SEED + count), size, optima)
        # Counts what could not be proven while it goes through the problems.
        cells = method_rows(held)
        devices = size.servers * size.per_server
        what = f"{size.stages} stages, {size.points} points, {devices} devices"
        counted = f"{count - held.n_unproven} of {count}"
        rows += [[what, counted, *row] for row in cells]
    return rows


def unproven(optima: Optima, folder: Path) -> list[list[str]]:
    """The agent with learning and without on those of `WIDE_SIZES` that are not proven."""
    rows = []
    for count, size in WIDE_SIZES:
        seeds = track(range(FIRST_SEED, FIRST_SEED + count), f"{size.stages} stages")
        made = [
            kept(folder, f"{seed} {size}", partial(_wide, seed, size, optima)) for seed in seeds
        ]
        problems = [each for each in made if each is not None]
        devices = size.servers * size.per_server
        what = f"{size.stages} stages, {size.points} points, {devices} devices"
        counted = f"{len(problems)} of {count}"
        rows += [[what, counted, *cells] for cells in beside_unlearned(problems)]
    return rows


def _wide(seed: int, size: Size, optima: Optima) -> dict[str, tuple[float, float]] | None:
    """What all players make of a problem; None if it is proven."""
    problem = generate(seed, size)
    is_proven = optima.least(f"{seed} {size}", problem) is not None
    return None if is_proven else paired_seconds(problem)


def _flat_gaps(agent: Agent, proven: list[tuple[Problem, float]]) -> Gaps:
    ended = flat_pipeline_agent.played(agent, [problem for problem, _ in proven])
    # It plays all problems at once, so that none has a time of its own.
    return Gaps([p.seconds / least - 1 for p, (_, least) in zip(ended, proven)], [])


def baseline(flat: Sequence[Kept]) -> list[list[str]]:
    """Rows of all methods, and of the paper's form of the agent, on problems as the paper
    generates them and on ours, in its setting.
    """
    rows, unlearned = [], flat_pipeline_agent.untrained()
    for what, make in (
        ("as the paper's", generate_as_paper),
        ("mixed distributions", generate_plain),
    ):
        seeds = range(FIRST_SEED, FIRST_SEED + BASELINE_COUNT)
        proven = []
        for seed in track(seeds, what):
            problem = make(seed, flat_pipeline_agent.SIZE)
            solved = optimum(problem.arrays, problem.stages)
            if solved.best is not None and solved.proven:
                proven.append((problem, solved.best.seconds))
        cells = method_rows(proven, BASELINE_METHODS, BASELINE_PLAYED)
        rows += [[what, *row] for row in cells]
        untrained = _flat_gaps(unlearned, proven)
        for name, runs in groupby(flat, key=lambda kept: kept.name):
            gaps = [_flat_gaps(kept.agent, proven) for kept in runs]
            rows.append([what, name, *paired_cells(gaps, untrained)])
    return rows


def settings(case: Case) -> Iterator[Arrays]:
    """The paper's own model of a case, and the product's with the schedules of its training."""
    yield case.arrays()
    fabric = pipeline_fabric(get_topology(CONFIGURATIONS[case.configuration][0]))
    for schedule in TRAINED_SCHEDULES:
        terms = Terms(microbatches=MICROBATCHES, schedule=schedule, memory_limit_bytes=np.inf)
        yield pipeline_arrays(case.points, fabric, terms)


def real_cases(models: Mapping[str, Callable[[], Any]]) -> Iterator[Case]:
    """Every model on every configuration."""
    for model, make in track(models.items(), "models"):
        points = coarsen(profile(make))
        for name, (topology, stages) in CONFIGURATIONS.items():
            fabric = pipeline_fabric(get_topology(topology), "adjacent")
            yield Case(model, name, points, fabric, stages)


def on_profiles(cases: list[Case]) -> list[list[str]]:
    """Rows of all methods for every number of stages."""
    rows = []
    for stages in (2, 3, 4):
        problems = [
            Problem(arrays, case.fabric, stages)
            for case in cases
            if case.stages == stages
            for arrays in settings(case)
        ]
        proven = []
        for problem in problems:
            solved = optimum(problem.arrays, stages)
            if solved.best is not None and solved.proven:
                proven.append((problem, solved.best.seconds))
        counted = f"{len(proven)} of {len(problems)}"
        rows += [[f"{stages} stages", counted, *row] for row in method_rows(proven)]
    return rows


def table_8(case: Case, flat: Sequence[Kept]) -> list[str]:
    """The agent's answer, and that of the paper's form after the most episodes, beside the optimum,
    in the paper's setting.
    """
    arrays = case.arrays()
    names = [f"{who}, {method}" for method in _TABLE_8_PLAYED for who in (AGENT, UNLEARNED)]
    best = optimum(arrays, case.stages).best
    inferred = infer(arrays, case.stages, shipped_weights())
    if best is None or inferred is None:
        return [case.model, case.configuration, "OOM", *"-" * (len(TABLE_8) - 3)]
    problem = Problem(arrays, case.fabric, case.stages)
    by_name = measured([(problem, best.seconds)], {name: METHODS[name] for name in names})
    whole, unlearned, *greedy = by_name.values()
    return [
        case.model,
        case.configuration,
        _inner(inferred.cuts),
        _inner(inferred.device_cuts),
        f"{inferred.seconds:.3f}",
        *(f"{1e3 * each.seconds[0]:.1f}" for each in (whole, unlearned)),
        *(f"{each.gaps[0]:.2%}" for each in (whole, unlearned, *greedy)),
        *flat_cells(case, flat),
        _inner(best.cuts),
        _inner(best.device_cuts),
    ]


def flat_cells(case: Case, flat: Sequence[Kept]) -> list[str]:
    """Of each kind of returns, after its most episodes, pivots and device cuts of the seed in the
    middle, and the gaps; and the untrained agent's gap. They know no other size.
    """
    size, n_cells = flat_pipeline_agent.SIZE, 3 * len(RETURNS) + 1
    if not flat or case.stages != size.stages:
        return ["-"] * n_cells
    # Its points are fixed, so that the model is coarsened to as many; segments end at cuts, and
    # what is after the last is one more.
    points = coarsen(case.points.profile, size.points - 1)
    if points.n_points != size.points:
        return [f"{points.n_points} points", *"-" * (n_cells - 1)]
    problem = Problem(replace(case, points=points).arrays(), case.fabric, case.stages)
    least = optimum(problem.arrays, case.stages).best

    def answer(agent: Agent) -> Partition:
        return flat_pipeline_agent.played(agent, [problem])[0]

    def gap(seconds: float) -> str:
        if least is None or not np.isfinite(seconds):
            return "OOM"
        return f"{seconds / least.seconds - 1:.2%}"

    cells = []
    for returns in RETURNS:
        own = [kept for kept in flat if kept.returns == returns]
        most = max((kept.episodes for kept in own), default=0)
        answers = [answer(kept.agent) for kept in own if kept.episodes == most]
        answers.sort(key=lambda partition: partition.seconds)
        if not answers:
            cells += ["-"] * 3
            continue
        middle = answers[len(answers) // 2]
        cells += [_inner(middle.cuts), _inner(middle.device_cuts)]
        cells.append(spread((partition.seconds for partition in answers), gap))
    return [*cells, gap(answer(flat_pipeline_agent.untrained()).seconds)]


def _inner(boundaries: np.ndarray) -> str:
    return ", ".join(str(each) for each in boundaries[1:-1])


def draw_figures_12_to_15(case: Case, path: Path) -> None:
    """C as the paper's section 4.5.1 prepares it: of every item, summed, at 128 points, and over
    the greatest of C, A and W.
    """
    import matplotlib
    from matplotlib.figure import Figure

    profile, size = case.points.profile, flat_pipeline_agent.SIZE
    # The last point is what is after the last cut.
    points = coarsen(profile, size.points - 1)
    arrays = replace(case, points=points).arrays()
    line = flat_pipeline_agent.problem_line(Problem(arrays, case.fabric, case.stages))
    by_item = np.sum(profile.seconds(1), axis=0)
    panels = {
        "12: C of every item, s": by_item,
        "13: prefix sums, s": by_item.cumsum(),
        "14: at 128 points, s": np.sum(points.seconds(1), axis=0)[1:],
        "15: over the greatest of C, A, W": line[: points.n_points],
    }
    # The same bytes in every run, and letters that stay letters.
    with matplotlib.rc_context({"svg.hashsalt": "automap", "svg.fonttype": "none"}):
        figure = Figure(figsize=(10, 2.6), layout="constrained")
        for axes, (title, values) in zip(figure.subplots(1, 4), panels.items(), strict=True):
            axes.plot(values, linewidth=0.8)
            axes.set_title(title, fontsize="small")
        figure.savefig(path, metadata={"Date": None})


def warm_up() -> None:
    """Compile what is measured."""
    for stages in (3, 5):
        size = replace(SIZES[-1][1], stages=stages)
        method_rows(HeldOut(range(2), size, Optima(None)))


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--table", "tables", multiple=True, type=click.Choice(TABLES), help="default: all")
@click.option(
    "--optima", type=click.Path(path_type=Path), help="a file that keeps the proven optima"
)
@click.option(
    "--kept",
    "rows_folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="where problems of the table unproven are kept, which needs it",
)
@click.option(
    "--flat",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="a run of scripts.flat_pipeline_agent",
)
def main(
    output: Path | None,
    tables: tuple[str, ...],
    optima: Path | None,
    rows_folder: Path | None,
    folder: Path | None,
) -> None:
    """Judge the shipped weights."""
    chosen = tables or TABLES
    if rows_folder is None and "unproven" in chosen:
        raise click.UsageError("--table unproven needs --kept FOLDER")
    warm_up()
    flat = [] if folder is None else flat_pipeline_agent.all_kept(folder)
    texts: dict[str, str] = {}
    header = ["problems", "proven", *METHOD_HEADER]
    if "held-out" in chosen:
        texts["held-out"] = markdown(header, held_out(Optima(optima)))
    if rows_folder is not None and "unproven" in chosen:
        rows = unproven(Optima(optima), rows_folder)
        texts["unproven"] = markdown(["problems", "not proven", *PAIRED_HEADER], rows)
    models = REAL if "profiles" in chosen else MODELS
    cases = list(real_cases(models)) if {"profiles", "table 8"} & set(chosen) else []
    if "profiles" in chosen:
        texts["profiles"] = markdown(header, on_profiles(cases))
    if "table 8" in chosen:
        texts["table 8"] = markdown(
            TABLE_8, [table_8(case, flat) for case in cases if case.model in MODELS]
        )
        if output is not None:
            (drawn,) = (c for c in cases if (c.model, c.configuration) == DRAWN)
            draw_figures_12_to_15(drawn, output.with_name("automap_figures_12_to_15.svg"))
    if "baseline" in chosen:
        rows = baseline(flat)
        texts["baseline"] = markdown(["problems", *METHOD_HEADER], rows)
    for name, table in texts.items():
        given = " --flat FOLDER" if folder is not None else ""
        given += " --kept FOLDER" if name == "unproven" else ""
        command = f"{COMMAND} --table {shlex.quote(name)} -o {output}{given}"
        text = made_by(command, _MACHINE) + table
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
