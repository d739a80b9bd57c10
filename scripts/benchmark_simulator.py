"""Speed of the simulators: tasks per second, and delta against full simulation on NMT.

    python -m scripts.benchmark_simulator -o docs/reports/simulator.md

NMT is FlexFlow's (table 3), 40 unrolled steps, on a cluster of 8-GPU V100 hosts. A move gives a
random operator a random configuration, as FlexFlow's search does; all times are processor seconds
of one core.
"""

from collections.abc import Callable, Iterator
import os
from pathlib import Path
import platform
import time
from typing import Any

import click
import numba
import numpy as np
from rich.progress import track

from automap.program.problem_build import build_problem
from automap.simulate.operators.build import operator_graph
from automap.simulate.operators.configuration import data_parallel, random_configuration
from automap.simulate.operators.graph import OperatorGraph
from automap.simulate.operators.network import DeviceNetwork, device_network, first_devices
from automap.simulate.operators.simulator import Method, Simulator
from automap.simulate.tasks import Tasks, simulate
from automap.topology import get_topology
from hlo_tools.read.proto import decode_module
from models.nmt import nmt
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.benchmark_simulator -o docs/reports/simulator.md"
DEVICES = (4, 8, 16, 32, 64)
TOPOLOGY, BATCH = "8x8xv100", 64 * 64
# Per row of the table.
MOVES, MOST_SECONDS, RUNS = 20, 4.0, 5
N_TASKS = 200_000
SPEED_HEADER = ["task graph", "tasks", "edges", "M tasks/s, processor", "M tasks/s, wall"]
RATIO_HEADER = [
    "devices",
    "start",
    "tasks",
    "build, ms",
    "full, ms",
    "M tasks/s",
    "delta, median ms",
    "delta, mean ms",
    "full / delta",
    "(build + full) / delta",
    "full / either",
    "(build + full) / either",
    "by delta",
]


def pipeline_tasks(n_stages: int, n_tasks: int) -> Tasks:
    """Stages that each wait for the one before and for themselves, with a link after each."""
    t = np.arange(n_tasks)
    step, lane = t // (2 * n_stages), t % (2 * n_stages)
    before = np.stack([np.where(lane > 0, t - 1, -1), np.where(step > 0, t - 2 * n_stages, -1)])
    rng = np.random.default_rng(0)
    return _tasks(rng.uniform(1e-6, 1e-3, n_tasks), lane, before)


def device_tasks(n_tasks: int) -> Tasks:
    """One device and its link: every third task is a collective, used by the third operation after
    it.
    """
    t = np.arange(n_tasks)
    is_link = t % 3 == 2
    chain = np.where(is_link, t - 1, np.where(t % 3 == 0, t - 2, t - 1))
    before = np.stack([chain, np.where(is_link, -1, t - 7 - (t - 7 - 2) % 3)])
    rng = np.random.default_rng(0)
    return _tasks(rng.uniform(1e-6, 1e-3, n_tasks), is_link.astype(int), before)


def random_tasks(n_resources: int, n_tasks: int) -> Tasks:
    """Tasks that wait for three of the thousand before them."""
    rng = np.random.default_rng(0)
    t = np.arange(n_tasks)
    before = np.stack([t - rng.integers(300 * k + 1, 300 * k + 300, n_tasks) for k in range(3)])
    return _tasks(rng.uniform(1e-6, 1e-3, n_tasks), rng.integers(0, n_resources, n_tasks), before)


def _tasks(seconds: np.ndarray, resource: np.ndarray, before: np.ndarray) -> Tasks:
    rows = [np.unique(column[column >= 0]) for column in before.T]
    return Tasks(
        seconds=seconds,
        resource=resource.astype(np.int32),
        first_predecessor=np.cumsum([0, *map(len, rows)]),
        predecessors=np.concatenate(rows).astype(np.int32),
    )


def speeds() -> Iterator[list[str]]:
    """Rows of the first table."""
    graphs = {
        "one device and its link": device_tasks(N_TASKS),
        "pipeline of 8 stages": pipeline_tasks(8, N_TASKS),
        "random, 64 resources": random_tasks(64, N_TASKS),
    }
    for name, tasks in graphs.items():
        # The first call compiles.
        simulate(tasks)
        timings = [_timed(lambda tasks=tasks: simulate(tasks)) for _ in range(3 * RUNS)]
        # The least of all runs, of processor and wall time each.
        rates = [len(tasks.seconds) / min(column) / 1e6 for column in zip(*timings, strict=True)]
        edges = len(tasks.predecessors)
        yield [name, f"{N_TASKS:,}", f"{edges:,}", *(f"{rate:.1f}" for rate in rates)]


