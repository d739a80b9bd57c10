"""Equations in the place of those that XLA's partitioner runs badly, or not at all.

top_k           The partitioner gathers the whole operand of a top_k that is split by rows (XLA:CPU,
                jaxlib 0.10 and 0.12; the TPU's pipeline makes a sort of it first), though no row
                needs another. Each device orders its own rows.            -> in: `per_device`

fft             The same of a Fourier transform whose batch is split: the partitioner gathers all of
                it (CPU and GPU, jaxlib 0.10). Each device transforms its own part.
                                                                           -> in: `per_device`

dynamic slice   When a dynamic slice is split, the partitioner slices its result once more at a
                start of each device's own, and XLA merges the two by adding the starts. The first
                start is clamped to the operand by the op's semantics, which a sum of starts forgets
                (jaxlib 0.10; 0.12 merges correctly). A start that is clamped before has nothing to
                forget.                                               -> in: `with_clamped_starts`

reduction       XLA knows all-reduces of sums, products, minima and maxima, and of `or` and `and` of
                booleans as such; a reduction of another kind (or, and, xor of integers, xor of
                booleans, a user's own function) over a split dimension ends in "Unsupported
                reduction computation" (jaxlib 0.10 and 0.12). In its place stand two, with a gather
                between them:                       -> in: `reduction_in_two_steps`

                    y = reduce(x[k, n / k], over n / k);  y' = y whole on k;  reduce(y', over k)

                k is what n and the number of devices have in common, so that whatever axes split n
                split k as well, and each device reduces its own part. The result has the same bits:
                such functions have to be associative as it is.

Convolutions have a file of their own (`automap.jaxpr.convolutions`).
"""

from collections.abc import Callable, Iterator, Mapping
from math import gcd
from typing import Any

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
import numpy as np

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr, weak_shape
from automap.jaxpr.convolutions import Axes, free_axes


def runs_per_device(eqn: Any) -> bool:
    """Whether an equation is one of an operand whose rows need no other: a top_k, or an fft."""
    return eqn.primitive.name in _WHOLE_DIMENSIONS


def _ordered(eqn: Any, rank: int) -> range:
    axis = eqn.params.get("axis", -1) % rank
    return range(axis, axis + 1)


def _transformed(eqn: Any, rank: int) -> range:
    return range(rank - len(eqn.params["fft_lengths"]), rank)


# The dimensions of which a device needs all, for an operand of a rank.
_WHOLE_DIMENSIONS: Mapping[str, Callable[[Any, int], range]] = {
    "top_k": _ordered,
    "fft": _transformed,
}


def per_device(eqn: Any, mesh: Mesh | AbstractMesh, axes: tuple[Axes, ...]) -> Any:
    """The `shard_map` equation in the place of one that `runs_per_device`; `axes` split each
    dimension of operand and results.

    Raises `PlanError` if they split one of which a device needs all.
    """
    name = eqn.primitive.name
    for dim in _WHOLE_DIMENSIONS[name](eqn, len(axes)):
        if axes[dim]:
            raise PlanError(
                f"{name} along dimension {dim} that is split over {axes[dim]}; allowed: whole. "
                "Was the plan edited? Plan again"
            )
    spec = PartitionSpec(*axes)

    def transformed(operand: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(eqn.primitive.bind(operand, **eqn.params))

    on_parts = jax.shard_map(
        transformed,
        mesh=mesh,
        axis_names=free_axes(mesh),
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    aval = eqn.invars[0].aval
    traced = jax.make_jaxpr(on_parts)(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    (mapped,) = open_jaxpr(traced)[0].eqns
    return mapped.replace(invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info)


def with_clamped_starts(eqn: Any) -> Iterator[Any]:
    """An equation, after the clamps of its starts if it is a dynamic slice."""
    if eqn.primitive.name != "dynamic_slice":
        yield eqn
        return
    operand, *starts = eqn.invars
    sizes = zip(operand.aval.shape, eqn.params["slice_sizes"], strict=True)
    for dim, (whole, size) in enumerate(sizes):
        start = starts[dim]
        if not isinstance(start, core.Literal):
            starts[dim] = core.Var(start.aval)
            clamp = _clamp(start.aval.dtype, whole - size)
            yield clamp.replace(
                invars=[clamp.invars[0], start, clamp.invars[2]],
                outvars=[starts[dim]],
                source_info=eqn.source_info,
            )
    yield eqn.replace(invars=[operand, *starts])


def _clamp(dtype: np.dtype, last: int) -> Any:
    """The equation x = clamp(0, start, last); its variables are to be replaced."""
    # A narrow index type may not hold the last start; then no start can exceed it.
    highest = np.array(min(last, np.iinfo(dtype).max), dtype)
    zero = np.zeros((), dtype)
    traced = jax.make_jaxpr(lambda start: jax.lax.clamp(zero, start, highest))(
        jax.ShapeDtypeStruct((), dtype)
    )
    (eqn,) = open_jaxpr(traced)[0].eqns
    return eqn


# Of booleans XLA knows the first two as such.
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


def reduction_in_two_steps(eqn: Any, mesh: Mesh | AbstractMesh) -> Iterator[Any]:
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
            # Split in two where it is reduced: the parts of the devices, and what each of them has.
            if dim in reduced:
                shape += [parts[dim], size // parts[dim]]
                first.append(len(shape) - 1)
                spec.append(None)
            else:
                shape.append(size)
                spec.append(PartitionSpec.UNCONSTRAINED)

        def reduce(value: jax.Array, dims: tuple[int, ...]) -> jax.Array:
            (result,) = jax.tree.leaves(
                eqn.primitive.bind(value, *initial, **eqn.params | {name: dims})
            )
            return result

        partial = reduce(lax.reshape(x, shape), tuple(first))
        whole = lax.with_sharding_constraint(partial, NamedSharding(mesh, PartitionSpec(*spec)))
        return reduce(whole, reduced)

    avals = [weak_shape(atom.aval) for atom in (operand, *rest)]
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(step)(*avals))
    # The traced equations on the variables of the one they stand for.
    given = dict(zip(jaxpr.invars, eqn.invars, strict=True))
    made = dict(zip(jaxpr.outvars, eqn.outvars, strict=True))
    for inner in jaxpr.eqns:
        yield inner.replace(
            invars=[a if isinstance(a, core.Literal) else given.get(a, a) for a in inner.invars],
            outvars=[made.get(v, v) for v in inner.outvars],
            source_info=eqn.source_info,
        )
