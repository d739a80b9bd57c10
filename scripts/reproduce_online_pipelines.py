"""Auto-MAP's Table 7 by agents that learn on the one problem: the paper's game and ours, each with
and without learning, beside the exact optimum.

    python -m scripts.reproduce_online_pipelines -o docs/reports/automap_tables.md --kept runs.json

The setting and the memory are those of `scripts.reproduce_pipelines`. Gaps are above the optimum
of all partitions, medians of the seeds with the least and the greatest; seconds are of the
processor, after torch was loaded. A run that was stopped goes on with what is in `--kept`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
import json
from pathlib import Path
import platform
import time
from typing import Any, Final

import click
import numpy as np
from rich.progress import track
import torch

from automap.atomic_file import write_atomically
from automap.deadline import Deadline
from automap.pipeline.agent.problems import Problem
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.online.pivots import best_of_pivots, pivot_filter
from automap.pipeline.online.strategy import CONFIGS, Mode, find
from automap.pipeline.profile.points import coarsen
from automap.pipeline.solvers.exact import Partition, Solved
from automap.pipeline.solvers.local import optimum
from automap.pipeline.solvers.stage_options import least_bytes
from automap.pipeline.value import value
from automap.topology import get_topology
from rl.metrics import Row
from scripts.pipeline_agent_cases import METHODS, UNLEARNED, measured
from scripts.reproduce_pipelines import CONFIGURATIONS, MODELS, Case, boundaries, profile
from scripts.tables import made_by, markdown, replace_table, spread


COMMAND = "python -m scripts.reproduce_online_pipelines -o docs/reports/automap_tables.md"
SEEDS: Final = range(5)
# Games of eight stages on machines that the paper does not have.
WIDER_SEEDS: Final = range(3)
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
    UNLEARNED,
    "games",
    "processor s",
]
_PAIRED = ("learnt", "second thoughts", "games", "processor s")
OURS_HEADER = [
    *("model", "config", "optimum, s", "before learning"),
    *(column for each in _PAIRED for column in (each, UNLEARNED)),
]
WIDER_HEADER = [
    "model",
    "machine",
    "stages",
    "best known, s",
    "proven",
    "its device cuts",
    "faithful",
    UNLEARNED,
    "games",
    "processor s",
    "ours",
    UNLEARNED,
    "processor s",
    "pretrained",
    UNLEARNED,
    "processor s",
]
# Eight servers and a stage on each, as the paper's rule; a slice of TPUs, in units of four devices,
# has none.
WIDER: Final = {"8x8 H100": ("8x8xh100", 8), "256 TPU v5e": ("v5e:16x16", 4)}
"""Machines that the paper does not have, as `CONFIGURATIONS`."""
_PRETRAINED = ("agent, beams and local search", "without learning, beams and local search")
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


def runs_of(
    case: Case,
    best: Partition,
    mode: Mode,
    kept: Runs,
    *,
    learns: bool,
    seeds: Sequence[int] = SEEDS,
) -> list[Run]:
    """All seeds."""
    learning = "learning" if learns else "without learning"
    return [
        kept.run(
            f"{case.model}, {case.configuration}, {mode}, {learning}, seed {seed}",
            lambda seed=seed: play(case, best, mode, seed, learns=learns),
        )
        for seed in seeds
    ]


def faithful_row(case: Case, solved: Solved, kept: Runs) -> list[str]:
    """The paper's game."""
    best = solved.best
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
        spread((run.played for run in learnt), _percent),
        spread((run.played for run in unlearnt), _percent),
        _games(learnt),
        _took(learnt),
    ]


def our_row(case: Case, solved: Solved, kept: Runs) -> list[str]:
    """Our game."""
    best = solved.best
    if best is None:
        return [case.model, case.configuration, "OOM", *"-" * 9]
    learnt = runs_of(case, best, "ours", kept, learns=True)
    unlearnt = runs_of(case, best, "ours", kept, learns=False)
    return [
        case.model,
        case.configuration,
        f"{best.seconds:.3f}",
        spread((run.first for run in learnt), _percent),
        *(spread((run.played for run in runs), _percent) for runs in (learnt, unlearnt)),
        *(spread((run.improved for run in runs), _percent) for runs in (learnt, unlearnt)),
        *(_games(runs) for runs in (learnt, unlearnt)),
        *(_took(runs) for runs in (learnt, unlearnt)),
    ]


