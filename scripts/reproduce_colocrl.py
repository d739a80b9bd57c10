"""ColocRL's tables, simulated: groups (its table 1), and the seconds of a step by policies and
baselines (its table 2 and section 4.3).

    python -m scripts.reproduce_colocrl -o docs/reports/colocrl.md

Policies are trained anew for each row and seed, with a number of updates that is stated, by one
controller on one core. `learning off` is the same player without its learning: the best of as many
placements, drawn by the same policy before it has learnt anything.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
import os
from pathlib import Path
import platform
from statistics import median
import time

import click

from automap.deadline import Deadline
from automap.placement import baselines, colocrl
from automap.placement.dataflow import step_dataflow
from automap.placement.operators import Operators, step_operators
from automap.placement.search import Placed, Search
from automap.placement.simulation import Simulator, placed_machine
from automap.placement.strategies import mcmc
from automap.placement.tasks import placement_problem
from automap.program.trace import trace_step
from automap.topology import get_graph
from models.inception import inception_v3
from models.nmt import NMT, nmt, nmt_step
from models.rnnlm import RNNLM, rnnlm, rnnlm_step
from models.training import Target
from rl.sequences import ReinforceConfig
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_colocrl"
MCMC_SECONDS = 60.0


def large_rnnlm() -> Target:
    """Section 4.3's: LSTMs of 4096, batch 256."""
    return rnnlm_step(replace(RNNLM, hidden=4096), batch=256, seq=40).target


def large_nmt() -> Target:
    """Section 4.3's: LSTMs of 2048, batch 256."""
    return nmt_step(replace(NMT, hidden=2048), batch=256, seq=40).target


@dataclass(frozen=True)
class Published:
    """The paper's numbers of a model: operations and groups of its table 1, then by GPUs the
    seconds of its table 2: CPU, GPU, Scotch, MinCut, expert, RL; None where it has none.
    """

    target: Callable[[], Target]
    operations: int | None
    groups: int | None
    seconds: Mapping[int, Sequence[float | None]]


MODELS: Mapping[str, Published] = {
    "Inception-v3": Published(
        lambda: inception_v3(batch=32),
        31_180,
        83,
        {2: (26.21, 4.60, 25.24, 22.88, 11.22, 4.60), 4: (26.21, 4.60, 23.41, 24.52, 10.65, 3.85)},
    ),
    "RNNLM": Published(
        rnnlm,
        8_943,
        188,
        {2: (6.89, 1.57, 13.43, 11.94, 3.81, 1.57), 4: (6.89, 1.57, 11.52, 10.44, 4.46, 1.57)},
    ),
    "NMT": Published(
        nmt,
        22_097,
        280,
        {
            2: (10.72, None, 14.19, 11.54, 4.99, 4.04),
            4: (10.72, None, 11.23, 11.78, 4.73, 3.92),
        },
    ),
    "large RNNLM": Published(large_rnnlm, None, None, {4: (None, None, None, None, None, 33.46)}),
    "large NMT": Published(large_nmt, None, None, {4: (None, None, None, None, None, 35.84)}),
}
HEADER = [
    "model",
    "GPUs",
    "CPU",
    "one GPU",
    "mapping",
    "mincut",
    "expert",
    "heft",
    "m-sct",
    "mcmc",
    "colocrl, learning off",
    "colocrl",
    "colocrl-heft, learning off",
    "colocrl-heft",
    "a run of colocrl, s",
    "the paper's CPU, GPU, Scotch, MinCut, expert, RL",
]
GROUPS_HEADER = [
    "model",
    "equations",
    "operators",
    "groups: branches",
    "groups: one reader",
    "the paper's operations",
    "the paper's groups",
]


def traced(target: Callable[[], Target]) -> Operators:
    """The operators of a step that is compiled for GPUs."""
    step, args = target()
    return step_operators(step_dataflow(trace_step(step, args, platform="cuda")))


def searched(operators: Operators, machine: str, seed: int = 0) -> Search:
    """A new search of the placements on a machine."""
    graph = get_graph(machine)
    problem = placement_problem(operators, graph.platform, graph.kinds)
    return Search(Simulator(problem, placed_machine(graph)), seed)


