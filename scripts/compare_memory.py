"""Predicted memory of small steps beside the compilers for TPU and GPU, without the hardware.

    python -m scripts.compare_memory --platform tpu -o docs/reports/memory.md

Each step of `scripts.memory_steps` has one kind of operation whose memory a compiler decides. It
runs on one device. Rules of the backends were made from the first half of the steps; the errors
that are quoted are those of the second half (`scripts.halves`). All steps are compiled in this
process, which has the compiler to itself until it ends.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
import statistics
from typing import Any

import click
import jax
from rich.progress import track

from automap.config import Options
from automap.errors import AutomapError
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.runtime.meshes import mesh_on
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.compilers import COMPILER_BY_PLATFORM, machine_for
from automap.verify.messages import MemoryBytes
from automap.verify.worker import compiler_devices
from scripts.halves import is_held_out
from scripts.memory_steps import STEPS
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_memory --platform {platform} --half {half} -o {output}"
GIB = 2**30
# Names of one device of each kind.
MACHINES = {"tpu": "v5e:1x1", "cuda": "1xh100"}
HEADER = ["step", "half", "GiB predicted", "GiB compiled", "ratio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step; `compiled_bytes` is None of one that the compiler refused without a number."""

    name: str
    is_judged: bool
    predicted_bytes: float
    compiled_bytes: int | None
    fits: bool
    is_called_fitting: bool

    @property
    def error(self) -> float:
        """How far the prediction is off, of the compiled bytes."""
        return abs(self.predicted_bytes / (self.compiled_bytes or 1) - 1)


def rows(platform: str, half: str) -> Iterator[Row]:
    """All steps of a half, or of "both"."""
    topology = get_topology(MACHINES[platform])
    machine = machine_for(COMPILER_BY_PLATFORM[topology.platform], topology)
    mesh = mesh_on(compiler_devices(machine), (("data", 1),))
    targets = {f"scripts.memory_steps:{step.__name__}": step for step in STEPS}
    chosen = {
        target: make
        for target, make in targets.items()
        if half in ("both", "judged" if is_held_out(target) else "fitted")
    }
    for target, make in track(chosen.items(), "compiling"):
        step, args = load_target(target, {})
        workload = trace_step(step, args, platform=topology.platform)
        outcome = find(workload, topology, Options(mesh=Mesh(("data",), (1,)), strategy="greedy"))
        predicted, limit = outcome.best.estimate.peak_bytes, topology.device.memory_bytes
        try:
            compiled_bytes = _compiled_bytes(step, args, mesh)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                click.echo(f"{make.__name__}: {str(error)[:200]}", err=True)
                continue
            compiled_bytes = None
        yield Row(
            name=make.__name__,
            is_judged=is_held_out(target),
            predicted_bytes=predicted,
            compiled_bytes=compiled_bytes,
            fits=compiled_bytes is not None and compiled_bytes <= limit,
            is_called_fitting=predicted <= limit,
        )


def _compiled_bytes(step: Callable[..., Any], args: Sequence[Any], mesh: jax.sharding.Mesh) -> int:
    """What the compiler allocates for a step on the one device of a mesh."""
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    inputs = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole), tuple(args)
    )
    lowered = jax.jit(step, keep_unused=True, out_shardings=whole).lower(*inputs)
    try:
        usage = lowered.compile().memory_analysis()
    except jax.errors.JaxRuntimeError as error:
        if "Couldn't find output tile sizes" not in str(error):
            raise
        # As `automap.verify.worker` does where the GPU compiler, without a GPU, fails at tiles.
        usage = lowered.compile({"xla_gpu_enable_triton_gemm": False}).memory_analysis()
    if usage is None:
        raise click.ClickException("this compiler does not say how much memory a program needs")
    memory = MemoryBytes(
        arguments=usage.argument_size_in_bytes,
        outputs=usage.output_size_in_bytes,
        aliased=usage.alias_size_in_bytes,
        temporaries=usage.temp_size_in_bytes,
        generated_code=usage.generated_code_size_in_bytes,
    )
    return memory.peak


def report(found: list[Row], platform: str) -> str:
    """The errors of the half that judges, and the table."""
    judged = [r for r in found if r.is_judged and r.compiled_bytes]
    errors = [r.error for r in judged]
    wrong = [r.name for r in found if r.is_called_fitting and not r.fits]
    text = (
        f"{platform}, {len(judged)} steps of the half that nothing was made from: off by "
        f"{statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst; "
        f"{sum(e <= 0.25 for e in errors)} within 25 %. Called fitting but refused, of all "
        f"that are listed: {', '.join(wrong) or 'none'}.\n\n"
        if errors
        else ""
    )
    table = [
        [
            r.name,
            "judged" if r.is_judged else "fitted",
            f"{r.predicted_bytes / GIB:.2f}",
            f"{r.compiled_bytes / GIB:.2f}" if r.compiled_bytes else "refused",
            f"{r.predicted_bytes / r.compiled_bytes:.2f}" if r.compiled_bytes else "",
        ]
        for r in sorted(found, key=lambda r: (not r.is_judged, r.name))
    ]
    return text + markdown(HEADER, table)


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--platform", type=click.Choice(list(MACHINES)), required=True)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--half", type=click.Choice(["judged", "fitted", "both"]), default="both")
def main(platform: str, output: Path | None, half: str) -> None:
    """Run the comparison."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    try:
        text = report(list(rows(platform, half)), platform)
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    if output is None:
        click.echo(text)
        return
    machine = f"jax {jax.__version__}, compiled ahead of time on a CPU host"
    command = COMMAND.format(platform=platform, half=half, output=output)
    replace_table(output, made_by(command, machine) + text, f"small steps, {platform}")


if __name__ == "__main__":
    main()
