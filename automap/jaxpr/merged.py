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

For a GPU each group of a stage at once is a call with a stream of its own; the calls of a stage are
one scheduling group of XLA's, which starts all of them before it waits for one, and a barrier holds
what comes after behind them. A call has the group's equations, what they alone need, and the
elementwise equations that read nothing else of the stage: bias, norm, activation, which the
compiler fuses into its kernels                -> in: `_Groups`, `concurrent_equations`
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.extend import core
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp

from automap.errors import PlanError
from automap.jax_compat import new_jaxpr, open_jaxpr, rebuild_jaxpr, stream_call, weak_shape
from automap.jaxpr.flatten import Equation, FlatJaxpr
from automap.step.user_constraints import drop_constraint, is_constraint


_CONVOLUTION = "conv_general_dilated"
_DOT = "dot_general"


@dataclass(frozen=True, slots=True)
class StageSites:
    """The sites of a stage's operators, group by group, and whether they are merged."""

    groups: tuple[tuple[str, ...], ...]
    is_merged: bool

    @property
    def all(self) -> list[str]:
        """Of all groups."""
        return [site for group in self.groups for site in group]


def staged(
    flat: FlatJaxpr, stages: Sequence[StageSites], *, on_streams: bool
) -> Callable[..., list[Any]]:
    """The step on flat inputs to flat outputs, in the order of stages; `on_streams` asks for the
    streams of a GPU, which other compilers know nothing of.

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
    order = Order(flat, [site for stage in stages for site in stage.all])
    for number, stage in enumerate(stages):
        if stage.is_merged:
            order.emit_merged(stage.all)
        elif not on_streams or not order.emit_at_once(stage.groups, number):
            for site in stage.all:
                order.emit_site(site)
    for equation in flat.equations:
        order.emit(equation)
    jaxpr = rebuild_jaxpr(flat.original, flat.constvars, flat.consts, flat.outvars, order.eqns)
    run = jaxpr_as_fun(jaxpr)

    def step(*inputs: Any) -> list[Any]:
        return list(run(*inputs))

    return step


class Order:
    """Equations that are emitted one after another, each behind those that it reads; `done` are
    there already.
    """

    def __init__(
        self, flat: FlatJaxpr, operators: Collection[str], done: Collection[str] = ()
    ) -> None:
        self.eqns: list[Any] = []
        self._flat = flat
        self._operators = frozenset(operators)
        self._by_site = {equation.path: equation for equation in flat.equations}
        self._maker = {var: equation for equation in flat.equations for var in equation.eqn.outvars}
        self.done = set(done)

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
            if latest.path in self.done:
                todo.pop()
            elif missing:
                todo += missing
            else:
                self.done.add(latest.path)
                todo.pop()
                self.eqns.append(_free(latest.eqn))

    def emit_merged(self, sites: Sequence[str]) -> None:
        """One equation for several. Raises `PlanError` if they cannot be one."""
        absent = [site for site in sites if site not in self._by_site]
        if absent:
            raise PlanError(f"{absent[0]}: merged, but no equation of the step; plan again")
        members = [self._by_site[site] for site in sites]
        for member in members:
            if member.path in self.done:
                raise PlanError(f"{member.path}: merged, but read by an earlier stage; plan again")
            for before in self._missing(member):
                self.emit(before)
        if any(member.path in self.done for member in members):
            raise PlanError(f"equations {', '.join(sites)}: one reads another; plan again")
        self.eqns += merged_equations([member.eqn for member in members])
        self.done.update(sites)

    def emit_at_once(self, groups: Sequence[Sequence[str]], number: int) -> bool:
        """A call for each of several groups, if they can be; `number` is the stage's own."""
        call = stream_call()
        if len(groups) < 2 or call is None:
            return False
        sites = [[site for site in group if site in self._by_site] for group in groups]
        needed = [self._needed([self._by_site[site] for site in group]) for group in sites]
        counts = Counter(path for each in needed for path in each)
        bodies = [[path for path in each if counts[path] == 1] for each in needed]
        shared = [path for path in counts if counts[path] > 1]
        chosen = {path for body in bodies for path in body}
        if not all(bodies) or any(has_inner(self._by_site[path]) for path in chosen):
            return False
        # What several groups need stands before them, so it must not need one of them.
        if any(set(self._needed([self._by_site[path]])) & chosen for path in shared):
            return False
        for path in shared:
            self.emit(self._by_site[path])
        self._add_epilogues(bodies)
        equations = [[self._by_site[path] for path in body] for body in bodies]
        self.eqns += concurrent_equations(
            [[_free(each.eqn) for each in body] for body in equations],
            self._results(bodies),
            lambda function, stream: call(function, stream, number),
        )
        self.done.update(path for body in bodies for path in body)
        return True

    def _needed(self, equations: Sequence[Equation]) -> list[str]:
        """Equations and all that are missing before them, in an order in which they can run."""
        needed: dict[str, None] = {}
        todo = list(reversed(equations))
        while todo:
            latest = todo[-1]
            missing = [e for e in self._missing(latest) if e.path not in needed]
            if missing and latest.path not in needed:
                todo += missing
            else:
                needed.setdefault(todo.pop().path)
        return [path for path in needed if path not in self.done]

    def _add_epilogues(self, bodies: list[list[str]]) -> None:
        """The elementwise equations that read results of one group, and nothing that is to come."""
        group = {path: index for index, body in enumerate(bodies) for path in body}
        for equation in self._flat.equations:
            if equation.path in group or equation.path in self.done:
                continue
            missing = self._missing(equation)
            inside = [each for each in missing if each.path in group]
            outside = [each for each in missing if each.path not in group]
            owners = {group[each.path] for each in inside}
            if len(owners) != 1 or not self._is_elementwise(equation, inside):
                continue
            before = self._needed(outside)
            if any(path in group or path in self._operators for path in before):
                continue
            for each in outside:
                self.emit(each)
            group[equation.path] = owners.pop()
            bodies[group[equation.path]].append(equation.path)

    def _is_elementwise(self, equation: Equation, operands: Sequence[Equation]) -> bool:
        """Whether an equation that is no operator has results of the size of its operands."""
        shapes = {var.aval.shape for each in operands for var in each.eqn.outvars}
        is_own = equation.path in self._operators or equation.eqn.primitive.name in _MERGES
        return (
            not is_own
            and not has_inner(equation)
            and all(var.aval.shape in shapes for var in equation.eqn.outvars)
        )

    def _results(self, bodies: Sequence[Sequence[str]]) -> list[list[Any]]:
        """The variables of each body that are read outside of it."""
        inside = {path: index for index, body in enumerate(bodies) for path in body}
        read: list[set[Any]] = [set() for _ in bodies]
        for equation in self._flat.equations:
            for var in equation.eqn.invars:
                maker = None if isinstance(var, core.Literal) else self._maker.get(var)
                number = inside.get(maker.path) if maker is not None else None
                if number is not None and inside.get(equation.path) != number:
                    read[number].add(var)
        outputs = {var for var in self._flat.outvars if not isinstance(var, core.Literal)}
        return [
            [
                var
                for path in body
                for var in self._by_site[path].eqn.outvars
                if var in read[number] or var in outputs
            ]
            for number, body in enumerate(bodies)
        ]

    def _missing(self, equation: Equation) -> list[Equation]:
        read = [a for a in equation.eqn.invars if not isinstance(a, core.Literal)]
        makers = [self._maker[var] for var in read if var in self._maker]
        return [maker for maker in makers if maker.path not in self.done]


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
    yield from _spliced(jaxpr, _operands(eqns), made_vars, eqns[0])


