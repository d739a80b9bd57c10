"""What the pretrained agent gives `auto`: as it is, and begun with the agent, for equal work.

    python -m scripts.auto_with_agent FOLDER -o docs/reports/sharding_agent.md

Work is what a search counts for itself (`SearchContext.spend`): plans that are priced one by one,
and what `optcnn` and `exact` do with all plans of a mesh at once; no clock is asked, and the
agent's own networks count nothing.

    auto           to its own end, which is the work W of the cell
    the agent      a roll-out on each mesh, where the climbs of `auto` then begin, and `auto`, until
                   W is done                                                    -> in: `begun_with`
    learning off   the same with the player without learning
    gap            the best step that was priced so far over the best that any of the three found
    bound          what `exact` proves, in so much work (`_BOUND_SECONDS`), that no plan is below

Cells are kept in FOLDER. The steps are those of `scripts.plan_matrix`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
import math
import os
from pathlib import Path
import platform
from typing import Any, Final

import click
import jax
import numpy as np
from rich.progress import track

from automap.deadline import Deadline
from automap.errors import AutomapError
from automap.program.trace import Workload
from automap.search import OutOfBudget, SearchContext, get_strategy
from automap.search.agent.options import Seen
from automap.search.agent.play import Player, mesh_starts, roll_out, shipped_player
from automap.topology import get_topology
from scripts.compare_sharding_agent import Cells, fitting_seconds, traced
from scripts.halves import is_held_out
from scripts.plan_matrix import MODELS
from scripts.tables import kept, made_by, markdown, replace_table


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


def begun_with(context: SearchContext, player: Player) -> None:
    """`auto` after a roll-out of the player on each mesh."""
    seen = Seen(context)
    for start in player.ranked(context, seen, mesh_starts(context)):
        roll_out(context, seen, player, start)
    get_strategy("auto")(context)


SEARCHES: Mapping[str, Callable[[SearchContext], object]] = {
    AUTO: get_strategy("auto"),
    AGENT: lambda context: begun_with(context, shipped_player()),
    UNTRAINED: lambda context: begun_with(context, Player()),
}


@dataclass(frozen=True)
class Cell:
    """A step on a machine: W, plans that `auto` priced, the proven bound, and of each search
    (work, best step) whenever it had a better one. `step` and `machine` are names.
    """

    step: str
    machine: str
    work_seconds: float
    evaluations: int
    bound_seconds: float
    found: Mapping[str, Sequence[tuple[float, float]]]

    def step_seconds(self, search: str, share: float) -> float:
        """The best step after so much of W."""
        limit = share * self.work_seconds * (1 + 1e-9)
        # What a search returns when it ends, the last of all, may have been priced by then.
        had = [seconds for spent, seconds in self.found[search] if share == 1.0 or spent <= limit]
        return min(had)

    @property
    def best_seconds(self) -> float:
        """The best step that any search found."""
        return min(self.step_seconds(search, 1.0) for search in SEARCHES)

    def share_to_best(self, search: str) -> float:
        """After which share of W a search first has a step that is within `_NEAR` of the best."""
        near = self.best_seconds * (1 + _NEAR)
        spent = [spent for spent, seconds in self.found[search] if seconds <= near]
        return min(spent, default=math.inf) / self.work_seconds

    def gap(self, search: str, share: float) -> float:
        """Over the best of all."""
        return self.step_seconds(search, share) / self.best_seconds - 1


def cell(step: str, machine: str, workload: Workload) -> Cell:
    """All searches of a step on a machine. Raises `AutomapError` where no preset suits."""
    cells = Cells(workload, machine)
    found: dict[str, list[tuple[float, float]]] = {}
    work_seconds, evaluations, bounds = math.inf, 0, [0.0]
    for name, search in SEARCHES.items():
        context = metered(cells, work_seconds)
        before = context.evaluations
        try:
            search(context)
        except OutOfBudget:
            pass
        # `auto` may go back to a preset that is hardly slower: what it has seen is compared.
        context.found.append((context.spent_seconds, fitting_seconds(context)))
        found[name] = context.found
        bounds.append(context.bound_seconds or 0.0)
        if name == AUTO:
            work_seconds, evaluations = context.spent_seconds, context.evaluations - before
    proving = metered(cells)
    with proving.within(_BOUND_SECONDS):
        get_strategy("exact")(proving)
    bounds.append(proving.bound_seconds or 0.0)
    return Cell(step, machine, work_seconds, evaluations, max(bounds), found)


def cells_of(step: str, machines: Sequence[str], folder: Path, *, made_only: bool) -> list[Cell]:
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
                return asdict(cell(step, machine, workloads[target]))
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


def summary(what: str, cells: Sequence[Cell]) -> list[list[str]]:
    """A row for each share of the work; better and worse are beside `auto` as it is."""
    rows = []
    for share in SHARES:
        seconds = {s: np.array([c.step_seconds(s, share) for c in cells]) for s in SEARCHES}
        best = np.array([c.best_seconds for c in cells])
        bound = np.array([c.bound_seconds for c in cells])
        counts = []
        for name in (AGENT, UNTRAINED):
            ratio = seconds[name] / seconds[AUTO]
            better, worse = (ratio < 1 - _EQUAL).sum(), (ratio > 1 + _EQUAL).sum()
            counts += [str(better), str(len(cells) - better - worse), str(worse)]
        over = [f"{(seconds[s] / best - 1).mean():.2%}" for s in SEARCHES]
        above = [f"{np.median(seconds[s] / bound) - 1:.2%}" for s in SEARCHES]
        rows.append([f"{what}, {len(cells)}", f"{share:.0%}", *over, *counts, *above])
    return rows


def report(cells: Sequence[Cell]) -> str:
    """Both tables."""
    on_gpus = [c for c in cells if c.machine in GPUS]
    kinds = {
        "on GPUs": on_gpus,
        "on GPUs, held out": [c for c in on_gpus if is_held_out(c.step)],
        "on TPUs": [c for c in cells if c.machine in TPUS],
    }
    rows = [row for what, chosen in kinds.items() if chosen for row in summary(what, chosen)]
    header = ["step", "machine", "best, ms", "plans", "work, s", "bound is below by"]
    columns = [(name, share) for share in (0.1, 1.0) for name in SEARCHES]
    header += [f"{name}, {share:.0%}" for name, share in columns]
    header += [f"{name}, work until it is within {_NEAR:.1%}" for name in SEARCHES]
    detail = [
        [
            c.step.removeprefix("models."),
            c.machine,
            f"{c.best_seconds * 1e3:.4g}",
            f"{c.evaluations:,}",
            f"{c.work_seconds:.2f}",
            f"{c.best_seconds / c.bound_seconds - 1:.1%}" if c.bound_seconds else "-",
            *(f"{c.gap(name, share):+.2%}" for name, share in columns),
            *(f"{c.share_to_best(name):.0%}" for name in SEARCHES),
        ]
        for c in cells
    ]
    return markdown(SUMMARY_HEADER, rows) + "\n" + markdown(header, detail)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--step", "steps", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
@click.option("--machine", "machines", multiple=True, default=(*GPUS, *TPUS), show_default=True)
@click.option("--made-only", is_flag=True, help="the tables of the cells that FOLDER has")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    folder: Path,
    steps: tuple[str, ...],
    machines: tuple[str, ...],
    made_only: bool,  # noqa: FBT001
    output: Path | None,
) -> None:
    """Make the cells that FOLDER does not have, and the tables."""
    jax.config.update("jax_platforms", "cpu")
    cells = [
        c
        for step in track(steps or tuple(MODELS), "steps")
        for c in cells_of(step, machines, folder, made_only=made_only)
    ]
    where = f"jax {jax.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    command = f"{COMMAND} FOLDER{' --made-only' if made_only else ''} -o {output}"
    table = made_by(command, where) + report(cells)
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "auto with the agent")


if __name__ == "__main__":
    main()
