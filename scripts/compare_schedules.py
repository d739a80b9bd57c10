"""The bubble of every pipeline schedule, on models and machines, beside its closed form.

    python -m scripts.compare_schedules -o docs/reports/pipelines.md

Of each schedule the best partition that local search finds for S stages and M microbatches, without
a limit of memory; its step is simulated. Beside it is what S equal stages without transfers would
wait, with F, B and W the means over the stages:

    gpipe, 1f1b   (S - 1) (F + B)                    B with the gradients of weights
    zero-bubble   (S - 1) max(F, B, F + B - W)
    interleaved   (S - 1) (F + B)    of stages half as long, two on each of S groups of devices
                                                                              -> in: `closed_form`
"""

from collections.abc import Callable, Iterator, Mapping
import os
from pathlib import Path
import platform
from typing import Final

import click
import numpy as np
from rich.progress import track

from automap.config import Options
from automap.deadline import Deadline
from automap.pipeline.schedules import SCHEDULES, Schedule
from automap.pipeline.search import Limits, find_pipeline
from automap.pipeline.simulation import simulated_step
from automap.plan.pipeline import PipelineRecord
from automap.planner.pipeline import Setup, set_up
from automap.planner.pipeline_records import pipeline_record
from automap.program.trace import Workload, trace_step
from automap.quantities import bytes_text
from automap.topology import get_topology
from models import bert, gpt, t5, vit
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_schedules"
MODELS: Final[Mapping[str, Callable[[], Target]]] = {
    "bert-48": lambda: bert.bert_48(batch=64),
    "gpt-124m": lambda: gpt.gpt_124m(batch=64),
    "t5-base": t5.automap_t5_base,
    "vit-b16": lambda: vit.vit_b16(batch=64),
}
# A fast network between all devices, and a slow one between hosts.
TOPOLOGIES: Final = ("8xh100", "2x4xv100")
STAGES, MICROBATCHES = 4, 16
HEADER = [
    "model",
    "machine",
    "schedule",
    "step, ms",
    "bubble, ms",
    "of the step",
    "closed form, ms",
    "a device",
]


def closed_form(record: PipelineRecord) -> float:
    """Seconds that equal stages of these means would wait."""
    stages = record.stages
    f, b, w = (
        np.mean([getattr(stage, f"{name}_seconds") for stage in stages])
        for name in ("forward", "backward", "weights")
    )
    is_apart = any(stage.weights_seconds for stage in stages)
    each = max(f, b, f + b - w) if is_apart else f + b
    return float((len(record.groups) - 1) * each)


def best_record(setup: Setup, schedule: Schedule) -> PipelineRecord:
    """The stages that local search finds for a schedule."""
    limits = Limits(
        stages=STAGES * schedule.stages_per_group,
        microbatches=MICROBATCHES,
        memory_limit_bytes=float("inf"),
        deadline=Deadline.never(),
        seed=0,
        schedules=(schedule,),
    )
    found = find_pipeline(setup.points, setup.fabric, limits, "local-search").best
    if found is None:
        raise click.ClickException(f"no {STAGES} stages of {setup.topology.name} were found")
    return pipeline_record(found, setup.points)


def rows(model: str, workload: Workload, machine: str) -> Iterator[list[str]]:
    """One row for each schedule."""
    setup = set_up(workload, get_topology(machine), Options(), Deadline.never())
    for name, schedule in SCHEDULES.items():
        record = best_record(setup, schedule)
        simulated = simulated_step(record)
        step_seconds = simulated.timeline.makespan_seconds
        yield [
            model,
            machine,
            name,
            f"{1e3 * step_seconds:.1f}",
            f"{1e3 * simulated.bubble_fraction * step_seconds:.1f}",
            f"{simulated.bubble_fraction:.1%}",
            f"{1e3 * closed_form(record):.1f}",
            bytes_text(max(stage.peak_bytes for stage in record.stages)),
        ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Simulate every schedule on every model and machine."""
    table_rows: list[list[str]] = []
    for model in track(list(MODELS), "models"):
        workload = trace_step(*MODELS[model](), platform="cuda")
        for machine in TOPOLOGIES:
            table_rows += rows(model, workload, machine)
    where = f"{platform.machine()}, {os.cpu_count()} cores"
    text = made_by(f"{COMMAND} -o docs/reports/pipelines.md", where) + markdown(HEADER, table_rows)
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, "schedules")


if __name__ == "__main__":
    main()
