"""How long the engine takes: HLO proto to decisions, and one plan's shardings and collectives.

    python -m scripts.benchmark_engine -o docs/reports/engine.md

Each time is the least of several runs in one process; tracing and lowering are JAX's and not
counted. With `-o` the table of that file is replaced.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
import platform
import time
from typing import Any

import click
import jax
import numpy as np
from rich.progress import track

from automap.cost.shardings import shardings
from automap.cost.tables import build_tables
from automap.program.problem_build import build_problem
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology.mesh import Mesh
from hlo_tools.collector import collector_paused
from hlo_tools.read.proto import decode_module
from models.bert import BERT_48, bert
from models.t5 import T5_11B, t5
from models.training import TrainStep
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.benchmark_engine -o docs/reports/engine.md"
# The least of a few runs is what the machine can do when nothing else runs.
RUNS, EVALUATIONS = 5, 200
MESH = Mesh(("data", "model"), (4, 4))
HEADER = [
    "model",
    "instructions",
    "MB",
    "proto to module, s",
    "module to decisions, s",
    "sum, s",
    "us per instruction",
    "rows, s",
    "shardings and collectives, ms",
]
BERT_DEPTHS = (12, 48, 96, 192, 345)


def programs() -> dict[str, Callable[[], TrainStep]]:
    """Train steps by name; they are traced one after the other."""
    deep = {
        f"BERT, {depth} layers": lambda depth=depth: bert(
            replace(BERT_48, depth=depth), batch=64, seq=512
        )
        for depth in BERT_DEPTHS
    }
    return {"T5-11B": lambda: t5(T5_11B, batch=64, seq=512), **deep}


@collector_paused()
def measure(name: str, train: TrainStep) -> list[str]:
    """One row of the table."""
    lowered: Any = train.step
    proto = lowered.lower(*train.args).compiler_ir("hlo").as_serialized_hlo_module_proto()
    decode_seconds, module = _least(lambda: decode_module(proto))
    count = sum(len(c.instructions) for c in module.computations.values())

    def decide() -> Space:
        space = Space(build_problem(module))
        # Both are worked out when they are asked for.
        return space if space.candidates and space.leaves else space

    decide_seconds, space = _least(decide)
    # Once: it takes seconds on the largest, and varies little.
    rows_seconds, tables = _least(lambda: build_tables(space.problem, "tpu"), runs=1)
    (point,) = PRESETS["megatron"].points(space, MESH)
    split_classes = space.split_classes(point)

    def evaluate() -> None:
        sharding = shardings(tables, space.problem.n_classes, split_classes)
        tables.collectives(sharding)

    evaluate_seconds, _ = _least(evaluate, runs=EVALUATIONS)
    total = decode_seconds + decide_seconds
    return [
        name,
        f"{count:,}",
        f"{len(proto) / 1e6:.1f}",
        f"{decode_seconds:.2f}",
        f"{decide_seconds:.2f}",
        f"{total:.2f}",
        f"{total / count * 1e6:.0f}",
        f"{rows_seconds:.2f}",
        f"{evaluate_seconds * 1e3:.2f}",
    ]


def _least(function: Callable[[], Any], runs: int = RUNS) -> tuple[float, Any]:
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Run the benchmark."""
    rows = [measure(name, make()) for name, make in track(list(programs().items()), "measuring")]
    machine = f"jax {jax.__version__}, numpy {np.__version__}, {platform.machine()}, one core"
    table = made_by(COMMAND, machine) + markdown(HEADER, rows)
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table)


if __name__ == "__main__":
    main()
