"""The shipped agent on held-out problems, on real profiles, and in Auto-MAP's Table 8.

    python -m scripts.reproduce_pipeline_agent -o docs/reports/pipeline_agent.md

Gaps are above the optimum that the exact solver proved; problems for which it could not, in two
seconds, are left out and counted. Milliseconds are of the processor, in one thread, medians.
"""

from collections.abc import Iterator
from dataclasses import replace
import os
from pathlib import Path
import platform
import time

import click
import numpy as np
from rich.progress import track

from automap.pipeline.agent.network import shipped_weights
from automap.pipeline.agent.play import infer
from automap.pipeline.agent.problems import (
    TRAINED_SCHEDULES,
    Problem,
    Size,
    generate_plain,
)
from automap.pipeline.arrays import Arrays, Terms, pipeline_arrays
from automap.pipeline.fabric import pipeline_fabric
from automap.pipeline.profile.points import coarsen
from automap.pipeline.solvers.local import optimum
from automap.topology import get_topology
from models.gpt import gpt_124m
from models.resnet import resnet_50
from scripts import flat_pipeline_agent
from scripts.pipeline_agent_cases import METHOD_HEADER, METHODS, HeldOut, Method, Optima, measured
from scripts.reproduce_pipelines import CONFIGURATIONS, MICROBATCHES, MODELS, Case, profile
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.reproduce_pipeline_agent -o docs/reports/pipeline_agent.md"
# Training uses seeds from a million on.
FIRST_SEED = 10_000
SIZES = (
    # (problems, size); the second row of four stages has the paper's machine with twice the servers
    (100, Size(stages=2, points=128, servers=2, per_server=8)),
    (100, Size(stages=3, points=128, servers=3, per_server=8)),
    (100, Size(stages=4, points=128, servers=4, per_server=8)),
    (20, Size(stages=4, points=96, servers=8, per_server=8)),
    (25, Size(stages=5, points=64, servers=4, per_server=5)),
    (25, Size(stages=6, points=48, servers=4, per_server=4)),
    (25, Size(stages=7, points=40, servers=4, per_server=4)),
    (25, Size(stages=8, points=40, servers=4, per_server=4)),
)
REAL = {**MODELS, "GPT-124M": gpt_124m, "ResNet-50": resnet_50}
TABLE_8 = [
    "model",
    "config",
    "the agent's pivots",
    "device cuts",
    "step, s",
    "ms",
    "gap",
    "greedy, gap",
    "pivots of the optimum",
    "its device cuts",
]
_MACHINE = f"{platform.machine()}, {os.cpu_count()} cores"


def held_out(optima: Optima) -> list[list[str]]:
    """Rows of all methods for every size."""
    rows = []
    for count, size in track(SIZES, "held-out problems"):
        held = HeldOut(range(FIRST_SEED, FIRST_SEED + count), size, optima)
        # Counts what could not be proven while it goes through the problems.
        gaps_by_method = measured(held, METHODS)
        devices = size.servers * size.per_server
        what = f"{size.stages} stages, {size.points} points, {devices} devices"
        counted = f"{count - held.unproven} of {count}"
        rows += [[what, counted, name, *gaps.cells()] for name, gaps in gaps_by_method.items()]
    return rows


def baseline(episodes: int) -> list[list[str]]:
    """Rows of all methods, and of the flat agent, in the paper's setting."""
    problems = [
        generate_plain(FIRST_SEED + number, flat_pipeline_agent.SIZE) for number in range(100)
    ]
    proven = []
    for problem in track(problems, "plain problems"):
        solved = optimum(problem.arrays, problem.stages)
        if solved.best is not None and solved.proven:
            proven.append((problem, solved.best.seconds))
    begin = time.process_time()
    agent = flat_pipeline_agent.trained(episodes, seed=0)
    minutes = (time.process_time() - begin) / 60
    played = dict(zip(map(id, problems), flat_pipeline_agent.played(agent, problems)))
    name = f"flat agent, {episodes:,} episodes ({minutes:.1f} min)"
    methods: dict[str, Method] = {**METHODS, name: lambda problem: played[id(problem)]}
    gaps_by_method = measured(proven, methods)
    rows = [[method, *gaps.cells()] for method, gaps in gaps_by_method.items()]
    # It played all problems at once before.
    return [row if row[0] != name else [*row[:-1], "-"] for row in rows]


