"""Auto-MAP's Table 7: pipelines of Bert-48 and T5 on configurations A, B and C: solver and
baselines. Its agents are in `scripts.reproduce_online_pipelines`.

    python -m scripts.reproduce_pipelines --table "table 7" -o docs/reports/automap_tables.md
    python -m scripts.reproduce_pipelines --table bounds -o docs/reports/pipelines.md

The paper's setting: 128 points, as many stages as servers, 16 microbatches, device cuts anywhere,
transfers over the link at the boundary. Seconds are of search only; profiles take what `automap
plan` takes.

The paper does not say what a device holds. Here it holds weights in 32 bits and the sums of their
gradients in 16 (T5's own optimizer, Adafactor, keeps next to nothing besides); of every microbatch
what enters the stage, and the activations of one, as GPipe computes the others again (what that
takes is not in the paper's L). These are the bytes of            -> in: `Case.arrays`
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
import os
from pathlib import Path
import platform
import shlex
import time
from typing import Any

import click
import numpy as np
from rich.progress import track

from automap.cost.kernels.roofline import Roofline
from automap.cost.tables import build_tables
from automap.pipeline.arrays import Arrays, Terms, from_lines, pipeline_arrays
from automap.pipeline.fabric import Fabric, pipeline_fabric
from automap.pipeline.profile.points import Points, coarsen
from automap.pipeline.profile.profile import Profile, pipeline_profile
from automap.pipeline.schedules import GPIPE, PRICED
from automap.pipeline.search import simulated_seconds
from automap.pipeline.solvers.exact import Partition
from automap.pipeline.solvers.local import at_servers, even_split, local_search, optimum
from automap.pipeline.solvers.stage_options import least_bytes
from automap.pipeline.value import value
from automap.planner.pipeline_records import layer_name
from automap.program.trace import trace_step
from automap.topology import Topology, get_topology
from models.bert import bert_48
from models.t5 import t5_3b, t5_11b, t5_base
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_pipelines"
MODELS: dict[str, Callable[[], Any]] = {
    "Bert-48": bert_48,
    "T5-base": t5_base,
    "T5-3B": t5_3b,
    "T5-11B": t5_11b,
}
CONFIGURATIONS = {"A": ("automap-a", 2), "B": ("automap-b", 3), "C": ("automap-c", 4)}
MICROBATCHES = 16
# A V100 of 32 GB: the paper does not say which it has, but T5-11B needs more than 16 GB.
MEMORY_LIMIT_BYTES = 32 * 2.0**30
HEADER = [
    "model",
    "config",
    "items",
    "pivots",
    "layers that end there",
    "device cuts",
    "step, s",
    "search, s",
    "even split",
    "at servers",
    "local search",
]
BOUND_HEADER = [
    "model",
    "config",
    "schedule",
    "microbatches",
    "V, s",
    "simulated, s",
    "V below it by",
]


@dataclass(frozen=True)
class Case:
    """One model on one configuration."""

    model: str
    configuration: str
    points: Points
    fabric: Fabric
    stages: int
    memory_limit_bytes: float = MEMORY_LIMIT_BYTES

    def arrays(self) -> Arrays:
        """The paper's model of it: C, A and W, every device cut allowed."""
        points = self.points
        # On one device: the paper's C is work, which it divides by the devices of a stage.
        forward, backward = points.seconds(1)
        line = np.diff(forward + backward)
        lines = from_lines(
            line,
            points.cut_bytes[1:],
            np.zeros(len(line)),
            self.fabric,
            Terms(
                microbatches=MICROBATCHES,
                schedule=GPIPE,
                memory_limit_bytes=self.memory_limit_bytes,
            ),
            forward_share=float(forward[-1] / (forward[-1] + backward[-1])),
        )
        # Of a stage [i, j): all microbatches are kept as they enter at i, one is worked on.
        entering = np.repeat(points.cut_bytes[:, None], points.n_points + 1, axis=1)
        return lines._replace(
            gradient_bytes=points.gradient_bytes,
            may_cut=points.may_cut,
            state_bytes=1.5 * points.gradient_bytes,
            saved_bytes=entering / MICROBATCHES,
            working_bytes=(points.saved_bytes + points.working_bytes) / MICROBATCHES,
        )