def wider_row(case: Case, solved: Solved, kept: Runs) -> list[str]:
    """All agents, above the best that any method found: most of these are not proven."""
    begin, best = [case.model, case.configuration, str(case.stages)], solved.best
    if best is None:
        needed = least_bytes(case.arrays(), case.stages)
        fits = needed <= case.memory_limit_bytes
        return [*begin, "none" if fits else f"OOM: {needed / 2**30:.1f} GiB", *"-" * 12]
    modes: tuple[Mode, ...] = ("faithful", "ours")
    runs = {
        (mode, learns): runs_of(case, best, mode, kept, learns=learns, seeds=WIDER_SEEDS)
        for mode in modes
        for learns in (True, False)
    }
    arrays = case.arrays()
    problem = Problem(arrays, case.fabric, case.stages)
    inferred = {name: METHODS[name](problem) for name in _PRETRAINED}
    timed = measured([(problem, best.seconds)], {name: METHODS[name] for name in _PRETRAINED})

    def step_seconds(run: Run, mode: str) -> float:
        played = float(value(arrays, np.array(run.cuts), np.array(run.device_cuts)))
        # Second thoughts are a part of our strategy, and not of the paper's.
        return played if mode == "faithful" else played * (1 + run.improved) / (1 + run.played)

    steps = {key: [step_seconds(run, key[0]) for run in each] for key, each in runs.items()}
    known = min((best, *(p for p in inferred.values() if p)), key=lambda p: p.seconds)
    least = min(known.seconds, *(min(each) for each in steps.values()))
    cuts = "-" if least < known.seconds else known.device_cuts[1:-1]

    def over(step: float) -> str:
        return _percent(step / least - 1)

    return [
        *begin,
        f"{least:.4f}",
        "yes" if solved.proven else "no",
        ", ".join(map(str, cuts)),
        spread(steps["faithful", True], over),
        spread(steps["faithful", False], over),
        _games(runs["faithful", True]),
        _took(runs["faithful", True]),
        spread(steps["ours", True], over),
        spread(steps["ours", False], over),
        _took(runs["ours", True]),
        *(over((1 + timed[name].gaps[0]) * best.seconds) for name in _PRETRAINED),
        f"{timed[_PRETRAINED[0]].seconds[0]:.1f}",
    ]


def _games(runs: Sequence[Run]) -> str:
    return spread((run.games for run in runs), "{:,.0f}".format)


def _took(runs: Sequence[Run]) -> str:
    return spread((run.processor_seconds for run in runs), "{:.1f}".format)


def _percent(share: float) -> str:
    return f"{max(share, 0.0):+.1%}"


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


def wider_cases(chosen: Iterable[str]) -> Iterator[Case]:
    """The models on every machine of `WIDER`, with its devices' kernels and memory."""
    for name, (machine, stages) in WIDER.items():
        topology = get_topology(machine)
        fabric = pipeline_fabric(topology, "adjacent")
        for model in track(list(chosen), name):
            points = coarsen(profile(MODELS[model], topology))
            yield Case(model, name, points, fabric, stages, float(topology.device.memory_bytes))


Maker = Callable[[Case, Solved, Runs], list[str]]
Cases = Callable[[Iterable[str]], Iterator[Case]]
TABLES: Mapping[str, tuple[list[str], Maker, Cases]] = {
    "online": (FAITHFUL_HEADER, faithful_row, cases),
    "online, ours": (OURS_HEADER, our_row, cases),
    "online, wider": (WIDER_HEADER, wider_row, wider_cases),
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
    for make_cases in dict.fromkeys(each for _, _, each in wanted.values()):
        makers = {name: row for name, (_, row, each) in wanted.items() if each == make_cases}
        for case in make_cases(chosen or MODELS):
            solved = optimum(case.arrays(), case.stages)
            for name, make_row in makers.items():
                rows[name].append(make_row(case, solved, runs))
            is_drawn = "online" in makers and (case.model, case.configuration) == DRAWN
            if output is not None and solved.best is not None and is_drawn:
                drawn = runs_of(case, solved.best, "faithful", runs, learns=True)
                draw_figure_17(drawn, output.with_name("automap_figure_17.svg"))
    machine = f"torch {torch.__version__}, {platform.machine()}, one thread"
    for name, (header, _, _) in wanted.items():
        seeds = WIDER_SEEDS if name == "online, wider" else SEEDS
        where = f"{machine}, {len(seeds)} seeds"
        text = made_by(COMMAND, where) + markdown(header, rows[name])
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
