"""A search's outcome -> the plan's records."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
import math
from typing import Literal

import jax
import numpy as np

from automap.cost.memory import Memory
from automap.cost.shardings import shardings
from automap.cost.tables import Tables
from automap.cost.traffic.flows import KINDS
from automap.jaxpr.fingerprint import jaxpr_sha256
from automap.jaxpr.sites import parse_place, parse_site
from automap.plan.parts import Phase, frontier_records
from automap.plan.record import (
    CollectiveRecord,
    ConstraintRecord,
    LeafRecord,
    LeversRecord,
    MemoryRecord,
    MeshRecord,
    PlanRecord,
    PredictedRecord,
    PresetRecord,
    SearchRecord,
    Spec,
    WorkloadRecord,
)
from automap.planner.conflicts import Conflicts
from automap.planner.constraints import Constraint, EquationShapes, derive_constraints
from automap.planner.decisions import Decisions, SameWork
from automap.planner.known_limits import backend_warnings
from automap.planner.rates import helpful_changes, program_losses, rates_record
from automap.planner.remat_prices import Prices
from automap.planner.sharded_graph import AxesPerDim, ShardedGraph
from automap.program.trace import Leaf, Workload
from automap.search import Candidate, SearchContext
from automap.simulate.recorded import recorded_program
from automap.space.leaves import parameter_sides
from automap.space.pins import Pin
from automap.space.point import SplitClasses
from automap.space.point_record import record_point
from automap.space.space import Space
from automap.step.specs import ImposedSpec, spec_text
from automap.step.user_constraints import CONSTRAINT_PRIMITIVE
from automap.topology.device_order import device_order
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from hlo_tools.collector import collector_paused
from hlo_tools.graph import Op


# By `hlo_tools.analyses.phases.Phase`.
_PHASE_NAMES: tuple[Phase, ...] = ("forward", "backward", "update")


@dataclass(frozen=True)
class Outcome:
    """What a search ended with.

    All pins are imposed on `workload`, which says the order of their axes; those `imposed` on the
    searched one are in no other way in its plan.
    """

    workload: Workload
    topology: Topology
    context: SearchContext
    best: Candidate
    strategy: str
    seconds: float
    imposed: Sequence[Pin] = ()
    warnings: tuple[str, ...] = ()
    levers: LeversRecord | None = None


def sharded_graph(outcome: Outcome) -> ShardedGraph:
    """Shardings of every value and op under the best candidate."""
    space = outcome.context.space
    sharded = make_sharded_graph(
        space, outcome.context.evaluator.tables, space.split_classes(outcome.best.point)
    )
    # Classes are those of the searched problem; in the workload's all pins are imposed too, which
    # say the order of axes on a dimension.
    return replace(sharded, problem=outcome.workload.problem)


def make_sharded_graph(space: Space, tables: Tables, split_classes: SplitClasses) -> ShardedGraph:
    """Shardings of every value and op under `split_classes`."""
    sharding = shardings(tables, space.problem.n_classes, split_classes)
    # Along a dimension the gradient has a storage class of its own: a leaf at level OPTIMIZER turns
    # on that one only.
    return ShardedGraph(
        space.problem, tables, split_classes, sharding, parameter_sides(space.leaves)
    )


def step_constraints(
    workload: Workload, sharded: ShardedGraph
) -> tuple[tuple[Constraint, ...], tuple[str, ...]]:
    """What is to be imposed inside the step, and warnings of what cannot be."""
    if workload.reemitter is None:
        return derive_constraints(sharded, _instruction_name, None)
    equations = {
        site.path: EquationShapes(
            # Not all abstract values are arrays: a token has no shape.
            operands=tuple(tuple(getattr(a, "shape", ())) for a in site.in_avals),
            results=tuple(tuple(getattr(a, "shape", ())) for a in site.out_avals),
        )
        for site in workload.reemitter.sites
    }
    return derive_constraints(sharded, _equation_site, equations)


def constraint_record(constraint: Constraint) -> ConstraintRecord:
    """The record of a constraint."""
    return ConstraintRecord(value=constraint.value, at=constraint.at, spec=_spec(constraint.axes))


def workload_record(workload: Workload) -> WorkloadRecord:
    """What was planned, with the means to know it again."""
    return WorkloadRecord(
        target=workload.target,
        hlo_sha256=workload.hlo_sha256,
        jaxpr_sha256=jaxpr_sha256(workload.reemitter.flat) if workload.reemitter else None,
        rules=tuple((name, notation.text) for name, notation in workload.rules.items()),
        arguments=tuple(workload.arguments.items()),
        weak_inputs=tuple(leaf.path for leaf in workload.inputs if leaf.weak_type),
        jax_version=jax.__version__,
    )


def whole_leaves(workload: Workload, which: Literal["inputs", "outputs"]) -> tuple[LeafRecord, ...]:
    """The leaves of a plan in which none is split: each is whole where it is stored."""
    problem, roles = workload.problem, []
    if which == "inputs":
        roles = [role.value for role in problem.roles]
    else:
        # New state has the role of the state that it takes the place of at the next step.
        sources = [problem.state_map.get(index) for index in range(len(workload.outputs))]
        roles = ["result" if s is None else problem.roles[s].value for s in sources]
    leaves = workload.inputs if which == "inputs" else workload.outputs
    return tuple(
        LeafRecord(
            path=leaf.path,
            shape=leaf.shape,
            dtype=leaf.dtype,
            role=role,  # type: ignore[arg-type]
            spec=(None,) * len(leaf.shape),
        )
        for leaf, role in zip(leaves, roles, strict=True)
    )


@collector_paused()
def build_plan(outcome: Outcome) -> PlanRecord:
    """All records of the best candidate."""
    context, workload, sharded = outcome.context, outcome.workload, sharded_graph(outcome)
    split_classes = sharded.split_classes
    constraints, missed = step_constraints(workload, sharded)
    return PlanRecord(
        workload=workload_record(workload),
        topology=outcome.topology.to_dict(),
        mesh=_mesh(outcome.topology, split_classes.mesh),
        inputs=_inputs(workload, sharded),
        outputs=_outputs(workload, sharded),
        constraints=tuple(constraint_record(c) for c in constraints),
        levers=_levers(outcome, split_classes),
        predicted=_predicted(outcome, split_classes),
        presets=tuple(
            PresetRecord(
                name=name,
                step_seconds=c.estimate.step_seconds,
                peak_bytes=round(c.estimate.peak_bytes),
                fits=context.objective.fits(c.estimate),
            )
            for name, c in context.best_per_preset.items()
        ),
        search=SearchRecord(
            strategy=outcome.strategy,
            seconds=outcome.seconds,
            evaluations=context.evaluations,
            seed=context.seed,
            gap=context.gap(outcome.best),
            point=record_point(outcome.best.point, workload.problem.layers),
            imposed=tuple(
                f"{workload.problem.paths[pin.position]}={spec_text(pin.axes_of_dim)}"
                for pin in outcome.imposed
            ),
            memory_limit_bytes=_limit_bytes(outcome),
            frontier=frontier_records(context.frontier()),
        ),
        decisions=Decisions(context, split_classes).records(),
        conflicts=Conflicts(context, outcome.best.point).records(),
        warnings=(
            *outcome.warnings,
            *workload.problem.warnings,
            *missed,
            *_held(workload, constraints),
            *SameWork(context, outcome.best.point).warnings(),
            *backend_warnings(context.evaluator.backend, workload),
            *_reserved(outcome),
        ),
        program=recorded_program(
            context.evaluator,
            context.evaluator.price_point(split_classes),
            split_classes.mesh.names,
            workload.reemitter.source_by_path if workload.reemitter else {},
        ),
        memory_curve=context.evaluator.memory_curve(split_classes),
    )


def _levers(outcome: Outcome, split_classes: SplitClasses) -> LeversRecord | None:
    """The levers, with what they take."""
    if outcome.levers is None:
        return None
    prices = Prices(outcome.workload, outcome.context.evaluator, split_classes)
    return replace(
        outcome.levers, recompute_seconds=prices.recompute_seconds, host_bytes=prices.host_bytes
    )


def _mesh(topology: Topology, mesh: Mesh) -> MeshRecord:
    order = device_order(topology, mesh.sizes)
    is_numbered = order == tuple(range(len(order)))
    return MeshRecord(axes=mesh.axes, devices=None if is_numbered else order)


def _reserved(outcome: Outcome) -> Iterator[str]:
    """A warning if a process does not take as much memory as the plan needs unless it is told."""
    share = outcome.context.evaluator.backend.default_memory_share
    needed = outcome.best.estimate.peak_bytes / outcome.topology.device.memory_bytes
    if share < needed <= 1.0:
        yield (
            f"JAX takes {share:.0%} of a device's memory unless it is told otherwise, and this "
            f"plan needs {needed:.0%}: run it with "
            f"XLA_PYTHON_CLIENT_MEM_FRACTION={_two_digits(needed)}"
        )


def _two_digits(share: float) -> str:
    return f"{min(math.ceil(share * 100 + 1) / 100, 1.0):.2f}"


def _limit_bytes(outcome: Outcome) -> int | None:
    """The memory limit if it is not what a device has."""
    limit = round(outcome.context.objective.memory_limit_bytes)
    return None if limit == outcome.topology.device.memory_bytes else limit


def _held(workload: Workload, constraints: Sequence[Constraint]) -> Iterator[str]:
    """A warning of the user's constraints that no op of the plan keeps to by itself."""
    reemitter = workload.reemitter
    if reemitter is None:
        return
    places = [parse_place(constraint.at) for constraint in constraints]
    sites = [place.site for place in places if place.side == "made"]
    # A `made` constraint at one of the user's own: nothing that makes or uses the tensor has that
    # sharding by itself.
    own = [site for site in sites if reemitter.site_by_path[site].primitive == CONSTRAINT_PRIMITIVE]
    if own:
        where = reemitter.source_by_path[own[0]] or own[0]
        yield (
            f"{len(own)} sharding constraints of the step (first: {where}) are met by moving the "
            "tensor there and back, as nothing beside them is split so; it is priced, but a plan "
            "without them may be faster"
        )


