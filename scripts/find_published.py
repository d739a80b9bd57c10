"""Three published runs of large models, planned from the plain step: does the search find the class
of policy that people chose by hand, and what does it predict?

    python -m scripts.find_published --kept rows.jsonl -o docs/reports/published.md

The step is the zoo's Llama at the run's sizes, with flash attention, parameters and AdamW's moments
in float32, and no checkpoint of its own; machine and batch are the run's. Nothing is set on any of
these runs.
"""

from dataclasses import asdict, dataclass, replace
import math
from pathlib import Path
from typing import Final

import click
import jax

from automap.config import read_options
from automap.planner.levers import find_with_levers
from automap.planner.records import build_plan
from automap.program.trace import trace_step
from automap.topology import get_topology
from models.llama import LLAMA_70B, LlamaConfig, llama
from scripts.lever_models import levers_words
from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.find_published"
_SECONDS: Final = 300.0
_LARGEST: Final = "[0]['params']['layers']['mlp']['gate']['kernel']"


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """A run with what its source says; `seconds` are those of its step."""

    name: str
    policy: str
    seconds: float
    machine: str
    batch: int
    length: int
    sizes: LlamaConfig


RUNS: Final = (
    PublishedRun(
        "MPT 70B on 64 A100 of 40 GB (llm-foundry)",
        "FULL_SHARD, activation checkpointing of all",
        14.8339,
        "8x8xa100-40gb",
        128,
        2048,
        LlamaConfig(depth=80, d_model=8192, heads=64, key_heads=64, d_ff=21_888, vocab=50_368),
    ),
    PublishedRun(
        "Llama 3.1 70B on 32 v6e (tpu-recipes)",
        "fsdp 32, custom remat with offload",
        17.79,
        "v6e:4x8",
        64,
        8192,
        LLAMA_70B,
    ),
    PublishedRun(
        "Llama 3.1 405B, one of two slices of 256 v6e (tpu-recipes)",
        "fsdp 256 x 2 slices, custom remat with offload",
        54.803,
        "v6e:16x16",
        256,
        8192,
        LlamaConfig(depth=126, d_model=16_384, heads=128, key_heads=8, d_ff=53_248),
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What was found: in how many parts the batch and the largest parameter are."""

    name: str
    seconds: float
    peak_bytes: float
    plain_bytes: float
    batch_parts: int
    stored_parts: int
    levers: str


def _row(run: PublishedRun) -> Row:
    sizes = replace(run.sizes, layers="scanned", attention="flash")
    model = llama(sizes, batch=run.batch, seq=run.length, dtype="bfloat16")
    topology = get_topology(run.machine)
    workload = trace_step(*model.target, platform=topology.platform)
    options = read_options(strategy="greedy", budget=_SECONDS, levers="auto")
    plan = build_plan(find_with_levers(workload, topology, options))
    axes = dict(plan.mesh.axes)
    batch = [d.axes for d in plan.decisions if d.kind == "compute" and d.group == "batch"]
    (stored,) = (leaf.spec for leaf in plan.inputs if leaf.path == _LARGEST)
    without = plan.predicted.peak_bytes if plan.levers is None else plan.levers.without.peak_bytes
    return Row(
        name=run.name,
        seconds=plan.predicted.step_seconds,
        peak_bytes=plan.predicted.peak_bytes,
        plain_bytes=without,
        batch_parts=math.prod(axes[axis] for each in batch for axis in each),
        stored_parts=math.prod(axes[axis] for dim in stored for axis in dim or ()),
        levers=levers_words(plan.levers),
    )


def table(rows: dict[str, Row]) -> str:
    """Published beside found."""
    header = ["run", "by hand", "found: parts of the batch", "of the largest parameter", "levers"]
    header += ["peak GiB", "without levers GiB", "published s", "predicted s"]
    lines = []
    for run in RUNS:
        row = rows[run.name]
        lines.append(
            [
                run.name,
                run.policy,
                str(row.batch_parts),
                str(row.stored_parts),
                row.levers,
                f"{row.peak_bytes / 2**30:.1f}",
                f"{row.plain_bytes / 2**30:,.0f}",
                f"{run.seconds:.1f}",
                f"{row.seconds:.1f}",
            ]
        )
    return markdown(header, lines)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(output: Path | None, kept: Path) -> None:
    """Plan the runs that are not kept yet."""
    jax.config.update("jax_platforms", "cpu")
    rows = {row["name"]: Row(**row) for row in kept_rows(kept)}
    for run in RUNS:
        if run.name not in rows:
            rows[run.name] = _row(run)
            keep_row(kept, asdict(rows[run.name]))
    if output is None:
        click.echo(table(rows))
        return
    command = f"{COMMAND} --kept rows.jsonl -o {output}"
    machine = f"jax {jax.__version__}, planned on a CPU host"
    replace_table(output, made_by(command, machine) + table(rows), "found")


if __name__ == "__main__":
    main()