def concurrent_equations(
    bodies: Sequence[Sequence[Any]],
    results: Sequence[Sequence[Any]],
    call: Callable[[Callable[..., Any], int], Callable[..., Any]],
) -> Iterator[Any]:
    """The equations in the place of groups that run at once: a call for each, and a barrier behind
    all; `results` are the variables of each group that are read outside of it, and `call` makes a
    function one on a stream.
    """
    reads = [list(dict.fromkeys(free_variables(body))) for body in bodies]
    operands = list(dict.fromkeys(var for each in reads for var in each))
    place = {var: index for index, var in enumerate(operands)}
    groups = [
        (jaxpr_as_fun(new_jaxpr("group", invars, outvars, body)), [place[var] for var in invars])
        for invars, outvars, body in zip(reads, results, bodies, strict=True)
    ]

    def at_once(*values: Any) -> Any:
        made = []
        for stream, (run, places) in enumerate(groups, start=1):
            made += call(run, stream)(*(values[index] for index in places))
        return lax.optimization_barrier(made)

    jaxpr, _ = open_jaxpr(jax.make_jaxpr(at_once)(*(weak_shape(var.aval) for var in operands)))
    outvars = [var for each in results for var in each]
    yield from _spliced(jaxpr, operands, outvars, bodies[0][0])


def has_inner(equation: Equation) -> bool:
    """Whether an equation has a jaxpr of its own: a loop, a branch, a custom rule."""
    return any(
        hasattr(value, "eqns") or hasattr(value, "jaxpr")
        for parameter in equation.eqn.params.values()
        for value in (parameter if isinstance(parameter, (tuple, list)) else (parameter,))
    )


def _free(eqn: Any) -> Any:
    """An equation without a sharding that the user asked for: one device has all of everything."""
    return drop_constraint(eqn) if is_constraint(eqn) else eqn


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
