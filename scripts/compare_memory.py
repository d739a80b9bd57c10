"""Predicted memory of small steps beside the compilers for TPU and GPU, without the hardware.

    python -m scripts.compare_memory --platform tpu -o docs/reports/memory.md

Each step of `scripts.memory_steps` has one kind of operation whose memory a compiler decides. It
runs on one device. Rules of the backends were made from the first half of the steps; the errors
that are quoted are those of the second half (`scripts.halves`). What compilers said is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
import statistics

import click
import jax
from rich.progress import track

from automap.config import Options
from automap.errors import AutomapError, CompilerError
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.halves import is_held_out
from scripts.memory_steps import STEPS
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness


COMMAND = "python -m scripts.compare_memory --platform {platform} -o {output}"
GIB = 2**30
# Names of one device of each kind.
MACHINES = {"tpu": "v5e:1x1", "cuda": "1xh100"}
HEADER = ["step", "half", "GiB predicted", "GiB compiled", "ratio"]


@dataclass(frozen=True, slots=True)
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


def rows(platform: str, only: str) -> Iterator[Row]:
    """All steps whose name contains `only`."""
    topology = get_topology(MACHINES[platform])
    for make in track([s for s in STEPS if only in s.__name__], "compiling"):
        target = f"scripts.memory_steps:{make.__name__}"
        step, args = load_target(target, {})
        workload = trace_step(step, args, platform=topology.platform)
        outcome = find(workload, topology, Options(mesh=Mesh(("data",), (1,)), strategy="greedy"))
        try:
            witness = compile_witness(outcome, traced_call(step, tuple(args)))
        except CompilerError as error:
            click.echo(f"{make.__name__}: {error}", err=True)
            continue
        predicted = outcome.best.estimate.peak_bytes
        yield Row(
            make.__name__,
            is_held_out(target),
            predicted,
            witness.peak_bytes,
            witness.fits,
            predicted <= topology.device.memory_bytes,
        )


def report(found: list[Row], platform: str) -> str:
    """The errors of the half that judges, and the table."""
    judged = [r for r in found if r.is_judged and r.compiled_bytes]
    errors = [r.error for r in judged]
    wrong = [r.name for r in found if r.is_called_fitting and not r.fits]
    text = (
        f"{platform}, {len(judged)} steps of the half that nothing was made from: off by "
        f"{statistics.median(errors):.1%} in the median, {max(errors):.1%} at worst; "
        f"{sum(e <= 0.25 for e in errors)} within 25 %. Called fitting but refused, of both "
        f"halves: {', '.join(wrong) or 'none'}.\n\n"
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
@click.option("--only", default="", help="steps whose name contains this")
def main(platform: str, output: Path | None, only: str) -> None:
    """Run the comparison."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    try:
        text = report(list(rows(platform, only)), platform)
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    if output is None:
        click.echo(text)
        return
    machine = f"jax {jax.__version__}, compiled ahead of time on a CPU host"
    command = COMMAND.format(platform=platform, output=output)
    replace_table(output, made_by(command, machine) + text, f"small steps, {platform}")


if __name__ == "__main__":
    main()
