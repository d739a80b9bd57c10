"""Predicted collectives beside those of the compiled program, for the zoo on eight devices.

    python -m scripts.compare_collectives -o docs/reports/collectives.md
    python -m scripts.compare_collectives --compiler tpu -o docs/reports/collectives_tpu.md

Every model x preset or search x mesh is planned, applied and compiled; the tensors of all
collectives are counted on both sides. With `-o` the table of that file, between its two marks, is
replaced. The TPU compiler compiles ahead of time; it needs the extra `tpu` and no TPU.
"""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
import importlib
from itertools import groupby
import multiprocessing
import os
from pathlib import Path
import platform
from typing import Any

import click
import jax
from jax.experimental import topologies
from rich.progress import track

from automap.api.plan import Plan
from automap.backends import backend_for
from automap.config import Options
from automap.errors import InputError
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import Workload, trace_step
from automap.space.presets import PRESETS
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Platform
from scripts.tables import made_by, markdown, replace_table
from scripts.transfers import (
    Transfer,
    compiled_transfers,
    predicted_transfers,
)


DEVICES = 8
AXES = ("replica", "data", "model")
SEARCHED = "searched"
PLANS = (*PRESETS, SEARCHED)
# Seconds of search; the models are small.
BUDGET_SECONDS = 4.0
# The zoo's small configurations, with options of their functions.
MODELS: dict[str, dict[str, Any]] = {
    name: {}
    for name in (
        "mlp",
        "gpt",
        "t5",
        "bert",
        "llama",
        "vit",
        "moe",
        "mamba",
        "alexnet",
        "vgg",
        "resnet",
        "inception",
        "lenet",
        "unet",
        "rnnlm",
        "rnntc",
        "nmt",
        "dlrm",
    )
} | {
    "gpt, scanned": {"layers": "scanned"},
    "t5, scanned": {"layers": "scanned"},
    "bert, scanned": {"layers": "scanned"},
    "llama, scanned": {"layers": "scanned"},
    "vit, scanned": {"layers": "scanned"},
    "gpt, scanned, remat": {"layers": "scanned", "remat": "layer"},
    "gpt, dropout": {"dropout": 0.1},
    "moe, sorted": {"dispatch": "sorted"},
    "rnnlm, scanned": {"steps": "scanned"},
    "nmt, scanned": {"steps": "scanned"},
}


@dataclass(frozen=True)
class Compiler:
    """What compiles, for which machine, and which programs it is given.

    `rewrites` are kinds that its pipeline turns into others: plans with those are flagged.
    `options` are the compiler's own; they change no collective.
    """

    topology: str
    meshes: tuple[tuple[int, ...], ...]
    models: tuple[str, ...]
    rewrites: frozenset[str]
    made_on: str
    command: str
    options: dict[str, Any]


