"""All plans of a step under AUTO's own compiler: AUTO's, ours, and the presets'.

    AUTO      of each mesh shape and budget, shardings by its pass in the compiler -> in: `_auto`
    the rest  as the evaluator has them, with shardings of inputs, outputs and
              constraints                                                     -> in: `_planned`

Each program is replayed (`automap.verify.replayed`); today's compiler is asked by
`scripts.auto_newer`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
import gzip
import hashlib
from itertools import product
import time
from typing import Any

import click

from automap.api.plan import Plan
from automap.config import Options
from automap.errors import InputError
from automap.jax_compat import lowered_for_gspmd
from automap.planner.records import build_plan
from automap.planner.sharding import find
from automap.program import load_target, trace_step
from automap.step.call import TracedCall
from automap.step.step import traced_call
from automap.topology import mesh_shapes
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from automap.verify.program import planned_program
from automap.verify.replayed import replayed_step
from hlo_tools.errors import HloError
from hlo_tools.jax_compat import portable_stablehlo
from scripts.auto_carried import carried_plan, compiled_seconds
from scripts.auto_newer import with_newer
from scripts.auto_peer import STABLEHLO_VERSION, AutoPeer, AutoRequest, AutoResult
from scripts.auto_report import AUTO, GIB, OURS, PRESETS, Row, cells


# Of memory: what AUTO takes by itself, and what the device has.
BUDGETS = ("own", "device")
BUDGET_OPTION = "xla_tpu_auto_spmd_partitioning_memory_budget_gb"


@dataclass(frozen=True)
class Model:
    """A model of the zoo, and the options of its function."""

    target: str
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What AUTO is asked about: mesh shapes, and names of `BUDGETS`; `newer`: whether today's
    compiler is asked too.
    """

    shapes: Sequence[tuple[int, ...]]
    budgets: Sequence[str]
    newer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A step in StableHLO; `sha256` is of its text."""

    artifact: bytes
    sha256: str


def model_rows(
    name: str, model: Model, peer: AutoPeer, topology: Topology, asked: Asked
) -> list[Row]:
    """All plans of a model; `name` is what the tables call it."""
    step, args = load_target(model.target, model.options)
    call = traced_call(step, args)
    auto = list(_auto(name, _program(call.function.trace(*args), topology), peer, topology, asked))
    planned = list(_planned(name, call, step, args, peer, topology))
    # All of AUTO's answers first, so that a model whose plans fail still has those.
    rows = [row for row, _ in (*auto, *planned)]
    if not asked.newer or not planned:
        return rows
    carried = {
        # Bound as a default: a closure would see the last reply only.
        row: lambda reply=reply: carried_plan(
            planned[0][1], _finest(topology), reply.answer.inputs, reply.answer.outputs
        )
        for row, reply in auto
    }
    own = {row: lambda plan=plan: plan for row, plan in planned}

    def scheduled_step_seconds(plan: Plan) -> float | None:
        return compiled_seconds(plan, call, topology, peer.timeout_seconds)

    return with_newer(rows, {**carried, **own}, scheduled_step_seconds)


def _auto(
    name: str, program: Program, peer: AutoPeer, topology: Topology, asked: Asked
) -> Iterator[tuple[Row, AutoResult]]:
    memory = str(topology.device.memory_bytes // GIB)
    options_by_budget = {"own": {}, "device": {BUDGET_OPTION: memory}}
    for shape, budget in product(asked.shapes, asked.budgets):
        request = AutoRequest(slice=topology.name, mesh=shape, options=options_by_budget[budget])
        reply = peer.ask(program.artifact, program.sha256, request)
        where = f"{shape_text(shape)}, {budget} budget"
        yield _row(name, AUTO, where, reply, reply.pass_seconds, topology), reply


def _planned(
    name: str, call: TracedCall, step: Any, args: Any, peer: AutoPeer, topology: Topology
) -> Iterator[tuple[Row, Plan]]:
    """Ours first, then the presets that suit the model."""
    request = AutoRequest(slice=topology.name, mesh=None)
    for origin in (OURS, *PRESETS):
        # Tracing is counted as ours: a user of the planner waits for it too.
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
        reply = peer.ask(program.artifact, program.sha256, request)
        shape = shape_text(outcome.best.point.mesh.sizes)
        yield _row(name, origin, shape, reply, seconds, topology), plan


def _program(traced: Any, topology: Topology) -> Program:
    lowered = lowered_for_gspmd(traced, topology.platform)
    try:
        artifact = portable_stablehlo(lowered.compiler_ir("stablehlo"), STABLEHLO_VERSION)
    except HloError as error:
        raise InputError(f"the step {error}") from error
    return Program(artifact=artifact, sha256=hashlib.sha256(lowered.as_text().encode()).hexdigest())


def _row(
    name: str,
    origin: str,
    where: str,
    reply: AutoResult,
    planning_seconds: float | None,
    topology: Topology,
) -> Row:
    step, note = None, reply.answer.message.partition("\n")[0][:100]
    if reply.program is not None:
        try:
            step = replayed_step(gzip.decompress(reply.program), topology, _finest(topology))
        except HloError as error:
            note = f"cannot be read: {error}"
    if reply.answer.outcome == "out-of-memory":
        note = "does not fit"
    row = Row(
        model=name,
        origin=origin,
        where=where,
        step=step,
        note=note,
        peak_bytes=reply.answer.peak_bytes,
        planning_seconds=planning_seconds,
        compile_seconds=reply.answer.seconds,
    )
    click.echo(" | ".join(cells(row)), err=True)
    return row


def _finest(topology: Topology) -> Mesh:
    """The mesh with the most axes: every group of devices that a plan on another mesh uses has axes
    on it.
    """
    sizes = max(mesh_shapes(topology, max_axes=3), key=len)
    return Mesh(tuple(f"axis{i}" for i in range(len(sizes))), sizes)


def shape_text(sizes: tuple[int, ...]) -> str:
    """A mesh shape as 2x4."""
    return "x".join(map(str, sizes))
