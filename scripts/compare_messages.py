"""Into how many messages the TPU compiler merges the sums of a step, beside how many are predicted.

    python -m scripts.compare_messages -o docs/reports/collectives_tpu.md

Needs the extra `tpu`, and no TPU. Each case is a step of layers of two matrices of one size, in a
scan, under a preset: data parallelism sums the gradients of a trip, ZeRO-1 scatters them. Counted
are the messages of one trip.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import click
import jax
from jax import numpy as jnp
import numpy as np
from rich.progress import track

from automap.config import Options
from automap.cost.traffic.flows import ALL_REDUCE, REDUCE_SCATTER
from automap.errors import AutomapError
from automap.planner.records import Outcome
from automap.planner.sharding import find
from automap.program import trace_step
from automap.step.step import traced_call
from automap.topology import get_topology
from automap.topology.mesh import Mesh
from automap.verify.cache import default_folder
from hlo_tools.compiled.collectives import compiled_collectives
from hlo_tools.files import MOST_PROGRAM_BYTES, read_file
from hlo_tools.read.proto import decode_module
from scripts.tables import made_by, markdown, replace_table
from scripts.witnesses import compile_witness


COMMAND: Final = "python -m scripts.compare_messages -o docs/reports/collectives_tpu.md"
_TRIPS: Final = 3
_ROWS: Final = 4096
_MEBIBYTE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Case:
    """Two matrices of `mebibytes` together in each layer, on a slice under a preset."""

    slice_name: str
    preset: Literal["data-parallel", "zero-1"]
    mebibytes: int


CASES: Final = (
    *(Case("v5e:2x4", "zero-1", mebibytes) for mebibytes in (2, 8, 12, 32)),
    *(Case("v5e:2x4", "data-parallel", mebibytes) for mebibytes in (2, 32, 112, 128)),
    *(Case("v5p:2x2x2", "zero-1", mebibytes) for mebibytes in (8, 12)),
    *(Case("v5p:2x2x2", "data-parallel", mebibytes) for mebibytes in (112, 128)),
    *(Case("v6e:2x4", "zero-1", mebibytes) for mebibytes in (8, 12)),
    *(Case("v6e:2x4", "data-parallel", mebibytes) for mebibytes in (112, 128)),
)


def rows(cases: Sequence[Case]) -> Iterator[list[str]]:
    """The table; a case that cannot be compiled says so."""
    for case in track(cases, "compiling"):
        step, args = step_of_case(case)
        topology = get_topology(case.slice_name)
        mesh = Mesh(("data",), (topology.device_count,))
        call = traced_call(step, args)
        workload = trace_step(step, args, platform="tpu")
        outcome = find(workload, topology, Options(mesh=mesh, preset=case.preset))
        try:
            compiled = str(_compiled(compile_witness(outcome, call).program))
        except AutomapError as error:
            compiled = " ".join(str(error).split())[:60]
        cells = (
            case.slice_name,
            case.preset,
            str(case.mebibytes),
            f"{predicted_messages(outcome):.2f}",
        )
        yield [*cells, compiled]


def step_of_case(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The step, and what it is called with."""
    width = 512 if case.mebibytes <= 16 else 2048
    hidden = case.mebibytes * _MEBIBYTE // (4 * 2 * width)
    matrices = {"up": (_TRIPS, width, hidden), "down": (_TRIPS, hidden, width)}
    weights = {name: jax.ShapeDtypeStruct(dims, jnp.float32) for name, dims in matrices.items()}

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

        return jnp.square(jax.lax.scan(layer, x, weights)[0]).sum()

    def step(weights: Any, x: jax.Array) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda w, g: w - 0.01 * g, weights, gradients)

    return jax.jit(step, donate_argnums=0), (weights, jax.ShapeDtypeStruct((_ROWS, width), "f4"))


def predicted_messages(outcome: Outcome) -> float:
    """Messages of one trip."""
    context = outcome.context
    split_classes = context.space.split_classes(outcome.best.point)
    collectives = context.evaluator.collectives(split_classes)
    parts = context.evaluator.collective_prices.merged_parts(collectives, split_classes.mesh.sizes)
    is_sum = np.isin(collectives.kind, (ALL_REDUCE, REDUCE_SCATTER)) & ~collectives.on_operand
    chosen = is_sum & (collectives.count >= _TRIPS)
    return float((parts * collectives.count)[chosen].sum()) / _TRIPS


def _compiled(program: str | None) -> int:
    if program is None:
        raise click.ClickException("this compiler does not hand out its programs")
    module = decode_module(read_file(default_folder() / program, MOST_PROGRAM_BYTES))
    return len(
        {
            each.message
            for each in compiled_collectives(module)
            if each.count >= _TRIPS and each.kind in ("all-reduce", "reduce-scatter")
        }
    )


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(output: Path | None) -> None:
    """Make the table."""
    # Else JAX looks for a TPU here, and holds the compiler that is to be asked.
    jax.config.update("jax_platforms", "cpu")
    header = ["slice", "preset", "MiB of two matrices", "messages predicted", "messages compiled"]
    table = made_by(COMMAND, f"jax {jax.__version__}") + markdown(header, list(rows(CASES)))
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "messages")


if __name__ == "__main__":
    main()