def _timed(function: Callable[[], Any]) -> tuple[float, float]:
    """(processor, wall) seconds."""
    processor, wall = time.process_time(), time.perf_counter()
    function()
    return time.process_time() - processor, time.perf_counter() - wall


def ratio(graph: OperatorGraph, network: DeviceNetwork, start: str) -> list[str]:
    """One row of the second table."""
    rng = np.random.default_rng(0)
    n = network.n_devices
    configurations = (
        data_parallel(graph, n)
        if start == "data-parallel"
        else [random_configuration(o, n, rng) for o in graph.operators]
    )
    simulator = Simulator(graph, network, configurations)
    simulator.move(0, configurations[0], Method.DELTA)  # compiles it
    build = _timed(simulator.rebuild)[0]
    full, delta = _moved(simulator, Method.DELTA, rng)[:2]
    full_again, either, by_delta = _moved(simulator, Method.EITHER, rng)
    both, again = np.mean(full), np.mean(full_again)
    return [
        f"{n}",
        start,
        f"{simulator.n_tasks:,}",
        f"{build * 1e3:.1f}",
        f"{both * 1e3:.1f}",
        f"{simulator.n_tasks / min(full) / 1e6:.1f}",
        f"{np.median(delta) * 1e3:.1f}",
        f"{np.mean(delta) * 1e3:.1f}",
        f"{both / np.mean(delta):.2f}",
        f"{(build + both) / np.mean(delta):.2f}",
        f"{again / np.mean(either):.2f}",
        f"{(build + again) / np.mean(either):.2f}",
        f"{by_delta:.0%}",
    ]


def _moved(
    simulator: Simulator, method: Method, rng: np.random.Generator
) -> tuple[list[float], list[float], float]:
    """(full seconds, seconds of the method, share that delta finished) over moves; checks the
    timelines.
    """
    full, other, by_delta = [], [], 0
    # Delta simulation starts from a finished timeline.
    simulator.simulate()
    while len(full) < MOVES and sum(full) + sum(other) < MOST_SECONDS:
        o = int(rng.integers(len(simulator.graph.operators)))
        chosen = random_configuration(
            simulator.graph.operators[o], simulator.network.n_devices, rng
        )
        begin = time.process_time()
        by_delta += simulator.move(o, chosen, method) is Method.DELTA
        other.append(time.process_time() - begin)
        makespan_seconds = simulator.makespan_seconds
        full.append(_timed(simulator.simulate)[0])
        # Equal to the last digit, or one of them is wrong.
        if simulator.makespan_seconds != makespan_seconds:
            raise click.ClickException(f"delta and full simulation differ after move {len(full)}")
    return full, other, by_delta / len(full)


def compile_seconds() -> float:
    """What the first calls take, by the compiler or its cache: processor seconds."""
    graph = OperatorGraph(operators=(), edges=())
    network = device_network(get_topology("8xv100"))
    return _timed(lambda: Simulator(graph, network, []))[0]


def nmt_graph() -> OperatorGraph:
    """NMT's operators, timed on one V100."""
    step: Any
    step, args = nmt(batch=BATCH)
    proto = step.lower(*args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    return operator_graph(build_problem(decode_module(proto)), get_topology(TOPOLOGY))


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Run the benchmark."""
    first = compile_seconds()
    table = markdown(SPEED_HEADER, list(speeds()))
    graph, network = nmt_graph(), device_network(get_topology(TOPOLOGY))
    cases = [(n, start) for n in DEVICES for start in ("data-parallel", "random")]
    rows = [
        ratio(graph, first_devices(network, n), start) for n, start in track(cases, "measuring")
    ]
    where = f"numba {numba.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    text = (
        f"{made_by(COMMAND, where)}First call of full simulation: {first:.1f} s.\n\n{table}\n"
        f"NMT: {len(graph.operators):,} operators, {len(graph.edges):,} edges.\n\n"
        f"{markdown(RATIO_HEADER, rows)}"
    )
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text)


if __name__ == "__main__":
    main()
