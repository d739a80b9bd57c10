"""A plan's point again, priced, without a search.

    plan + step -> the step traced, if it is the planned one    -> in: `planned_call`
    plan + step -> workload, lowered for the plan's platform    -> in: `planned_workload`
    plan + program file -> workload                             -> in: `planned_program_file`
    workload + levers -> workload                               -> in: `levered_workload`
    plan + workload -> space, evaluator, split_classes, estimate        -> in: `reprice_plan`

Another topology prices the same point: its classes stay those of the plan, so the step stays
lowered for the plan's platform.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
import math
from typing import Any, Final

from automap.backends import backend_for
from automap.cost.evaluate import Estimate, Evaluator, Priced
from automap.cost.profile import KernelProfile
from automap.cost.tables import build_tables
from automap.errors import MeshMismatchError, PlanError
from automap.jaxpr.hosted import HostedLeaves
from automap.jaxpr.reemit import Reemitter
from automap.jaxpr.rematerialize import levered_call
from automap.plan.levers import LeversRecord
from automap.plan.point import PointRecord
from automap.plan.record import PlanRecord, check_is_one_program, plan_again_text
from automap.program.check import check_is_planned
from automap.program.trace import Workload, lower_call, read_workload
from automap.quantities import seconds_text
from automap.space.pins import parse_pins, with_pins
from automap.space.point import SplitClasses
from automap.space.point_record import restore_point
from automap.space.space import Space
from automap.step.call import TracedCall
from automap.step.rules import user_rules
from automap.step.step import traced_call
from automap.topology import Topology, lies_on
from automap.topology.mesh import Mesh
from hlo_tools.collector import collector_paused


# Relative: rounding is less, and another version of the cost model differs by more.
_SAME: Final = 1e-6


@dataclass(frozen=True)
class RepricedPlan:
    """A plan's point with what prices it; `warnings` say where that differs from when it was
    planned.
    """

    workload: Workload
    evaluator: Evaluator
    split_classes: SplitClasses
    priced: Priced
    estimate: Estimate
    warnings: tuple[str, ...]


def planned_call(
    plan: PlanRecord, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> TracedCall:
    """The planned step, traced. Raises `PlanError` for another step, `InputError` if it fails."""
    call = traced_call(step, args, kwargs, name=plan.workload.target, mesh=plan.mesh.axes)
    rules = user_rules(plan.workload.rules)
    backend = backend_for(plan.topology["platform"])
    call = levered_call(call, plan.levers, rules, backend.host_stacks)
    check_is_planned(plan, call, Reemitter(call.jaxpr, rules))
    return call


def planned_workload(
    plan: PlanRecord, step: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Workload:
    """The planned step, analysed as it was planned. Raises `PlanError` for another step,
    `InputError` if it fails.
    """
    # A point is numbers of classes, which are the same only if the step is lowered and folded as it
    # was.
    record, point = plan.workload, _point(plan)
    call = planned_call(plan, step, args, kwargs)
    platform = Topology.from_dict(plan.topology).platform
    workload = lower_call(
        call,
        platform=platform,
        target=record.target,
        rules=user_rules(record.rules),
        layers=point.layers,
        arguments=dict(record.arguments),
    )
    return _checked(plan, workload)


def planned_program_file(plan: PlanRecord, path: str) -> Workload:
    """The planned program, read from a file again. Raises `PlanError` for another, `InputError` if
    it fails.
    """
    record = plan.workload
    workload = read_workload(path, user_rules(record.rules), _point(plan).layers)
    return _checked(plan, workload)


@collector_paused()
def reprice_plan(
    plan: PlanRecord, workload: Workload, topology: Topology, profile: KernelProfile | None = None
) -> RepricedPlan:
    """The plan's point on `topology`, kernels timed with `profile`.

    Raises `MeshMismatchError` if the mesh does not lie on it, `InputError` for a profile of another
    device, and `PlanError` for a point that is none of this workload.
    """
    mesh = _mesh(plan)
    sizes = mesh.sizes
    # The same number of devices is not enough: the axes have to lie along levels of links.
    if math.prod(sizes) != topology.device_count or not lies_on(topology, sizes):
        raise MeshMismatchError(
            f"{topology.name} has {topology.device_count} devices, on which the plan's mesh "
            f"{list(sizes)} "
            "does not lie; give a topology on which it does, or plan again for this one"
        )
    if profile is not None:
        profile.check_suits(topology)
    space = Space(workload.problem, backend_for(topology.platform).stored_multiple)
    split_classes = space.split_classes(restore_point(_point(plan), space, mesh))
    evaluator = Evaluator(
        build_tables(workload.problem, topology.platform),
        workload.problem.n_classes,
        topology,
        profile,
    )
    estimate = evaluator.evaluate(split_classes)
    return RepricedPlan(
        workload=workload,
        evaluator=evaluator,
        split_classes=split_classes,
        priced=evaluator.price_point(split_classes),
        estimate=estimate,
        warnings=tuple(_changes(plan, topology, estimate)),
    )


def _changes(plan: PlanRecord, topology: Topology, estimate: Estimate) -> list[str]:
    """Why a prediction cannot be compared with what this version finds."""
    planned = Topology.from_dict(plan.topology)
    now, then = estimate.step_seconds, plan.predicted.step_seconds
    # Another machine gives another step, and there is nothing to compare it with.
    if topology != planned:
        lowered = planned.platform != topology.platform
        return [
            f"priced on {topology.name}, planned for {planned.name}"
            + (f": the step is lowered for {planned.platform}" if lowered else "")
        ]
    if math.isclose(now, then, rel_tol=_SAME, abs_tol=0.0):
        return []
    return [
        f"the plan predicts {seconds_text(then)}, this automap {seconds_text(now)} for the same "
        "point: the plan was "
        "made by another version, or with another profile of measured kernels; give its --profile, "
        "or plan again"
    ]


def _point(plan: PlanRecord) -> PointRecord:
    check_is_one_program(plan)
    if plan.streams is not None:
        raise PlanError(
            "search.point: missing: the plan has stages of operators, whose seconds it says itself "
            "and which are no point of the sharding space; plan again with --space streams for "
            "another machine or profile"
        )
    if plan.search.point is None:
        raise PlanError(
            "search.point: missing: the plan was written by an earlier automap, which did not "
            "record what it "
            f"decided; {plan_again_text(plan)}"
        )
    return plan.search.point


def _checked(plan: PlanRecord, workload: Workload) -> Workload:
    # The equations may be the same while another version of JAX lowers them to other HLO.
    if workload.hlo_sha256 != plan.workload.hlo_sha256:
        raise PlanError(
            f"{plan.workload.target} is lowered to another program than the planned one: its code "
            "or the version "
            "of JAX has changed; plan again"
        )
    shapes = [leaf.shape for leaf in workload.inputs]
    pins = parse_pins(plan.search.imposed, workload.problem, shapes, [_mesh(plan)])
    return with_pins(workload, pins)


def _mesh(plan: PlanRecord) -> Mesh:
    return Mesh(*zip(*plan.mesh.axes, strict=True))


def levered_workload(workload: Workload, levers: LeversRecord, platform: str) -> Workload:
    """The workload of a step with levers, lowered and analysed anew.

    Raises `InputError` if it does not lower, `PlanError` for levers of another step.
    """
    call = workload.call
    assert call is not None  # noqa: S101 - levers are chosen of a traced step only
    levered = levered_call(call, levers, workload.rules, backend_for(platform).host_stacks)
    if levered.jaxpr is call.jaxpr:
        hosted = HostedLeaves.of(levered).inputs
        problem = replace(workload.problem, hosted=hosted)
        return replace(workload, call=levered, problem=problem)
    return lower_call(
        levered,
        platform=platform,
        target=workload.target,
        rules=workload.rules,
        layers=workload.problem.layers,
        arguments=workload.arguments,
    )