def single_row(search: Search) -> Iterator[str]:
    """All on the processor, all on a GPU."""
    count = search.simulator.problem.n_operators
    for device in (0, 1):
        yield text([search.place([device] * count)])


def policy_cells(
    search: Search, config: ReinforceConfig, prior: Placed | None, seeds: int, updates: int
) -> tuple[list[str], float]:
    """The best without and with learning, and the seconds of a run that learns."""
    cells, seconds = [], 0.0
    for one in (replace(config, learning_rate=None), config):
        runs = []
        for seed in range(seeds):
            begin = time.monotonic()
            search.seed = seed
            placed = colocrl.learnt(search, one, prior, updates)
            runs.append(placed if prior is None else min(placed, prior, key=lambda p: p.rank))
            seconds = time.monotonic() - begin
        cells.append(text(runs))
    return cells, seconds


def text(runs: Sequence[Placed]) -> str:
    """Median seconds, with the range where runs differ."""
    if not all(run.fits for run in runs):
        return "does not fit"
    seconds = sorted(run.seconds for run in runs)
    spread = f" ({seconds[0]:.3f} to {seconds[-1]:.3f})" if seconds[0] < seconds[-1] else ""
    return f"{median(seconds):.3f}{spread}"


def table_row(
    name: str, operators: Operators, gpus: int, seeds: int, updates: int
) -> Iterator[str]:
    """A row of the second table."""
    search = searched(operators, f"haswell-{gpus}xk80")
    yield from (name, str(gpus), *single_row(search))
    for baseline in (baselines.mapping, baselines.mincut, baselines.expert):
        yield text([baseline(search)])
    start = baselines.heft(search)
    yield text([start])
    yield text([baselines.m_sct(search)])
    search.deadline = Deadline.after(MCMC_SECONDS)
    yield text([mcmc(search)])
    search.deadline = Deadline.never()
    cells, seconds = policy_cells(search, colocrl.PAPERS, None, seeds, updates)
    yield from cells
    yield from policy_cells(search, colocrl.FROM_HEFT, start, seeds, updates)[0]
    yield f"{seconds:.0f}"
    published = MODELS[name].seconds[gpus]
    yield ", ".join("–" if value is None else f"{value:.2f}" for value in published)


def group_row(name: str, operators: Operators) -> list[str]:
    """A row of the first table."""
    problem = searched(operators, "haswell-2xk80").simulator.problem
    published = MODELS[name]
    counts = (
        len(operators.dataflow.names),
        problem.n_operators,
        int(colocrl.branch_groups(problem).max()) + 1,
        int(colocrl.merged_groups(problem).max()) + 1,
    )
    papers = (published.operations, published.groups)
    return [name, *(f"{n:,}" for n in counts), *("" if n is None else f"{n:,}" for n in papers)]


@click.command(help=__doc__)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--updates", default=400, show_default=True, type=click.IntRange(1))
@click.option("--model", "models", multiple=True, type=click.Choice(list(MODELS)))
@click.option("-o", "output", type=click.Path(path_type=Path), required=True)
def main(*, seeds: int, updates: int, models: tuple[str, ...], output: Path) -> None:
    """Write the tables, after each row."""
    where = f"{platform.machine()} with {os.cpu_count()} processors; all seconds simulated"
    chosen = "".join(f" --model '{name}'" for name in models)
    command = f"{COMMAND} --seeds {seeds} --updates {updates}{chosen} -o {output}"
    above = made_by(command, where)
    rows: list[list[str]] = []
    groups: list[list[str]] = []
    for name in models or MODELS:
        operators = traced(MODELS[name].target)
        groups.append(group_row(name, operators))
        replace_table(output, above + markdown(GROUPS_HEADER, groups), "groups")
        for gpus in MODELS[name].seconds:
            rows.append(list(table_row(name, operators, gpus, seeds, updates)))
            replace_table(output, above + markdown(HEADER, rows), "seconds")


if __name__ == "__main__":
    main()
