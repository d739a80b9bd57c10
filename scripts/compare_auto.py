"""XLA's auto-sharder beside ours, both under its own TPU compiler, for steps of the zoo and others,
without the hardware.

    python -m scripts.compare_auto --auto-python auto/bin/python -o docs/reports/auto_peer.md

AUTO is the auto-sharder of jax 0.6.2 with libtpu 0.0.17, in an environment of its own; make it with

    python -m venv auto; auto/bin/pip install jax==0.6.2 jaxlib==0.6.2 libtpu==0.0.17

AUTO decides all shardings of a step on each mesh shape of the slice, with the budget of memory that
it has by itself (1.1 times what it thinks is the least) and with the device's memory (`BUDGETS`).
Its best by the witness is taken. The witness is the program as libtpu 0.0.17 schedules it, read as
`scripts.witnesses` says. Presets (each on the mesh that the evaluator likes best) and our plan are
handed to the same compiler with the shardings of inputs, outputs and constraints. With `--newer`
(and the extra `tpu`), the fastest of each kind, and presets within a quarter of the fastest, are
compiled by today's TPU compiler too, of AUTO's what can be carried over (`scripts.auto_carried`).
All that was compiled is kept, so the tables can be made model by model.
"""

from collections.abc import Sequence
import os
from pathlib import Path
import platform

import click
import jax

from automap.errors import AutomapError, InputError
from automap.topology import get_topology, mesh_shapes
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from scripts.auto_peer import DEFAULT_TIMEOUT_SECONDS, RECIPE, AutoPeer
from scripts.auto_report import report
from scripts.auto_rows import BUDGETS, Asked, Model, model_rows, shape_text
from scripts.tables import made_by, replace_table


COMMAND = "python -m scripts.compare_auto --auto-python auto/bin/python"
TOPOLOGY = "v5e:2x4"


_SCANNED, _STEPS, _HALF = {"layers": "scanned"}, {"steps": "scanned"}, {"dtype": "bfloat16"}
_SORTED = {"dispatch": "sorted"}
MODELS = {
    "mlp": Model("models.mlp:mlp", {"batch": "4096"}),
    "dlrm": Model("models.dlrm:dlrm_kaggle", {"batch": "8192"}),
    "alexnet": Model("models.alexnet:alexnet", {"batch": "1024"}),
    "rnnlm": Model("models.rnnlm:rnnlm", {"batch": "256", **_STEPS}),
    "nmt": Model("models.nmt:nmt", {"batch": "256", **_STEPS}),
    "vit-b16": Model("models.vit:vit_b16", {"batch": "256", **_SCANNED}),
    "gpt-124m": Model("models.gpt:gpt_124m", {"batch": "32", **_SCANNED, **_HALF}),
    "bert-48": Model("models.bert:bert_48", {"batch": "8", **_SCANNED}),
    "t5-base": Model("models.t5:t5_base", {"batch": "32", **_SCANNED}),
    "moe einsum": Model("models.moe:moe_8x", {"batch": "8", **_SCANNED, **_HALF}),
    "moe sorted": Model("models.moe:moe_8x", {"batch": "8", **_SORTED, **_SCANNED, **_HALF}),
    "vgg-19": Model("models.vgg:vgg_19", {"batch": "256"}),
    "resnet-50": Model("models.resnet:resnet_50", {"batch": "256"}),
}


@click.command(help=f"{(__doc__ or '').splitlines()[0]}\n\nMake AUTO's environment with: {RECIPE}")
@click.option("--auto-python", type=click.Path(path_type=Path), required=True, help="its python")
@click.option(
    "--models",
    default=",".join(MODELS),
    show_default=True,
    help="with commas between; steps of yours as module:function",
)
@click.option(
    "--meshes", default="all", help="that AUTO may use, as 2x4,8; all sensible ones by default"
)
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    type=click.Choice(BUDGETS),
    default=BUDGETS,
    help="of AUTO; both by default",
)
@click.option(
    "--timeout",
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    help="seconds for each compilation",
)
@click.option(
    "--newer", is_flag=True, help="ask today's TPU compiler too, about the fastest of each"
)
@click.option("-o", "--output", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def main(
    *,
    auto_python: Path,
    models: str,
    meshes: str,
    budgets: tuple[str, ...],
    newer: bool,
    timeout: float,
    output: Path | None,
) -> None:
    """Run the comparison."""
    jax.config.update("jax_platforms", "cpu")
    # AUTO's compiler has no gradients of ragged products: the dense ones that JAX makes of them
    # instead.
    jax.config.update("jax_ragged_dot_use_ragged_dot_instruction", False)
    topology = get_topology(TOPOLOGY)
    # Beside the answers of today's compilers.
    folder = default_folder().parent / "auto"
    peer = AutoPeer(python=auto_python, folder=folder, timeout_seconds=timeout)
    try:
        chosen = _chosen(models)
        asked = Asked(shapes=_shapes(meshes, topology), budgets=budgets, newer=newer)
        peer.check()
        # Model after model: what was compiled is kept, so a run that is ended loses one model.
        rows = [
            row
            for name in chosen
            for row in model_rows(name, MODELS.get(name, Model(name)), peer, topology, asked)
        ]
    except AutomapError as error:
        raise click.ClickException(str(error)) from error
    text = report(rows)
    if output is None:
        click.echo(text)
        return
    given = f'--models "{models}" --meshes {meshes} ' + " ".join(f"--budget {b}" for b in budgets)
    command = f"{COMMAND} {given}{' --newer' if newer else ''} --timeout {timeout:g} -o {output}"
    machine = f"jax {jax.__version__}, {platform.machine()}, {os.cpu_count()} cores, busy"
    replace_table(output, made_by(command, machine) + text)


def _chosen(models: str) -> list[str]:
    names = models.split(",")
    for name in names:
        if name not in MODELS and ":" not in name:
            raise InputError(
                f"--models {name!r}; allowed: {', '.join(MODELS)}, or steps of yours as "
                "module:function, with commas between"
            )
    return names


def _shapes(meshes: str, topology: Topology) -> Sequence[tuple[int, ...]]:
    allowed = {shape_text(sizes): sizes for sizes in mesh_shapes(topology, max_axes=3)}
    names = list(allowed) if meshes == "all" else meshes.split(",")
    for name in names:
        if name not in allowed:
            raise InputError(f"--meshes {name!r}; allowed: all, or of {', '.join(allowed)}")
    return [allowed[name] for name in names]


if __name__ == "__main__":
    main()
