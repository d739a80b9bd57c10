"""The pretrained placement agent on what it has not seen.

    python -m scripts.compare_placement_agent --kept ROWS -o docs/reports/placement_agent.md

models  those of ColocRL's tables, beside policies trained on the model itself, searches and bounds;
        the columns of others are rows that `scripts.reproduce_colocrl` has kept in the same folder
graphs  generated ones of other seeds than it was trained on, so small that the best placement is
        proven
"""

from collections.abc import Mapping
import math
from pathlib import Path
import time
from typing import Final

import click
import numpy as np

from automap.placement import agent
from automap.placement.search import Placed, Search
from automap.placement.strategies import BASELINES, exact, least_seconds, mcmc
from scripts.placement_lessons import generated
from scripts.reproduce_colocrl import MODELS, searched, text, traced
from scripts.tables import Table, kept, tables_command


COMMAND: Final = "python -m scripts.compare_placement_agent"
# Seeds of graphs far from those of training, which begin at a million.
FIRST_GRAPH: Final = 500_000
GRAPHS: Final = 60
MOST_PLACEMENTS: Final = 200_000
AGENT_HEADER = [
    "model",
    "GPUs",
    "best baseline",
    "agent, learning off",
    "agent",
    "seconds of the agent",
    "colocrl, trained on the model",
    "auto",
    "no placement takes less than",
]


def _agent(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    weights = agent.shipped_weights()

    def row(name: str, gpus: int) -> list[str]:
        search = searched(traced(MODELS[name].target), f"haswell-{gpus}xk80")
        starts = {key: baseline(search) for key, baseline in BASELINES.items()}
        best = min(starts, key=lambda key: starts[key].rank)
        begin = time.process_time()
        course = agent.Course(search)
        runs = [agent.drawn(course, weights, seed) for seed in range(seeds)]
        seconds = (time.process_time() - begin) / seeds
        off = [agent.drawn(course, None, seed) for seed in range(seeds)]
        return [
            name,
            str(gpus),
            f"{best} {starts[best].seconds:.3f}",
            text(off),
            text(runs),
            f"{seconds:.1f}",
            f"{least_seconds(search):.3f}",
        ]

    rows = []
    for name, published in MODELS.items():
        for gpus in published.seconds:
            own = kept(folder, f"agent {name} {gpus} {seeds}", lambda n=name, g=gpus: row(n, g))
            policy = kept(folder, f"policies {name} {gpus} {seeds} {updates}", _nothing)
            searches = kept(folder, f"baselines {name} {gpus}", _nothing)
            rows.append([*own[:6], policy[3], searches[11], own[6]])
    return rows


def _nothing() -> list[str]:
    raise click.UsageError(
        "the agent's table has columns of the tables of scripts.reproduce_colocrl; make those "
        "first, with the same --kept"
    )


GRAPHS_HEADER = [
    "placements by",
    "mean above the best where it fits, %",
    "at the best, %",
    "does not fit, %",
]


def _graphs(folder: Path, seeds: int, updates: int) -> list[list[str]]:
    weights = agent.shipped_weights()

    def ways(search: Search) -> dict[str, Placed]:
        course = agent.Course(search)
        return {
            "heft": course.hints[0],
            "the best baseline": min(
                (baseline(search) for baseline in BASELINES.values()), key=lambda p: p.rank
            ),
            "agent, 1 draw, learning off": agent.drawn(course, None, 0, 1),
            "agent, 1 draw": agent.drawn(course, weights, 0, 1),
            f"agent, {agent.DRAWS} draws, learning off": agent.drawn(course, None, 0),
            f"agent, {agent.DRAWS} draws": agent.drawn(course, weights, 0),
            "auto": mcmc(search),
        }

    def rows() -> list[list[str]]:
        gaps: dict[str, list[float]] = {}
        seed = FIRST_GRAPH
        while len(gaps.get("heft", ())) < GRAPHS:
            search, seed = generated(seed), seed + 1
            options = search.n_devices**search.simulator.problem.n_operators
            if options > MOST_PLACEMENTS:
                continue
            best = exact(search)
            if not best.fits or best.gap != 0.0:
                continue
            for name, placed in ways(search).items():
                gap = placed.seconds / best.seconds - 1.0 if placed.fits else math.inf
                gaps.setdefault(name, []).append(gap)
        return [_gap_row(name, np.array(each)) for name, each in gaps.items()]

    return kept(folder, "graphs", rows)


def _gap_row(name: str, gaps: np.ndarray) -> list[str]:
    fits = np.isfinite(gaps)
    mean = 100 * gaps[fits].mean() if fits.any() else math.nan
    at_best = 100 * (gaps < 1e-9).mean()
    return [name, f"{mean:.1f}", f"{at_best:.0f}", f"{100 * (~fits).mean():.0f}"]


TABLES: Final[Mapping[str, Table]] = {
    "agent": Table(AGENT_HEADER, _agent),
    "graphs": Table(GRAPHS_HEADER, _graphs),
}


main = tables_command(TABLES, COMMAND, __doc__)


if __name__ == "__main__":
    main()
