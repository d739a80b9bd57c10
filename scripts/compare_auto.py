"""XLA's auto-sharder beside ours, both under its own TPU compiler, for steps of the zoo and others, without the hardware.

    python -m scripts.compare_auto --auto-python auto/bin/python -o docs/auto_peer.md

AUTO is the auto-sharder of jax 0.6.2 with libtpu 0.0.17, in an environment of its own; make it with

    python -m venv auto; auto/bin/pip install jax==0.6.2 jaxlib==0.6.2 libtpu==0.0.17

AUTO decides all shardings of a step on each mesh shape of the slice, with the budget of memory that it has by itself (1.1 times
what it thinks is the least) and with the device's memory (`BUDGETS`). Its best by the witness is taken. The witness is the program as
libtpu 0.0.17 schedules it, read as `scripts.scheduled` says. Presets (each on the mesh that the evaluator likes best)
and our plan are handed to the same compiler with the shardings of inputs, outputs and constraints. With `--newer` (and the
extra `tpu`), the fastest of each kind, and presets within a quarter of the fastest, are compiled by today's TPU compiler too,
of AUTO's what can be carried over (`scripts.auto_carried`). All that was compiled is kept, so the tables can be made model by model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import gzip
import hashlib
from itertools import product
import os
from pathlib import Path
import platform
import time
from typing import Any

import click
import jax

from automap.errors import AutomapError, InputError
from automap.jax_compat import lowered_for_gspmd
from automap.options import Options
from automap.plan import Plan
from automap.plan_build import build_plan
from automap.planner import find
from automap.space.point import Mesh
from automap.topology import get_topology, mesh_shapes
from automap.topology.model import Topology
from automap.verify.cache import default_folder
from automap.verify.program import planned_program
from automap.workload import load_target, trace_step
from automap.workload.call import TracedCall, jitted, trace_call
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import portable_stablehlo
from scripts.auto_carried import carried_plan, compiled_seconds
from scripts.auto_newer import with_newer
from scripts.auto_peer import (
    DEFAULT_TIMEOUT_SECONDS,
    RECIPE,
    STABLEHLO_VERSION,
    AutoPeer,
    AutoRequest,
    AutoResult,
)
from scripts.auto_report import AUTO, GIB, OURS, PRESETS, Row, cells, report
from scripts.scheduled import scheduled_step
from scripts.tables import made_by, replace_table


COMMAND = "python -m scripts.compare_auto --auto-python auto/bin/python"
TOPOLOGY = "v5e:2x4"
BUDGETS = ("own", "device")
BUDGET_OPTION = "xla_tpu_auto_spmd_partitioning_memory_budget_gb"


@dataclass(frozen=True)
class Model:
    """A model of the zoo, and the options of its function."""

    target: str
    options: dict[str, str] = field(default_factory=dict)


_SCANNED, _STEPS, _HALF = {"layers": "scanned"}, {"steps": "scanned"}, {"dtype": "bfloat16"}
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
    "moe sorted": Model("models.moe:moe_8x", {"batch": "8", "dispatch": "sorted", **_SCANNED, **_HALF}),
    "vgg-19": Model("models.vgg:vgg_19", {"batch": "256"}),
    "resnet-50": Model("models.resnet:resnet_50", {"batch": "256"}),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What AUTO is asked about: mesh shapes, and names of `BUDGETS`; `newer`: whether today's compiler is asked too."""

    shapes: Sequence[tuple[int, ...]]
    budgets: Sequence[str]
    newer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step in StableHLO; `sha256` is of its text."""

    artifact: bytes
    sha256: str


def rows_of(name: str, peer: AutoPeer, topology: Topology, asked: Asked) -> list[Row]:
    """All plans of a model."""
    model = MODELS.get(name, Model(name))
    step, args = load_target(model.target, model.options)
    run = jitted(step, {})
    call = trace_call(run, tuple(args), {})
    auto = list(_auto(name, _program(run.trace(*args), topology), peer, topology, asked))
    planned = list(_planned(name, call, step, args, peer, topology))
    rows = [row for row, _ in (*auto, *planned)]
    if not asked.newer or not planned:
        return rows
    carried = {
        row: lambda found=found: carried_plan(
            planned[0][1], _finest(topology), found.answer.inputs, found.answer.outputs
        )
        for row, found in auto
    }
    own = {row: lambda plan=plan: plan for row, plan in planned}

    def seconds_of(plan: Plan) -> float | None:
        return compiled_seconds(plan, call, topology, peer.timeout_seconds)

    return with_newer(rows, {**carried, **own}, seconds_of)


def _auto(
    name: str, program: Program, peer: AutoPeer, topology: Topology, asked: Asked
) -> Iterator[tuple[Row, AutoResult]]:
    memory = str(topology.device.memory_bytes // GIB)
    options_of = {"own": {}, "device": {BUDGET_OPTION: memory}}
    for shape, budget in product(asked.shapes, asked.budgets):
        request = AutoRequest(slice=topology.name, mesh=shape, options=options_of[budget])
        found = peer.ask(program.artifact, program.sha256, request)
        where = f"{_shape(shape)}, {budget} budget"
        yield _row(name, AUTO, where, found, found.pass_seconds, topology), found


def _planned(
    name: str, call: TracedCall, step: Any, args: Any, peer: AutoPeer, topology: Topology
) -> Iterator[tuple[Row, Plan]]:
    """Ours first, then the presets that suit the model."""
    request = AutoRequest(slice=topology.name, mesh=None)
    for origin in (OURS, *PRESETS):
        begin = time.process_time()
        workload = trace_step(step, args, platform=topology.platform)
        try:
            outcome = find(workload, topology, Options(preset=None if origin == OURS else origin))
        except InputError as error:
            click.echo(f"{name}: {error}", err=True)
            continue
        seconds = time.process_time() - begin if origin == OURS else None
        plan = build_plan(outcome)
        program = _program(planned_program(plan, call).traced(), topology)
        found = peer.ask(program.artifact, program.sha256, request)
        shape = _shape(outcome.best.point.mesh.sizes)
        yield _row(name, origin, shape, found, seconds, topology), plan


def _program(traced: Any, topology: Topology) -> Program:
    lowered = lowered_for_gspmd(traced, topology.platform)
    try:
        artifact = portable_stablehlo(lowered.compiler_ir("stablehlo"), STABLEHLO_VERSION)
    except HloError as error:
        raise InputError(f"the step {error}") from error
    return Program(artifact=artifact, sha256=hashlib.sha256(lowered.as_text().encode()).hexdigest())


def _row(
    name: str, origin: str, where: str, found: AutoResult, planning_seconds: float | None,
    topology: Topology,
) -> Row:  # fmt: skip
    step, note = None, found.answer.message.partition("\n")[0][:100]
    if found.program is not None:
        try:
            step = scheduled_step(gzip.decompress(found.program), topology, _finest(topology))
        except HloError as error:
            note = f"cannot be read: {error}"
    if found.answer.outcome == "out-of-memory":
        note = "does not fit"
    row = Row(
        model=name, origin=origin, where=where, step=step, note=note,
        peak_bytes=found.answer.peak_bytes, planning_seconds=planning_seconds,
        compile_seconds=found.answer.seconds,
    )  # fmt: skip
    click.echo(" | ".join(cells(row)), err=True)
    return row


def _finest(topology: Topology) -> Mesh:
    """The mesh with the most axes: every group of devices that a plan on another mesh uses has axes on it."""
    sizes = max(mesh_shapes(topology, max_axes=3), key=len)
    return Mesh(tuple(f"axis{i}" for i in range(len(sizes))), sizes)


def _shape(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


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
    # AUTO's compiler has no gradients of ragged products: the dense ones that JAX makes of them instead.
    jax.config.update("jax_ragged_dot_use_ragged_dot_instruction", False)
    topology = get_topology(TOPOLOGY)
    folder = default_folder().parent / "auto"
    peer = AutoPeer(python=auto_python, folder=folder, timeout_seconds=timeout)
    try:
        chosen = _chosen(models)
        asked = Asked(shapes=_shapes(meshes, topology), budgets=budgets, newer=newer)
        peer.check()
        rows = [row for name in chosen for row in rows_of(name, peer, topology, asked)]
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
                f"--models {name!r}; allowed: {', '.join(MODELS)}, or steps of yours as module:function, "
                "with commas between"
            )
    return names


def _shapes(meshes: str, topology: Topology) -> Sequence[tuple[int, ...]]:
    allowed = {_shape(sizes): sizes for sizes in mesh_shapes(topology, max_axes=3)}
    names = list(allowed) if meshes == "all" else meshes.split(",")
    for name in names:
        if name not in allowed:
            raise InputError(f"--meshes {name!r}; allowed: all, or of {', '.join(allowed)}")
    return [allowed[name] for name in names]


if __name__ == "__main__":
    main()
