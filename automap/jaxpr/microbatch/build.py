"""Making equations: those of a traced function, over variables of a program that is being built."""

from collections.abc import Callable, Collection, Mapping, Sequence
import math
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core

from automap.jax_compat import weak_shape
from automap.jaxpr.flatten import flatten


def emit(
    function: Callable[..., Any], atoms: Sequence[Any], into: list[Any], origin: Any
) -> list[Any]:
    """Append the equations of `function(*atoms)`, with the source of `origin`; the atoms of its
    results.
    """
    # Traced with the types of the atoms, weak ones too, so that no conversion comes in between.
    flat = flatten(jax.make_jaxpr(function)(*(weak_shape(atom.aval) for atom in atoms)), {})
    atoms_by_variable: dict[Any, Any] = dict(zip(flat.invars, atoms))
    literals = {v: core.Literal(c, v.aval) for v, c in zip(flat.constvars, flat.consts)}
    atoms_by_variable.update(literals)

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, core.Literal) else atoms_by_variable[atom]

    for equation in flat.equations:
        eqn = equation.eqn
        # A function that is traced again may have the same variables.
        outputs = [core.Var(var.aval) for var in eqn.outvars]
        inputs = [read(atom) for atom in eqn.invars]
        into.append(eqn.replace(invars=inputs, outvars=outputs, source_info=origin.source_info))
        atoms_by_variable.update(zip(eqn.outvars, outputs))
    return [read(atom) for atom in flat.outvars]


def with_atoms(eqn: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """An equation over other atoms."""
    return eqn.replace(invars=list(inputs), outvars=list(outputs))


def variables(atoms: Sequence[Any]) -> list[Any]:
    """The atoms that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def new_variable(var: Any) -> Any:
    """A variable of the same type."""
    return core.Var(var.aval)


def take_part(array: jax.Array, index: jax.Array, *, dim: int, outer: int, parts: int) -> jax.Array:
    """The part of an array at a microbatch: of [.., outer * parts * inner, ..] the outer *
    inner.
    """
    shape = array.shape
    inner = shape[dim] // (outer * parts)
    # The samples are in one piece: a slice of it needs no reshape, which could move data.
    if outer == 1:
        return jax.lax.dynamic_slice_in_dim(array, index * inner, inner, dim)
    split = array.reshape(*shape[:dim], outer, parts, inner, *shape[dim + 1 :])
    chosen = jax.lax.dynamic_index_in_dim(split, index, dim + 1, keepdims=False)
    return chosen.reshape(*shape[:dim], outer * inner, *shape[dim + 1 :])


def split_parts(array: jax.Array, *, dim: int, outer: int, parts: int) -> jax.Array:
    """All parts of an array, the microbatch as a new first dimension."""
    shape = array.shape
    inner = shape[dim] // (outer * parts)
    split = array.reshape(*shape[:dim], outer, parts, inner, *shape[dim + 1 :])
    moved = jnp.moveaxis(split, dim + 1, 0)
    return moved.reshape(parts, *shape[:dim], outer * inner, *shape[dim + 1 :])


def join_parts(stacked: jax.Array, *, dim: int, outer: int) -> jax.Array:
    """What `split_parts` was made of."""
    parts, *shape = stacked.shape
    inner = shape[dim] // outer
    split = stacked.reshape(parts, *shape[:dim], outer, inner, *shape[dim + 1 :])
    moved = jnp.moveaxis(split, 0, dim + 1)
    return moved.reshape(*shape[:dim], outer * parts * inner, *shape[dim + 1 :])


def local_indices(indices: jax.Array, *, dim: int, columns: Collection[int]) -> jax.Array:
    """Indices [.., columns] into the whole batch as indices into a microbatch, whose samples are
    along `dim`: the columns that hold each sample's own position count up there.
    """
    counted = jax.lax.broadcasted_iota(indices.dtype, (*indices.shape[:-1], 1), dim)
    parts = [
        counted if column in columns else indices[..., column : column + 1]
        for column in range(indices.shape[-1])
    ]
    return jnp.concatenate(parts, axis=-1)


def needed_equations(
    wanted: Sequence[Any], defined: Mapping[Any, int], eqns: Sequence[Any]
) -> tuple[list[int], list[Any]]:
    """Numbers of the equations needed for `wanted`, in order, and the variables they need
    besides.
    """
    needed, free, todo = set[int](), dict[Any, None](), list(wanted)
    while todo:
        atom = todo.pop()
        if isinstance(atom, core.Literal):
            continue
        number = defined.get(atom)
        # Not made here: an input, or a value of the part of the program before.
        if number is None:
            free[atom] = None
        elif number not in needed:
            needed.add(number)
            todo.extend(eqns[number].invars)
    return sorted(needed), list(free)


def element_count(aval: Any) -> int:
    """How many an array has."""
    return math.prod(aval.shape)
