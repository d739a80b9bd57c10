"""How loose the bound of `exact` is where collectives run beside kernels: every plan of small
spaces on GPUs, priced one by one.

    python -m scripts.enumerate_plans -o docs/reports/strategies.md

The steps are those of the zoo with the smallest spaces whose bound is not met, on one mesh axis
over all devices of a machine. With the best step of all plans, s*,

    points     sets of classes x storage of each leaf x sides         -> in: `all_points`
    bound      s* over what `exact` has proven that no plan is below, minus one: what its bound is
               too low, and no plan can close
    a search   its step over s*, minus one

Memory is the device's; a plan that does not fit counts as none.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
import os
from pathlib import Path
import platform
import time

import click
import jax
from rich.progress import track

from automap.config import Options
from automap.deadline import Deadline
from automap.planner.sharding import find
from automap.program.trace import Workload
from automap.search import OutOfBudget, SearchContext, get_strategy
from automap.search.agent.play import Player, play, shipped_player
from automap.search.exhaustive import points
from automap.space.point import Point
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.compare_sharding_agent import fitting_seconds, traced
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.enumerate_plans -o docs/reports/strategies.md"
STEPS = ("models.mlp:mlp", "models.nmt:nmt", "models.rnnlm:rnnlm")
MACHINES = ("2xh100", "8xh100", "2x8xh100", "4x8xv100")
BUDGET_SECONDS = 600.0
SEARCHES: Mapping[str, Callable[[SearchContext], object]] = {
    "exact": get_strategy("exact"),
    "auto": get_strategy("auto"),
    "greedy": get_strategy("greedy"),
    "mcmc": get_strategy("mcmc"),
    "agent": lambda context: play(context, shipped_player()),
    "learning off": lambda context: play(context, Player()),
}
HEADER = [
    "step",
    "machine",
    "points",
    "plans",
    "processor s",
    "best step, ms",
    "bound too low by",
    "best preset",
    *SEARCHES,
]


def all_points(context: SearchContext) -> Iterator[Point]:
    """Every point of a space on its meshes, with every side that a class can have."""
    space = context.space
    for mesh in context.meshes:
        for point in points(context, mesh):
            used = {c for classes in point.compute for c in classes}
            for sides in _subsets(c for c in space.repeated_classes if c in used):
                for whole in _subsets(c for c in space.small_part_classes if c in used):
                    yield replace(point, last_dim_classes=sides, small_whole_classes=whole)


def _subsets(classes: Iterator[int]) -> Iterator[frozenset[int]]:
    listed = list(classes)
    for count in range(len(listed) + 1):
        yield from map(frozenset, combinations(listed, count))


def begun(workload: Workload, machine: str) -> SearchContext:
    """A search that has priced the presets, on one axis over all devices."""
    topology = get_topology(machine)
    line = Mesh(("data",), (topology.device_count,))
    context = find(workload, topology, Options(preset="data-parallel", mesh=line)).context
    context.deadline = Deadline.after(BUDGET_SECONDS)
    for preset in context.best_per_preset.values():
        context.consider(preset.point, preset.origin)
    return context


def row(step: str, machine: str, workload: Workload) -> list[str]:
    """A step on a machine: its best plan, and how far from it bounds and searches are."""
    context = begun(workload, machine)
    presets, begin = fitting_seconds(context), time.process_time()
    n_points = sum(c is not None for c in context.evaluate_all(all_points(context), "all"))
    took_seconds, least = time.process_time() - begin, fitting_seconds(context)
    gaps, bound = [], 0.0
    for search in SEARCHES.values():
        searched = begun(workload, machine)
        with suppress(OutOfBudget):
            search(searched)
        gaps.append(f"{fitting_seconds(searched) / least - 1:+.2%}")
        bound = max(bound, searched.bound_seconds or 0.0)
    return [
        step.rpartition(":")[2],
        machine,
        f"{n_points:,}",
        f"{context.evaluations:,}",
        f"{took_seconds:.0f}",
        f"{least * 1e3:.4g}",
        f"{least / bound - 1:.1%}",
        f"{presets / least - 1:+.2%}",
        *gaps,
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--step", "steps", multiple=True, type=click.Choice(STEPS), default=STEPS)
@click.option("--machine", "machines", multiple=True, default=MACHINES, show_default=True)
def main(output: Path | None, steps: tuple[str, ...], machines: tuple[str, ...]) -> None:
    """Price all plans of all steps."""
    jax.config.update("jax_platforms", "cpu")
    rows = []
    for step in track(steps, "steps"):
        workload = traced(step, "cuda")
        for machine in machines:
            rows.append(row(step, machine, workload))
            click.echo(" | ".join(rows[-1]), err=True)
    table = made_by(COMMAND, f"{platform.machine()}, {os.cpu_count()} cores") + markdown(
        HEADER, rows
    )
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "all plans")


if __name__ == "__main__":
    main()
