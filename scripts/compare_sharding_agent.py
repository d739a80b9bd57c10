"""The sharding agent on steps that it was not trained on, beside other searches of as many
evaluations, and the same player without learning.

    python -m scripts.compare_sharding_agent FOLDER -o docs/reports/sharding_agent.md

Steps are those of the zoo and of other libraries that `scripts.halves` holds out, on machines that
no lesson is of. Every method begins where any search does, at the presets, which are priced before.

    roll-out   of the agent, and of the same player with learning off; greedy search and walks end
               after as many plans as the agent's roll-out has priced
    beams      all of `--strategy agent`, of the same player with learning off, greedy search and
               walks after as many plans as the agent has priced
    gap        a step over the best that any method found, `auto` among them, minus one

    nearest    the same player with what the nearest training problem says in the network's place
               (`scripts.nearest_lesson`); it needs `--lessons`

A cell is kept in FOLDER as soon as it is made. Seconds are the processor's.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
import importlib
import json
import math
from pathlib import Path
import platform
import time
from typing import Any

import click
import jax
import numpy as np

from automap.config import Options
from automap.deadline import Deadline
from automap.errors import AutomapError
from automap.planner.sharding import find
from automap.policy import default_policy
from automap.program.trace import Workload, trace_step
from automap.search import OutOfBudget, SearchContext, get_strategy
from automap.search.agent.play import Player, first_roll_out, play, shipped_player
from automap.search.context import Candidate
from automap.space.point import Point
from automap.topology import get_topology
from scripts.halves import is_held_out
from scripts.nearest_lesson import NearestPlayer
from scripts.plan_matrix import MODELS
from scripts.tables import made_by, markdown, replace_table
from tests.corpus.entries import ENTRIES


COMMAND = "python -m scripts.compare_sharding_agent"
MACHINES = ("v5e:2x4", "v5p:2x2x4", "8xh100", "2x8xh100", "4x8xv100")
_LIBRARIES = ("equinox", "flax", "optax")
ZOO = tuple(target for target in MODELS if is_held_out(target))
THIRD_PARTY = tuple(
    entry.name for entry in ENTRIES if entry.library in _LIBRARIES and is_held_out(entry.name)
)
STEPS = (*ZOO, *THIRD_PARTY)
AGENT, UNTRAINED, GREEDY, WALKS = "agent", "learning off", "greedy", "mcmc"
NEAREST = "nearest training problem"
PRESET, AUTO = "best preset", "auto"
# For the time of a roll-out alone: it is of the half that may be learnt from.
TIMED = "models.t5:t5_11b"
_BUDGET_SECONDS = 600.0


@dataclass(frozen=True)
class Cell:
    """One step on one machine: seconds of the step by method, inf where nothing fits, plans priced
    beyond the presets, and processor seconds.
    """

    step: str
    machine: str
    rolled_seconds: Mapping[str, float]
    searched_seconds: Mapping[str, float]
    points: Mapping[str, int]
    took_seconds: Mapping[str, float]

    @property
    def best_seconds(self) -> float:
        """The best step of all methods."""
        return min((*self.rolled_seconds.values(), *self.searched_seconds.values()))

    def gaps(self, which: str) -> dict[str, float]:
        """What each method's step is above the best, as a fraction; inf if nothing fits."""
        seconds = self.rolled_seconds if which == "roll-out" else self.searched_seconds
        return {name: value / self.best_seconds - 1 for name, value in seconds.items()}


def traced(step: str, platform_name: str) -> Workload:
    """A step for a platform."""
    if step in MODELS:
        module, _, function = step.partition(":")
        call, args = getattr(importlib.import_module(module), function)(**MODELS[step])
        return trace_step(call, args, platform=platform_name)
    (entry,) = (entry for entry in ENTRIES if entry.name == step)
    made = entry.make()
    return trace_step(made.step, made.args, made.kwargs, platform=platform_name)


