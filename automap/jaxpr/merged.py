"""Several equations in the place of others: those of a stage merged to one, or at once as calls.

Products and convolutions of one operand become one whose right sides are concatenated along their
features, and whose result is cut apart again:

    dots           x W1, x W2         = split(x [W1 W2])
    convolutions   a window of size k with padding p becomes one of max p + max (k - p) taps with
                   padding max p, by max p - p zeros in front and zeros for the rest behind; what
                   the result lacks or has too much behind is padding (or cut off, if negative)

Each element of a result is the same sum of the same products, in the order that the library takes
for the larger one: numbers are equal up to that rounding          -> in: `merged_equations`

Groups at once are a call each, with a barrier behind all          -> in: `concurrent_equations`
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
import math
from typing import Any, Literal

import jax
from jax import lax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp

from automap.errors import PlanError
from automap.jax_compat import new_jaxpr, open_jaxpr, weak_shape
from automap.jaxpr.flatten import Equation


_CONVOLUTION = "conv_general_dilated"
_DOT = "dot_general"

_Packing = Literal["beside", "flat"]


def merged_equations(eqns: Sequence[Any]) -> Iterator[Any]:
    """The equations in the place of several products, or convolutions, of one operand.

    Raises `PlanError` for others.
    """
    names = {eqn.primitive.name for eqn in eqns}
    merge = MERGES.get(next(iter(names))) if len(names) == 1 else None
    operand = eqns[0].invars[0]
    # Literals are compared by what they are: variables alone are the same one.
    if merge is None or any(eqn.invars[0] is not operand for eqn in eqns):
        raise PlanError(
            f"merged equations {', '.join(sorted(names))}: allowed: several {_DOT}, or several "
            f"{_CONVOLUTION}, of one operand; plan again"
        )
    merge_eqns = merge(eqns)
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in _operands(eqns)]
    try:
        jaxpr, _ = open_jaxpr(jax.make_jaxpr(merge_eqns)(*avals))
    except (TypeError, ValueError) as error:
        raise PlanError(f"equations that cannot be merged: {error}; plan again") from error
    made_vars = [eqn.outvars[0] for eqn in eqns]
    if [v.aval.shape for v in jaxpr.outvars] != [v.aval.shape for v in made_vars]:
        raise PlanError("merged equations of other results than their own; plan again")
    yield from _spliced(jaxpr, _operands(eqns), made_vars, eqns[0])


def concurrent_equations(
    bodies: Sequence[Sequence[Any]],
    results: Sequence[Sequence[Any]],
    call: Callable[[Callable[..., Any], int], Callable[..., Any]],
) -> Iterator[Any]:
    """The equations in the place of groups that run at once: a call for each, and a barrier behind
    all; `results` are the variables of each group that are read outside of it, and `call` makes a
    function that has a list of results one on a stream.
    """
    reads = [list(dict.fromkeys(free_variables(body))) for body in bodies]
    operands = list(dict.fromkeys(var for each in reads for var in each))
    place = {var: index for index, var in enumerate(operands)}
    groups = [
        (jaxpr_as_fun(new_jaxpr("group", invars, outvars, body)), [place[var] for var in invars])
        for invars, outvars, body in zip(reads, results, bodies, strict=True)
    ]

    shapes = [[weak_shape(var.aval) for var in each] for each in results]

    def at_once(*values: Any) -> Any:
        made = [
            call(_one_result(run, each), stream)(*(values[index] for index in places))
            for stream, ((run, places), each) in enumerate(
                zip(groups, shapes, strict=True), start=1
            )
        ]
        ends = iter(lax.optimization_barrier([value for each in made for value in each]))
        return [
            value
            for own, each in zip(made, shapes, strict=True)
            for value in _cut_apart([next(ends) for _ in own], each)
        ]

    jaxpr, _ = open_jaxpr(jax.make_jaxpr(at_once)(*(weak_shape(var.aval) for var in operands)))
    outvars = [var for each in results for var in each]
    yield from _spliced(jaxpr, operands, outvars, bodies[0][0])


def _packing(shapes: Sequence[Any]) -> _Packing | None:
    """How several results are one array: beside each other along their last dimension, which is
    where they stand in memory anyway if that is the major one, else as flat lists; None for others.
    """
    if len(shapes) < 2 or len({shape.dtype for shape in shapes}) > 1:
        return None
    leading = {shape.shape[:-1] for shape in shapes}
    is_beside = len(leading) == 1 and all(shape.shape for shape in shapes)
    return "beside" if is_beside else "flat"


def _one_result(run: Callable[..., Any], shapes: Sequence[Any]) -> Callable[..., Any]:
    """A group's function with all results in one array. XLA waits for a call with several as soon
    as it has started it: what takes them apart stands right behind, whatever else there is to start
    (seen with jax 0.10.2).
    """
    packing = _packing(shapes)
    if packing is None:
        return run
    if packing == "beside":
        return lambda *values: [jnp.concatenate(run(*values), axis=-1)]
    return lambda *values: [jnp.concatenate([jnp.ravel(value) for value in run(*values)])]


def _cut_apart(values: Sequence[Any], shapes: Sequence[Any]) -> Sequence[Any]:
    """The results of a call as those of its group."""
    packing = _packing(shapes)
    if packing is None:
        return values
    if packing == "beside":
        return _parts(values[0], [shape.shape[-1] for shape in shapes], -1)
    parts = _parts(values[0], [math.prod(shape.shape) for shape in shapes], 0)
    return [part.reshape(shape.shape) for part, shape in zip(parts, shapes, strict=True)]


def _parts(whole: jax.Array, sizes: Sequence[int], axis: int) -> list[jax.Array]:
    """The parts of an array along a dimension, each cut out by itself: where one is read, nothing
    is made of the others.
    """
    ends = list(accumulate(sizes))
    return [
        lax.slice_in_dim(whole, end - size, end, axis=axis)
        for size, end in zip(sizes, ends, strict=True)
    ]


def has_inner(equation: Equation) -> bool:
    """Whether an equation has a jaxpr of its own: a loop, a branch, a custom rule."""
    return any(
        hasattr(value, "eqns") or hasattr(value, "jaxpr")
        for parameter in equation.eqn.params.values()
        for value in (parameter if isinstance(parameter, (tuple, list)) else (parameter,))
    )


def free_variables(body: Sequence[Any]) -> Iterator[Any]:
    """What equations read and do not make."""
    made: set[Any] = set()
    for eqn in body:
        yield from (a for a in eqn.invars if not isinstance(a, core.Literal) and a not in made)
        made.update(eqn.outvars)


def _spliced(
    jaxpr: Any, operands: Sequence[Any], results: Sequence[Any], like: Any
) -> Iterator[Any]:
    """A jaxpr's equations with the variables of others for its own operands and results; they are
    named as one of those is.
    """
    given = dict(zip(jaxpr.invars, operands, strict=True))
    made = dict(zip(jaxpr.outvars, results, strict=True))
    for inner in jaxpr.eqns:
        yield inner.replace(
            invars=[a if isinstance(a, core.Literal) else given.get(a, a) for a in inner.invars],
            outvars=[made.get(v, v) for v in inner.outvars],
            source_info=like.source_info,
        )


def _operands(eqns: Sequence[Any]) -> list[Any]:
    return [eqns[0].invars[0], *(eqn.invars[1] for eqn in eqns)]


def _merge_dots(eqns: Sequence[Any]) -> Callable[..., Sequence[jax.Array]]:
    first = eqns[0].params
    (_, contracted), (_, batches) = first["dimension_numbers"]
    rank = eqns[0].invars[1].aval.ndim
    free = [dim for dim in range(rank) if dim not in contracted]
    if batches or len(free) != 1 or any(eqn.params != first for eqn in eqns):
        raise PlanError("merged products of other dimensions or types; plan again")
    sizes = [eqn.invars[1].aval.shape[free[0]] for eqn in eqns]

    def merged(operand: jax.Array, *weights: jax.Array) -> Sequence[jax.Array]:
        beside = jnp.concatenate(weights, axis=free[0])
        result = eqns[0].primitive.bind(operand, beside, **first)
        return _parts(result, sizes, result.ndim - 1)

    return merged


def _merge_convolutions(eqns: Sequence[Any]) -> Callable[..., Sequence[jax.Array]]:
    first = eqns[0].params
    numbers = first["dimension_numbers"]
    own = {"padding"}
    rest = {name: value for name, value in first.items() if name not in own}
    is_plain = all(
        {name: value for name, value in eqn.params.items() if name not in own} == rest
        and eqn.params["feature_group_count"] == eqn.params["batch_group_count"] == 1
        and {*eqn.params["lhs_dilation"], *eqn.params["rhs_dilation"]} == {1}
        for eqn in eqns
    )
    if not is_plain:
        raise PlanError("merged convolutions of other strides, dilations or types; plan again")
    out, _, *taps = numbers.rhs_spec
    pads = [[low for low, _ in eqn.params["padding"]] for eqn in eqns]
    windows = [[eqn.invars[1].aval.shape[dim] for dim in taps] for eqn in eqns]
    dims = range(len(taps))
    front = [max(pad[d] for pad in pads) for d in dims]
    size = [front[d] + max(w[d] - p[d] for w, p in zip(windows, pads, strict=True)) for d in dims]
    image, result = eqns[0].invars[0].aval.shape, eqns[0].outvars[0].aval.shape
    padding = []
    for d, (source, target) in enumerate(zip(numbers.lhs_spec[2:], numbers.out_spec[2:])):
        read = (result[target] - 1) * first["window_strides"][d] + size[d]
        padding.append((front[d], read - front[d] - image[source]))
    sizes = [eqn.invars[1].aval.shape[out] for eqn in eqns]

    def merged(operand: jax.Array, *weights: jax.Array) -> Sequence[jax.Array]:
        padded = []
        for weight, pad, window in zip(weights, pads, windows, strict=True):
            around = [(0, 0)] * weight.ndim
            for d, dim in enumerate(taps):
                before = front[d] - pad[d]
                around[dim] = (before, size[d] - before - window[d])
            padded.append(jnp.pad(weight, around))
        beside = jnp.concatenate(padded, axis=out)
        whole = eqns[0].primitive.bind(operand, beside, **rest, padding=tuple(padding))
        return _parts(whole, sizes, numbers.out_spec[1])

    return merged


MERGES = {_DOT: _merge_dots, _CONVOLUTION: _merge_convolutions}
