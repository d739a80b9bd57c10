"""FlexFlow's evaluation, simulated: its figures 7 to 10 and 12 to 14, and its table 4.

    python -m scripts.reproduce_flexflow --kept flexflow.jsonl -o docs/reports/flexflow.md

Six models on its two clusters (`scripts.flexflow_cases`, Jia et al. 2019, section 8):

    throughput   samples per second of data parallelism, the expert's plan, and the found one
    assumptions  the same for kernels and links that are slower (`scripts.flexflow_assumptions`)
    nmt          NMT on 64 K80: step, bytes moved, seconds computed
    automated    beside plans of spaces that have less: OptCNN's estimate of the same space, and a
                 device for each layer, ColocRL's
    pricing      the same walk over single operators, priced by three simulations: table 4
    training     the loss of a run over the simulated seconds of two plans
    profile      where the seconds of a proposal go (`scripts.flexflow_profile`)

A search has as many proposals as a stated number of tasks allows (`proposals`), and no clock, so
a row that is made again is the same but for its seconds. Rows are kept as they are made; a run that
is ended goes on with those that are missing. Memory is not regarded, as in the paper.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
import json
import os
from pathlib import Path
import platform
import time
from typing import Any

import click

from automap.atomic_file import write_atomically
from automap.search.soap import Pricing, SoapBudget, SoapResult, descend, soap_search
from automap.simulate.operators import Simulator
from automap.simulate.operators.configuration import Configuration, data_parallel, single
from scripts.flexflow_assumptions import ASSUMPTIONS
from scripts.flexflow_cases import MODELS, Case, case, drawn, expert, found
from scripts.flexflow_figures import PICTURED, draw_quality, draw_strategy, draw_training
from scripts.flexflow_profile import done_before, profile
from scripts.flexflow_tables import PAPER, TABLES, TRAINED_ON, Row, trained
from scripts.flexflow_training import TRAINED, losses
from scripts.tables import made_by, replace_table


# Tasks simulated in a row at most, were each proposal simulated whole: 60 s of one core or less.
TASKS = 12_000_000
LEAST_PROPOSALS, MOST_PROPOSALS = 200, 20_000
PRICED_TASKS, LEAST_PRICED, MOST_PRICED = 1_500_000, 10, 200
MOST_RESTARTED = 100
# Of a table in markdown without rows.
_HEADER_LINES = 2
AUTOMATED_DEVICES = {"optcnn": ("flexflow-p100", 16), "devices": ("flexflow-k80", 4)}


def proposals(it: Case, tasks: int, least: int, most: int) -> int:
    """As many as simulate so many tasks of data parallelism."""
    n_tasks = it.simulator(data_parallel(it.graph, it.n_devices)).n_tasks
    return max(least, min(most, tasks // n_tasks))


def plan_row(simulator: Simulator) -> Row:
    """What figures 7 and 8 say of a plan."""
    return {
        "step": simulator.makespan_seconds,
        "bytes": simulator.moved_bytes(),
        "busy": simulator.busy_seconds(),
    }


def throughput(it: Case, tasks: int) -> Row:
    """The three plans of figure 7."""
    starts = {"data": data_parallel(it.graph, it.n_devices), "expert": expert(it)}
    plans = {name: plan_row(it.simulator(start)) for name, start in starts.items()}
    count = proposals(it, tasks, LEAST_PROPOSALS, MOST_PROPOSALS)
    # So that compiling is in no row's seconds.
    found(it, list(starts.values()), 8)
    begin = time.process_time()
    result = found(it, list(starts.values()), count)
    seconds = time.process_time() - begin
    plans["found"] = plan_row(it.simulator(result.configurations))
    return {
        "batch": it.batch,
        "operators": len(it.graph.operators),
        "plans": plans,
        "proposals": result.proposals,
        "is_optimum": result.is_optimum,
        "search_seconds": seconds,
        "better": result.better,
        "layers": drawn(it, result.configurations),
    }


def beside(it: Case, its: Sequence[Configuration], count: int) -> Row:
    """A plan of a smaller space, and what the search finds that begins at the best of data
    parallelism, the expert's plan and this one.
    """
    starts = [its, data_parallel(it.graph, it.n_devices), expert(it)]
    result = found(it, starts, count)
    return {
        **plan_row(it.simulator(its)),
        "found": result.step_seconds,
        "is_optimum": result.is_optimum,
        "proposals": count,
    }


def optcnn(it: Case, tasks: int) -> Row:
    """The plan that is best where no two tasks run at once, as OptCNN takes it."""
    count = proposals(it, tasks, LEAST_PROPOSALS, MOST_PROPOSALS)
    simulator = it.simulator(data_parallel(it.graph, it.n_devices))
    result = descend(simulator, it.layers, count, pricing=Pricing.SERIAL)
    return {**beside(it, result.configurations, count), "serial": result.step_seconds}


def devices(it: Case, tasks: int) -> Row:
    """The best plan found with each layer on one device: ColocRL's space."""
    count = proposals(it, tasks, LEAST_PROPOSALS, MOST_PROPOSALS)
    simulator = it.simulator([single(o, 0) for o in it.graph.operators])
    one = simulator.makespan_seconds
    result = descend(simulator, it.layers, count, most_parts=1)
    return {**beside(it, result.configurations, count), "one": one}