@dataclass
class Counted(SearchContext):
    """A search that ends when it has priced so many plans that the presets are not among."""

    most_evaluations: float = math.inf

    def check_time(self) -> None:
        """Raise `OutOfBudget` when they are priced, or the time is up."""
        super().check_time()
        if self.evaluations >= self.most_evaluations and self.best is not None:
            raise OutOfBudget

    def evaluate_all(self, points: Iterable[Point], origin: str) -> Iterator[Candidate | None]:
        """One by one, so that a batch does not go beyond."""
        return (self.evaluate(point, origin) for point in points)


class Cells:
    """Searches of one step on one machine, each from the presets alone."""

    def __init__(self, workload: Workload, machine: str, seed: int = 0):
        """Price the presets once. Raises `AutomapError` where none suits."""
        topology = get_topology(machine)
        presets = Options(preset="data-parallel", seed=seed)
        # The strategy that does nothing: what it leaves is where every search begins.
        self._context = find(workload, topology, presets).context
        for preset in self._context.best_per_preset.values():
            self._context.consider(preset.point, preset.origin)

    def fresh(self, most_evaluations: int | None = None) -> SearchContext:
        """A context that has priced the presets and nothing else, and may price so many more."""
        old = self._context
        values = {field.name: getattr(old, field.name) for field in fields(SearchContext)}
        values |= {
            "deadline": Deadline.after(_BUDGET_SECONDS),
            "notes": [],
            "_seen": dict(old._seen),
            "_priced": dict(old._priced),
        }
        context = SearchContext(**values)
        if most_evaluations is not None:
            context = Counted(**values, most_evaluations=old.evaluations + most_evaluations)
        context._batches = old._batches  # copies of the tables are tables
        return context

    def run(
        self, search: Callable[[SearchContext], object], most_evaluations: int | None
    ) -> tuple[float, int, float]:
        """(step seconds, plans priced, processor seconds) of a search, which may price so many."""
        context = self.fresh(most_evaluations)
        before, begin = context.evaluations, time.process_time()
        with suppress(OutOfBudget):
            search(context)
        took = time.process_time() - begin
        return fitting_seconds(context), context.evaluations - before, took


def fitting_seconds(context: SearchContext) -> float:
    """The shortest step that fits of all that were priced; `auto` may prefer a preset."""
    fits = context.objective.fits
    best = context.best_candidates(1)
    return best[0].estimate.step_seconds if best and fits(best[0].estimate) else math.inf


def _searched_by_auto(context: SearchContext) -> None:
    # Shorter walks and proofs than a user's: fifty cells, and it is one of six methods in each.
    context.policy = replace(
        default_policy(), walk_seconds=1.0, open_walk_seconds=0.5, exact_seconds=0.5
    )
    get_strategy("auto")(context)


def cell(step: str, machine: str, workload: Workload, nearest: Player | None) -> Cell:
    """All methods on one step and machine; `nearest` where its lessons are at hand."""
    cells, agent, untrained = Cells(workload, machine), shipped_player(), Player()
    rolled, searched, points, took = {}, {}, {}, {}

    def note(where: dict[str, float], name: str, label: str, run: tuple[float, int, float]) -> int:
        where[name], points[label], took[label] = run
        return run[1]

    n = note(rolled, AGENT, "roll-out", cells.run(lambda c: first_roll_out(c, agent), None))
    note(rolled, UNTRAINED, "off", cells.run(lambda c: first_roll_out(c, untrained), n))
    if nearest is not None:
        note(rolled, NEAREST, "nearest", cells.run(lambda c: first_roll_out(c, nearest), n))
    for name in (GREEDY, WALKS):
        note(rolled, name, f"{name} as roll-out", cells.run(get_strategy(name), n))
    n = note(searched, AGENT, "beams", cells.run(lambda c: play(c, agent), None))
    note(searched, UNTRAINED, "beams off", cells.run(lambda c: play(c, untrained), n))
    if nearest is not None:
        note(searched, NEAREST, "beams nearest", cells.run(lambda c: play(c, nearest), n))
    for name in (GREEDY, WALKS):
        note(searched, name, f"{name} as beams", cells.run(get_strategy(name), n))
    note(searched, AUTO, AUTO, cells.run(_searched_by_auto, None))
    rolled[PRESET] = searched[PRESET] = fitting_seconds(cells.fresh())
    return Cell(step, machine, rolled, searched, points, took)


