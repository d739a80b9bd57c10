"""One program, pipelines of replicas, and hybrids on models and machines: steps, bytes of a device,
planning time.

    python -m scripts.compare_spaces -o docs/reports/pipelines.md

A step is the planner's prediction; a dash says that no plan of the space fits. Planning is the
processor's seconds of the search, without tracing; it ends by itself or within the budget, which is
of time that passes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
import os
from pathlib import Path
import platform
import time

import click
from rich.progress import track

from automap.api.plan import Plan
from automap.choices import SearchSpace
from automap.config import Options
from automap.errors import InfeasiblePlanError
from automap.planner.spaces import plan_workload
from automap.program.trace import Workload, trace_step
from automap.quantities import bytes_text
from automap.topology import get_topology
from models import gpt, mlp, t5
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_spaces"
MODELS: Mapping[str, Callable[[], Target]] = {
    "t5-11b": t5.t5_11b,
    "gpt-6.7b": lambda: gpt.gpt_6_7b(batch=64),
}
# Slow networks, where pipelines pay, and fast ones, where they need not.
TOPOLOGIES = ("4x8xv100", "2x8xh100", "8x8xh100")
SPACES: tuple[SearchSpace, ...] = ("sharding", "pipeline", "hybrid")
BUDGET_SECONDS = 30.0
HEADER = ["model", "machine", "space", "step, s", "a device", "planning, s", "stages"]


def planned(workload: Workload, topology: str, space: SearchSpace) -> tuple[Plan | None, float]:
    """The plan and the processor's seconds; None if none fits."""
    options = Options(space=space, budget_seconds=BUDGET_SECONDS)
    begin = time.process_time()
    plan = None
    # That nothing fits is an answer of the table.
    with suppress(InfeasiblePlanError):
        plan = plan_workload(workload, get_topology(topology), options)
    return plan, time.process_time() - begin


def stages_text(plan: Plan) -> str:
    """`8 + 8 (data=2 x model=4), 1f1b, 64 microbatches`; `one program` for one that is not cut."""
    record = plan.pipeline
    if record is None:
        return "one program, " + " x ".join(f"{n}={size}" for n, size in plan.mesh.axes)
    parts = []
    for stage in record.stages:
        mesh = "replicas"
        if stage.inside is not None:
            mesh = " x ".join(f"{name}={size}" for name, size in stage.inside.mesh.axes)
        parts.append(f"{len(stage.devices)} ({mesh})")
    return f"{' + '.join(parts)}, {record.schedule}, {record.microbatches} microbatches"


def rows(model: str, workload: Workload, topology: str) -> Iterator[list[str]]:
    """One row for each space."""
    for space in SPACES:
        plan, seconds = planned(workload, topology, space)
        step = peak = stages = "-"
        if plan is not None:
            step, peak = f"{plan.predicted.step_seconds:.3f}", bytes_text(plan.predicted.peak_bytes)
            stages = stages_text(plan)
        yield [model, topology, space, step, peak, f"{seconds:.1f}", stages]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--model", "chosen", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
def main(output: Path | None, chosen: tuple[str, ...]) -> None:
    """Plan everything in every space."""
    # The solvers are compiled before anything is timed.
    step, args = mlp.mlp_tiny()
    for space in SPACES:
        planned(trace_step(step, args, platform="cuda"), "4xv100", space)
    table_rows: list[list[str]] = []
    for model in track(chosen or list(MODELS), "models"):
        step, args = MODELS[model]()
        workload = trace_step(step, args, platform="cuda")
        for topology in TOPOLOGIES:
            table_rows += rows(model, workload, topology)
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    only = "".join(f" --model {model}" for model in chosen)
    text = made_by(f"{COMMAND}{only} -o docs/reports/pipelines.md", where) + markdown(
        HEADER, table_rows
    )
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "spaces")


if __name__ == "__main__":
    main()
