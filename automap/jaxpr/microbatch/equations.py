"""How one equation is separated, by what its operands are.

    all Known                     once, with the whole batch's equation            -> in: `_known`
    some Batched                  in the loop, with the microbatch's equation, if its rule allows
                                                               -> in: `automap.jaxpr.microbatch.batched`
    some Partial, none Batched    of the step: once, after the loop                -> in: `Separation.finished`
                                  of an inner body: if it is linear, on each part  -> in: `_linear`

What is made of data alone (the batch, keys, constants) and is no larger than the batch may be Known instead:
sums of masks, shuffled samples                                                  -> in: `_or_whole`
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax import numpy as jnp
from jax.extend import core

from automap.jaxpr.microbatch.batched import batched
from automap.jaxpr.microbatch.build import elements, emit, fresh, renamed
from automap.jaxpr.microbatch.control import CONTROL
from automap.jaxpr.microbatch.facts import fact_of
from automap.jaxpr.microbatch.linear import check_linear
from automap.jaxpr.microbatch.pairs import Pair
from automap.jaxpr.microbatch.separation import Separation
from automap.jaxpr.microbatch.status import (
    Batched,
    Fact,
    Known,
    Partial,
    Refusal,
    Status,
    batch_dim,
    is_data,
)


def separate_equation(state: Separation, pair: Pair) -> None:
    """Add an equation to what is done once or to the loop. Raises `Refusal` if neither can be."""
    eqn = pair.full.eqn
    operands = [state.read(atom) for atom in eqn.invars]
    is_control = eqn.primitive.name in CONTROL
    some = lambda kind: any(isinstance(s, kind) for s in operands)  # noqa: E731
    if some(Batched) or (state.setting.depth == "body" and some(Partial)):
        if _has_no_order(state, pair, operands):
            _known(state, pair, [Known(0, source="data") for _ in operands])
        elif is_control:
            _or_whole(state, pair, operands, lambda: CONTROL[eqn.primitive.name](state, pair))
        elif state.setting.depth == "body" and some(Partial):
            _linear(state, pair, operands)
        else:
            operands = [
                state.finished(atom, eqn) if isinstance(status, Partial) else status
                for atom, status in zip(eqn.invars, operands)
            ]
            _or_whole(state, pair, operands, lambda: batched(state, pair, operands))
    elif state.setting.depth == "step" and _is_inside(state, operands):
        made = [fresh(var) for var in eqn.outvars]
        state.loop.append(renamed(eqn, [state.atom(a) for a in eqn.invars], made))
        state.term.update(zip(eqn.outvars, made))
        state.status.update((var, Known(made="inside")) for var in eqn.outvars)
    elif state.setting.depth == "step":
        finished = [
            status if isinstance(atom, core.Literal) else state.finished(atom, eqn)
            for atom, status in zip(eqn.invars, operands)
        ]
        _known(state, pair, finished)
    else:
        _known(state, pair, operands)


def _is_inside(state: Separation, operands: Sequence[Status]) -> bool:
    """Whether the loop computes an operand alike every time, and none needs a loop to be over."""
    early = all(isinstance(s, Known) and s.level == 0 for s in operands)
    return early and any(isinstance(s, Known) and s.made == "inside" for s in operands)


def _has_no_order(state: Separation, pair: Pair, operands: Sequence[Status]) -> bool:
    """Whether an equation combines constants that grow with the batch with copies of one value.

    Its result is known whole, and how it is to be cut is left to its users.
    """
    if state.setting.depth == "body" or not all(map(is_data, operands)):
        return False
    atoms = zip(pair.full.eqn.invars, pair.micro.eqn.invars, operands)
    grows = any(isinstance(s, Known) and a.aval.shape != b.aval.shape for a, b, s in atoms)
    return grows and all(s.outer is None for s in operands if isinstance(s, Batched))


def _or_whole(
    state: Separation, pair: Pair, operands: Sequence[Status], separate: Callable[[], None]
) -> None:
    """Separate an equation; what is made of data alone may be computed whole instead."""
    eqn = pair.full.eqn
    can_be_whole = all(map(is_data, operands)) and all(
        elements(var.aval) <= state.setting.limit for var in eqn.outvars
    )
    try:
        separate()
    except Refusal:
        if not can_be_whole:
            raise
        state.status.update((var, Known(source="data")) for var in eqn.outvars)
    if not can_be_whole:
        return
    state.known.append(eqn)
    for var in eqn.outvars:
        status = state.status[var]
        if isinstance(status, Batched):
            state.status[var] = replace(status, is_whole=True)
        else:
            state.status[var] = Known(source="data")
            state.term.pop(var, None)


def _known(state: Separation, pair: Pair, operands: Sequence[Status]) -> None:
    full, micro = pair.full.eqn, pair.micro.eqn
    level = max((status.level for status in operands), default=0)
    fact = fact_of(full, micro, operands)
    # In a body what is known may be the result of a loop there, which has a variable of its own.
    in_body = state.setting.depth == "body"
    inputs = [state.atom(atom) for atom in full.invars] if in_body else full.invars
    state.known.append(renamed(full, inputs, full.outvars))
    source = "data" if all(map(is_data, operands)) else "parameters"
    if len(full.outvars) > 1:
        fact = Fact.NONE
    for var in full.outvars:
        state.status[var] = Known(level, fact, source=source)
    if full.primitive.name == "broadcast_in_dim":
        _spread(state, full, micro, Known(level, fact, source=source))


def _spread(state: Separation, full: Any, micro: Any, status: Known) -> None:
    """One value for all samples: each microbatch makes its own copies."""
    (source, *_), (result,) = full.invars, full.outvars
    if source.aval.shape != micro.invars[0].aval.shape or len(full.invars) > 1:
        return
    try:
        shapes = result.aval.shape, micro.outvars[0].aval.shape
        dim = batch_dim(*shapes, state.setting.microbatches)
    except Refusal:
        return
    if dim is None or state.setting.depth == "body" and status.level:
        return
    if status.level and state.setting.late == "scale":
        if source.aval.shape:
            return
        aval = micro.outvars[0].aval
        (ones,) = emit(lambda: jnp.ones(aval.shape, aval.dtype), [], state.loop, full)
        state.term[result] = ones
        state.status[result] = Batched(dim, None, fact=Fact.ONE, scale=source)
        return
    state.loop.append(renamed(micro, [state.atom(source)], micro.outvars))
    state.status[result] = Batched(
        dim,
        None,
        status.level,
        status.fact,
        is_whole=is_data(status) and state.setting.depth == "step",
    )


def _linear(state: Separation, pair: Pair, operands: Sequence[Status]) -> None:
    """An equation of a body on sums that are not finished."""
    full, micro = pair.full.eqn, pair.micro.eqn
    parts = [status for status in operands if isinstance(status, Partial)]
    marks = [isinstance(status, Partial) for status in operands]
    known = [status.fact for status in operands if isinstance(status, Known)]
    if len(parts) + len(known) < len(operands) and not all(marks):
        raise Refusal("it combines a sum over the batch with single samples")
    zeros = [isinstance(s, Known) and s.fact is Fact.ZERO for s in operands]
    check_linear(full, marks, zeros)
    scale = parts[0].scale
    if any(p.op != "add" or p.scale is not scale for p in parts):
        raise Refusal("its operands are different kinds of sums over the batch")
    for atom, other in zip((*full.invars, *full.outvars), (*micro.invars, *micro.outvars)):
        if atom.aval.shape != other.aval.shape:
            raise Refusal("a sum over the batch is given back to the samples")
    state.loop.append(renamed(full, [state.atom(a) for a in full.invars], micro.outvars))
    level = max(status.level for status in operands)
    state.status.update((var, Partial("add", level, scale)) for var in full.outvars)