COMPILERS = {
    "cpu": Compiler(
        f"cpu:{DEVICES}", ((8,), (4, 2), (2, 2, 2)), tuple(MODELS), frozenset(),
        f"{platform.machine()} CPU with {DEVICES} devices",
        "python -m scripts.compare_collectives -o docs/reports/collectives.md",
        {"xla_backend_optimization_level": 0},
    ),
    "tpu": Compiler(
        "v5e:2x4", ((8,), (2, 4)),
        # Convolutions and unrolled LSTMs take it minutes each.
        ("mlp", "gpt", "t5", "bert", "llama", "vit", "moe", "mamba", "gpt, scanned", "t5, scanned"),
        frozenset({"all-gather", "reduce-scatter", "all-to-all", "collective-permute"}),
        "compiled for v5e:2x4 ahead of time by libtpu on a CPU host",
        "python -m scripts.compare_collectives --compiler tpu -o docs/reports/collectives_tpu.md",
        {},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Program:
    """What to compile: a compiler, a name of `MODELS`, a preset or `SEARCHED`, one of the
    compiler's meshes.
    """

    compiler: str
    model: str
    plan: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Comparison:
    """Both sides of one program; `is_flagged` if the plan warns that collectives may differ, or if
    it has some that the compiler is known to rewrite.
    """

    program: Program
    predicted: Counter[Transfer]
    compiled: Counter[Transfer]
    is_flagged: bool

    @property
    def is_exact(self) -> bool:
        """Whether both sides have the same tensors per kind and axes."""
        return self.predicted == self.compiled

    @property
    def error(self) -> float:
        """Difference in bytes over the compiled bytes."""
        predicted, compiled = (_n_bytes(side) for side in (self.predicted, self.compiled))
        return (predicted - compiled) / max(compiled, 1)

    @property
    def cell(self) -> str:
        """Number of tensors and megabytes, and how far off, if at all."""
        mark = " (flagged)" if self.is_flagged else ""
        size = f"{self.compiled.total()} / {_n_bytes(self.compiled) / 1e6:.3f}"
        if self.is_exact:
            return size + mark
        tensors = self.predicted.total() - self.compiled.total()
        return f"**{size}: {tensors:+d} tensors, {self.error:+.1%}**{mark}"


def _n_bytes(transfers: Counter[Transfer]) -> int:
    return sum(t.n_bytes * n for t, n in transfers.items())


def compare(program: Program) -> Comparison | None:
    """Plan, apply and compile one program; None if the preset does not suit the model or mesh, or
    if the compiler cannot print its program (async-update of TPU programs, jax 0.10)."""
    compiler = COMPILERS[program.compiler]
    topology = get_topology(compiler.topology)
    step, args, workload = _workload(program.model, topology.platform)
    mesh = Mesh(AXES[-len(program.sizes) :], program.sizes)
    # The names of presets, and one that is none.
    preset = None if program.plan == SEARCHED else program.plan
    options = Options(mesh=mesh, preset=preset, budget_seconds=BUDGET_SECONDS)
    try:
        outcome = find(workload, topology, options)
    except InputError:
        return None
    plan = Plan.from_record(build_plan(outcome))
    lowered = plan.jit(step, devices=_devices(program.compiler)).lower(*args)
    compiled = lowered.compile(compiler_options=compiler.options)
    try:
        text = compiled.as_text() or ""
    except jax.errors.JaxRuntimeError:
        return None
    predicted = predicted_transfers(outcome, backend_for(program.compiler))
    # The planner says itself where XLA may do otherwise.
    is_warned = any("sharding changes" in warning for warning in plan.warnings)
    return Comparison(
        program=program,
        predicted=predicted,
        compiled=compiled_transfers(text, outcome.best.point.mesh),
        is_flagged=is_warned or any(t.kind in compiler.rewrites for t in predicted),
    )


@cache
def _devices(compiler: str) -> Any:
    if compiler == "cpu":
        return None
    name = COMPILERS[compiler].topology
    return topologies.get_topology_desc(platform=compiler, topology_name=name).devices


@cache
def _workload(model: str, platform: Platform) -> tuple[Any, Any, Workload]:
    name = model.partition(",")[0]
    step, args = getattr(importlib.import_module(f"models.{name}"), f"{name}_tiny")(**MODELS[model])
    return step, args, trace_step(step, args, platform=platform)


def compare_model(compiler: str, model: str) -> list[Comparison]:
    """All programs of one model, in one process."""
    # Without these libtpu asks a metadata server of a cloud machine, and JAX looks for a TPU here.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    programs = [
        Program(compiler, model, plan, sizes)
        for plan in PLANS
        for sizes in COMPILERS[compiler].meshes
    ]
    return [comparison for comparison in map(compare, programs) if comparison is not None]


def report(comparisons: list[Comparison], name: str, models: tuple[str, ...]) -> str:
    """The table with the command, date and machine that made it; `models` if not all."""
    compiler = COMPILERS[name]
    command = compiler.command + "".join(f' --model "{model}"' for model in models)
    header = ["model", "plan", *("x".join(map(str, sizes)) for sizes in compiler.meshes)]
    return (
        made_by(command, f"jax {jax.__version__}, {compiler.made_on}")
        + "".join(_summary(comparisons))
        + "\n"
        + markdown(header, list(_rows(comparisons, compiler.meshes)))
    )


def _summary(comparisons: list[Comparison]) -> Iterator[str]:
    for flagged, name in ((False, "without a warning"), (True, "with one")):
        some = [c for c in comparisons if c.is_flagged is flagged]
        exact = sum(c.is_exact for c in some)
        worst = max((abs(c.error) for c in some), default=0.0)
        share = exact / max(len(some), 1)
        yield (
            f"Of {len(some)} plans {name}, {exact} ({share:.1%}) agree in every tensor's kind, "
            f"axes and bytes; the largest difference in bytes is {worst:.1%}.\n"
        )


def _rows(
    comparisons: list[Comparison], meshes: tuple[tuple[int, ...], ...]
) -> Iterator[list[str]]:
    def row_key(c: Comparison) -> tuple[str, str]:
        return c.program.model, c.program.plan

    for (model, plan), group in groupby(comparisons, key=row_key):
        cells = {c.program.sizes: c.cell for c in group}
        yield [model, plan, *(cells.get(sizes, "") for sizes in meshes)]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--compiler", type=click.Choice(list(COMPILERS)), default="cpu", show_default=True)
@click.option(
    "--model", "models", multiple=True, type=click.Choice(list(MODELS)), help="default: all"
)
def main(output: Path | None, compiler: str, models: tuple[str, ...]) -> None:
    """Run the comparison."""
    chosen = models or COMPILERS[compiler].models
    context = multiprocessing.get_context("spawn")
    # libtpu allows one process at a time.
    processes = os.cpu_count() if compiler == "cpu" else 1
    with ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool:
        futures = [pool.submit(compare_model, compiler, model) for model in chosen]
        comparisons = [c for f in track(futures, "comparing") for c in f.result()]
    if output is None:
        click.echo(report(comparisons, compiler, models))
    else:
        replace_table(output, report(comparisons, compiler, models))


if __name__ == "__main__":
    main()
