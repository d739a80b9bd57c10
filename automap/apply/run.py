"""Running a plan: shardings on inputs and outputs, constraints inside, on real or fake devices.

A planned step is called like the step. Per kind of call (argument trees, shapes, types and static
values) it is traced once, checked against the plan, re-emitted with the plan's constraints and jitted:

    leaves -> device_put to the plan's input shardings (nothing if they are there already)
           -> jit(re-emitted step, out_shardings = the plan's), donating what the step donates
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.apply.pipeline.transfer import send
from automap.apply.processes import check_same_program, check_takes_part, where_held
from automap.apply.reemit import Reemitter
from automap.errors import MeshMismatchError, PlanError
from automap.plan import Plan, Spec, check_matches_leaves
from automap.space.specs import spec_text
from automap.workload.call import TracedCall, jitted, trace_call
from automap.workload.rules import user_rules


def device_mesh(plan: Plan, devices: Sequence[Any] | None = None) -> Mesh:
    """The plan's mesh on `devices` (default: all of JAX's), axes of type Auto.

    Raises `MeshMismatchError` for another number of devices.
    """
    given = list(jax.devices() if devices is None else devices)
    if len(given) != plan.mesh.device_count:
        raise MeshMismatchError(
            f"the plan is for {plan.mesh.device_count} devices ({dict(plan.mesh.axes)}), {len(given)} "
            "are given; pass devices=, or plan again for this topology"
        )
    return mesh_on(given, plan.mesh.axes)


def mesh_on(devices: Sequence[Any], axes: Sequence[tuple[str, int]]) -> Mesh:
    """A mesh of type Auto on as many devices as its axes, (name, size), have in all."""
    given = list(devices)
    if hasattr(given[0], "coords"):
        # The planner numbers a TPU slice row-major over its coordinates, last dimension fastest.
        given.sort(key=lambda d: (*d.coords, getattr(d, "core_on_chip", 0)))
    names, sizes = tuple(name for name, _ in axes), tuple(size for _, size in axes)
    return Mesh(np.array(given).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))


class PlannedStep:
    """A step as a plan says; made by `Plan.jit`."""

    def __init__(
        self,
        plan: Plan,
        step: Callable[..., Any],
        devices: Sequence[Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        """Raises `MeshMismatchError` for other devices, `InputError` for options of a jitted step."""
        self.plan = plan
        self.mesh = device_mesh(plan, devices)
        self._step = jitted(step, options)
        self._programs: list[_Program] = []
        self._agreed: list[_Program] = []
        check_takes_part(list(self.mesh.devices.flat))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step.

        Raises `PlanError` if the arguments are not those of the plan, or its processes do not have the same one,
        `ProcessLostError` if one of them has gone.
        """
        program = self._program(args, kwargs)
        if program not in self._agreed:
            check_same_program(self.plan, list(self.mesh.devices.flat))
            self._agreed.append(program)
        positional, named = program.placed(args, kwargs)
        return program.together(*positional, **named)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """The `jax.stages.Lowered` of the sharded step; arguments may be `jax.ShapeDtypeStruct`s.

        Its `compile()` gives what is called with the step's traced arguments, already in place.
        """
        program = self._program(args, kwargs)
        positional, named = program.abstract(args, kwargs)
        return program.run.lower(*positional, **named)

    def serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call's arguments are of the plan: no other plan is needed for them."""
        return any(program.call.serves(args, kwargs) for program in self._programs)

    @property
    def input_shardings(self) -> tuple[NamedSharding, ...]:
        """Where the plan's inputs are stored."""
        return tuple(_sharding(self.mesh, leaf.spec) for leaf in self.plan.inputs)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Trace the step for arguments that may be shapes, and check that it is the plan's, as the first call does."""
        self._program(args, kwargs)

    def _program(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Program":
        for program in self._programs:
            if program.call.serves(args, kwargs):
                return program
        call = trace_call(self._step, args, kwargs, mesh=self.plan.mesh.axes)
        program = _program(self.plan, call, self.mesh)
        self._programs.append(program)
        return program


@dataclass(frozen=True)
class _Program:
    """The sharded program of one kind of call; `together` is `run` where several processes take part."""

    call: TracedCall
    shardings: tuple[NamedSharding, ...]
    run: Any
    together: Any

    def placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The traced arguments as the plan stores them."""
        leaves, tree = jax.tree.flatten(self.call.traced_part(args, kwargs))
        moved = [
            leaf if _is_placed(leaf, s) else send(leaf, s, donate=i in self.call.donated)
            for i, (leaf, s) in enumerate(zip(leaves, self.shardings, strict=True))
        ]
        return jax.tree.unflatten(tree, moved)

    def abstract(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The traced arguments as shapes with shardings."""
        leaves, tree = jax.tree.flatten(self.call.traced_part(args, kwargs))
        arrays = [
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=s, weak_type=aval.weak_type)
            for aval, s in zip(self.call.jaxpr.in_avals, self.shardings, strict=True)
        ]
        return jax.tree.unflatten(tree, arrays)


