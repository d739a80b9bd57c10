"""Reductions that no all-reduce computes: or, and, xor of integers, xor of booleans, and those of a
user's own function.

XLA knows all-reduces of sums, products, minima and maxima, and of `or` and `and` of booleans as
such; a reduction of another kind over a split dimension ends in "Unsupported reduction computation"
(jaxlib 0.10 and 0.12). In its place stand two, with a gather between them:

    x[n] -> reduce               y = reduce(x[k, n / k], over n / k);  y' = y whole on k;  reduce(y', over k)

k is what n and the number of devices have in common, so that whatever axes split n split k as well,
and each device reduces its own part. The result has the same bits: such functions have to be
associative as it is.
"""

from collections.abc import Iterator
from math import gcd
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from automap.jax_compat import open_jaxpr, weak_shape


_BITWISE = frozenset({"reduce_and", "reduce_or", "reduce_xor"})


def lacks_all_reduce(eqn: Any) -> bool:
    """Whether an equation is a reduction that XLA has no all-reduce for."""
    name = eqn.primitive.name
    if name in _BITWISE:
        return eqn.invars[0].aval.dtype != jnp.bool_ or name == "reduce_xor"
    if name in ("reduce_max", "reduce_min"):
        return jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.complexfloating)
    # Of several arrays at once, as argmax: the partitioner gathers them itself.
    return name == "reduce" and len(eqn.outvars) == 1


def in_two_steps(eqn: Any, mesh: Mesh | AbstractMesh) -> Iterator[Any]:
    """The equations in the place of such a reduction; itself where no mesh could split what is
    reduced.
    """
    operand, *rest = eqn.invars
    name = "dimensions" if "dimensions" in eqn.params else "axes"
    reduced = tuple(eqn.params[name])
    parts = [gcd(size, mesh.size) for size in operand.aval.shape]
    if all(parts[dim] == 1 for dim in reduced):
        yield eqn
        return

    def step(x: jax.Array, *initial: jax.Array) -> jax.Array:
        shape, first, spec = list[int](), list[int](), list[Any]()
        for dim, size in enumerate(x.shape):
            if dim in reduced:
                shape += [parts[dim], size // parts[dim]]
                first.append(len(shape) - 1)
                spec.append(None)
            else:
                shape.append(size)
                spec.append(PartitionSpec.UNCONSTRAINED)

        def reduce(value: jax.Array, dims: tuple[int, ...]) -> jax.Array:
            (found,) = jax.tree.leaves(
                eqn.primitive.bind(value, *initial, **eqn.params | {name: dims})
            )
            return found

        partial = reduce(lax.reshape(x, shape), tuple(first))
        whole = lax.with_sharding_constraint(partial, NamedSharding(mesh, PartitionSpec(*spec)))
        return reduce(whole, reduced)

    avals = [weak_shape(atom.aval) for atom in (operand, *rest)]
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(step)(*avals))
    given = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    made = dict(zip(jaxpr.outvars, eqn.outvars, strict=True))
    for inner in jaxpr.eqns:
        yield inner.replace(
            invars=[a if isinstance(a, core.Literal) else given.get(a, a) for a in inner.invars],
            outvars=[made.get(v, v) for v in inner.outvars],
            source_info=eqn.source_info,
        )
