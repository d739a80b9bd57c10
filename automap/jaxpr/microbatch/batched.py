"""An equation in the loop: its operands as one microbatch has them, and what its results are.

Known operands that grow with the batch (dropout masks, constants) are cut where a microbatch needs
them. A scalar s that is known only after the loop stays out of it, as long as that changes nothing:

    x s, x / s           x, of scale s or 1 / s                           -> in: `_is_late_factor`, `_scale`
    f(s x)               f(x), of scale s, if f is linear                  -> in: `_scale`
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend import core
import numpy as np

from automap.jaxpr.microbatch.build import emit, local, renamed
from automap.jaxpr.microbatch.facts import columns_of, fact_of
from automap.jaxpr.microbatch.linear import PRODUCTS, check_linear
from automap.jaxpr.microbatch.pairs import Pair
from automap.jaxpr.microbatch.rules import outcome_of
from automap.jaxpr.microbatch.rules.rule import Operation, Outcome
from automap.jaxpr.microbatch.separation import Separation
from automap.jaxpr.microbatch.status import Batched, Fact, Known, Refusal, Status


def batched(state: Separation, pair: Pair, operands: Sequence[Status]) -> None:
    """Add an equation with operands that hold samples to the loop. Raises `Refusal` if it mixes
    them.
    """
    full, micro = pair.full.eqn, pair.micro.eqn
    if full.effects:
        raise Refusal("its side effect would be one per microbatch")
    atoms, found, scales = _in_microbatch(state, full, micro, operands)
    level = max(status.level for status in found)
    if level and (state.setting.late == "scale" or state.phase == "forward" or level > 1):
        raise Refusal("a sample's result depends on a sum or a mean over the whole batch")
    operation = Operation(full, micro, tuple(found), state.setting.microbatches)
    outcome = outcome_of(operation)
    scale = _scale(state, full, found, scales)
    if outcome.local_columns:
        size = operation.shape(0)[found[0].dim if isinstance(found[0], Batched) else 0]
        shift = partial(local, columns=sorted(outcome.local_columns), size=size)
        (atoms[1],) = emit(shift, [atoms[1], state.index], state.loop, full)
    state.loop.append(renamed(micro, atoms, micro.outvars))
    fact = fact_of(full, micro, found)
    _settle(state, full, outcome, level, scale, fact, columns_of(full, found))


def _in_microbatch(
    state: Separation, full: Any, micro: Any, operands: Sequence[Status]
) -> tuple[list[Any], list[Status], list[Any]]:
    """Atoms, statuses and scales of the operands as a microbatch has them."""
    outer = _outer(state, operands)
    atoms, found, scales = [], [], []
    for number, (atom, other, status) in enumerate(zip(full.invars, micro.invars, operands)):
        scale = status.scale if isinstance(status, Batched) else None
        if isinstance(status, Batched) and status.is_whole and status.outer not in (None, outer):
            # Cut anew, in the order in which the others hold the samples.
            made, status = state.sliced(atom, other, Known(0, status.fact), outer, full, whole=atom)
        elif not isinstance(status, Known):
            made = state.atom(atom)
        elif _is_late_factor(state, full, number, status):
            scale, status = atom, Known(0, Fact.ONE)
            made = core.Literal(np.ones((), atom.aval.dtype), atom.aval)
        else:
            made, status = state.sliced(atom, other, status, outer, full)
        atoms.append(made)
        found.append(status)
        scales.append(scale)
    return atoms, found, scales


def _outer(state: Separation, operands: Sequence[Status]) -> int | None:
    """How an equation's operands hold the samples; those computed whole can be cut to fit."""
    found = [s for s in operands if isinstance(s, Batched) and s.outer is not None]
    found.sort(key=lambda s: s.is_whole)
    return found[0].outer if found else None


def _settle(
    state: Separation,
    full: Any,
    outcome: Outcome,
    level: int,
    scale: Any,
    fact: Fact,
    columns: frozenset[int],
) -> None:
    for var, result in zip(full.outvars, outcome.results, strict=True):
        if isinstance(result, Batched):
            fact = fact if len(full.outvars) == 1 else Fact.NONE
            result = replace(result, fact=fact, columns=columns)
        elif scale is not None and result.op != "add":
            raise Refusal("a factor known only after the batch decides which sample is largest")
        state.status[var] = replace(result, level=level, scale=scale)


def _is_late_factor(state: Separation, eqn: Any, number: int, status: Known) -> bool:
    name = eqn.primitive.name
    is_inexact = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    is_factor = name == "mul" or (name == "div" and number == 1 and is_inexact)
    is_scalar = eqn.invars[number].aval.shape == ()
    is_late = status.level > 0 and state.setting.late == "scale"
    return is_factor and is_scalar and is_late and state.setting.depth == "step"


def _scale(state: Separation, eqn: Any, found: Sequence[Status], scales: list[Any]) -> Any:
    """The scale of the results of operands with scales, None for none. Raises `Refusal`."""
    kept = [scale for scale in scales if scale is not None]
    if not kept:
        return None
    name = eqn.primitive.name
    ones = [getattr(status, "fact", None) is Fact.ONE for status in found]
    at_step = state.setting.depth == "step"
    is_inexact = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact)
    if name == "div" and scales[1] is not None and ones[1] and at_step and is_inexact:
        over = lambda a, b: a / b.astype(a.dtype)  # noqa: E731
        return _late(state, over, [scales[0] or _one(eqn.outvars[0].aval.dtype), scales[1]], eqn)
    if name in PRODUCTS and len(kept) == 2 and at_step:
        return _late(state, lambda a, b: a * b, kept, eqn)
    zeros = [getattr(status, "fact", None) is Fact.ZERO for status in found]
    check_linear(eqn, [scale is not None for scale in scales], zeros)
    if any(scale is not kept[0] for scale in kept):
        raise Refusal("its operands are multiplied by different sums over the whole batch")
    return kept[0]


def _late(
    state: Separation, function: Callable[..., Any], atoms: Sequence[Any], origin: Any
) -> Any:
    (var,) = emit(function, atoms, state.known, origin)
    state.status[var] = Known(max(state.read(atom).level for atom in atoms))
    return var


def _one(dtype: Any) -> Any:
    one = np.ones((), dtype)
    return core.Literal(one, jax.typeof(one))
