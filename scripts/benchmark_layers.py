"""How long an unrolled GPT takes to be planned, by its number of layers.

    python -m scripts.benchmark_layers -o docs/reports/engine.md

    trace        JAX's tracing and lowering, and the re-emitter's
    decisions    serialized HLO to the decided problem
    search       rows of the cost model, presets and `--strategy auto`
    plan         the plan's records
    whole        from the step to the plan

Seconds are the processor's, of one process that has planned a small model before; of several runs
the shortest.
"""

from dataclasses import dataclass, replace
from pathlib import Path
import platform
import time

import click
import jax
from rich.progress import track

from automap.api.plan import Plan
from automap.config import Options
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program.problem_build import build_problem
from automap.program.trace import trace_step
from automap.space.space import Space
from automap.topology import get_topology
from hlo_tools.collector import collector_paused
from hlo_tools.read.proto import decode_module
from models.gpt import GPT_124M, gpt
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.benchmark_layers -o docs/reports/engine.md"
TABLE = "layers"
DEPTHS = (6, 12, 25, 50, 100)
TOPOLOGY, BATCH, SEQ = "v5p:2x2x2", 64, 512
# Never reached: the time is that of the search itself.
BUDGET_SECONDS = 300.0
HEADER = [
    "layers",
    "instructions",
    "trace, s",
    "decisions, s",
    "search, s (evaluations)",
    "plan, s",
    "whole, s",
    "whole, ms per layer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """One run."""

    instructions: int
    evaluations: int
    trace: float
    decisions: float
    search: float
    plan: float

    @property
    def whole(self) -> float:
        """From the step to the plan."""
        return self.trace + self.decisions + self.search + self.plan


def run(depth: int) -> Seconds:
    """Plan a GPT of `depth` layers."""
    train = gpt(replace(GPT_124M, depth=depth), batch=BATCH, seq=SEQ)
    topology = get_topology(TOPOLOGY)
    marks = [time.process_time()]
    workload = trace_step(*train.target, platform=topology.platform)
    marks.append(time.process_time())
    outcome = find(workload, topology, Options(budget_seconds=BUDGET_SECONDS))
    marks.append(time.process_time())
    Plan.from_record(build_plan(outcome))
    marks.append(time.process_time())
    traced, search, plan = (b - a for a, b in zip(marks, marks[1:], strict=False))
    # Measured apart and taken off, as `trace_step` makes decisions too.
    instructions, decisions = decided(train.target)
    return Seconds(
        instructions=instructions,
        evaluations=outcome.context.evaluations,
        trace=traced - decisions,
        decisions=decisions,
        search=search,
        plan=plan,
    )


@collector_paused()
def decided(target: Target) -> tuple[int, float]:
    """The number of a step's instructions, and the seconds from its proto to its decisions: a part
    of `trace_step`.
    """
    step, args = target
    lowered = jax.jit(step, keep_unused=True).lower(*args)
    proto = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    begin = time.process_time()
    module = decode_module(proto)
    _ = Space(build_problem(module)).candidates
    seconds = time.process_time() - begin
    return sum(len(c.instructions) for c in module.computations.values()), seconds


def row(depth: int, runs: int) -> list[str]:
    """A row of the table."""
    best = min((run(depth) for _ in range(runs)), key=lambda s: s.whole)
    return [
        str(depth),
        f"{best.instructions:,}",
        f"{best.trace:.2f}",
        f"{best.decisions:.2f}",
        f"{best.search:.2f} ({best.evaluations:,})",
        f"{best.plan:.2f}",
        f"{best.whole:.2f}",
        f"{best.whole / depth * 1e3:.0f}",
    ]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--runs", default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(runs: int, output: Path | None) -> None:
    """Print the table, or put it in OUTPUT."""
    # Compiles what numba compiles, and fills JAX's caches.
    run(2)
    rows = [row(depth, runs) for depth in track(DEPTHS, "planning")]
    table = made_by(COMMAND, f"jax {jax.__version__}, {platform.machine()}") + markdown(
        HEADER, rows
    )
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, TABLE)


if __name__ == "__main__":
    main()
