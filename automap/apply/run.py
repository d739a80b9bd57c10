"""Running a plan: shardings on inputs and outputs, constraints inside, on real or fake devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.apply.reemit import Reemitter
from automap.errors import MeshMismatchError
from automap.plan import Plan, Spec, check_matches_inputs


def device_mesh(plan: Plan, devices: Sequence[Any] | None = None) -> Mesh:
    """The plan's mesh on `devices` (default: all of JAX's), axes of type Auto.

    Raises `MeshMismatchError` for another number of devices.
    """
    names, sizes = zip(*plan.mesh.axes, strict=True)
    given = list(jax.devices() if devices is None else devices)
    if len(given) != plan.mesh.device_count:
        raise MeshMismatchError(
            f"the plan is for {plan.mesh.device_count} devices ({dict(plan.mesh.axes)}), {len(given)} "
            "are given; pass devices=, or plan again for this topology"
        )
    if hasattr(given[0], "coords"):
        # The planner numbers a TPU slice row-major over its coordinates, last dimension fastest.
        given.sort(key=lambda d: (*d.coords, getattr(d, "core_on_chip", 0)))
    return Mesh(np.array(given).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))


def _sharding(mesh: Mesh, spec: Spec) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*spec))


def jit_with_plan(
    plan: Plan, step: Callable[..., Any], devices: Sequence[Any] | None = None
) -> Callable[..., Any]:
    """`step` as the plan says; call it like the step. A `jax.jit`-ed step keeps its donation.

    Raises `PlanError` on the first call if the arguments are not those the plan was made for.
    """
    mesh = device_mesh(plan, devices)
    compiled: dict[Any, Callable[..., Any]] = {}

    def run(*args: Any) -> Any:
        leaves, tree = jax.tree.flatten(args)
        key = (tree, tuple((x.shape, x.dtype) for x in leaves))
        if key not in compiled:
            compiled[key] = _build(plan, step, mesh, args)
        return compiled[key](*leaves)

    return run


def _build(
    plan: Plan, step: Callable[..., Any], mesh: Mesh, args: tuple[Any, ...]
) -> Callable[..., Any]:
    traced = (step if hasattr(step, "trace") else jax.jit(step)).trace(*args)
    paths, _ = jax.tree_util.tree_flatten_with_path(args)
    check_matches_inputs(
        plan,
        [(jax.tree_util.keystr(p), tuple(leaf.shape), str(leaf.dtype)) for p, leaf in paths],
    )
    constraints = {c.at: PartitionSpec(*c.spec) for c in plan.constraints}
    flat = Reemitter(traced.jaxpr).constrained(constraints, mesh)
    infos = jax.tree.leaves(traced.args_info)
    inputs = [_sharding(mesh, leaf.spec) for leaf in plan.inputs]
    jitted = jax.jit(
        flat,
        in_shardings=tuple(inputs),
        out_shardings=[_sharding(mesh, leaf.spec) for leaf in plan.outputs],
        donate_argnums=tuple(i for i, info in enumerate(infos) if info.donated),
        keep_unused=True,
    )
    out_tree = jax.tree.structure(traced.out_info)

    def run(*leaves: Any) -> Any:
        placed = jax.device_put(leaves, tuple(inputs))
        return jax.tree.unflatten(out_tree, jitted(*placed))

    return run
