"""Predicted memory beside that of the TPU compiler, for the zoo, without a TPU.

    python -m scripts.compare_memory -o docs/memory.md

Needs the extra `tpu`. Every case is planned, applied and compiled ahead of time; what the compiler says it
needs on each device stands beside the prediction. With `-o` the table of that file is replaced.
"""

from collections import Counter
from dataclasses import dataclass, field
import math
import os
from pathlib import Path
import time

import click
import jax
from jax.experimental import topologies
from rich.progress import track

from automap.options import Options
from automap.plan_build import build_plan
from automap.planner import find
from automap.space.point import Mesh
from automap.topology import get_topology
from automap.verify.collectives import (
    TPU,
    Transfer,
    compiled_transfers,
    predicted_transfers,
)
from automap.workload import load_target, trace_step
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_memory -o docs/memory.md"
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """One model on one machine under one preset; `options` are arguments of the model's function."""

    target: str
    topology: str
    mesh: dict[str, int]
    preset: str
    options: dict[str, str] = field(default_factory=dict)


_GRID = {"data": 2, "model": 4}
_SCANNED = {"layers": "scanned"}
CASES = (
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "data-parallel", {"batch": "32"}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "zero-3", {"batch": "32"}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "megatron", {"batch": "32"}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "data-parallel", {"batch": "32", "dtype": "bfloat16"}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "megatron", {"batch": "32", "dtype": "bfloat16"}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "data-parallel", {"batch": "32", **_SCANNED}),
    Case("models.gpt:gpt_124m", "v5e:2x4", _GRID, "megatron", {"batch": "32", **_SCANNED}),
    Case("models.gpt:gpt_1_3b", "v5p:2x2x2", _GRID, "zero-3", {"batch": "16", "dtype": "bfloat16", **_SCANNED}),
    Case("models.gpt:gpt_1_3b", "v5p:2x2x2", _GRID, "megatron", {"batch": "16", "dtype": "bfloat16", **_SCANNED}),
    Case("models.t5:t5_base", "v5e:4x4", {"data": 4, "model": 4}, "megatron", {"batch": "64", **_SCANNED}),
    Case("models.t5:t5_base", "v5e:4x4", {"data": 16}, "data-parallel"),
    Case("models.bert:bert_48", "v5p:2x2x2", _GRID, "data-parallel", {"batch": "64", **_SCANNED}),
    Case("models.bert:bert_48", "v5p:2x2x2", _GRID, "megatron", {"batch": "64", **_SCANNED}),
    Case("models.vgg:vgg_19", "v5e:2x4", _GRID, "data-parallel"),
    Case("models.vgg:vgg_19", "v5e:2x4", _GRID, "megatron"),
)  # fmt: skip


def compare(case: Case) -> list[str]:
    """Plan, apply and compile one case; its row of the table."""
    step, args = load_target(case.target, case.options)
    workload = trace_step(step, args, platform="tpu")
    mesh = Mesh(tuple(case.mesh), tuple(case.mesh.values()))
    outcome = find(workload, get_topology(case.topology), Options(mesh=mesh, preset=case.preset))
    devices = topologies.get_topology_desc(platform="tpu", topology_name=case.topology).devices
    start = time.monotonic()
    compiled = build_plan(outcome).jit(step, devices=devices).lower(*args).compile()
    seconds = time.monotonic() - start
    usage = compiled.memory_analysis()
    needed = (
        usage.argument_size_in_bytes + usage.output_size_in_bytes
        - usage.alias_size_in_bytes + usage.temp_size_in_bytes
    )  # fmt: skip
    peak = outcome.best.estimate.peak_bytes
    options = ", ".join(f"{k}={v}" for k, v in case.options.items())
    return [
        case.target, options, case.topology, "x".join(map(str, case.mesh.values())), case.preset,
        f"{peak / GIB:.2f}", f"{needed / GIB:.2f}", f"{peak / needed:.2f}",
        _summary(predicted_transfers(outcome, TPU)), _compiled_summary(compiled, outcome.best.point.mesh), f"{seconds:.0f}",
    ]  # fmt: skip


def _compiled_summary(compiled: jax.stages.Compiled, mesh: Mesh) -> str:
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError:
        return "XLA cannot print its program"  # seen with async-update in TPU programs, jax 0.10.2
    return _summary(compiled_transfers(text or "", mesh))


def _summary(transfers: Counter[Transfer]) -> str:
    """`198 all-reduce 652 MB; ...`."""
    parts = []
    for kind in sorted({t.kind for t in transfers}):
        of_kind = {t: n for t, n in transfers.items() if t.kind == kind}
        megabytes = sum(t.n_bytes * n for t, n in of_kind.items()) / 1e6
        parts.append(f"{sum(of_kind.values())} {kind} {megabytes:.0f} MB")
    return "; ".join(parts)


def report(rows: list[list[str]]) -> str:
    """The table, with the spread of predicted over compiled bytes."""
    ratios = [float(row[7]) for row in rows]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    header = [
        "model", "options", "topology", "mesh", "preset", "GiB predicted", "GiB compiled", "ratio",
        "collectives predicted", "collectives compiled", "compile s",
    ]  # fmt: skip
    spread = f"Ratios from {min(ratios):.2f} to {max(ratios):.2f}, geometric mean {mean:.2f}.\n\n"
    machine = f"jax {jax.__version__}, compiled ahead of time by libtpu on a CPU host"
    return made_by(COMMAND, machine) + spread + markdown(header, rows)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--only", default="", help="cases whose target contains this")
def main(output: Path | None, only: str) -> None:
    """Run the comparison."""
    # Without these libtpu asks a metadata server of a cloud machine, and JAX looks for a TPU here.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    rows = [compare(case) for case in track([c for c in CASES if only in c.target], "compiling")]
    if output is None:
        click.echo(report(rows))
    else:
        replace_table(output, report(rows))


if __name__ == "__main__":
    main()
