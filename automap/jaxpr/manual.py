"""`shard_map` in the user's step: what it asks of its operands and results, and how it is emitted
again.

    (y, ...) = shard_map(body, mesh, in_specs, out_specs)(x, ...)

Each device runs the body on its own part of each x, split as in_specs say, along all axes of the
mesh. So for the plan it is a constraint on each operand and each result, and between them work that
is what it is: the shapes in the body, its collectives and their constants are those of the mesh it
was traced with.

    for the analysis   x' = mark(x, in_spec);  y' = shard_map(body)(x');  y = mark(y', out_spec)
                                                                              -> in: `between_marks`
    on a plan's mesh   the same equation, without devices: those of the plan's mesh, of the same
                       axes in the same order, are then meant -> in: `on_plans_mesh`
"""

from collections.abc import Iterator
from typing import Any

from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from automap.errors import InputError, PlanError
from automap.jax_compat import open_jaxpr
from automap.step.user_constraints import UserSharding, constrained_jaxpr, mark_constraint, named


def is_manual(eqn: Any) -> bool:
    """Whether an equation is a `shard_map`."""
    return eqn.primitive.name == "shard_map"


def manual_shardings(eqn: Any, where: str) -> tuple[UserSharding, ...]:
    """The shardings of its operands and results.

    Raises `InputError` if some axes of its mesh are left to the compiler, or are of another type
    than Auto.
    """
    mesh = eqn.params["mesh"]
    taken = eqn.params["newly_manual_axes"]
    left = [name for name, size in mesh.shape.items() if size > 1 and name not in taken]
    if left:
        raise InputError(
            f"{where} leaves the axis {left[0]!r} of its mesh to the compiler; a plan is made "
            "around a shard_map over all axes of its mesh only: name them all in axis_names (or "
            "leave it out), or plan the step without shard_map"
        )
    given = (*eqn.params["in_specs"], *eqn.params["out_specs"])
    shardings = (named(NamedSharding(mesh, spec), where) for spec in given)
    return tuple(UserSharding(where, sharding) for sharding in shardings if sharding is not None)


def between_marks(eqn: Any) -> Iterator[Any]:
    """The equation after marks of its operands' shardings and before those of its results'."""
    mesh = eqn.params["mesh"]
    operands, results, after = list(eqn.invars), list(eqn.outvars), []
    for number, spec in enumerate(eqn.params["in_specs"]):
        atom = operands[number]
        # A scalar has nothing to split.
        if not isinstance(atom, core.Literal) and atom.aval.shape:
            operands[number] = core.Var(atom.aval)
            yield _mark(eqn, atom, operands[number], NamedSharding(mesh, spec))
    for number, spec in enumerate(eqn.params["out_specs"]):
        var = results[number]
        if not isinstance(var, core.DropVar) and var.aval.shape:
            # The mark gives the result its old variable, so that whoever reads it reads the marked
            # value.
            results[number] = core.Var(var.aval)
            after.append(_mark(eqn, results[number], var, NamedSharding(mesh, spec)))
    yield eqn.replace(invars=operands, outvars=results)
    yield from after


def _mark(eqn: Any, value: Any, marked_value: Any, sharding: NamedSharding) -> Any:
    (made,) = open_jaxpr(constrained_jaxpr(value.aval, sharding))[0].eqns
    return mark_constraint(
        made.replace(invars=[value], outvars=[marked_value], source_info=eqn.source_info)
    )


def on_plans_mesh(eqn: Any, mesh: Mesh | AbstractMesh) -> Any:
    """The equation on a plan's mesh. Raises `PlanError` unless it has the same axes."""
    own = eqn.params["mesh"]
    if tuple(own.shape.items()) != tuple(mesh.shape.items()):
        raise PlanError(
            f"the step has a shard_map on a mesh {dict(own.shape)}, the plan's is "
            f"{dict(mesh.shape)}; plan again"
        )
    # What is in the body is typed with the mesh it was traced with; the devices are those of the
    # values around it.
    return eqn.replace(params={**eqn.params, "mesh": own.abstract_mesh})