def _is_placed(leaf: Any, sharding: NamedSharding) -> bool:
    if not isinstance(leaf, jax.Array):
        return False
    return leaf.sharding == sharding or leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def _program(plan: Plan, call: TracedCall, mesh: Mesh) -> _Program:
    reemitter = Reemitter(call.jaxpr, user_rules(plan.workload.rules))
    check_is_planned(plan, call, reemitter)
    constraints = {c.at: PartitionSpec(*c.spec) for c in plan.constraints}
    flat = reemitter.constrained(constraints, mesh)
    out_tree = jax.tree.structure(call.result)

    def planned_step(*args: Any, **kwargs: Any) -> Any:
        return jax.tree.unflatten(out_tree, flat(*jax.tree.leaves((args, kwargs))))

    outputs = [_sharding(mesh, leaf.spec) for leaf in plan.outputs]
    run = jax.jit(
        planned_step,
        out_shardings=jax.tree.unflatten(out_tree, outputs),
        donate_argnums=tuple(
            i for i, position in enumerate(call.positions) if position in call.donated_positions
        ),
        donate_argnames=tuple(call.donated_names),
        keep_unused=True,
    )
    inputs = tuple(_sharding(mesh, leaf.spec) for leaf in plan.inputs)
    return _Program(call, inputs, run, where_held(run, mesh.devices.flat))


def check_is_planned(plan: Plan, call: TracedCall, reemitter: Reemitter) -> None:
    """Refuse a call whose inputs, outputs or equations are not the plan's. Raises `PlanError`."""
    check_matches_leaves(plan, "inputs", _described(call.paths, call.jaxpr.in_avals))
    check_matches_leaves(
        plan, "outputs", _described(call.result_paths, jax.tree.leaves(call.result))
    )
    if plan.workload.jaxpr_sha256 is None:
        raise PlanError(
            f"the plan was made from the program {plan.workload.target}, which has no Python step; "
            "plan the step itself to run it"
        )
    if plan.workload.jaxpr_sha256 != reemitter.sha256():
        raise PlanError(
            f"the step computes something else than the planned {plan.workload.target}, though its "
            "inputs are the same: its code, a constant or the version of JAX has changed; plan again"
        )
    for option, leaves, given in (
        ("in_shardings", plan.inputs, call.ends.inputs),
        ("out_shardings", plan.outputs, call.ends.outputs),
    ):
        for index, spec in given.items():
            if any(a is not None and a != (b or ()) for a, b in zip(spec, leaves[index].spec)):
                raise PlanError(
                    f"{option} of the step say {spec_text(spec)} for {leaves[index].path}, the plan "
                    f"{spec_text(tuple(axes or () for axes in leaves[index].spec))}; plan again, or jit the step as "
                    "it was planned"
                )


def _described(
    paths: Sequence[str], arrays: Sequence[Any]
) -> list[tuple[str, tuple[int, ...], str]]:
    return [
        (path, tuple(array.shape), str(array.dtype))
        for path, array in zip(paths, arrays, strict=True)
    ]


def _sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))