def pricing(it: Case, tasks: int) -> Row:
    """Processor seconds of the same walk over single operators by each simulation."""
    count = proposals(it, tasks, LEAST_PRICED, MOST_PRICED)
    budget = SoapBudget(least_proposals=count, most_proposals=count)
    seconds: dict[str, float] = {}
    walks = list[SoapResult]()
    better: dict[str, Sequence[tuple[float, float]]] = {}
    for way in (Pricing.WITHIN, Pricing.REBUILT, Pricing.DELTA):
        # So that compiling is in no row's seconds.
        few = SoapBudget(least_proposals=2, most_proposals=2)
        soap_search(it.simulator(data_parallel(it.graph, it.n_devices)), (), few, pricing=way)
        simulator = it.simulator(data_parallel(it.graph, it.n_devices))
        begin = time.process_time()
        walks.append(soap_search(simulator, (), budget, pricing=way))
        seconds[way.name.lower()] = time.process_time() - begin
        better[way.name.lower()] = walks[-1].better
    # All are exact, so equal seeds walk alike.
    if any(walk != walks[0] for walk in walks):
        raise click.ClickException("the simulations made different walks")
    parts = asdict(profile(it, count))
    return {"proposals": count, "seconds": seconds, "better": better, "profile": parts}


def restarts(it: Case, tasks: int) -> Row:
    """The share of a simulation before the first change, which a restart would not do again."""
    count = proposals(it, tasks, LEAST_PRICED, MOST_RESTARTED)
    return {"proposals": count, "before": done_before(it, count)}


def assumptions(it: Case, tasks: int) -> Row:
    """The three plans under each of the assumptions."""
    rows: dict[str, Row] = {}
    for name, assume in ASSUMPTIONS.items():
        assumed = assume(it)
        count = proposals(assumed, tasks, LEAST_PROPOSALS, MOST_PROPOSALS)
        starts = {"data": data_parallel(assumed.graph, it.n_devices), "expert": expert(assumed)}
        result = found(assumed, list(starts.values()), count)
        plans = {**starts, "found": result.configurations}
        rows[name] = {key: plan_row(assumed.simulator(plan)) for key, plan in plans.items()}
    return {"batch": it.batch, "assumptions": rows}


def training(it: Case, tasks: int) -> Row:
    """Losses of a run, whose steps take as long as a plan says."""
    return {"losses": losses(it.model)}


@dataclass(frozen=True)
class Part:
    """Rows of one kind: how one is made, and of which models, clusters and devices."""

    make: Callable[[Case, int], Row]
    tasks: int
    models: Sequence[str]
    machines: Sequence[tuple[str, int]]