def _equation_site(op: Op) -> str | None:
    return parse_site(op.op_name)


def _instruction_name(op: Op) -> str:
    return op.instruction.name


def _spec(axes: AxesPerDim) -> Spec:
    return tuple(names or None for names in axes)


def _inputs(workload: Workload, sharded: ShardedGraph) -> tuple[LeafRecord, ...]:
    problem = workload.problem
    return tuple(
        LeafRecord(
            path=leaf.path,
            shape=leaf.shape,
            dtype=leaf.dtype,
            role=role.value,
            spec=leaf_spec(sharded, v, leaf, workload.ends.inputs.get(i)),
        )
        for i, (leaf, v, role) in enumerate(
            zip(workload.inputs, problem.graph.inputs, problem.roles, strict=True)
        )
    )


def _outputs(workload: Workload, sharded: ShardedGraph) -> tuple[LeafRecord, ...]:
    problem = workload.problem
    records = []
    for index, (leaf, value) in enumerate(
        zip(workload.outputs, problem.graph.outputs, strict=True)
    ):
        # New state is stored as the old one was, so that a step's result is the next one's input.
        source = problem.state_map.get(index)
        like = value if source is None else problem.graph.inputs[source]
        role = "result" if source is None else problem.roles[source].value
        records.append(
            LeafRecord(
                path=leaf.path,
                shape=leaf.shape,
                dtype=leaf.dtype,
                role=role,
                spec=leaf_spec(sharded, like, leaf, workload.ends.outputs.get(index)),
            )
        )
    return tuple(records)


