"""Auto-MAP's Table 7 by agents that learn on the one problem: the paper's game and ours, each with
and without learning, beside the exact optimum.

    python -m scripts.reproduce_online_pipelines -o docs/reports/pipelines.md --kept runs.json

The setting and the memory are those of `scripts.reproduce_pipelines`. Gaps are above the optimum
of all partitions, medians of the seeds with the least and the greatest; seconds are of the
processor, after torch was loaded. A run that was stopped goes on with what is in `--kept`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
import json
from pathlib import Path
import platform
import statistics
import time
from typing import Any, Final

import click
import numpy as np
from rich.progress import track
import torch

from automap.atomic_file import write_atomically
from automap.deadline import Deadline
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.online.pivots import best_of_pivots, pivot_filter
from automap.pipeline.online.strategy import CONFIGS, Mode, find
from automap.pipeline.profile.points import coarsen
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import optimum
from automap.topology import get_topology
from rl.metrics import Row
from scripts.reproduce_pipelines import CONFIGURATIONS, MODELS, Case, boundaries, profile
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_online_pipelines -o docs/reports/pipelines.md"
SEEDS: Final = range(5)
PAPER: Final = {
    # Table 7: seconds, device cuts.
    ("Bert-48", "A"): (95, "8"),
    ("Bert-48", "B"): (157, "8, 16"),
    ("Bert-48", "C"): (262, "8, 16, 24"),
    ("T5-base", "A"): (42, "8"),
    ("T5-base", "B"): (50, "8, 16"),
    ("T5-base", "C"): (198, "8, 16, 22"),
    ("T5-3B", "A"): (115, "8"),
    ("T5-3B", "B"): (202, "8, 16"),
    ("T5-3B", "C"): (262, "8, 16, 24"),
    ("T5-11B", "C"): (280, "8, 16, 24"),
}
FAITHFUL_HEADER = [
    "model",
    "config",
    "paper's device cuts",
    "paper, s",
    "device cuts",
    "layers that end there",
    "best of its game",
    "faithful",
    "without learning",
    "games",
    "processor s",
]
OURS_HEADER = [
    "model",
    "config",
    "optimum, s",
    "before learning",
    "learnt",
    "without learning",
    "second thoughts",
    "games",
    "processor s",
]
DRAWN = ("T5-base", "C")
"""The case of the figure."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an agent: gaps above the optimum of its first games, of all games, and after
    second thoughts; the best partition that it played; games, processor seconds, and rows of
    (decisions, mean return, loss).
    """

    first: float
    played: float
    improved: float
    cuts: list[int]
    device_cuts: list[int]
    games: int
    processor_seconds: float
    curve: list[tuple[int, float, float]]


class Runs:
    """Runs by name, in a file if there is one: a stopped script goes on after the last."""

    def __init__(self, path: Path | None):
        """Those of the file; none without one."""
        self._path = path
        self._kept: dict[str, Any] = {}
        if path is not None and path.exists():
            self._kept = json.loads(path.read_text())

    def run(self, name: str, make: Callable[[], Run]) -> Run:
        """The run of that name, made if it is not there."""
        if name not in self._kept:
            self._kept[name] = asdict(make())
            if self._path is not None:
                write_atomically(self._path, json.dumps(self._kept))
        return Run(**self._kept[name])


class _Curve:
    """A log that keeps what the figure shows."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float, float]] = []

    def write(self, row: Row) -> None:
        self.points.append((row.steps, row.mean_return, row.loss))


def play(case: Case, best: Partition, mode: Mode, seed: int, *, learns: bool) -> Run:
    """One run of an agent."""
    curve, begin = _Curve(), time.process_time()
    result = find(
        case.arrays(),
        case.stages,
        case.fabric.boundary_level,
        mode,
        seed=seed,
        deadline=Deadline.never(),
        config=CONFIGS[mode] if learns else replace(CONFIGS[mode], steps_per_update=None),
        log=curve,
    )
    seconds = time.process_time() - begin
    played = result.played
    assert played is not None  # noqa: S101 - only cases in which a partition fits are played

    def gap(partition: Partition | None) -> float:
        return np.inf if partition is None else partition.seconds / best.seconds - 1.0

    return Run(
        gap(result.first),
        gap(played),
        gap(result.improved),
        played.cuts.tolist(),
        played.device_cuts.tolist(),
        result.episodes,
        seconds,
        curve.points,
    )


def runs_of(case: Case, best: Partition, mode: Mode, kept: Runs, *, learns: bool) -> list[Run]:
    """All seeds."""
    learning = "learning" if learns else "without learning"
    return [
        kept.run(
            f"{case.model}, {case.configuration}, {mode}, {learning}, seed {seed}",
            lambda seed=seed: play(case, best, mode, seed, learns=learns),
        )
        for seed in SEEDS
    ]


