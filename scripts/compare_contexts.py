"""Long contexts with the sequence split over devices and without, by the evaluator.

    python -m scripts.compare_contexts --kept rows.jsonl -o docs/reports/levers.md

One sequence of a decoder of the shape of Qwen2.5 3B, whose 16 query heads have 2 key heads, its
layers in a loop and computed again. "split" is the plan that the search finds, "whole" the one that
it finds with tokens and targets pinned whole, each with attention in blocks of 2,048 queries
(`models/long_context.py`), and "flash" the one with the kernel that people use on the machine,
which is split by heads.
"""

from dataclasses import asdict, dataclass
import math
from pathlib import Path
from typing import Final

import click
import jax

from automap.config import read_options
from automap.planner.records import Outcome, build_plan
from automap.planner.sharding import find
from automap.program.trace import trace_step
from automap.topology import get_topology
from models.llama import LlamaConfig, llama
from models.long_context import LongContextConfig, long_context
from scripts.lever_models import milliseconds
from scripts.tables import keep_row, kept_rows, made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_contexts"
MACHINES: Final = ("8xh100", "v5p:2x4x4")
CONTEXTS: Final = (32_768, 65_536, 131_072)
KINDS: Final = ("split", "whole", "flash")
WHOLE: Final = ("[1]['tokens']=null,null", "[1]['targets']=null,null")
_POSITIONS: Final = ("[1]['targets'][1]", "[1]['tokens'][1]")
_QUERIES: Final = 2048
_SECONDS: Final = 60.0
_WIDTH: Final = {"depth": 36, "d_model": 2048, "d_ff": 11_008, "vocab": 151_936}
_HEADS: Final = {"heads": 16, "key_heads": 2}


@dataclass(frozen=True, slots=True)
class Row:
    """One plan; `sequence` are the parts that the sequence is split in, `axes` the mesh."""

    machine: str
    context: int
    kind: str
    seconds: float | None
    peak_bytes: float
    mesh: str
    sequence: int


def _outcome(machine: str, context: int, kind: str) -> Outcome:
    if kind == "flash":
        sizes = LlamaConfig(
            **_WIDTH, **_HEADS, tied=True, layers="scanned", remat="layer", attention="flash"
        )
        model = llama(sizes, batch=1, seq=context, dtype="bfloat16")
    else:
        blocks = LongContextConfig(**_WIDTH, **_HEADS, blocks=context // _QUERIES)
        model = long_context(blocks, batch=1, seq=context, dtype="bfloat16")
    topology = get_topology(machine)
    workload = trace_step(*model.target, platform=topology.platform)
    pins = WHOLE if kind == "whole" else ()
    options = read_options(strategy="greedy", budget=_SECONDS, levers="none", pin=pins)
    return find(workload, topology, options)


def _row(machine: str, context: int, kind: str) -> Row:
    outcome = _outcome(machine, context, kind)
    plan, estimate = build_plan(outcome), outcome.best.estimate
    sizes = dict(plan.mesh.axes)
    parts = 1
    for decision in plan.decisions:
        if decision.kind == "compute" and decision.group in _POSITIONS:
            parts *= math.prod(sizes[axis] for axis in decision.axes)
    fits = outcome.context.objective.fits(estimate)
    mesh = " x ".join(str(size) for size in sizes.values())
    seconds = estimate.step_seconds if fits else None
    return Row(machine, context, kind, seconds, estimate.peak_bytes, mesh, parts)


def table(rows: list[Row]) -> str:
    """Rows of machine and context, with the three plans."""
    by_key = {(row.machine, row.context, row.kind): row for row in rows}
    lines = []
    for machine in MACHINES:
        for context in CONTEXTS:
            made = [by_key[machine, context, kind] for kind in KINDS]
            cells = [
                cell for row in made for cell in (milliseconds(row.seconds), _gib(row.peak_bytes))
            ]
            lines.append([machine, f"{context:,}", made[0].mesh, str(made[0].sequence), *cells])
    header = ["machine", "context", "mesh", "parts of the sequence"]
    return markdown([*header, *(f"{kind} {of}" for kind in KINDS for of in ("ms", "GiB"))], lines)


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f}"


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--kept", type=click.Path(path_type=Path, dir_okay=False), required=True)
def main(output: Path | None, kept: Path) -> None:
    """Plan all rows that are not kept yet."""
    jax.config.update("jax_platforms", "cpu")
    rows = [Row(**row) for row in kept_rows(kept)]
    known = {(row.machine, row.context, row.kind) for row in rows}
    for context in reversed(CONTEXTS):
        for key in ((m, context, kind) for m in MACHINES for kind in KINDS):
            if key in known:
                continue
            rows.append(_row(*key))
            keep_row(kept, asdict(rows[-1]))
    if output is None:
        click.echo(table(rows))
        return
    command = f"{COMMAND} --kept rows.jsonl -o {output}"
    machine = f"jax {jax.__version__}, planned on a CPU host"
    replace_table(output, made_by(command, machine) + table(rows), "contexts")


if __name__ == "__main__":
    main()