def leaf_spec(sharded: ShardedGraph, value: int, leaf: Leaf, given: ImposedSpec | None) -> Spec:
    """The spec of a leaf; `given` is what the step itself says."""
    if given is not None and None not in given:
        return tuple(axes or None for axes in given)
    # The words of a random key are a dimension in HLO only; keys are small and stay whole.
    axes = sharded.value_axes(value)
    return _spec(axes) if len(axes) == len(leaf.shape) else (None,) * len(leaf.shape)


def _predicted(outcome: Outcome, split_classes: SplitClasses) -> PredictedRecord:
    estimate, evaluator = outcome.best.estimate, outcome.context.evaluator
    lost = program_losses(evaluator, evaluator.price_point(split_classes))
    memory = evaluator.memory(split_classes)
    return PredictedRecord(
        step_seconds=estimate.step_seconds,
        compute_seconds=estimate.compute_seconds,
        collective_seconds=estimate.collective_seconds,
        bubble_seconds=0.0,
        hidden_seconds=estimate.hidden_seconds,
        host_seconds=estimate.host_seconds,
        peak_bytes=round(estimate.peak_bytes),
        on_chip_bytes=round(memory.on_chip_bytes),
        fits=outcome.context.objective.fits(estimate),
        memory_margin=outcome.context.objective.memory_margin,
        unsure=outcome.context.objective.is_unsure(estimate),
        memory=_memory(memory),
        collectives=_collectives(outcome.context, split_classes),
        rates=rates_record(
            outcome.workload.problem,
            outcome.topology,
            estimate.step_seconds,
            lost,
            helpful_changes(outcome.context, outcome.best, outcome.workload),
        ),
    )


def _memory(memory: Memory) -> MemoryRecord:
    other = sum(memory.role_bytes(kind) for kind in ("other state", "rng key", "constant"))
    return MemoryRecord(
        parameters=round(memory.role_bytes("parameter")),
        optimizer=round(memory.role_bytes("optimizer state")),
        other_state=round(other),
        inputs=round(memory.role_bytes("batch")),
        activations=round(memory.activation_bytes),
        temporaries=round(memory.temporary_bytes),
    )


def _collectives(
    context: SearchContext, split_classes: SplitClasses
) -> tuple[CollectiveRecord, ...]:
    collectives = context.evaluator.collectives(split_classes)
    # An entry is of one edge; a plan says the sum by kind, axes (a bit for each in `mask`) and
    # phase. Counts and bytes are of a whole step, all trips of loops included.
    totals: dict[tuple[int, int, int], np.ndarray] = defaultdict(lambda: np.zeros(2))
    rows = zip(
        collectives.kind,
        collectives.mask,
        collectives.phase,
        collectives.count,
        collectives.n_bytes * collectives.count,
    )
    for kind, mask, phase, count, n_bytes in rows:
        totals[int(kind), int(mask), int(phase)] += (count, n_bytes)
    names = split_classes.mesh.names
    return tuple(
        CollectiveRecord(
            kind=KINDS[kind].value,
            axes=tuple(n for a, n in enumerate(names) if mask >> a & 1),
            phase=_PHASE_NAMES[phase],
            count=int(count),
            bytes=round(n_bytes),
        )
        for (kind, mask, phase), (count, n_bytes) in sorted(totals.items())
    )