def with_nearest(kept: Cell, workload: Workload, nearest: Player) -> Cell:
    """A cell that was made without the lessons, with their column; made anew if prices have changed
    since.
    """
    cells = Cells(workload, kept.machine)
    if not math.isclose(fitting_seconds(cells.fresh()), kept.rolled_seconds[PRESET]):
        return cell(kept.step, kept.machine, workload, nearest)
    rolled = cells.run(lambda c: first_roll_out(c, nearest), kept.points["roll-out"])
    searched = cells.run(lambda c: play(c, nearest), kept.points["beams"])
    return replace(
        kept,
        rolled_seconds={**kept.rolled_seconds, NEAREST: rolled[0]},
        searched_seconds={**kept.searched_seconds, NEAREST: searched[0]},
        points={**kept.points, "nearest": rolled[1], "beams nearest": searched[1]},
        took_seconds={**kept.took_seconds, "nearest": rolled[2], "beams nearest": searched[2]},
    )


def cells_of(
    step: str, machines: Sequence[str], folder: Path, nearest: Player | None, *, make: bool
) -> list[Cell]:
    """The cells of a step, kept in files."""
    made: list[Cell] = []
    workloads: dict[str, Workload] = {}
    for machine in machines:
        path = folder / f"{step}-{machine}.json".replace(":", "_")
        kept: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        is_whole = nearest is None or kept is None or NEAREST in kept.get("rolled_seconds", ())
        if make and (kept is None or ("error" not in kept and not is_whole)):
            name = get_topology(machine).platform
            try:
                workload = workloads[name] = workloads.get(name) or traced(step, name)
                if kept is None or nearest is None:
                    kept = asdict(cell(step, machine, workload, nearest))
                else:
                    kept = asdict(with_nearest(Cell(**kept), workload, nearest))
            except AutomapError as error:
                kept = {"error": str(error)[:200]}
            path.write_text(json.dumps(kept))
            click.echo(path.read_text(), err=True)
        # What no method can plan says nothing of any.
        if kept and "error" not in kept and math.isfinite(Cell(**kept).best_seconds):
            made.append(Cell(**kept))
    return made


def timing(machine: str, folder: Path) -> list[str]:
    """A row: the processor's milliseconds of a roll-out on T5-11B, the least of some runs."""
    path = folder / f"timing-{machine}.json".replace(":", "_")
    if not path.exists():
        module, _, function = TIMED.partition(":")
        step, args = getattr(importlib.import_module(module), function)(layers="scanned")
        workload = trace_step(step, args, platform=get_topology(machine).platform)
        cells, took = Cells(workload, machine), list[tuple[int, float]]()
        for player in (shipped_player(), Player()):
            runs = [cells.run(partial(first_roll_out, player=player), None) for _ in range(12)]
            took.append((runs[0][1], min(seconds for *_, seconds in runs)))
        path.write_text(json.dumps(took))
    points, seconds = zip(*json.loads(path.read_text()), strict=True)
    return [machine, *(f"{n:.0f}" for n in (*points, *(1e3 * s for s in seconds)))]


SUMMARY_HEADER = ["method", "mean gap", "median", "worst", "≤ 1 %", "≤ 3 %", "≤ 10 %", "cells"]


def shown_methods(cells: Sequence[Cell], which: str) -> list[str]:
    """Those that any cell has, the nearest training problem beside the agents."""
    names = list(dict.fromkeys(name for c in cells for name in c.gaps(which)))
    agents = [name for name in (AGENT, UNTRAINED, NEAREST) if name in names]
    return agents + [name for name in names if name not in agents]


