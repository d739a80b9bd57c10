"""What makes the TPU compiler faster, and what its program is worth then.

    python -m scripts.compare_compile_options -o docs/reports/refine.md

Each preset of a step is compiled with each of `OPTIONS` (extra `tpu`). Beside the processor seconds
of the compilation stands the compiled schedule, replayed. If options kept the order of plans and
their ratios, fast compilations could choose what is compiled in full: the last column is the step
over that of the full compilation, which would have to be equal for all plans of a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import platform
import time
from typing import Any, Final

import click
import jax

from automap.config import Options
from automap.errors import InputError
from automap.jax_compat import compiled_proto
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.runtime.meshes import mesh_on
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.compilers import machine_for
from automap.verify.program import planned_program
from automap.verify.replayed import replayed_step
from automap.verify.worker import compiler_devices, planned_step
from scripts.compare_presets import MODELS
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_compile_options"
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "full": {},
    "effort -1": {"jax_exec_time_optimization_effort": -1.0, "jax_memory_fitting_effort": -1.0},
    "level O1": {"jax_optimization_level": "O1"},
    "level O0": {"jax_optimization_level": "O0"},
}
"""JAX's own options: the least effort, and levels of optimization below the full one."""
PRESETS = ("data-parallel", "zero-3", "megatron")
TOPOLOGY = "v5e:2x4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compilation; `predicted_seconds` is the evaluator's step."""

    model: str
    preset: str
    options: str
    processor_seconds: float
    step_seconds: float
    predicted_seconds: float


def rows(target: str, presets: Sequence[str]) -> Iterator[Row]:
    """Presets of a step, each with all options one after the other."""
    topology = get_topology(TOPOLOGY)
    step, args = load_target(target, MODELS[target])
    call = traced_call(step, tuple(args))
    workload = trace_step(step, args, platform=topology.platform)
    for preset in presets:
        plan = build_plan(find(workload, topology, Options(preset=preset)))
        program = planned_program(plan, call)
        exported = program.exported("tpu")
        axes = program.shardings.axes
        mesh = mesh_on(compiler_devices(machine_for("tpu", topology)), axes)
        run, inputs = planned_step(exported.artifact, mesh, program.shardings)
        for name, options in OPTIONS.items():
            compiled, seconds = _compiled(run, inputs, options)
            data = compiled_proto(compiled)
            if data is None:
                raise InputError(f"{target}: the compiled program cannot be read")
            sizes = tuple(size for _, size in axes)
            replayed = replayed_step(data, topology, Mesh(tuple(n for n, _ in axes), sizes))
            row = Row(
                model=target.partition(":")[2],
                preset=preset,
                options=name,
                processor_seconds=seconds,
                step_seconds=replayed.seconds,
                predicted_seconds=plan.predicted.step_seconds,
            )
            click.echo(repr(row), err=True)
            yield row


def _compiled(run: Any, inputs: list[Any], options: Mapping[str, Any]) -> tuple[Any, float]:
    """Compiled with options of JAX's configuration, which are put back."""
    # The exported step has its own types; nothing of it may be narrowed here.
    options = {**options, "jax_enable_x64": True}
    before = {name: getattr(jax.config, name) for name in options}
    # What is compiled is remembered by program, whatever the options.
    jax.clear_caches()
    for name, value in options.items():
        jax.config.update(name, value)
    try:
        begin = time.process_time()
        compiled = run.lower(*inputs).compile()
        return compiled, time.process_time() - begin
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


HEADER = [
    "model",
    "plan",
    "options",
    "compiling, s of processor",
    "step, ms",
    "predicted, ms",
    "step over full",
]


def table(compared: list[Row]) -> str:
    """The rows, with each step over that of the full compilation of the same plan."""
    full = {(r.model, r.preset): r.step_seconds for r in compared if r.options == "full"}
    return markdown(
        HEADER,
        [
            [
                r.model,
                r.preset,
                r.options,
                f"{r.processor_seconds:.1f}",
                f"{r.step_seconds * 1e3:.2f}",
                f"{r.predicted_seconds * 1e3:.2f}",
                f"{r.step_seconds / full[r.model, r.preset]:.2f}",
            ]
            for r in compared
        ],
    )


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--model", "targets", multiple=True, type=click.Choice(list(MODELS)))
@click.option("--preset", "presets", multiple=True, type=click.Choice(PRESETS), default=PRESETS)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(*, targets: tuple[str, ...], presets: tuple[str, ...], output: Path | None) -> None:
    """Print the table, or put it in OUTPUT."""
    # The lock of libtpu is for those who have a TPU.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    jax.config.update("jax_platforms", "cpu")
    chosen = targets or ("models.mlp:mlp",)
    text = table([row for target in chosen for row in rows(target, presets)])
    words = [COMMAND, *(f"--model {target}" for target in targets)]
    words += [] if presets == PRESETS else [f"--preset {preset}" for preset in presets]
    machine = f"jax {jax.__version__}, {platform.machine()}, {os.cpu_count()} cores, busy"
    if output is None:
        click.echo(text)
    else:
        words.append(f"-o {output}")
        replace_table(output, made_by(" ".join(words), machine) + text, "options")


if __name__ == "__main__":
    main()
