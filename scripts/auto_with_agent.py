"""What the pretrained agent gives `auto`: as it is, and begun with its roll-outs, for equal work.

    python -m scripts.auto_with_agent FOLDER -o docs/reports/sharding_agent.md

Work is what a search counts for itself (`SearchContext.spend`): plans that are priced one by one,
and what `optcnn` and `exact` do with all plans of a mesh at once; no clock is asked, and the
agent's own networks count nothing.

    auto           to its own end, which is the work W of the cell
    the agent      a roll-out on each mesh after `optcnn`, where climbs begin, until W is done
                                                       -> in: `automap.search.portfolio.begun_with`
    learning off   the same with the player without learning
    gap            the best step that was priced so far over the best that any of the three found
                   with any seed
    bound          what `exact` proves, in so much work (`_BOUND_SECONDS`), that no plan is below

Cells are kept in FOLDER. The steps are those of `scripts.plan_matrix`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
import math
import os
from pathlib import Path
import platform
import time
from typing import Any, Final

import click
import jax
import numpy as np
from rich.progress import track

from automap.deadline import Deadline
from automap.errors import AutomapError
from automap.program.trace import Workload
from automap.search import OutOfBudget, SearchContext, get_strategy
from automap.search.agent.play import Player, roll_outs, shipped_player
from automap.search.portfolio import begun_with
from automap.topology import get_topology
from scripts.compare_sharding_agent import Cells, fitting_seconds, traced
from scripts.halves import is_held_out
from scripts.plan_matrix import MODELS
from scripts.tables import kept, made_by, markdown, replace_table, spread


COMMAND = "python -m scripts.auto_with_agent"
GPUS: Final = ("2x8xh100", "4x8xv100")
"""The half of the matrix where seconds do not add up, as collectives run beside kernels."""
TPUS: Final = ("v5e:2x4",)
SHARES: Final = (0.05, 0.1, 0.25, 0.5, 1.0)
"""Of W, after which the searches are compared."""
AUTO, AGENT, UNTRAINED = "auto", "with the agent", "with learning off"
_BOUND_SECONDS: Final = 3.0
# Steps that differ by less are the same, and near enough to be the best.
_EQUAL: Final = 1e-4
_NEAR: Final = 1e-3
# Of W: searches that differ by less are as soon.
_SOONER: Final = 0.01


@dataclass
class Metered(SearchContext):
    """A search that counts its work, ends when so much is done, and remembers what it had when."""

    most_work_seconds: float = math.inf
    spent_seconds: float = 0.0
    found: list[tuple[float, float]] = field(default_factory=list)

    def spend(self, nominal_seconds: float) -> None:
        """Count work."""
        self.spent_seconds += nominal_seconds
        super().spend(nominal_seconds)

    def check_time(self) -> None:
        """Raise `OutOfBudget` when the work is done."""
        super().check_time()
        if self.spent_seconds > self.most_work_seconds and self.best is not None:
            raise OutOfBudget


def metered(cells: Cells, most_work_seconds: float = math.inf) -> Metered:
    """A search from the presets."""
    old = cells.fresh()
    values = {each.name: getattr(old, each.name) for each in fields(SearchContext)}
    context = Metered(
        **values | {"deadline": Deadline.never()}, most_work_seconds=most_work_seconds
    )

    def note(_: SearchContext) -> None:
        context.found.append((context.spent_seconds, context.fitting_seconds))

    context.on_progress = note
    note(context)
    return context


SEARCHES: Mapping[str, Callable[[SearchContext], None]] = {
    AUTO: lambda context: begun_with(context, None),
    AGENT: lambda context: begun_with(context, partial(roll_outs, shipped_player())),
    UNTRAINED: lambda context: begun_with(context, partial(roll_outs, Player())),
}


@dataclass(frozen=True)
class Cell:
    """A step on a machine: by seed W, plans that `auto` priced, and of each search its processor
    seconds and (work, best step) whenever it had a better one; the proven bound. `step` and
    `machine` are names.
    """

    step: str
    machine: str
    work_seconds: Sequence[float]
    evaluations: Sequence[int]
    bound_seconds: float
    took_seconds: Mapping[str, Sequence[float]]
    found: Mapping[str, Sequence[Sequence[tuple[float, float]]]]

    @property
    def seeds(self) -> range:
        """Those that were played."""
        return range(len(self.work_seconds))

    def step_seconds(self, search: str, share: float, seed: int) -> float:
        """The best step after so much of W."""
        limit = share * self.work_seconds[seed] * (1 + 1e-9)
        found = self.found[search][seed]
        # What a search returns when it ends, the last of all, may have been priced by then.
        return min(seconds for spent, seconds in found if share == 1.0 or spent <= limit)

    @property
    def best_seconds(self) -> float:
        """The best step that any search found with any seed."""
        return min(self.step_seconds(s, 1.0, seed) for s in SEARCHES for seed in self.seeds)

    def share_to_best(self, search: str, seed: int) -> float:
        """After which share of W a search first has a step that is within `_NEAR` of the best."""
        near = self.best_seconds * (1 + _NEAR)
        spent = [spent for spent, seconds in self.found[search][seed] if seconds <= near]
        return min(spent, default=math.inf) / self.work_seconds[seed]

    def gap(self, search: str, share: float, seed: int) -> float:
        """Over the best of all."""
        return self.step_seconds(search, share, seed) / self.best_seconds - 1


def cell(step: str, machine: str, workload: Workload, seeds: int) -> Cell:
    """All searches of a step on a machine. Raises `AutomapError` where no preset suits."""
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in SEARCHES}
    took: dict[str, list[float]] = {name: [] for name in SEARCHES}
    works, evaluations, bounds = list[float](), list[int](), [0.0]
    for seed in range(seeds):
        cells = Cells(workload, machine, seed)
        for name, search in SEARCHES.items():
            context = metered(cells, math.inf if name == AUTO else works[seed])
            before, begin = context.evaluations, time.process_time()
            try:
                search(context)
            except OutOfBudget:
                pass
            took[name].append(time.process_time() - begin)
            # `auto` may go back to a preset that is hardly slower: what it has seen is compared.
            context.found.append((context.spent_seconds, fitting_seconds(context)))
            found[name].append(context.found)
            bounds.append(context.bound_seconds or 0.0)
            if name == AUTO:
                works.append(context.spent_seconds)
                evaluations.append(context.evaluations - before)
    proving = metered(Cells(workload, machine))
    with proving.within(_BOUND_SECONDS):
        get_strategy("exact")(proving)
    bounds.append(proving.bound_seconds or 0.0)
    return Cell(step, machine, works, evaluations, max(bounds), took, found)


def cells_of(
    step: str, machines: Sequence[str], seeds: int, folder: Path, *, made_only: bool
) -> list[Cell]:
    """The cells of a step that have a plan, kept in files."""
    made, workloads = [], dict[str, Workload]()
    for machine in machines:
        name = f"{step}-{machine}".replace(":", "_")
        if made_only and not (folder / f"{name}.json").exists():
            continue

        def make(machine: str = machine) -> dict[str, Any]:
            target = get_topology(machine).platform
            try:
                workloads[target] = workloads.get(target) or traced(step, target)
                return asdict(cell(step, machine, workloads[target], seeds))
            except AutomapError as error:
                return {"error": str(error)}

        row = kept(folder, name, make)
        if "error" not in row and math.isfinite(Cell(**row).best_seconds):
            made.append(Cell(**row))
    return made


SUMMARY_HEADER = [
    "steps",
    "work done",
    *(f"mean gap, {name}" for name in SEARCHES),
    *(f"{which}, {name}" for name in (AGENT, UNTRAINED) for which in ("better", "equal", "worse")),
    *(f"median over the bound, {name}" for name in SEARCHES),
]
SOONER_HEADER = [
    "steps",
    *(f"mean work until it is within {_NEAR:.1%}, {name}" for name in SEARCHES),
    *(f"{which}, {name}" for name in (AGENT, UNTRAINED) for which in ("sooner", "equal", "later")),
    *(f"processor s in the mean, {name}" for name in SEARCHES),
]


def _compared(values: Mapping[str, np.ndarray], margin: float) -> list[str]:
    """Of the agent and the player without learning: less, equal and more than `auto`."""
    counts = []
    for name in (AGENT, UNTRAINED):
        less = (values[name] < values[AUTO] - margin).sum()
        more = (values[name] > values[AUTO] + margin).sum()
        counts += [str(less), str(values[name].size - less - more), str(more)]
    return counts


def _by_seed(values: np.ndarray) -> str:
    """The mean of the cells: of the seeds the median, with the least and the greatest."""
    return spread(values.mean(axis=0), "{:.2%}".format)


def summary(what: str, cells: Sequence[Cell]) -> list[list[str]]:
    """A row for each share of the work; better and worse are beside `auto`."""
    rows = []
    for share in SHARES:
        gaps = {
            s: np.array([[c.gap(s, share, seed) for seed in c.seeds] for c in cells])
            for s in SEARCHES
        }
        over = np.array([c.best_seconds / c.bound_seconds if c.bound_seconds else 0 for c in cells])
        above = [_percent(np.median((1 + gaps[s]) * over[:, None], axis=0) - 1) for s in SEARCHES]
        means = [_by_seed(gaps[s]) for s in SEARCHES]
        named = f"{what}, {len(cells)}"
        rows.append([named, f"{share:.0%}", *means, *_compared(gaps, _EQUAL), *above])
    return rows


def _percent(by_seed: np.ndarray) -> str:
    return spread(by_seed, "{:.2%}".format)


def sooner(what: str, cells: Sequence[Cell]) -> list[str]:
    """How soon each search has what it ends with; one that never has it counts as twice W."""
    shares = {
        s: np.array([[min(c.share_to_best(s, seed), 2.0) for seed in c.seeds] for c in cells])
        for s in SEARCHES
    }
    took = [np.mean([c.took_seconds[s] for c in cells]) for s in SEARCHES]
    means = [_by_seed(shares[s]) for s in SEARCHES]
    return [
        f"{what}, {len(cells)}",
        *means,
        *_compared(shares, _SOONER),
        *(f"{t:.1f}" for t in took),
    ]


def detail(cells: Sequence[Cell]) -> str:
    """A row for each cell, medians of its seeds with the least and the greatest."""
    header = ["step", "machine", "best, ms", "plans", "work, s", "bound is below by"]
    columns = [(name, share) for share in (0.1, 1.0) for name in SEARCHES]
    header += [f"{name}, {share:.0%}" for name, share in columns]
    header += [f"{name}, work until it is within {_NEAR:.1%}" for name in SEARCHES]
    rows = []
    for c in cells:
        gaps = [[c.gap(name, share, seed) for seed in c.seeds] for name, share in columns]
        shares = [[c.share_to_best(name, seed) for seed in c.seeds] for name in SEARCHES]
        row = [
            c.step.removeprefix("models."),
            c.machine,
            f"{c.best_seconds * 1e3:.4g}",
            spread(c.evaluations, "{:,.0f}".format),
            spread(c.work_seconds, "{:.2f}".format),
            f"{c.best_seconds / c.bound_seconds - 1:.1%}" if c.bound_seconds else "-",
            *(spread(each, "{:+.2%}".format) for each in gaps),
            *(spread(each, _share) for each in shares),
        ]
        rows.append(row)
    return markdown(header, rows)


def _share(share: float) -> str:
    return f"{share:.0%}" if math.isfinite(share) else "never"


def report(cells: Sequence[Cell]) -> str:
    """All tables."""
    on_gpus = [c for c in cells if c.machine in GPUS]
    kinds = {
        "on GPUs": on_gpus,
        "on GPUs, held out": [c for c in on_gpus if is_held_out(c.step)],
        "on TPUs": [c for c in cells if c.machine in TPUS],
    }
    chosen = {what: some for what, some in kinds.items() if some}
    rows = [row for what, some in chosen.items() for row in summary(what, some)]
    tables = [
        markdown(SUMMARY_HEADER, rows),
        markdown(SOONER_HEADER, [sooner(what, some) for what, some in chosen.items()]),
        detail(cells),
    ]
    return "\n".join(tables)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--step", "steps", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1))
@click.option("--machine", "machines", multiple=True, default=(*GPUS, *TPUS), show_default=True)
@click.option("--made-only", is_flag=True, help="the tables of the cells that FOLDER has")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    folder: Path,
    steps: tuple[str, ...],
    seeds: int,
    machines: tuple[str, ...],
    made_only: bool,  # noqa: FBT001
    output: Path | None,
) -> None:
    """Make the cells that FOLDER does not have, and the tables."""
    jax.config.update("jax_platforms", "cpu")
    cells = [
        c
        for step in track(steps or tuple(MODELS), "steps")
        for c in cells_of(step, machines, seeds, folder, made_only=made_only)
    ]
    where = f"jax {jax.__version__}, {platform.machine()}, {os.cpu_count()} cores, {seeds} seeds"
    command = f"{COMMAND} FOLDER{' --made-only' if made_only else ''} -o {output}"
    table = made_by(command, where) + report(cells)
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "auto with the agent")


if __name__ == "__main__":
    main()
