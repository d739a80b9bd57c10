"""Predicted collectives beside those of the compiled program, for the zoo on eight CPU devices.

    python -m scripts.compare_collectives -o docs/collectives.md

Every model x preset or search x mesh is planned, applied and compiled; the tensors of all collectives are
counted on both sides.  With `-o` the table of that file, between its two marks, is replaced.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
import importlib
from pathlib import Path
import platform

import click
import jax
from rich.progress import track

from automap.options import Options
from automap.plan_build import build_plan
from automap.planner import find
from automap.space.point import Mesh
from automap.topology import get_topology
from automap.verify.collectives import (
    CPU,
    Transfer,
    compiled_transfers,
    predicted_transfers,
)
from automap.workload import trace_step
from scripts.tables import made_by, markdown, replace_table


DEVICES = 8
MESHES = ((8,), (4, 2), (2, 2, 2))
AXES = ("replica", "data", "model")
PLANS = ("data-parallel", "zero-3", "megatron", "searched")
MODELS = ("gpt", "t5", "bert", "vgg", "gpt:scanned", "t5:scanned", "bert:scanned")
COMMAND = "python -m scripts.compare_collectives -o docs/collectives.md"
HEADER = [
    "model", "plan", "mesh", "kind", "axes", "tensors", "tensors compiled", "MB", "MB compiled",
]  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Both sides of one program."""

    model: str
    plan: str
    mesh: Mesh
    predicted: Counter[Transfer]
    compiled: Counter[Transfer]

    def rows(self) -> Iterator[list[str]]:
        """One table row per kind and axes."""
        mesh = "x".join(map(str, self.mesh.sizes))
        for kind, axes in sorted({(t.kind, t.axes) for t in self.predicted + self.compiled}):
            cells = [self.model, self.plan, mesh, kind, ", ".join(axes)]
            sides = [
                {t: n for t, n in side.items() if (t.kind, t.axes) == (kind, axes)}
                for side in (self.predicted, self.compiled)
            ]
            counts = [sum(side.values()) for side in sides]
            megabytes = [sum(t.n_bytes * n for t, n in side.items()) / 1e6 for side in sides]
            mark = "" if sides[0] == sides[1] else " (differ)"
            cells += [f"{counts[0]}", f"{counts[1]}{mark}"] + [f"{m:.3f}" for m in megabytes]
            yield cells


def compare(model: str, plan_name: str, sizes: tuple[int, ...]) -> Comparison:
    """Plan, apply and compile one program."""
    name, _, layers = model.partition(":")
    build = getattr(importlib.import_module(f"models.{name}"), f"{name}_tiny")
    step, args = build(layers=layers) if layers else build()
    mesh = Mesh(AXES[-len(sizes) :], sizes)
    preset = None if plan_name == "searched" else plan_name
    outcome = find(
        trace_step(step, args), get_topology(f"cpu:{DEVICES}"), Options(mesh=mesh, preset=preset)
    )
    compiled = build_plan(outcome).jit(step).lower(*args).compile()
    return Comparison(
        model=model, plan=plan_name, mesh=mesh,
        predicted=predicted_transfers(outcome, CPU),
        compiled=compiled_transfers(compiled.as_text(), mesh),
    )  # fmt: skip


def report(comparisons: list[Comparison]) -> str:
    """The table with the command, date and machine that made it."""
    equal = sum(c.predicted == c.compiled for c in comparisons)
    machine = f"jax {jax.__version__}, {platform.machine()} CPU with {DEVICES} devices"
    return (
        made_by(COMMAND, machine)
        + f"In {equal} of {len(comparisons)} programs every tensor agrees in kind, axes and bytes.\n\n"
        + markdown(HEADER, [row for c in comparisons for row in c.rows()])
    )


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--model", "models", multiple=True, type=click.Choice(MODELS), help="default: all")
def main(output: Path | None, models: tuple[str, ...]) -> None:
    """Run the comparison."""
    jax.config.update("jax_num_cpu_devices", DEVICES)
    programs = [(m, p, s) for m in models or MODELS for s in MESHES for p in PLANS]
    found = [compare(*program) for program in track(programs, "comparing")]
    if output is None:
        click.echo(report(found))
    else:
        replace_table(output, report(found))


if __name__ == "__main__":
    main()