def settings(case: Case) -> Iterator[Arrays]:
    """The paper's own model of a case, and the product's with the schedules of its training."""
    yield case.arrays()
    fabric = pipeline_fabric(get_topology(CONFIGURATIONS[case.configuration][0]))
    for schedule in TRAINED_SCHEDULES:
        terms = Terms(microbatches=MICROBATCHES, schedule=schedule, memory_limit_bytes=np.inf)
        yield pipeline_arrays(case.points, fabric, terms)


def real_cases() -> Iterator[Case]:
    """Every model on every configuration."""
    for model, make in track(REAL.items(), "models"):
        points = coarsen(profile(make))
        for name, (topology, stages) in CONFIGURATIONS.items():
            fabric = pipeline_fabric(get_topology(topology), "adjacent")
            yield Case(model, name, points, fabric, stages)


def on_profiles(cases: list[Case]) -> list[list[str]]:
    """Rows of all methods for every number of stages."""
    rows = []
    for stages in (2, 3, 4):
        problems = [
            Problem(arrays, case.fabric, stages)
            for case in cases
            if case.stages == stages
            for arrays in settings(case)
        ]
        proven = []
        for problem in problems:
            solved = optimum(problem.arrays, stages)
            if solved.best is not None and solved.proven:
                proven.append((problem, solved.best.seconds))
        gaps_by_method = measured(proven, METHODS)
        counted = f"{len(proven)} of {len(problems)}"
        rows += [
            [f"{stages} stages", counted, name, *gaps.cells()]
            for name, gaps in gaps_by_method.items()
        ]
    return rows


def table_8(case: Case) -> list[str]:
    """The agent's answer beside the optimum, in the paper's setting."""
    arrays = case.arrays()
    methods: dict[str, Method] = {
        name: METHODS[name] for name in ("agent, greedy", "agent, beams and local search")
    }
    best = optimum(arrays, case.stages).best
    inferred = infer(arrays, case.stages, shipped_weights())
    assert best is not None and inferred is not None  # noqa: S101 - memory is no limit here
    gaps = measured([(Problem(arrays, case.fabric, case.stages), best.seconds)], methods)
    greedy, whole = gaps.values()
    return [
        case.model,
        case.configuration,
        _inner(inferred.cuts),
        _inner(inferred.device_cuts),
        f"{inferred.seconds:.3f}",
        f"{1e3 * whole.seconds[0]:.1f}",
        f"{whole.gaps[0]:.2%}",
        f"{greedy.gaps[0]:.2%}",
        _inner(best.cuts),
        _inner(best.device_cuts),
    ]


def _inner(boundaries: np.ndarray) -> str:
    return ", ".join(str(each) for each in boundaries[1:-1])


def warm_up() -> None:
    """Compile what is measured."""
    for stages in (3, 5):
        size = replace(SIZES[-1][1], stages=stages)
        measured(HeldOut(range(2), size, Optima(None)), METHODS)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--table", "chosen", type=click.Choice(["all", "held-out", "real", "baseline"]), default="all"
)
@click.option(
    "--optima", type=click.Path(path_type=Path), help="a file that keeps the proven optima"
)
def main(output: Path | None, chosen: str, optima: Path | None) -> None:
    """Judge the shipped weights."""
    warm_up()
    texts: dict[str, str] = {}
    begin = made_by(COMMAND, _MACHINE)
    header = ["problems", "proven", "method", *METHOD_HEADER]
    if chosen in ("all", "held-out"):
        texts["held-out"] = begin + markdown(header, held_out(Optima(optima)))
    if chosen in ("all", "real"):
        cases = list(real_cases())
        texts["profiles"] = begin + markdown(header, on_profiles(cases))
        texts["table 8"] = begin + markdown(
            TABLE_8, [table_8(case) for case in cases if case.model in MODELS]
        )
    if chosen in ("all", "baseline"):
        rows = baseline(flat_pipeline_agent.EPISODES)
        texts["baseline"] = begin + markdown(["method", *METHOD_HEADER], rows)
    for name, text in texts.items():
        if output is None:
            click.echo(text)
        else:
            replace_table(output, text, name)


if __name__ == "__main__":
    main()
