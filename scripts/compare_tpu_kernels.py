"""Predicted seconds of single kernels beside what the TPU compiler gives them, without a TPU.

    python -m scripts.compare_tpu_kernels --topology v5p:2x2x1 -o docs/reports/schedules.md

The cases are those of `scripts.kernel_cases` that compute element by element, sum, move or
convolve; the compiler's seconds are those of all kernels of a case, by its cycles
(`automap.verify.replayed`). Products of all sizes are left out: their operands, as long as they
fit, are fetched to the memory on the chip before, which no kernel of a case this small says; those
of `scripts.product_cases` have small ones. The steps of `scripts.sequence_cases` and
`scripts.joined_cases` have several kernels. What is predicted was read from programs for v5e
(`automap.cost.kernels.beside_memory`, `beside_products`, `hlo_tools.analyses.kernels`,
`rearranged`); of other generations nothing was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
import statistics
from typing import Final

import click
import jax
from rich.progress import track

from automap.jax_compat import compiled_proto
from automap.runtime.meshes import mesh_on
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.compilers import COMPILER_BY_PLATFORM, machine_for
from automap.verify.replayed import kernel_runs
from automap.verify.worker import compiler_devices
from scripts.compare_measured import predicted_alone
from scripts.joined_cases import joined
from scripts.kernel_cases import (
    KernelCase,
    columns,
    convolutions,
    moves,
    outer,
    rows,
    vectors,
)
from scripts.product_cases import made
from scripts.sequence_cases import sequences
from scripts.tables import made_by, markdown, replace_table


COMMAND: Final = "python -m scripts.compare_tpu_kernels --topology {topology} -o {output}"
_ALONE: Final = Mesh(("data",), (1,))
_WITHIN: Final = 0.15


def ratios(cases: Sequence[KernelCase], topology: Topology) -> Iterator[tuple[str, float]]:
    """(group, predicted over compiled seconds) of each case, on one device of a slice."""
    alone = replace(get_topology("v5e:1x1"), device=topology.device)
    machine = machine_for(COMPILER_BY_PLATFORM[topology.platform], topology)
    mesh = mesh_on(compiler_devices(machine)[:1], (("data", 1),))
    for case in track(cases, "compiling"):
        step = jax.jit(case.step, donate_argnums=case.donated)
        compiled = compiled_seconds(step, case.args, mesh, topology)
        yield case.group, predicted_alone(step, case.args, alone).step_seconds / compiled


def compiled_seconds(
    step: jax.stages.Wrapped,
    args: Sequence[jax.ShapeDtypeStruct],
    mesh: jax.sharding.Mesh,
    topology: Topology,
) -> float:
    """What the compiler gives all kernels of a step on one device."""
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    inputs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole) for a in args]
    program = compiled_proto(step.lower(*inputs).compile())
    if program is None:
        raise click.ClickException("this compiler does not hand out its programs")
    return sum(run.seconds for run in kernel_runs(program, topology, _ALONE))


def report(each: Sequence[tuple[str, float]]) -> str:
    """All ratios, and those by group."""
    errors = [abs(ratio - 1) for _, ratio in each]
    text = (
        f"{len(each)} steps of few kernels: off by {statistics.median(errors):.1%} in the "
        f"median, {statistics.mean(e <= _WITHIN for e in errors):.0%} within {_WITHIN:.0%}.\n\n"
    )
    groups = dict.fromkeys(group for group, _ in each)
    table = [_row(name, [ratio for group, ratio in each if group == name]) for name in groups]
    return text + markdown(["kernels", "number", "median ratio", "worst ratios"], table)


def _row(name: str, own: Sequence[float]) -> list[str]:
    ends = f"{min(own):.2f}, {max(own):.2f}"
    return [name, str(len(own)), f"{statistics.median(own):.2f}", ends]


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--topology", default="v5p:2x2x1", help="a TPU slice, of which one device counts")
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(topology: str, output: Path | None) -> None:
    """Make the table."""
    jax.config.update("jax_platforms", "cpu")
    alone = (*vectors(), *outer(), *rows(), *columns(), *moves(), *convolutions(), *made())
    cases = (*alone, *sequences(), *joined())
    table = report(list(ratios(cases, get_topology(topology))))
    command = COMMAND.format(topology=topology, output=output or "FILE")
    text = made_by(command, f"jax {jax.__version__}") + table
    if output is None:
        click.echo(text)
    else:
        replace_table(output, text, f"kernels {topology}")


if __name__ == "__main__":
    main()
