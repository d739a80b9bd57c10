"""Kernels of Pallas that others wrote: what follows from each call, and whether a plan that splits
them compiles for TPUs.

    python -m scripts.kernels -o docs/reports/kernels.md

Steps are those of `tests/corpus` whose kind begins with "Pallas" (other packages) and those of
`tests/automap/program/test_kernel_collection.py` (JAX's own collection). Needs the extras `corpus`
and `tpu`. For each kernel the axes of its grid are listed, as `automap.jaxpr.pallas` reads them:

split     its programs have nothing to do with each other along these (or along these digits of an
          axis); devices may have a part each
whole     why not along the others

Then each step for TPUs is planned for four v5e and the plan's program compiled ahead of time by
XLA's TPU compiler, with kernels of Mosaic on each device's own part. Whether eight devices compute
what one does is in corpus.md, and in the test of JAX's own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import html
from importlib.metadata import version
import logging
import os
from pathlib import Path
import platform
from typing import Any
import warnings

import click
import jax
import jax.numpy as jnp

from automap.config import Options
from automap.errors import AutomapError
from automap.jaxpr.grid_tables import GridFactor
from automap.jaxpr.pallas import Kernel, is_kernel, read_kernel
from automap.jaxpr.reemit import Reemitter
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import trace_step
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness
from tests.automap.program.test_kernel_collection import CASES, FOR_GPUS, FORWARD_ONLY
from tests.corpus.entries import ENTRIES, PLANNED_ONLY
from tests.corpus.interpreted import IS_COMPILED


COMMAND = "python -m scripts.kernels -o docs/reports/kernels.md"
TOPOLOGY = "v5e:2x2"
MESH = Mesh(("data", "model"), (2, 2))


@dataclass(frozen=True)
class Step:
    """A step with kernels: of which package, and for which platform they are."""

    package: str
    name: str
    is_for_tpu: bool
    make: Callable[[], tuple[Callable[..., Any], Sequence[Any]]]


def steps() -> Iterator[Step]:
    """JAX's own, then those of the corpus."""
    for name in CASES:
        yield Step("jax", name, name not in FOR_GPUS, lambda name=name: _own(name))
    for entry in (*ENTRIES, *PLANNED_ONLY):
        if entry.kind.startswith("Pallas"):
            is_for_tpu = not entry.kind.startswith("Pallas for GPUs")
            yield Step(entry.library, entry.function, is_for_tpu, lambda e=entry: _corpus(e))


def _own(name: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    kernel, shapes, _ = CASES[name]

    def step(*args: Any) -> Any:
        if name in FORWARD_ONLY:
            return kernel(*args)
        return jax.grad(lambda a: (kernel(*a).astype(jnp.float32) ** 2).sum())(args)

    return step, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]


def _corpus(entry: Any) -> tuple[Callable[..., Any], Sequence[Any]]:
    call = entry.make()
    return call.step, call.args


def kernel_rows(step: Step, reemitter: Reemitter) -> list[list[str]]:
    """A row for each kernel of a step; equal ones are one row."""
    rows: dict[tuple[str, ...], int] = {}
    for equation in reemitter.equations:
        if is_kernel(equation.eqn):
            row = _kernel_cells(read_kernel(equation.eqn))
            rows[row] = rows.get(row, 0) + 1
    return [
        [step.package, step.name, name + (f" ({n} times)" if n > 1 else ""), *rest]
        for (name, *rest), n in rows.items()
    ]


def _kernel_cells(kernel: Kernel | None) -> tuple[str, ...]:
    if kernel is None:
        return ("?", "?", "no", "its call is written in a form that is not known")
    grid = "x".join(str(size or "?") for size in kernel.call.grid)
    split = [_axis(factor, kernel.call.grid) for factor in kernel.batches]
    whole = [reason.replace(f" of its grid {kernel.call.grid}", "") for reason in kernel.reasons]
    # A kernel without a name or a line is "<unknown>", which a page would take for a tag.
    return (
        html.escape(kernel.call.name),
        grid,
        ", ".join(split) or "no",
        "; ".join(whole).replace("|", "/"),
    )


def _axis(factor: GridFactor, grid: Sequence[int]) -> str:
    if factor.size == grid[factor.axis]:
        return f"{factor.axis} ({factor.size})"
    return f"{factor.axis}, digit of {factor.size} at {factor.low}"


def compiled_row(step: Step) -> list[str]:
    """What the TPU compiler makes of a plan that splits what it can."""
    made, args = step.make()
    workload = trace_step(made, args)
    options = Options(mesh=MESH, strategy="greedy")
    outcome = find(workload, get_topology(TOPOLOGY), options)
    plan = build_plan(outcome)
    paths = workload.reemitter.kernels if workload.reemitter is not None else {}
    split = {
        path
        for path in paths
        for pin in plan.constraints
        if pin.at.startswith(f"{path}:made") and any(pin.spec)
    }
    witness = compile_witness(outcome, traced_call(made, args), timeout_seconds=3600.0)
    said = "refused: " + witness.refusal[:200] if witness.refusal else "compiled"
    mib = "" if witness.peak_bytes is None else f"{witness.peak_bytes / 2**20:.1f}"
    return [f"{step.package}:{step.name}", f"{len(split)} of {len(paths)}", said, mib]


HEADER = ["package", "step", "kernel", "grid", "axes split", "axes whole, because"]
COMPILED_HEADER = ["step", "kernels split", f"TPU compiler, {TOPOLOGY}", "MiB a device"]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.argument("names", nargs=-1)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(names: tuple[str, ...], output: Path | None) -> None:
    """Both tables; with NAMES only the packages of these."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    IS_COMPILED.set(True)
    rows, compiled = list[list[str]](), list[list[str]]()
    for step in steps():
        if names and step.package not in names:
            continue
        made, args = step.make()
        try:
            reemitter = Reemitter(jax.make_jaxpr(made)(*args))
            rows += kernel_rows(step, reemitter)
            compiled += [compiled_row(step)] if step.is_for_tpu else []
        except (AutomapError, NotImplementedError, ValueError, TypeError) as error:
            first = f"{type(error).__name__}: {error}".splitlines()[0][:200].replace("|", "/")
            compiled.append([f"{step.package}:{step.name}", "", f"**{first}**", ""])
        click.echo(f"{step.package}:{step.name} {compiled[-1:]}", err=True)
    packages = sorted({row[0] for row in rows})
    machine = (
        f"{', '.join(f'{name} {version(name)}' for name in packages)}, "
        f"libtpu {version('libtpu')}, {platform.machine()} with {os.cpu_count()} cores"
    )
    tables = {
        "kernels": made_by(COMMAND, machine) + markdown(HEADER, rows),
        "compiled": made_by(COMMAND, machine) + markdown(COMPILED_HEADER, compiled),
    }
    for name, table in tables.items():
        if output is None:
            click.echo(table)
        else:
            replace_table(output, table, name)


if __name__ == "__main__":
    main()
