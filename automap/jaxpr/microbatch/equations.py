"""How one equation is separated, by what its operands are.

    all Known                   once, with the whole batch's equation             -> in: `_once`
    some Batched                in the loop, with the microbatch's equation, if its rule allows
                                                                            -> in: `_in_loop`
    some Partial, none Batched  of the step: once, after the loop  -> in: `Separation.finish`
                                of an inner body: if it is linear, on each part -> in: `_linear`

What is made of data alone (the batch, keys, constants) and is no larger than the batch may be Known
instead: sums of masks, shuffled samples                                  -> in: `_or_whole`

In the loop, known operands that grow with the batch (dropout masks, constants) are cut where a
microbatch needs them. A scalar s that is known only after the loop stays out of it, as long as that
changes nothing:

    x s, x / s       x, of scale s or 1 / s                     -> in: `_is_late_factor`, `_scale`
    f(s x)           f(x), of scale s, if f is linear           -> in: `_scale`
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import jax
from jax import numpy as jnp
from jax.extend import core
import numpy as np

from automap.jaxpr.microbatch.build import (
    element_count,
    emit,
    local_indices,
    new_variable,
    with_atoms,
)
from automap.jaxpr.microbatch.control import CONTROL
from automap.jaxpr.microbatch.dependence import (
    Batched,
    Dependence,
    Known,
    KnownElements,
    Partial,
    Refusal,
    batch_dim,
    is_data,
)
from automap.jaxpr.microbatch.elements import (
    PRODUCTS,
    check_linear,
    index_columns,
    result_elements,
)
from automap.jaxpr.microbatch.rules import Operation, RuleResult, apply_rule
from automap.jaxpr.microbatch.separation import Separation
from automap.jaxpr.microbatch.traces import EquationPair


_INSTEAD: Final = (
    ", whose own sums would make another step of it. Batch norm is such a step: normalize each "
    "sample by itself (layer or group norm) or by running statistics, or plan without pipelines "
    "and accumulation"
)


def separate_equation(state: Separation, pair: EquationPair) -> None:
    """Add an equation to what is done once or to the loop. Raises `Refusal` if neither can be."""
    eqn = pair.full.eqn
    operands = [state.read(atom) for atom in eqn.invars]
    is_control = eqn.primitive.name in CONTROL
    some = lambda kind: any(isinstance(s, kind) for s in operands)  # noqa: E731
    if some(Batched) or (state.setting.depth == "body" and some(Partial)):
        # Data that does not depend on parameters is cheap enough to be made once for all samples.
        if _has_no_order(state, pair, operands):
            _once(state, pair, [Known(0, source="data") for _ in operands])
        elif is_control:
            _or_whole(state, pair, operands, lambda: CONTROL[eqn.primitive.name](state, pair))
        elif state.setting.depth == "body" and some(Partial):
            _linear(state, pair, operands)
        else:
            operands = [
                state.finish(atom, eqn) if isinstance(dependence, Partial) else dependence
                for atom, dependence in zip(eqn.invars, operands)
            ]
            _or_whole(state, pair, operands, lambda: _in_loop(state, pair, operands))
    elif state.setting.depth == "step" and _is_inside(state, operands):
        # It stays in the loop though it is the same in every turn: its operand is there only.
        made = [new_variable(var) for var in eqn.outvars]
        state.loop.append(with_atoms(eqn, [state.atom(a) for a in eqn.invars], made))
        state.term.update(zip(eqn.outvars, made))
        state.dependence.update((var, Known(made="inside")) for var in eqn.outvars)
    elif state.setting.depth == "step":
        finish = [
            dependence if isinstance(atom, core.Literal) else state.finish(atom, eqn)
            for atom, dependence in zip(eqn.invars, operands)
        ]
        _once(state, pair, finish)
    else:
        _once(state, pair, operands)


def _is_inside(state: Separation, operands: Sequence[Dependence]) -> bool:
    """Whether the loop computes an operand alike every time, and none needs a loop to be over."""
    early = all(isinstance(s, Known) and s.n_loops == 0 for s in operands)
    return early and any(isinstance(s, Known) and s.made == "inside" for s in operands)


def _has_no_order(state: Separation, pair: EquationPair, operands: Sequence[Dependence]) -> bool:
    """Whether an equation combines constants that grow with the batch with copies of one value.

    Its result is known whole, and how it is to be cut is left to its users.
    """
    if state.setting.depth == "body" or not all(map(is_data, operands)):
        return False
    atoms = zip(pair.full.eqn.invars, pair.micro.eqn.invars, operands)
    grows = any(isinstance(s, Known) and a.aval.shape != b.aval.shape for a, b, s in atoms)
    return grows and all(s.outer is None for s in operands if isinstance(s, Batched))


def _or_whole(
    state: Separation,
    pair: EquationPair,
    operands: Sequence[Dependence],
    separate: Callable[[], None],
) -> None:
    """Separate an equation; what is made of data alone may be computed whole instead."""
    eqn = pair.full.eqn
    can_be_whole = all(map(is_data, operands)) and all(
        element_count(var.aval) <= state.setting.limit for var in eqn.outvars
    )
    try:
        separate()
    except Refusal:
        if not can_be_whole:
            raise
        state.dependence.update((var, Known(source="data")) for var in eqn.outvars)
    # Both ways are kept, and the program drops the one that nobody uses.
    if not can_be_whole:
        return
    state.known.append(eqn)
    for var in eqn.outvars:
        dependence = state.dependence[var]
        if isinstance(dependence, Batched):
            state.dependence[var] = replace(dependence, is_whole=True)
        else:
            state.dependence[var] = Known(source="data")
            state.term.pop(var, None)


def _once(state: Separation, pair: EquationPair, operands: Sequence[Dependence]) -> None:
    full, micro = pair.full.eqn, pair.micro.eqn
    n_loops = max((dependence.n_loops for dependence in operands), default=0)
    elements = result_elements(full, micro, operands)
    # In a body what is known may be the result of a loop there, which has a variable of its own.
    in_body = state.setting.depth == "body"
    inputs = [state.atom(atom) for atom in full.invars] if in_body else full.invars
    state.known.append(with_atoms(full, inputs, full.outvars))
    source = "data" if all(map(is_data, operands)) else "parameters"
    if len(full.outvars) > 1:
        elements = KnownElements.NONE
    for var in full.outvars:
        state.dependence[var] = Known(n_loops, elements, source=source)
    if full.primitive.name == "broadcast_in_dim":
        _spread(state, full, micro, Known(n_loops, elements, source=source))


def _spread(state: Separation, full: Any, micro: Any, dependence: Known) -> None:
    """One value for all samples: each microbatch makes its own copies."""
    (source, *_), (result,) = full.invars, full.outvars
    # Only copies of one value: a source that grows with the batch is cut like any other.
    if source.aval.shape != micro.invars[0].aval.shape or len(full.invars) > 1:
        return
    try:
        shapes = result.aval.shape, micro.outvars[0].aval.shape
        dim = batch_dim(*shapes, state.setting.microbatches)
    except Refusal:
        return
    if dim is None or state.setting.depth == "body" and dependence.n_loops:
        return
    if dependence.n_loops and state.setting.late == "scale":
        if source.aval.shape:
            return
        aval = micro.outvars[0].aval
        # A scalar known after the loop: ones stand for it, and it becomes their scale.
        (ones,) = emit(lambda: jnp.ones(aval.shape, aval.dtype), [], state.loop, full)
        state.term[result] = ones
        state.dependence[result] = Batched(dim, None, elements=KnownElements.ONE, scale=source)
        return
    state.loop.append(with_atoms(micro, [state.atom(source)], micro.outvars))
    state.dependence[result] = Batched(
        dim,
        None,
        dependence.n_loops,
        dependence.elements,
        is_whole=is_data(dependence) and state.setting.depth == "step",
    )


def _linear(state: Separation, pair: EquationPair, operands: Sequence[Dependence]) -> None:
    """An equation of a body on sums that are not finished."""
    full, micro = pair.full.eqn, pair.micro.eqn
    parts = [dependence for dependence in operands if isinstance(dependence, Partial)]
    marks = [isinstance(dependence, Partial) for dependence in operands]
    known = [dependence.elements for dependence in operands if isinstance(dependence, Known)]
    if len(parts) + len(known) < len(operands) and not all(marks):
        raise Refusal("it combines a sum over the batch with single samples")
    zeros = [isinstance(s, Known) and s.elements is KnownElements.ZERO for s in operands]
    check_linear(full, marks, zeros)
    scale = parts[0].scale
    if any(p.op != "add" or p.scale is not scale for p in parts):
        raise Refusal("its operands are different kinds of sums over the batch")
    for atom, other in zip((*full.invars, *full.outvars), (*micro.invars, *micro.outvars)):
        if atom.aval.shape != other.aval.shape:
            raise Refusal("a sum over the batch is given back to the samples")
    state.loop.append(with_atoms(full, [state.atom(a) for a in full.invars], micro.outvars))
    n_loops = max(dependence.n_loops for dependence in operands)
    state.dependence.update((var, Partial("add", n_loops, scale)) for var in full.outvars)


def _in_loop(state: Separation, pair: EquationPair, operands: Sequence[Dependence]) -> None:
    """Add an equation with operands that hold samples to the loop. Raises `Refusal` if it mixes
    them.
    """
    full, micro = pair.full.eqn, pair.micro.eqn
    if full.effects:
        raise Refusal("its side effect would be one per microbatch")
    atoms, operands_there, scales = _operands_in_microbatch(state, full, micro, operands)
    n_loops = max(dependence.n_loops for dependence in operands_there)
    # In a forward pass a late value means that the samples depend on each other, as in batch norm.
    if n_loops and (state.setting.late == "scale" or state.phase == "forward" or n_loops > 1):
        made = state.nearest_sum(full)
        of = f", that of {made}" if made else ""
        raise Refusal(
            f"a sample's result depends on a sum or a mean over the whole batch{of}", _INSTEAD
        )
    setting = state.setting
    operation = Operation(full, micro, tuple(operands_there), setting.microbatches, setting.order)
    rule_result = apply_rule(operation)
    scale = _scale(state, full, operands_there, scales)
    if rule_result.local_columns:
        index = operands_there[1]
        assert isinstance(index, Batched)  # noqa: S101 - or no column would hold positions
        own = partial(local_indices, dim=index.dim, columns=rule_result.local_columns)
        (atoms[1],) = emit(own, [atoms[1]], state.loop, full)
    state.loop.append(with_atoms(micro, atoms, micro.outvars))
    elements = result_elements(full, micro, operands_there)
    _settle(state, full, rule_result, n_loops, scale, elements, index_columns(full, operands_there))


def _operands_in_microbatch(
    state: Separation, full: Any, micro: Any, operands: Sequence[Dependence]
) -> tuple[list[Any], list[Dependence], list[Any]]:
    """Atoms, statuses and scales of the operands as a microbatch has them."""
    # All operands of one equation have to hold the samples in one order.
    outer = _outer(state, operands)
    atoms, operands_there, scales = [], [], []
    for number, (atom, other, dependence) in enumerate(zip(full.invars, micro.invars, operands)):
        scale = dependence.scale if isinstance(dependence, Batched) else None
        if (
            isinstance(dependence, Batched)
            and dependence.is_whole
            and dependence.outer not in (None, outer)
        ):
            # Cut anew, in the order in which the others hold the samples.
            made, dependence = state.slice_known(
                atom, other, Known(0, dependence.elements), outer, full, whole=atom
            )
        elif not isinstance(dependence, Known):
            made = state.atom(atom)
        elif _is_late_factor(state, full, number, dependence):
            scale, dependence = atom, Known(0, KnownElements.ONE)
            made = core.Literal(np.ones((), atom.aval.dtype), atom.aval)
        else:
            made, dependence = state.slice_known(atom, other, dependence, outer, full)
        atoms.append(made)
        operands_there.append(dependence)
        scales.append(scale)
    return atoms, operands_there, scales


def _outer(state: Separation, operands: Sequence[Dependence]) -> int | None:
    """How an equation's operands hold the samples; those computed whole can be cut to fit."""
    operands_there = [s for s in operands if isinstance(s, Batched) and s.outer is not None]
    operands_there.sort(key=lambda s: s.is_whole)
    return operands_there[0].outer if operands_there else None