def faithful_row(case: Case, best: Partition | None, kept: Runs) -> list[str]:
    """The paper's game."""
    seconds, device_cuts = PAPER.get((case.model, case.configuration), ("OOM", "-"))
    begin = [case.model, case.configuration, device_cuts, str(seconds)]
    pivots = pivot_filter(case.arrays(), case.stages, case.fabric.boundary_level)
    if best is None or pivots is None:
        return [*begin, "OOM", *"-" * 6]
    game = best_of_pivots(case.arrays(), pivots)
    learnt = runs_of(case, best, "faithful", kept, learns=True)
    unlearnt = runs_of(case, best, "faithful", kept, learns=False)
    middle = sorted(learnt, key=lambda run: run.played)[len(learnt) // 2]
    partition = Partition(np.array(middle.cuts), np.array(middle.device_cuts), np.nan)
    _, layers, cuts = boundaries(case, partition)
    return [
        *begin,
        cuts,
        layers,
        "none" if game is None else _percent(game.seconds / best.seconds - 1.0),
        _spread((run.played for run in learnt), _percent),
        _spread((run.played for run in unlearnt), _percent),
        _spread((run.games for run in learnt), lambda games: f"{games:,.0f}"),
        _spread((run.processor_seconds for run in learnt), lambda s: f"{s:.1f}"),
    ]


def our_row(case: Case, best: Partition | None, kept: Runs) -> list[str]:
    """Our game."""
    if best is None:
        return [case.model, case.configuration, "OOM", *"-" * 6]
    learnt = runs_of(case, best, "ours", kept, learns=True)
    unlearnt = runs_of(case, best, "ours", kept, learns=False)
    return [
        case.model,
        case.configuration,
        f"{best.seconds:.3f}",
        _spread((run.first for run in learnt), _percent),
        _spread((run.played for run in learnt), _percent),
        _spread((run.played for run in unlearnt), _percent),
        _spread((run.improved for run in learnt), _percent),
        _spread((run.games for run in learnt), lambda games: f"{games:,.0f}"),
        _spread((run.processor_seconds for run in learnt), lambda s: f"{s:.1f}"),
    ]


def _percent(share: float) -> str:
    return f"{max(share, 0.0):+.1%}"


def _spread(numbers: Iterable[float], text: Callable[[float], str]) -> str:
    """The median, and the least and greatest where they read differently."""
    values = list(numbers)
    low, median, high = text(min(values)), text(statistics.median(values)), text(max(values))
    return median if low == high else f"{median} ({low} to {high})"


def draw_figure_17(runs: list[Run], path: Path) -> None:
    """Mean of 1 / L in parts of the ideal, and loss, by decisions: the paper's figure 17."""
    import matplotlib
    from matplotlib.figure import Figure

    # The same bytes in every run, and letters that stay letters.
    with matplotlib.rc_context({"svg.hashsalt": "automap", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7, 3), layout="constrained")
        panels = figure.subplots(1, 2)
        for axes, column, title in zip(panels, (1, 2), ("score", "loss"), strict=True):
            for run in runs:
                axes.plot([row[0] for row in run.curve], [row[column] for row in run.curve])
            axes.set(xlabel="decisions made", title=title)
        figure.savefig(path, metadata={"Date": None})


def cases(chosen: Iterable[str]) -> Iterator[Case]:
    """The models on every configuration."""
    for model in track(list(chosen), "models"):
        points = coarsen(profile(MODELS[model]))
        for name, (topology, stages) in CONFIGURATIONS.items():
            fabric = pipeline_fabric(get_topology(topology), "adjacent")
            yield Case(model, name, points, fabric, stages)


Maker = Callable[[Case, Partition | None, Runs], list[str]]
TABLES: Mapping[str, tuple[list[str], Maker]] = {
    "online": (FAITHFUL_HEADER, faithful_row),
    "online, ours": (OURS_HEADER, our_row),
}


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--table", "tables", multiple=True, type=click.Choice(list(TABLES)), help="default: all"
)
@click.option("--kept", type=click.Path(path_type=Path), help="a file that keeps finished runs")
@click.option(
    "--model", "chosen", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
def main(
    output: Path | None, tables: tuple[str, ...], kept: Path | None, chosen: tuple[str, ...]
) -> None:
    """Play all cases."""
    runs = Runs(kept)
    wanted = {name: maker for name, maker in TABLES.items() if name in (tables or TABLES)}
    rows: dict[str, list[list[str]]] = {name: [] for name in wanted}
    for case in cases(chosen or MODELS):
        best = optimum(case.arrays(), case.stages).best
        for name, (_, make_row) in wanted.items():
            rows[name].append(make_row(case, best, runs))
        is_drawn = "online" in wanted and (case.model, case.configuration) == DRAWN
        if output is not None and best is not None and is_drawn:
            drawn = runs_of(case, best, "faithful", runs, learns=True)
            draw_figure_17(drawn, output.with_name("automap_figure_17.svg"))
    where = f"torch {torch.__version__}, {platform.machine()}, one thread, {len(SEEDS)} seeds"
    for name, (header, _) in wanted.items():
        text = made_by(COMMAND, where) + markdown(header, rows[name])
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
