"""A step whose equations stand in the order of stages, the merged ones as one.

Products and convolutions of one operand become one whose right sides are concatenated along their
features, and whose result is cut apart again:

    dots           x W1, x W2         = split(x [W1 W2])
    convolutions   a window of size k with padding p becomes one of max p + max (k - p) taps with
                   padding max p, by max p - p zeros in front and zeros for the rest behind; what
                   the result lacks or has too much behind is padding (or cut off, if negative)

Each element of a result is the same sum of the same products, in the order that the library takes
for the larger one: numbers are equal up to that rounding          -> in: `merged_equations`

Equations are moved only behind what they read, so the values that others compute are the same bits
                                                                   -> in: `staged`
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp

from automap.errors import PlanError
from automap.jax_compat import open_jaxpr, rebuild_jaxpr
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.step.user_constraints import drop_constraint, is_constraint


_CONVOLUTION = "conv_general_dilated"
_DOT = "dot_general"


def staged(
    flat: FlatJaxpr, stages: Sequence[tuple[Sequence[str], bool]]
) -> Callable[..., list[Any]]:
    """The step on flat inputs to flat outputs; `stages` are the sites of each, and whether they are
    merged.

    A site that is none of the step's own equations (of a loop's body, or an instruction's name) is
    passed over unless it is merged. Raises `PlanError` for equations that cannot be merged, and for
    a step with effects, whose order is not to be changed.
    """
    effects = open_jaxpr(flat.original)[0].effects
    if effects:
        raise PlanError(
            f"the step has effects ({', '.join(map(str, effects))}), whose order stages would "
            "change; plan it without --space streams"
        )
    order = _Order(flat)
    for sites, is_merged in stages:
        if is_merged:
            order.emit_merged(sites)
        else:
            for site in sites:
                order.emit_site(site)
    for equation in flat.equations:
        order.emit(equation)
    jaxpr = rebuild_jaxpr(flat.original, flat.constvars, flat.consts, flat.outvars, order.eqns)
    run = jaxpr_as_fun(jaxpr)

    def step(*inputs: Any) -> list[Any]:
        return list(run(*inputs))

    return step


class _Order:
    """Equations that are emitted one after another, each behind those that it reads."""

    def __init__(self, flat: FlatJaxpr) -> None:
        self.eqns: list[Any] = []
        self._by_site = {equation.path: equation for equation in flat.equations}
        self._maker = {var: equation for equation in flat.equations for var in equation.eqn.outvars}
        self._done: set[str] = set()

    def emit_site(self, site: str) -> None:
        """The equation of a site, if the step has it."""
        if site in self._by_site:
            self.emit(self._by_site[site])

    def emit(self, equation: Equation) -> None:
        """An equation behind all that it reads; a walk without recursion, as steps are long."""
        todo = [equation]
        while todo:
            latest = todo[-1]
            missing = self._missing(latest)
            if latest.path in self._done:
                todo.pop()
            elif missing:
                todo += missing
            else:
                self._done.add(latest.path)
                todo.pop()
                is_dropped = is_constraint(latest.eqn)
                self.eqns.append(drop_constraint(latest.eqn) if is_dropped else latest.eqn)

    def emit_merged(self, sites: Sequence[str]) -> None:
        """One equation for several. Raises `PlanError` if they cannot be one."""
        absent = [site for site in sites if site not in self._by_site]
        if absent:
            raise PlanError(f"{absent[0]}: merged, but no equation of the step; plan again")
        members = [self._by_site[site] for site in sites]
        for member in members:
            if member.path in self._done:
                raise PlanError(f"{member.path}: merged, but read by an earlier stage; plan again")
            for before in self._missing(member):
                self.emit(before)
        if any(member.path in self._done for member in members):
            raise PlanError(f"equations {', '.join(sites)}: one reads another; plan again")
        self.eqns += merged_equations([member.eqn for member in members])
        self._done.update(sites)

    def _missing(self, equation: Equation) -> list[Equation]:
        read = [a for a in equation.eqn.invars if not isinstance(a, core.Literal)]
        makers = [self._maker[var] for var in read if var in self._maker]
        return [maker for maker in makers if maker.path not in self._done]


def merged_equations(eqns: Sequence[Any]) -> Iterator[Any]:
    """The equations in the place of several products, or convolutions, of one operand.

    Raises `PlanError` for others.
    """
    names = {eqn.primitive.name for eqn in eqns}
    merge = _MERGES.get(next(iter(names))) if len(names) == 1 else None
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
    given = dict(zip(jaxpr.invars, _operands(eqns), strict=True))
    made = dict(zip(jaxpr.outvars, made_vars, strict=True))
    for inner in jaxpr.eqns:
        yield inner.replace(
            invars=[a if isinstance(a, core.Literal) else given.get(a, a) for a in inner.invars],
            outvars=[made.get(v, v) for v in inner.outvars],
            source_info=eqns[0].source_info,
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
        return lax.split(result, sizes, axis=result.ndim - 1)

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
        return lax.split(whole, sizes, axis=numbers.out_spec[1])

    return merged


_MERGES = {_DOT: _merge_dots, _CONVOLUTION: _merge_convolutions}
