"""Shardings in a user's own step: `with_sharding_constraint`, and those of jitted functions.

    y = constrain(x, s)           an equation of the step (`is_constraint`), wherever it stands
    y = jit(f, in_shardings=s, out_shardings=t)(x)
                                  the same as y = constrain(f(constrain(x, s)), t) inside a step; of
                                  the step itself they are its inputs' and outputs' own shardings

A sharding means axis names per dimension (`imposed_spec`): its mesh, and the devices, are the
plan's in the end. What becomes of a constraint when a step is emitted again:

    marked      a custom call whose name says the spec, for the analysis (`automap.program.imposed`)
    left out    nothing, for the step on one device
    on a mesh   the constraint, with the same names on the plan's mesh
"""

from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    SingleDeviceSharding,
)

from automap.errors import InputError, PlanError
from automap.jax_compat import is_unspecified, open_jaxpr, weak_shape
from automap.step.specs import ImposedSpec, spec_text
from hlo_tools.opcodes import CONSTRAINT_TARGET


CONSTRAINT_PRIMITIVE: Final = "sharding_constraint"
_HOST_MEMORY: Final = "pinned_host"


@dataclass(frozen=True, slots=True)
class UserSharding:
    """A sharding in the user's code; `where` says which, for messages."""

    where: str
    sharding: NamedSharding


def is_constraint(eqn: Any) -> bool:
    """Whether an equation is a sharding constraint."""
    return eqn.primitive.name == CONSTRAINT_PRIMITIVE


def named(sharding: Any, where: str) -> NamedSharding | None:
    """A sharding if it says anything; None for a default, and for one of a single device.

    Raises `InputError` for a sharding without axis names, on axes of another type than Auto, or in
    a host's memory.
    """
    if is_unspecified(sharding) or isinstance(sharding, SingleDeviceSharding):
        return None
    if not isinstance(sharding, NamedSharding):
        raise InputError(
            f"{where}: got a {type(sharding).__name__}; allowed: a NamedSharding or a "
            "PartitionSpec, whose axes have names that a plan's mesh can have"
        )
    if sharding.memory_kind == _HOST_MEMORY:
        raise InputError(
            f"{where}: in the memory {_HOST_MEMORY!r}; allowed: a device's, as plans keep nothing "
            "on hosts; leave memory_kind out"
        )
    # Axes that stand in no dimension may be of any type: nothing is asked of them.
    used = {axis for axes in imposed_spec(sharding, 0) for axis in axes or ()}
    kinds = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
    other = [axis for axis in sorted(used) if kinds[axis] is not AxisType.Auto]
    if other:
        raise InputError(
            f"{where}: axis {other[0]!r} is of type {kinds[other[0]].name}; allowed: Auto, as in "
            "jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))"
        )
    return sharding


def imposed_spec(sharding: NamedSharding, rank: int) -> ImposedSpec:
    """Axes of each dimension, padded to `rank` dimensions; None where a dimension is
    unconstrained.
    """
    # A PartitionSpec may leave out trailing dimensions, which are whole.
    dims = [
        None
        if entry is PartitionSpec.UNCONSTRAINED
        else ()
        if entry is None
        else (entry,)
        if isinstance(entry, str)
        else tuple(entry)
        for entry in sharding.spec
    ]
    return (*dims, *[()] * (rank - len(dims)))


def _imposed(eqn: Any) -> ImposedSpec | None:
    """What a constraint imposes, None for nothing."""
    sharding = named(eqn.params["sharding"], "with_sharding_constraint")
    return sharding and imposed_spec(sharding, len(eqn.outvars[0].aval.shape))


def constraint_text(eqn: Any) -> str:
    """What a constraint says, without its mesh."""
    spec = _imposed(eqn)
    return "" if spec is None else spec_text(spec)


def mark_constraint(eqn: Any) -> Any:
    """The custom call in the place of a constraint; a random key's is left out."""
    spec, aval = _imposed(eqn), eqn.outvars[0].aval
    if spec is None or jax.numpy.issubdtype(aval.dtype, jax.dtypes.extended):
        return hold_constrained(eqn)
    target = CONSTRAINT_TARGET + spec_text(spec)
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    return _like(eqn, jax.make_jaxpr(call)(weak_shape(aval)))


def leave_out_constraint(eqn: Any) -> Any:
    """A copy in the place of a constraint, which is lowered to nothing: an equation has to stay, as
    places count equations.
    """
    return _like(eqn, jax.make_jaxpr(jnp.copy)(weak_shape(eqn.outvars[0].aval)))


def hold_constrained(eqn: Any) -> Any:
    """A barrier in the place of a constraint, over which nothing is fused either."""
    aval = weak_shape(eqn.outvars[0].aval)
    return _like(eqn, jax.make_jaxpr(jax.lax.optimization_barrier)(aval))


def constrain_on_mesh(eqn: Any, mesh: Mesh | AbstractMesh) -> Any:
    """A constraint with its names on another mesh. Raises `PlanError` if the mesh lacks one."""
    spec = _imposed(eqn)
    if spec is None:
        return hold_constrained(eqn)
    # A dimension that the user left free stays free: the plan decides it.
    free = PartitionSpec.UNCONSTRAINED
    try:
        sharding = NamedSharding(mesh, PartitionSpec(*(free if a is None else a for a in spec)))
    except ValueError as error:
        raise PlanError(
            f"the step constrains a value to {spec_text(spec)}; the plan's mesh has "
            f"{', '.join(mesh.axis_names)}; plan again"
        ) from error
    return _like(eqn, constrained_jaxpr(eqn.outvars[0].aval, sharding))


def constrained_jaxpr(aval: Any, sharding: NamedSharding) -> Any:
    """The jaxpr of a constraint on a value like `aval`."""
    return jax.make_jaxpr(lambda x: jax.lax.with_sharding_constraint(x, sharding))(weak_shape(aval))


def _like(eqn: Any, jaxpr: Any) -> Any:
    # One equation for one: sites count equations, and may not move.
    (made,) = open_jaxpr(jaxpr)[0].eqns
    return made.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)