EVERY = tuple(MODELS)
PARTS: Mapping[str, Part] = {
    "throughput": Part(
        throughput,
        TASKS,
        EVERY,
        [("flexflow-k80", n) for n in (1, 2, 4, 8, 16, 32, 64)]
        + [("flexflow-p100", n) for n in (1, 2, 4, 8, 16)],
    ),
    "optcnn": Part(optcnn, TASKS, EVERY, [AUTOMATED_DEVICES["optcnn"]]),
    "devices": Part(devices, TASKS, ("inception-v3", "nmt"), [AUTOMATED_DEVICES["devices"]]),
    "assumptions": Part(
        assumptions,
        TASKS // 4,
        ("alexnet", "nmt"),
        [("flexflow-p100", 4), ("flexflow-p100", 16), ("flexflow-k80", 64)],
    ),
    "restarts": Part(
        restarts,
        PRICED_TASKS,
        EVERY,
        [("flexflow-p100", 4), ("flexflow-p100", 16), ("flexflow-k80", 64)],
    ),
    "training": Part(training, 0, tuple(TRAINED), [TRAINED_ON]),
    "pricing": Part(
        pricing,
        PRICED_TASKS,
        EVERY,
        [("flexflow-p100", 4), ("flexflow-p100", 16), ("flexflow-k80", 64)],
    ),
}


class Kept:
    """Rows in a file, a line each, by what they are of."""

    def __init__(self, path: Path):
        """Read what is there."""
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: dict[tuple[Any, ...], Row] = {
            tuple(row["of"]): row for row in map(json.loads, lines)
        }

    def add(self, of: tuple[Any, ...], row: Row) -> None:
        """Keep one more row."""
        self.rows[of] = {"of": of, **row}
        write_atomically(self.path, "".join(f"{json.dumps(r)}\n" for r in self.rows.values()))


def wanted(models: Sequence[str], most_devices: int) -> Iterator[tuple[str, str, str, int]]:
    """(part, model, cluster, devices) of all rows, those of the paper's table first."""
    rows = [
        (name, model, cluster, n)
        for name, part in PARTS.items()
        for model in part.models
        for cluster, n in part.machines
        if model in models and n <= most_devices
    ]
    # Rows of one model and batch follow each other, so that it is traced once.
    yield from sorted(
        rows, key=lambda row: (row[3] not in PAPER, row[3], EVERY.index(row[1]), row[2])
    )


def write(kept: Kept, output: Path, command: str) -> None:
    """Put tables and pictures into the docs."""
    above = made_by(command, f"{platform.machine()} with {os.cpu_count()} processors; simulated")
    for name, table in TABLES.items():
        made = table(kept.rows)
        # A table without a row stays as it is: its rows are in another file.
        if made.count("\n") > _HEADER_LINES:
            replace_table(output, above + made, name)
    pictures = output.parent
    for model in PICTURED:
        row = kept.rows.get(("throughput", model, "flexflow-p100", 4))
        if row is not None:
            draw_strategy(row["layers"], pictures / f"flexflow_{model}.svg")
    if runs := trained(kept.rows):
        draw_training(runs, pictures / "flexflow_training.svg")
    row = kept.rows.get(("pricing", "nmt", "flexflow-p100", 16))
    if row is not None:
        draw_quality(row["better"], row["seconds"], pictures / "flexflow_quality.svg")


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)))
@click.option("--model", "models", multiple=True, type=click.Choice(EVERY))
@click.option("--most-devices", default=64, show_default=True, type=click.IntRange(1))
@click.option("--share", default=1.0, show_default=True, help="Of the tasks of each search.")
@click.option("--kept", "path", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    parts: tuple[str, ...],
    models: tuple[str, ...],
    most_devices: int,
    share: float,
    path: Path,
    output: Path | None,
) -> None:
    """Make the rows that are missing, and put tables and pictures of all into OUTPUT."""
    kept = Kept(path)
    traced: tuple[tuple[str, str, int], Case] | None = None
    for part, model, cluster, n_devices in wanted(models or EVERY, most_devices):
        key = (model, cluster, n_devices)
        if (part, *key) in kept.rows or (parts and part not in parts):
            continue
        if traced is None or traced[0] != key:
            traced = key, case(*key)
        row = PARTS[part].make(traced[1], round(share * PARTS[part].tasks))
        kept.add((part, *key), row)
        click.echo(f"{part} {key}", err=True)
    if output is not None:
        only = "".join([f" --part {p}" for p in parts] + [f" --model {m}" for m in models])
        command = f"python -m scripts.reproduce_flexflow{only} --kept flexflow.jsonl"
        write(kept, output, f"{command} --share {share:g} -o {output}")


if __name__ == "__main__":
    main()
