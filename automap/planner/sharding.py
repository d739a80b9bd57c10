"""One program for all devices: workload and topology -> the best sharding, through presets and a
search.

The presets are priced first, so that the search never returns worse than the best of them that
keeps the pins; then the strategy runs until it is done, its time is up, or the user interrupts it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
import math
import time

from automap.config import Options
from automap.cost.evaluate import Evaluator
from automap.cost.profile import KernelPrices
from automap.cost.tables import build_tables
from automap.deadline import Deadline
from automap.errors import InfeasiblePlanError, InputError, UnknownOpError
from automap.interrupts import note_interrupts
from automap.plan.explain import all_the_same_text
from automap.plan.record import PlanRecord
from automap.planner.advice import advice, listed
from automap.planner.decisions import size_reasons
from automap.planner.records import Outcome, build_plan
from automap.program.trace import Workload
from automap.quantities import bytes_text
from automap.search import Objective, OutOfBudget, SearchContext, get_strategy, search_on
from automap.search.pinned import Pinned
from automap.search.presets import preset_points, price_presets
from automap.space.batches import undivided_batch, whole_inputs
from automap.space.pins import Pin, meshes_that_divide, parse_pins, with_pins
from automap.space.point import Point
from automap.space.presets import PRESETS
from automap.space.space import Space
from automap.step.user_mesh import UserMesh
from automap.topology import axis_orders, lies_on, mesh_shapes, named_shapes
from automap.topology.mesh import Mesh
from automap.topology.model import Topology
from hlo_tools.collector import collector_paused


# Of the budget, for listing the shapes of meshes whose axes the step names.
_SHAPES_SHARE = 0.2
# By the number of axes. Presets give features to the axis that is called model.
_AXIS_NAMES = {1: ("data",), 2: ("data", "model"), 3: ("replica", "data", "model")}


def fitting_plan(outcome: Outcome, options: Options) -> PlanRecord:
    """The plan of an outcome. Raises `InfeasiblePlanError` if it does not fit."""
    plan = build_plan(outcome)
    if not plan.predicted.fits:
        raise InfeasiblePlanError(_nothing_fits(outcome, options))
    return plan


@collector_paused()
def find(
    workload: Workload,
    topology: Topology,
    options: Options,
    *,
    on_progress: Callable[[SearchContext], None] = lambda context: None,
    presets: Sequence[str] = tuple(PRESETS),
    deadline: Deadline | None = None,
    prices: KernelPrices | None = None,
    share_where_memory_decides: float = 1.0,
    is_brief: bool = False,
) -> Outcome:
    """The search's outcome, whether it fits or not.

    `presets` are those that are priced, and where the search starts: with fewer it shows what it
    finds by itself. `prices` are what a compiler said of kernels. Where the fastest preset does not
    fit, the search takes only a share of the time, and is brief if that is below 1; `is_brief`
    makes it so in any case (`searched_on`).

    Raises `InputError` or `TopologyError` for bad options.
    """
    start = time.monotonic()
    # Only `--verify` comes here with another space: `plan_workload` has sent the others elsewhere.
    if options.space != "sharding":
        raise InputError(
            f"--verify with --space {options.space}: it compiles plans of one program, and "
            "pipelines; give --space sharding, pipeline or hybrid, or leave --verify out"
        )
    check_known(workload, options)
    if options.profile is not None:
        options.profile.check_suits(topology)
    with note_interrupts() as interrupts:
        until = deadline or Deadline.after(options.budget_seconds, interrupts=interrupts)
        setup = _set_up(workload, topology, options, until, prices)
        context = SearchContext(
            space=setup.pinned.space,
            evaluator=setup.pinned.evaluator,
            meshes=setup.meshes,
            objective=Objective(
                options.memory_limit_bytes or topology.device.memory_bytes,
                setup.pinned.evaluator.backend.memory_margin,
            ),
            pins=setup.pinned.pins,
            seed=options.seed,
            deadline=until,
            on_progress=on_progress,
            presets=presets,
            is_brief=is_brief,
        )
        warnings = _search(context, options, share_where_memory_decides)
    # No point was valid at all, whether it fits or not: a preset that does not suit, a mesh that
    # does not divide anything.
    if context.best is None:
        raise InputError(_nothing_found(context, options))
    return Outcome(
        workload=setup.workload,
        imposed=setup.imposed,
        topology=topology,
        context=context,
        best=context.best,
        strategy=options.preset or options.strategy,
        seconds=time.monotonic() - start,
        warnings=(
            *warnings,
            *context.notes,
            *context.kept_preset,
            *undivided_batch(workload.problem, topology.device_count),
            *whole_inputs(
                context.space.problem,
                _split(context.space, context.best.point),
                setup.workload.ends.inputs,
            ),
        ),
    )


@collector_paused()
def searched_on(outcome: Outcome, options: Options, deadline: Deadline) -> Outcome:
    """The outcome of a brief search with what that left out, as far as the time goes."""
    context, start = outcome.context, time.monotonic()
    if not context.is_brief or options.strategy != "auto" or options.preset is not None:
        return outcome
    context.deadline, context.is_brief = deadline, False
    before = {*context.notes, *context.kept_preset}
    try:
        search_on(context)
    except OutOfBudget:
        reason = _why_over(context, options)
        context.notes.append(f"{reason}; this is the best plan it had")
    assert context.best is not None  # noqa: S101 - the outcome's, if nothing else
    warnings = (
        *(text for text in outcome.warnings if text not in before),
        *context.notes,
        *context.kept_preset,
    )
    return replace(
        outcome,
        best=context.best,
        seconds=outcome.seconds + time.monotonic() - start,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _split(space: Space, point: Point) -> set[int]:
    """The classes that a point splits over several devices."""
    mesh, classes = point.mesh, space.split_classes(point).classes
    return {c for size, on_axis in zip(mesh.sizes, classes) if size > 1 for c in on_axis}


@dataclass(frozen=True)
class _SetUp:
    """What is searched: `workload` has all pins imposed, the space of `pinned` those `imposed`,
    which no point keeps.
    """

    workload: Workload
    pinned: Pinned
    imposed: tuple[Pin, ...]
    meshes: tuple[Mesh, ...]


def _set_up(
    workload: Workload,
    topology: Topology,
    options: Options,
    deadline: Deadline,
    prices: KernelPrices | None,
) -> _SetUp:
    choice = candidate_meshes(topology, options.mesh, workload.mesh, deadline.share(_SHAPES_SHARE))
    shapes = [leaf.shape for leaf in workload.inputs]
    pins = parse_pins(options.pins, workload.problem, shapes, choice)
    # What the plan's specs are read from: with all pins imposed it has the order of axes on a
    # dimension that a pin asks for.
    with_all = with_pins(workload, pins)
    meshes = meshes_that_divide(with_all, choice)
    # As restrictions of the space first, which leaves the search free to decide all else around
    # them.
    pinned = _priced_by(workload, topology, options, pins, prices)
    beyond = pinned.impossible_pins(meshes)
    # No point keeps these, so they become shardings of the step itself, and the others are asked
    # for in what is left.
    if beyond:
        kept = [pin for pin in pins if pin not in beyond]
        pinned = _priced_by(with_pins(workload, beyond), topology, options, kept, prices)
    return _SetUp(with_all, pinned, beyond, meshes)


def _priced_by(
    workload: Workload,
    topology: Topology,
    options: Options,
    pins: Sequence[Pin],
    prices: KernelPrices | None,
) -> Pinned:
    """The space of a workload, what prices it, and pins that restrict it."""
    problem = workload.problem
    tables = build_tables(problem, topology.platform)
    evaluator = Evaluator(tables, problem.n_classes, topology, options.profile, prices)
    space = Space(problem, evaluator.backend.stored_multiple)
    return Pinned(space, evaluator, pins)


def check_known(workload: Workload, options: Options) -> None:
    """Refuse a `shard_map` in another space, and ops without a rule where that is asked. Raises
    `InputError`, and for such ops `UnknownOpError`.
    """
    if options.space != "sharding" and workload.mesh is not None and workload.mesh.manual:
        raise InputError(
            f"{workload.mesh.manual}: a step with a shard_map is planned in the space of shardings "
            "only; leave --space out"
        )
    if options.unknown_ops == "refuse" and workload.problem.unknown:
        raise UnknownOpError(
            f"{'; '.join(workload.problem.unknown)}; give a rule for each, or plan without --strict"
        )


def candidate_meshes(
    topology: Topology,
    mesh: Mesh | None,
    user_mesh: UserMesh | None = None,
    deadline: Deadline | None = None,
) -> tuple[Mesh, ...]:
    """All sensible shapes, or a named mesh in every order of its axes that makes a difference.

    Shardings in the step's code, `user_mesh`, say the names, and the sizes unless `mesh` does.
    Raises `InputError` for names that `mesh` does not have, and sizes that are not those of the
    topology.
    """
    if user_mesh is not None and user_mesh.manual:
        return (_manual_mesh(topology, mesh, user_mesh),)
    if mesh is not None:
        if user_mesh is not None:
            user_mesh.check_has_names(mesh)
        # A name does not say where its axis lies, so every order on the links is a mesh of its own.
        return axis_orders(topology, mesh)
    if user_mesh is None:
        return tuple(Mesh(_AXIS_NAMES[len(s)], s) for s in mesh_shapes(topology, max_axes=3))
    if user_mesh.sizes is None:
        return named_shapes(topology, user_mesh.names, deadline)
    own = Mesh(user_mesh.names, user_mesh.sizes)
    if math.prod(own.sizes) != topology.device_count:
        raise InputError(
            f"the step's shardings (first: {user_mesh.where}) are on a mesh {dict(own.axes)} of "
            f"{math.prod(own.sizes)} devices, {topology.name} has {topology.device_count}; make "
            "the step for "
            f"{topology.device_count} devices, or keep only its names with --mesh "
            f"{','.join(f'{name}=N' for name in own.names)}"
        )
    return axis_orders(topology, own)


def _manual_mesh(topology: Topology, mesh: Mesh | None, user_mesh: UserMesh) -> Mesh:
    """The one mesh of a step with a `shard_map`: its body has the shapes of a device's parts on
    that mesh.
    """
    own = Mesh(user_mesh.names, user_mesh.sizes or (1,) * len(user_mesh.names))
    text = f"{user_mesh.manual} is on a mesh {dict(own.axes)} of {math.prod(own.sizes)} devices"
    if math.prod(own.sizes) != topology.device_count:
        raise InputError(
            f"{text}, {topology.name} has {topology.device_count}: the body of a shard_map is "
            "traced for one mesh; give it "
            f"one of {topology.device_count} devices, such as jax.sharding.AbstractMesh(sizes, "
            "names), which needs no "
            "devices; or leave its mesh out, and give --mesh"
        )
    if mesh is not None and dict(mesh.axes) != dict(own.axes):
        raise InputError(f"{text}, the mesh asked for is {dict(mesh.axes)}; leave --mesh out")
    if not lies_on(topology, own.sizes):
        raise InputError(
            f"{text}, which does not lie on {topology.name} in this order of its axes; "
            "give the shard_map a mesh with another order of axes"
        )
    return own


def _search(
    context: SearchContext, options: Options, share_where_memory_decides: float
) -> tuple[str, ...]:
    """Run the strategy, or only the preset; a warning if time was up or the user interrupted it."""
    try:
        price_presets(context, options.preset)
        if options.preset is not None:
            if options.preset in context.best_per_preset:
                context.consider(context.best_per_preset[options.preset].point, options.preset)
            # A pin may ask for other decisions than the preset's, so its points are moved to the
            # nearest ones that keep the pins.
            for _, point in preset_points(context, [options.preset]):
                context.evaluate(context.pinned.nearest(point), options.preset)
            return ()
        # Before any strategy runs, so that however early it ends the result is no worse than the
        # best preset.
        for preset in context.best_per_preset.values():
            context.consider(preset.point, preset.origin)
        if context.refused_seconds < context.fitting_seconds:
            context.deadline = context.deadline.share(share_where_memory_decides)
            context.is_brief |= share_where_memory_decides < 1
        get_strategy(options.strategy)(context)
    except OutOfBudget:
        reason = _why_over(context, options)
    else:
        return ()
    if context.best is None and options.preset is None:
        for preset in context.best_per_preset.values():
            context.consider(preset.point, preset.origin)
    if context.best is None:
        raise InputError("stopped before any plan was priced; give a larger budget")
    return (f"{reason}; this is the best plan it had",)


def _why_over(context: SearchContext, options: Options) -> str:
    reason = context.deadline.why_over
    asked = context.deadline.interrupts.is_asked
    return reason if asked else f"{reason} of {options.budget_seconds:g} s"


def _nothing_fits(outcome: Outcome, options: Options) -> str:
    """What the smallest plan needs, what is allowed, why smaller ones may not have been found, and
    what to do.
    """
    peak_bytes = round(outcome.best.estimate.peak_bytes)
    limit_bytes = round(outcome.context.objective.memory_limit_bytes)
    needed, allowed = bytes_text(peak_bytes), bytes_text(limit_bytes)
    # Both round to the same text, which would read as if it did fit.
    if needed == allowed:
        needed, allowed = f"{peak_bytes:,} B", f"{limit_bytes:,} B"
    return listed(
        f"no plan fits: the smallest that was found needs {needed} on each device, {allowed} are "
        "allowed",
        (
            *outcome.warnings,
            *advice(outcome.context, outcome.workload, outcome.best.point, options),
            all_the_same_text(peak_bytes),
        ),
    )


def _nothing_found(context: SearchContext, options: Options) -> str:
    what = f"preset {options.preset} does not suit" if options.preset else "no plan was found for"
    topology, known = context.evaluator.topology, context.best_per_preset
    if options.preset:
        reasons = undivided_batch(context.space.problem, topology.device_count)
        if not known:
            sizes = {size for mesh in context.meshes for size in mesh.sizes if size > 1}
            reasons = dict.fromkeys([*reasons, *size_reasons(context, sorted(sizes))])
        why = "; ".join(["", *reasons, f"presets that do: {', '.join(known) or 'none'}"])
    else:
        why = "; choose another mesh"
    return f"{what} this workload on {topology.name}{why}"