def profile(make: Callable[[], Any], topology: Topology | None = None) -> Profile:
    """A model's profile on a device of a topology, or on a V100."""
    machine = topology or get_topology("automap-a")
    step, args = make()
    problem = trace_step(step, args, platform=machine.platform).problem
    tables = build_tables(problem, machine.platform)
    return pipeline_profile(problem, tables, Roofline(tables.kernels, machine))


def warm_up() -> None:
    """Compile what the search calls."""
    arrays = from_lines(
        np.ones(8),
        np.ones(8),
        np.ones(8),
        pipeline_fabric(get_topology("4xv100"), "adjacent"),
        Terms(microbatches=4, schedule=GPIPE, memory_limit_bytes=np.inf),
    )
    optimum(arrays, 2)


def row(case: Case) -> list[str]:
    """One row of Table 7."""
    arrays = case.arrays()
    start = time.perf_counter()
    solved = optimum(arrays, case.stages)
    seconds = time.perf_counter() - start
    best = solved.best
    begin = [case.model, case.configuration, f"{case.points.profile.n_items:,}"]
    if best is None:
        # What it needs where it needs least is above the limit.
        return [*begin, f"OOM: {least_bytes(arrays, case.stages) / 2**30:.1f} GiB", *"-" * 7]
    assert solved.proven  # noqa: S101 - these are small
    others = [
        even_split(arrays, case.stages),
        at_servers(arrays, case.stages, case.fabric.boundary_level).best,
        local_search(arrays, case.stages),
    ]
    return [
        *begin,
        *boundaries(case, best),
        f"{best.seconds:.3f}",
        f"{seconds:.3f}",
        *(_gap(other, best) for other in others),
    ]


def boundaries(case: Case, partition: Partition) -> tuple[str, str, str]:
    """Pivots, the layers that end there, device cuts."""
    points, pivots = case.points, [int(i) for i in partition.cuts[1:-1]]
    layers = (layer_name(points.profile.labels[int(points.first[i]) - 1]) for i in pivots)
    cuts = (str(d) for d in partition.device_cuts[1:-1])
    return ", ".join(map(str, pivots)), ", ".join(layers), ", ".join(cuts)


def _gap(other: Partition | None, best: Partition) -> str:
    return "none" if other is None else f"{other.seconds / best.seconds - 1:+.1%}"


def bounds(case: Case) -> Iterator[list[str]]:
    """V of the product's own model beside the simulation, at the optimum of each schedule."""
    for schedule in PRICED:
        for microbatches in (8, 16):
            terms = Terms(microbatches=microbatches, schedule=schedule, memory_limit_bytes=np.inf)
            arrays = pipeline_arrays(
                case.points,
                pipeline_fabric(get_topology(CONFIGURATIONS[case.configuration][0])),
                terms,
            )
            best = optimum(arrays, case.stages).best
            if best is None:
                continue
            simulated = simulated_seconds(arrays, best, schedule)
            # V is a lower bound of the simulated step by the length of a path through it.
            least_seconds = value(arrays, best.cuts, best.device_cuts)
            yield [
                case.model,
                case.configuration,
                schedule.name,
                str(microbatches),
                f"{least_seconds:.3f}",
                f"{simulated:.3f}",
                f"{max(1 - least_seconds / simulated, 0.0):.1%}",
            ]


TABLES: Mapping[str, tuple[list[str], Callable[[Case], Iterable[list[str]]]]] = {
    "table 7": (HEADER, lambda case: [row(case)]),
    "bounds": (BOUND_HEADER, bounds),
}


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--table", "tables", multiple=True, type=click.Choice(list(TABLES)), help="default: all"
)
@click.option(
    "--model", "chosen", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
def main(output: Path | None, tables: tuple[str, ...], chosen: tuple[str, ...]) -> None:
    """Profile the models and search."""
    warm_up()
    wanted = {name: makers for name, makers in TABLES.items() if name in (tables or TABLES)}
    rows: dict[str, list[list[str]]] = {name: [] for name in wanted}
    for model in track(chosen or list(MODELS), "models"):
        points = coarsen(profile(MODELS[model]))
        for name, (topology, stages) in CONFIGURATIONS.items():
            fabric = pipeline_fabric(get_topology(topology), "adjacent")
            case = Case(model, name, points, fabric, stages)
            for table, (_, make_rows) in wanted.items():
                rows[table] += make_rows(case)
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    for table, (header, _) in wanted.items():
        command = f"{COMMAND} --table {shlex.quote(table)} -o {output}"
        text = made_by(command, where) + markdown(header, rows[table])
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, table)


if __name__ == "__main__":
    main()