def _settle(
    state: Separation,
    full: Any,
    rule_result: RuleResult,
    n_loops: int,
    scale: Any,
    elements: KnownElements,
    columns: frozenset[int],
) -> None:
    for var, result in zip(full.outvars, rule_result.results, strict=True):
        if isinstance(result, Batched):
            elements = elements if len(full.outvars) == 1 else KnownElements.NONE
            result = replace(result, elements=elements, columns=columns)
        # A largest or smallest element would have to know its scale now, as it may be negative.
        elif scale is not None and result.op != "add":
            raise Refusal("a factor known only after the batch decides which sample is largest")
        state.dependence[var] = replace(result, n_loops=n_loops, scale=scale)


def _is_late_factor(state: Separation, eqn: Any, number: int, dependence: Known) -> bool:
    name = eqn.primitive.name
    is_inexact = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    is_factor = name == "mul" or (name == "div" and number == 1 and is_inexact)
    is_scalar = eqn.invars[number].aval.shape == ()
    is_late = dependence.n_loops > 0 and state.setting.late == "scale"
    return is_factor and is_scalar and is_late and state.setting.depth == "step"


def _scale(
    state: Separation, eqn: Any, operands_there: Sequence[Dependence], scales: list[Any]
) -> Any:
    """The scale of the results of operands with scales, None for none. Raises `Refusal`."""
    present = [scale for scale in scales if scale is not None]
    if not present:
        return None
    name = eqn.primitive.name
    ones = [
        getattr(dependence, "elements", None) is KnownElements.ONE for dependence in operands_there
    ]
    at_step = state.setting.depth == "step"
    is_inexact = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    # x / (s 1) is x of scale 1 / s: how the mean of a weighted loss is differentiated.
    if name == "div" and scales[1] is not None and ones[1] and at_step and is_inexact:
        over = lambda a, b: a / b.astype(a.dtype)  # noqa: E731
        return _late(state, over, [scales[0] or _one(eqn.outvars[0].aval.dtype), scales[1]], eqn)
    # Both factors have scales, so their product has the product of the scales.
    if name in PRODUCTS and len(present) == 2 and at_step:
        return _late(state, lambda a, b: a * b, present, eqn)
    zeros = [
        getattr(dependence, "elements", None) is KnownElements.ZERO for dependence in operands_there
    ]
    check_linear(eqn, [scale is not None for scale in scales], zeros)
    # The same scale means the same variable: equal values of two variables are not seen as equal.
    if any(scale is not present[0] for scale in present):
        raise Refusal("its operands are multiplied by different sums over the whole batch")
    return present[0]


def _late(
    state: Separation, function: Callable[..., Any], atoms: Sequence[Any], origin: Any
) -> Any:
    (var,) = emit(function, atoms, state.known, origin)
    state.dependence[var] = Known(max(state.read(atom).n_loops for atom in atoms))
    return var


def _one(dtype: Any) -> Any:
    one = np.ones((), dtype)
    return core.Literal(one, jax.typeof(one))
