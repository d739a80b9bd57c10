"""Loops, branches and rematerialization: what their bodies do with the samples, and the same with
new bodies.

    scan, while    what the carry is, is the least that the start and every trip's result are
                   (`_settled`)
    cond           the branches' results are joined; the choice must be the same for all samples
    remat          the body takes the place of the old one

Every new body gets the number of the microbatch as its first parameter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import jax
from jax import lax
from jax.extend.core import Var, jaxpr_as_fun

from automap.jax_compat import scan_split, with_values
from automap.jaxpr.microbatch.build import emit
from automap.jaxpr.microbatch.dependence import Batched, Dependence, Known, Refusal, join, portable
from automap.jaxpr.microbatch.traces import EquationPair


if TYPE_CHECKING:
    from automap.jaxpr.microbatch.separation import Separation

_Results = Callable[[Sequence[Dependence]], tuple["Separation", list[Dependence]]]


def _scan(outer: "Separation", pair: EquationPair) -> None:
    full, micro = pair.full.eqn, pair.micro.eqn
    length = full.params["length"]
    # A loop with one turn per sample would have to be cut, and its carry goes from sample to
    # sample.
    if length != micro.params["length"]:
        raise Refusal("it is a loop over the samples")
    n_consts, n_carry = scan_split(full)
    operands = [outer.read(atom) for atom in full.invars]
    consts, start, xs = _parts(operands, n_consts, n_carry)
    elements = [_unstacked(dependence) for dependence in xs]

    def results(carry: Sequence[Dependence]) -> tuple["Separation", list[Dependence]]:
        inner = outer.body(pair.bodies[0], [*consts, *carry, *elements])
        return inner, [inner.read(atom) for atom in inner.pair.full.outvars]

    inner, carry, results_after = _settled(start, results, outer.setting.order)
    outs = [*carry, *results_after[n_carry:]]
    run = jaxpr_as_fun(with_values(inner.close_body(outs, full)))

    def loop(index: jax.Array, *values: Any) -> list[Any]:
        fixed, first, stacks = _parts(values, n_consts, n_carry)

        def trip(carried: Any, slices: Any) -> Any:
            made = list(run(index, *fixed, *carried, *slices))
            return tuple(made[:n_carry]), tuple(made[n_carry:])

        last, made = lax.scan(
            trip,
            tuple(first),
            tuple(stacks),
            length=length,
            reverse=full.params["reverse"],
            unroll=full.params["unroll"],
        )
        return [*last, *made]

    # The operands as the new body takes them: the carry may have become Batched or Partial.
    wanted = [*consts, *carry, *xs]
    _emit(outer, pair, loop, wanted, [*carry, *map(_stacked, results_after[n_carry:])])


def _while(outer: "Separation", pair: EquationPair) -> None:
    full = pair.full.eqn
    n_test, n_body = full.params["cond_nconsts"], full.params["body_nconsts"]
    operands = [outer.read(atom) for atom in full.invars]
    test_consts, body_consts, start = _parts(operands, n_test, n_body)

    def results(carry: Sequence[Dependence]) -> tuple["Separation", list[Dependence]]:
        inner = outer.body(pair.bodies[1], [*body_consts, *carry])
        return inner, [inner.read(atom) for atom in inner.pair.full.outvars]

    inner, carry, _ = _settled(start, results, outer.setting.order)
    # The condition is asked on what the carry is in every turn, not only on its start.
    test = outer.body(pair.bodies[0], [*test_consts, *carry])
    (goes_on,) = (test.read(atom) for atom in test.pair.full.outvars)
    if not isinstance(goes_on, Known):
        raise Refusal("when it ends depends on all samples")
    run = jaxpr_as_fun(with_values(inner.close_body(carry, full)))
    check = jaxpr_as_fun(with_values(test.close_body([goes_on], full)))

    def loop(index: jax.Array, *values: Any) -> list[Any]:
        tested, fixed, first = _parts(values, n_test, n_body)
        return list(
            lax.while_loop(
                lambda carried: list(check(index, *tested, *carried))[0],
                lambda carried: tuple(run(index, *fixed, *carried)),
                tuple(first),
            )
        )

    _emit(outer, pair, loop, [*test_consts, *body_consts, *carry], carry)


def _cond(outer: "Separation", pair: EquationPair) -> None:
    choice, *operands = (outer.read(atom) for atom in pair.full.eqn.invars)
    if not isinstance(choice, Known):
        raise Refusal("which branch is taken depends on the samples")
    # A choice known only after the loop could not be made within it.
    if choice.n_loops:
        raise Refusal("which branch is taken depends on a sum or a mean over the whole batch")
    branches = [outer.body(body, operands) for body in pair.bodies]
    by_branch = [[b.read(atom) for atom in b.pair.full.outvars] for b in branches]
    either = partial(join, order=outer.setting.order)
    outs = [reduce(either, map(portable, ways)) for ways in zip(*by_branch)]
    bodies = tuple(with_values(branch.close_body(outs, pair.full.eqn)) for branch in branches)
    # All parameters stay: those of a choice by platform say which branch is lowered.
    same = partial(pair.full.eqn.primitive.bind, **{**pair.full.eqn.params, "branches": bodies})

    def choose(index: jax.Array, number: jax.Array, *values: Any) -> list[Any]:
        return list(same(number, index, *values))

    _emit(outer, pair, choose, [choice, *operands], outs)


def _remat(outer: "Separation", pair: EquationPair) -> None:
    full, micro = pair.full.eqn, pair.micro.eqn
    operands = [outer.read(atom) for atom in full.invars]
    inner = outer.body(pair.bodies[0], operands)
    outs = [inner.read(atom) for atom in inner.pair.full.outvars]
    params = {**micro.params, "jaxpr": inner.close_body(outs, full)}
    invars = [outer.index, *(outer.atom(atom) for atom in full.invars)]
    results = []
    for dependence, *both in zip(outs, full.outvars, micro.outvars, strict=True):
        # What all microbatches have alike keeps the shape of the whole batch's trace.
        var = both[0 if isinstance(dependence, Known) else 1]
        results.append(Var(var.aval))
    outer.loop.append(micro.replace(invars=invars, outvars=results, params=params))
    for var, dependence, made in zip(full.outvars, outs, results, strict=True):
        outer.set(var, portable(dependence), made)


CONTROL: Mapping[str, Callable[["Separation", EquationPair], None]] = {
    "checkpoint": _remat,
    "cond": _cond,
    "remat": _remat,
    "remat2": _remat,
    "scan": _scan,
    "while": _while,
}


def _emit(
    outer: "Separation",
    pair: EquationPair,
    function: Callable[..., list[Any]],
    wanted: Sequence[Dependence],
    outs: Sequence[Dependence],
) -> None:
    """Append what `function` does with the operands, made what is `wanted`; its results are
    `outs`.
    """
    full, micro = pair.full.eqn, pair.micro.eqn
    atoms = [
        outer.atom_as(a, b, dependence, full)
        for a, b, dependence in zip(full.invars, micro.invars, wanted, strict=True)
    ]
    made = emit(function, [outer.index, *atoms], outer.loop, full)
    for var, dependence, atom in zip(full.outvars, outs, made, strict=True):
        outer.set(var, portable(dependence), atom)


def _settled(
    start: Sequence[Dependence], results: _Results, order: int
) -> tuple["Separation", list[Dependence], list[Dependence]]:
    """(body, carry, results) of a loop, the carry being what it is before and after any trip."""
    carry = [portable(dependence) for dependence in start]
    # A dependence can only lose what is known of it: its elements, its dimension, being the same
    # for all samples.
    for _ in range(4 * len(carry) + 2):
        inner, results_after = results(carry)
        joined = [join(a, portable(b), order) for a, b in zip(carry, results_after)]
        if joined == carry:
            return inner, carry, results_after
        carry = joined
    raise Refusal("what it carries is different in every trip")


def _stacked(dependence: Dependence) -> Dependence:
    return (
        replace(dependence, dim=dependence.dim + 1)
        if isinstance(dependence, Batched)
        else dependence
    )


def _unstacked(dependence: Dependence) -> Dependence:
    if not isinstance(dependence, Batched):
        return dependence
    if dependence.dim == 0:
        raise Refusal("it is a loop over the samples")
    return replace(dependence, dim=dependence.dim - 1)


def _parts(
    values: Sequence[Any], first: int, second: int
) -> tuple[list[Any], list[Any], list[Any]]:
    both = first + second
    return list(values[:first]), list(values[first:both]), list(values[both:])
