"""The simulated step beside the evaluator's estimate: every preset of some models on GPU machines.

    python -m scripts.compare_simulation -o docs/reports/simulator.md

The search prices a plan with `automap.cost.schedule.overlap`, which walks the program once; the
simulation issues kernels and collectives one by one. How far they are apart says what the short cut
costs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
import time

import click
import numpy as np
from rich.progress import track

from automap.cost.evaluate import Evaluator
from automap.cost.tables import build_tables
from automap.program.trace import trace_step
from automap.simulate.spmd import list_schedule
from automap.simulate.spmd_program import device_program
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.topology import get_topology, mesh_shapes
from automap.topology.mesh import Mesh
from models import bert, gpt, llama, mlp, resnet, t5, vit
from models.training import Target
from scripts.tables import made_by, markdown, replace_table


COMMAND = "python -m scripts.compare_simulation -o docs/reports/simulator.md"
TOPOLOGIES = ("8xh100", "2x8xv100")
# Of the evaluator's step, either way.
FAR = 0.1
HEADER = [
    "machine",
    "preset",
    "plans",
    "median",
    "5 %",
    "95 %",
    "least",
    "most",
    "over 10 %",
    "simulation, ms",
]
_SCANNED = replace(gpt.TINY, depth=12, d_model=768, positions=512, layers="scanned")
MODELS: Mapping[str, Callable[[], Target]] = {
    "gpt-124m": lambda: gpt.gpt_124m(batch=64),
    "scanned gpt": lambda: gpt.gpt(_SCANNED, batch=64, seq=512).target,
    "scanned gpt, rematerialized": lambda: (
        gpt.gpt(replace(_SCANNED, remat="layer"), batch=64, seq=512).target
    ),
    "bert": lambda: bert.bert(replace(bert.BERT_48, depth=8), batch=64, seq=128).target,
    "llama": lambda: llama.llama(llama.TINY, batch=64, seq=64).target,
    "t5": lambda: t5.t5(replace(t5.TINY, d_model=512, d_ff=2048), batch=64, seq=128).target,
    "vit-b16": lambda: vit.vit_b16(batch=128),
    "mlp": lambda: mlp.mlp_step(replace(mlp.TINY, depth=4, width=4096), batch=1024).target,
    "resnet-50": lambda: resnet.resnet_50(batch=64),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One plan: how much longer the simulated step is, as a fraction, and what simulating took."""

    topology: str
    preset: str
    share: float
    simulation_seconds: float


def differences(make: Callable[[], Target]) -> Iterator[Difference]:
    """All different presets of a model on all meshes of at most two axes."""
    step, args = make()
    problem = trace_step(step, args, platform="cuda").problem
    space, tables = Space(problem), build_tables(problem, "cuda")
    for name in TOPOLOGIES:
        topology = get_topology(name)
        evaluator = Evaluator(tables, problem.n_classes, topology)
        meshes = [Mesh(("data", "model")[: len(s)], s) for s in mesh_shapes(topology, max_axes=2)]
        points = [(p, x) for m in meshes for p, it in PRESETS.items() for x in it.points(space, m)]
        # Presets that split alike count once, under the first name.
        split_classes = {
            space.split_classes(x): p for p, x in reversed(points) if space.is_valid(x)
        }
        for point, preset in split_classes.items():
            start = time.perf_counter()
            seconds = list_schedule(device_program(tables, evaluator.price_point(point))).seconds
            took = time.perf_counter() - start
            yield Difference(
                name, preset, seconds / evaluator.evaluate(point).step_seconds - 1, took
            )


def rows(compared: list[Difference]) -> Iterator[list[str]]:
    """A row for each machine and preset, and one for all."""
    groups: defaultdict[tuple[str, str], list[Difference]] = defaultdict(list)
    for it in compared:
        groups[it.topology, it.preset].append(it)
    for (topology, preset), group in [*sorted(groups.items()), (("all", "all"), compared)]:
        shares = np.array([it.share for it in group])
        cuts = np.quantile(shares, [0.5, 0.05, 0.95, 0.0, 1.0])
        far = int((np.abs(shares) > FAR).sum())
        took = np.median([it.simulation_seconds for it in group]) * 1e3
        percents = [f"{cut:+.1%}" for cut in cuts]
        yield [topology, preset, f"{len(group)}", *percents, f"{far}", f"{took:.0f}"]


@click.command()
@click.option("-o", "--output", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(output: Path | None) -> None:
    """Print the table, or put it in OUTPUT."""
    compared = [it for make in track(MODELS.values(), "models") for it in differences(make)]
    machine = f"{len(MODELS)} models"
    table = made_by(COMMAND, machine) + markdown(HEADER, list(rows(compared)))
    if output is None:
        click.echo(table)
    else:
        replace_table(output, table, "simulated plans")


if __name__ == "__main__":
    main()