def summary(cells: Sequence[Cell], which: str) -> list[list[str]]:
    """A row for each method that all cells have."""
    rows = []
    for name in shown_methods(cells, which):
        if not all(name in c.gaps(which) for c in cells):
            continue
        gaps = np.array([c.gaps(which)[name] for c in cells])
        fits = gaps[np.isfinite(gaps)]
        rows.append(
            [
                name,
                f"{fits.mean():.2%}",
                f"{np.median(gaps):.2%}",
                "does not fit" if len(fits) < len(gaps) else f"{gaps.max():.1%}",
                *(f"{(gaps <= most + 1e-9).mean():.0%}" for most in (0.01, 0.03, 0.10)),
                str(len(gaps)),
            ]
        )
    return rows


def _gap_text(gap: float | None) -> str:
    if gap is None:
        return "-"
    return f"{gap:+.2%}" if math.isfinite(gap) else "does not fit"


def detail(cells: Sequence[Cell]) -> tuple[list[str], list[list[str]]]:
    """Header and a row for each cell."""
    rolled, searched = (shown_methods(cells, which) for which in ("roll-out", "beams"))
    header = [
        "step",
        "machine",
        "best, ms",
        "plans priced",
        "ms of processor",
        *(f"{name}, roll-out" for name in rolled if name != PRESET),
        "plans priced by beams",
        *(f"{name}, beams" for name in searched),
    ]
    rows = [
        [
            c.step.removeprefix("models."),
            c.machine,
            f"{c.best_seconds * 1e3:.3g}",
            str(c.points["roll-out"]),
            f"{c.took_seconds['roll-out'] * 1e3:.0f}",
            *(_gap_text(c.gaps("roll-out").get(n)) for n in rolled if n != PRESET),
            str(c.points["beams"]),
            *(_gap_text(c.gaps("beams").get(n)) for n in searched),
        ]
        for c in cells
    ]
    return header, rows


def report(cells: Sequence[Cell], timings: list[list[str]], command: str) -> Mapping[str, str]:
    """The tables of the page by name."""
    machine = f"jax {jax.__version__}, {platform.machine()}, one core"
    on_tpus = [c for c in cells if c.machine.startswith("v5")]
    kinds = {"all": cells, "TPUs": on_tpus, "GPUs": [c for c in cells if c not in on_tpus]}
    above = made_by(command, machine)
    header = ["machine", "plans priced", UNTRAINED, "ms of processor", UNTRAINED]
    tables = {"timing": above + markdown(header, timings)} if timings else {}
    if not cells:
        return tables
    tables["made"] = above
    for which in ("roll-out", "beams"):
        text = ""
        for kind, chosen in kinds.items():
            if chosen:
                text += f"\nOn {kind}:\n\n" + markdown(SUMMARY_HEADER, summary(chosen, which))
        tables[which] = text
    tables["cells"] = markdown(*detail(cells))
    return tables


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--step", "steps", multiple=True, type=click.Choice((*STEPS, TIMED)))
@click.option("--machine", "machines", multiple=True, default=MACHINES, show_default=True)
@click.option(
    "--lessons",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="a folder of scripts.train_sharding_agent",
)
@click.option("--made-only", is_flag=True, help="the tables of the cells that FOLDER has")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    folder: Path,
    steps: tuple[str, ...],
    machines: tuple[str, ...],
    lessons: Path | None,
    made_only: bool,  # noqa: FBT001
    output: Path | None,
) -> None:
    """Make the cells that FOLDER does not have, and the tables."""
    jax.config.update("jax_platforms", "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    nearest = None if lessons is None else NearestPlayer(lessons)
    cells = [
        c
        for step in steps or STEPS
        if step != TIMED
        for c in cells_of(step, machines, folder, nearest, make=not made_only)
    ]
    timings = [
        timing(machine, folder)
        for machine in machines
        if TIMED in (steps or (TIMED,))
        and (not made_only or (folder / f"timing-{machine}.json".replace(":", "_")).exists())
    ]
    if not cells and not timings:
        raise click.ClickException(f"{folder} has no cells of these steps and machines")
    chosen = [f" --step {step}" for step in steps] + [" --made-only"] * made_only
    command = f"{COMMAND} FOLDER{''.join(chosen)} -o {output}"
    for name, table in report(cells, timings, command).items():
        if output is None:
            click.echo(table)
        else:
            replace_table(output, table, name)


if __name__ == "__main__":
    main()
